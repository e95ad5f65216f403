"""Starts several workers of a recipe on this machine.

    python recipes/launch.py 2 -- train.py highway_mlp_digits_50

Every worker gets a TF_CONFIG with its own port on the loopback interface, and its share
of the CPU cores. The terminal shows the chief; all outputs are kept in runs/launch/.
When one worker fails, the others are ended; Ctrl-C and SIGTERM reach all of them, and
the same command goes on. For clusters see recipes/README.md.
"""

import argparse
import contextlib
import json
import os
import pathlib
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent


def free_addresses(count: int) -> list[str]:
    """Addresses on the loopback interface where nobody listens."""
    with contextlib.ExitStack() as stack:  # all open at once, so that they differ
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]


def cores_of(index: int, count: int, each: int | None = None) -> set[int]:
    """CPU cores of a worker: its part of them, or all where there are too few."""
    cores = sorted(os.sched_getaffinity(0))
    each = each or len(cores) // count
    return set(cores[index * each : (index + 1) * each] or cores)


class Workers:
    """Worker processes of one command, from `start` to the end of the context.

    Args:
        command: what each runs, from the directory of the caller.
        count: how many.
        logs: directory for worker-0.log, …, to which outputs are appended.
        cores: of each worker; None shares out all there are.
        first: how many workers' cores to leave to others.
        quiet: shows nothing of the chief.
        grace: seconds that workers have to end, before they are killed.
    """

    def __init__(
        self, command, count, logs, cores=None, first=0, quiet=False, grace=20.0
    ):
        self.command, self.count, self.cores = command, count, cores
        self.first, self.quiet, self.grace = first, quiet, grace
        self.logs = [pathlib.Path(logs) / f"worker-{i}.log" for i in range(count)]
        self.processes, self.readers = [], []
        self.started, self.signalled = False, None

    def __enter__(self):
        self.logs[0].parent.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as ended:
            ended.push(self)  # those that run already, if another cannot start
            self._start()
            ended.pop_all()
        self.started = True
        if self.signalled is not None:
            self.send(self.signalled)
        return self

    def _start(self):
        addresses = free_addresses(self.count)
        for index, log in enumerate(self.logs):
            task = {"type": "worker", "index": index}
            config = {"cluster": {"worker": addresses}, "task": task}
            process = subprocess.Popen(
                self.command,
                env={**os.environ, "TF_CONFIG": json.dumps(config)},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C comes from here, once
            )
            self.processes.append(process)
            # before it has threads, which inherit this
            cores = cores_of(self.first + index, self.count, self.cores)
            os.sched_setaffinity(process.pid, cores)
            reader = threading.Thread(target=self._read, args=(index, process, log))
            reader.start()
            self.readers.append(reader)

    def __exit__(self, *exception):
        self._signal(signal.SIGTERM)
        deadline = time.monotonic() + self.grace
        for process in self.processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
            process.kill()
            process.wait()
        for reader in self.readers:
            reader.join()
        for process in self.processes:
            process.stdout.close()  # one without a reader

    def wait(self) -> int:
        """The exit code of the first that fails, 0 where all end well."""
        while True:
            codes = [process.poll() for process in self.processes]
            failed = [(i, code) for i, code in enumerate(codes) if code]
            if failed:
                index, code = failed[0]
                if self.signalled is None:
                    how = f"signal {-code}" if code < 0 else f"exit code {code}"
                    print(
                        f"Worker {index} ended with {how}; the others are ended too. "
                        f"Its output: {self.logs[index]}",
                        file=sys.stderr,
                    )
                return 128 - code if code < 0 else code
            if None not in codes:
                return 0
            time.sleep(0.1)

    def send(self, number, frame=None):
        """Passes a signal on to those that still run, as soon as all do."""
        self.signalled = number
        if self.started:
            self._signal(number)

    def _signal(self, number):
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(number)

    def _read(self, index, process, log):
        with process.stdout, open(log, "ab") as file:
            for line in process.stdout:
                file.write(line)
                file.flush()
                if index == 0 and not self.quiet:
                    sys.stdout.write(line.decode(errors="replace"))
                    sys.stdout.flush()


def parse(argv):
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        usage="launch.py N [--logs DIR] -- train.py NAME …",
    )
    parser.add_argument("count", type=int, metavar="N", help="workers")
    parser.add_argument("--logs", type=pathlib.Path, default="runs/launch")
    parser.add_argument("command", nargs="+", help="a recipe and its arguments")
    return parser.parse_args(argv)


def main(argv=None) -> int:
    args = parse(argv)
    script = next(
        (
            p
            for p in (pathlib.Path(args.command[0]), HERE / args.command[0])
            if p.is_file()
        ),
        None,
    )
    if args.count < 1:
        print(f"error: N must be at least 1. Received: N={args.count}", file=sys.stderr)
        return 2
    if script is None:
        print(
            "error: the command must begin with a recipe, such as train.py. Received: "
            f"{shlex.join(args.command)}",
            file=sys.stderr,
        )
        return 2
    command = [sys.executable, str(script), *args.command[1:]]
    workers = Workers(command, args.count, args.logs)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, workers.send)
    with workers:
        return workers.wait()


if __name__ == "__main__":
    sys.exit(main())
