import keras
import numpy as np
import pytest
from helpers import close

import zoo
from zoo.layers import PreActResidual

torch = pytest.importorskip("torch")


class Highway(torch.nn.Module):
    """The highway layer as PyTorch users write it."""

    def __init__(self, units):
        super().__init__()
        self.transform = torch.nn.Linear(units, units, dtype=torch.float64)
        self.gate = torch.nn.Linear(units, units, dtype=torch.float64)

    def forward(self, x):
        t = torch.sigmoid(self.gate(x))
        return t * torch.relu(self.transform(x)) + (1 - t) * x


def copied(model, transpose=True):
    """The net of torch layers with the weights of a highway_mlp."""
    stem = torch.nn.Linear(6, 8, dtype=torch.float64)
    highways = [Highway(8) for _ in range(9)]
    logits = torch.nn.Linear(8, 3, dtype=torch.float64)
    linears = [stem]
    for highway in highways:
        linears += [highway.transform, highway.gate]
    linears.append(logits)
    weights = model.get_weights()
    for linear, kernel, bias in zip(linears, weights[::2], weights[1::2], strict=True):
        square = kernel.shape[0] == kernel.shape[1]
        kernel = kernel.T if transpose or not square else kernel
        with torch.no_grad():
            linear.weight.copy_(torch.from_numpy(kernel.copy()))
            linear.bias.copy_(torch.from_numpy(bias))
    return torch.nn.Sequential(stem, torch.nn.ReLU(), *highways, logits)


def test_torch_stack_gives_equal_logits(policy):
    policy("float64")
    arguments = {"num_classes": 3, "depth": 10, "units": 8, "gate_bias": -1}
    model = zoo.highway_mlp(6, **arguments, scan=False)
    x = np.random.default_rng(1).normal(size=(16, 6)).astype("float32")
    # The logits are float32 whatever the policy: once more in float64.
    body = keras.Model(model.input, model.layers[-2].output)
    kernel, bias = (w.numpy().astype("float64") for w in model.layers[-1].weights)
    mine = body(x) @ kernel + bias
    x = x.astype("float64")
    theirs = copied(model)(torch.from_numpy(x)).detach().numpy()
    assert close(mine, theirs, 1e-12)
    assert close(model(x), theirs, 1e-5)
    wrong = copied(model, transpose=False)(torch.from_numpy(x)).detach().numpy()
    assert not close(mine, wrong, 1e-3)


@pytest.mark.parametrize("size", [(8, 8), (7, 9), (33, 50)])
def test_strided_convolution_is_centred_as_in_torch(size):
    unit = PreActResidual(4, strides=2)
    x = np.random.default_rng(1).normal(size=(2, *size, 3)).astype("float32")
    y = unit(x)

    def convolve(a, conv, padding):
        kernel = torch.from_numpy(conv.kernel.numpy().transpose(3, 2, 0, 1).copy())
        return torch.nn.functional.conv2d(a, kernel, None, conv.strides, padding)

    def activate(a):  # BN at its initial statistics
        return torch.relu(a / np.sqrt(1 + 1e-5))

    with torch.no_grad():
        a = activate(torch.from_numpy(x.transpose(0, 3, 1, 2).copy()))
        residual = convolve(activate(convolve(a, unit.convs[0], 1)), unit.convs[1], 1)
        theirs = convolve(a, unit.projection, 0) + residual
    assert close(y, theirs.numpy().transpose(0, 2, 3, 1), 1e-5)
