"""The same two nets in other frameworks, for recipes/benchmark.py.

Each module writes them in its framework's usual style and offers
`start(net, arrays, batch) -> run`, where `run(steps)` trains that many steps of SGD
with momentum on the given batch and returns the loss of the first of them.

`net` is {"kind": "mlp" or "resnet", "depth": …}; `arrays` are the initial weights that
recipes/peers/zoo_keras.py writes; `batch` is (images, labels) as the zoo's model takes
them.
"""

RATE, MOMENTUM = 0.01, 0.9
WIDTH, GATE_BIAS = 50, -4.0
