"""PyTorch, the usual way: one nn.Module a layer, in a ModuleList."""

import torch
from torch import nn
from torch.nn import functional as F

from recipes.peers import MOMENTUM, RATE, WIDTH


class Highway(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.transform = nn.Linear(width, width)
        self.gate = nn.Linear(width, width)

    def forward(self, x):
        gate = torch.sigmoid(self.gate(x))
        return x + gate * (F.relu(self.transform(x)) - x)


class HighwayMLP(nn.Module):
    def __init__(self, depth):
        super().__init__()
        self.stem = nn.Linear(784, WIDTH)
        self.layers = nn.ModuleList(Highway(WIDTH) for _ in range(depth - 1))
        self.logits = nn.Linear(WIDTH, 10)

    def forward(self, x):
        x = F.relu(self.stem(x))
        for layer in self.layers:
            x = layer(x)
        return self.logits(x)

    def load(self, arrays):
        pairs = {"stem": self.stem, "logits": self.logits}
        names = sorted({k.split("/")[0] for k in arrays if k.startswith("highway")})
        for name, layer in zip(names, self.layers, strict=True):
            pairs[f"{name}/transform"] = layer.transform
            pairs[f"{name}/gate"] = layer.gate
        for name, linear in pairs.items():
            _set(linear.weight, arrays[f"{name}/kernel"].T)
            _set(linear.bias, arrays[f"{name}/bias"])


class Unit(nn.Module):
    """Pre-activation unit: two 3×3 convolutions, or a bottleneck."""

    def __init__(self, channels, filters, stride, bottleneck, first):
        super().__init__()
        out = 4 * filters if bottleneck else filters
        plan = [(3, filters, stride), (3, filters, 1)]
        if bottleneck:
            plan = [(1, filters, 1), (3, filters, stride), (1, out, 1)]
        self.norms, self.convs = nn.ModuleList(), nn.ModuleList()
        width = channels
        for size, new, step in plan:
            self.norms.append(nn.BatchNorm2d(width))
            self.convs.append(nn.Conv2d(width, new, size, step, size // 2, bias=False))
            width = new
        self.first, self.projection = first, None
        if stride != 1 or channels != out:
            self.projection = nn.Conv2d(channels, out, 1, stride, bias=False)

    def forward(self, x):
        y = x
        for i, (norm, conv) in enumerate(zip(self.norms, self.convs, strict=True)):
            y = F.relu(norm(y), inplace=True)
            if i == 0 and (self.first or self.projection is not None):
                x = y
            y = conv(y)
        return y + (x if self.projection is None else self.projection(x))


class PreActResNet(nn.Module):
    def __init__(self, depth):
        super().__init__()
        bottleneck = depth in (164, 1001)
        count = (depth - 2) // (9 if bottleneck else 6)
        self.stem = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.units, channels = nn.ModuleList(), 16
        for stage, filters in enumerate((16, 32, 64)):
            for i in range(count):
                stride = 2 if stage and not i else 1
                first = not stage and not i
                unit = Unit(channels, filters, stride, bottleneck, first)
                self.units.append(unit)
                channels = unit.convs[-1].out_channels
        self.norm = nn.BatchNorm2d(channels)
        self.logits = nn.Linear(channels, 10)
        self.register_buffer("mean", torch.zeros(1, 3, 1, 1))
        self.register_buffer("std", torch.ones(1, 3, 1, 1))

    def forward(self, x):
        x = self.stem((x - self.mean) / self.std)
        for unit in self.units:
            x = unit(x)
        return self.logits(F.relu(self.norm(x)).mean((2, 3)))

    def load(self, arrays):
        from zoo.models.resnet import CIFAR10_MEAN, CIFAR10_STD

        self.mean.copy_(torch.tensor(CIFAR10_MEAN).view(1, 3, 1, 1))
        self.std.copy_(torch.tensor(CIFAR10_STD).view(1, 3, 1, 1))
        convs, norms = {"stem": self.stem}, {"post_norm": self.norm}
        names = sorted({k.split("/")[0] for k in arrays if k.startswith("unit")})
        for name, unit in zip(names, self.units, strict=True):
            for i, (norm, conv) in enumerate(
                zip(unit.norms, unit.convs, strict=True), 1
            ):
                norms[f"{name}/norm_{i}"] = norm
                convs[f"{name}/conv_{i}"] = conv
            if unit.projection is not None:
                convs[f"{name}/projection"] = unit.projection
        for name, conv in convs.items():
            _set(conv.weight, arrays[f"{name}/kernel"].transpose(3, 2, 0, 1))
        for name, norm in norms.items():
            _set(norm.weight, arrays[f"{name}/gamma"])
            _set(norm.bias, arrays[f"{name}/beta"])
        _set(self.logits.weight, arrays["logits/kernel"].T)
        _set(self.logits.bias, arrays["logits/bias"])


def start(net, arrays, batch, channels_last=False, compiled=False):
    model = (HighwayMLP if net["kind"] == "mlp" else PreActResNet)(net["depth"])
    model.load(arrays)
    images, labels = torch.tensor(batch[0]), torch.tensor(batch[1]).long()
    if net["kind"] == "resnet":
        images = images.permute(0, 3, 1, 2).contiguous()
    if channels_last:
        model = model.to(memory_format=torch.channels_last)
        images = images.contiguous(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), RATE, MOMENTUM)
    forward = torch.compile(model) if compiled else model

    def run(steps):
        first = None
        for _ in range(steps):
            optimizer.zero_grad()
            loss = F.cross_entropy(forward(images), labels)
            loss.backward()
            optimizer.step()
            first = loss.item() if first is None else first
        return first

    return run


def _set(parameter, value):
    with torch.no_grad():
        parameter.copy_(torch.tensor(value.copy()))
