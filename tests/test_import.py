import json
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

import zoo
from zoo.layers import (
    Highway,
    HighwayConv,
    HighwayDense,
    PreActResidual,
    ScanLayers,
)
from zoo.layers.batch_norm import BatchNorm
from zoo.models._builder import Net

SLOW_TO_IMPORT = ("tensorflow_datasets", "keras_tuner", "sklearn", "matplotlib")


def fresh_python(code, *arguments):
    """What `code` prints as JSON in a new process."""
    command = [sys.executable, "-W", "ignore", "-c", code, *map(str, arguments)]
    root = Path(zoo.__file__).parents[1]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_import_is_light():
    """`import zoo` takes less than 1.5 × the processor time of `import keras`, and
    brings none of the packages that few calls need (Keras itself brings some)."""
    code = (
        "import json, sys, time\n"
        "times = [time.process_time()]\n"
        "import keras\n"
        "times.append(time.process_time())\n"
        "before = set(sys.modules)\n"
        "import zoo\n"
        "times.append(time.process_time())\n"
        "print(json.dumps([times, sorted(set(sys.modules) - before)]))"
    )
    ratios = []
    for _ in range(3):  # more than once only on a busy machine
        (start, middle, end), modules = fresh_python(code)
        assert "zoo.layers" in modules
        assert not set(SLOW_TO_IMPORT) & set(modules)
        ratios.append((end - start) / (middle - start))
        if np.median(ratios) < 1.5:
            break
    assert np.median(ratios) < 1.5


def test_loads_in_a_fresh_process_without_custom_objects(tmp_path):
    x = inputs = keras.Input((6, 6, 3))
    x = PreActResidual(4, strides=2, name="residual")(x)
    x = HighwayConv(name="conv")(x)
    x = HighwayDense(gate_bias=-3, name="dense")(x)
    x = Highway(keras.layers.Dense(4), name="highway")(x)
    x = ScanLayers(HighwayDense(), 3)(x)
    model = keras.Model(inputs, x)
    model.save(tmp_path / "model.keras")
    code = (
        "import json, sys\n"
        "import keras, numpy as np, zoo\n"
        "model = keras.models.load_model(sys.argv[1])\n"
        "x = np.linspace(0, 1, 108, dtype='float32').reshape(1, 6, 6, 3)\n"
        "print(json.dumps(np.array(model(x)).tolist()))"
    )
    y = fresh_python(code, tmp_path / "model.keras")
    x = np.linspace(0, 1, 108, dtype="float32").reshape(1, 6, 6, 3)
    assert np.abs(np.array(y) - model(x)).max() < 1e-6


def test_registered_names():
    """Files in use hold these names: they stay."""
    kinds = {getattr(zoo.layers, name) for name in zoo.layers.__all__}
    kinds |= {BatchNorm, Net, zoo.training.SGD}
    kinds |= {zoo.training.CosineRestarts, zoo.training.StepSchedule}
    assert {keras.saving.get_registered_name(kind) for kind in kinds} == {
        "zoo>BatchNorm",
        "zoo>CharacterConv",
        "zoo>CharacterTokenizer",
        "zoo>ContrastNormalization",
        "zoo>CosineRestarts",
        "zoo>Dropout",
        "zoo>Highway",
        "zoo>HighwayConv",
        "zoo>HighwayDense",
        "zoo>MaxoutConv",
        "zoo>MaxoutDense",
        "zoo>MeanImage",
        "zoo>MeanOfWords",
        "zoo>Net",
        "zoo>PadCropFlip",
        "zoo>PreActResidual",
        "zoo>Residual",
        "zoo>SGD",
        "zoo>ScanLayers",
        "zoo>StepSchedule",
        "zoo>ZCAWhitening",
    }


def test_public_names():
    assert dir(zoo) == sorted(zoo.__all__)
    builders = (
        "highway_cnn",
        "highway_mlp",
        "plain_cnn",
        "plain_mlp",
        "preact_resnet",
        "resnet",
    )
    assert all(getattr(zoo, name) is getattr(zoo.models, name) for name in builders)
    with pytest.raises(AttributeError, match="no attribute 'lstm'"):
        _ = zoo.lstm
