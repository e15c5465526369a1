"""Small networks of the kinds that people quantize for NPUs, with random weights and
live batch-norm statistics.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Inputs = tuple[Tensor, ...]


def conv(
    inputs: int,
    outputs: int,
    act: type[nn.Module] | None,
    kernel: int = 3,
    **settings: int,
) -> nn.Sequential:
    """A convolution that keeps the size, its batch norm and its activation."""
    layers = [
        nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, bias=False, **settings),
        nn.BatchNorm2d(outputs),
    ]
    return nn.Sequential(*layers, *([act()] if act else []))


class AudioNet(nn.Module):
    """Depthwise separable convolutions: spectrograms [N,1,64,50] -> [N,10]"""

    def __init__(self) -> None:
        super().__init__()
        layers = [conv(1, 16, nn.ReLU6, stride=2)]
        for i, o in ((16, 32), (32, 48), (48, 64)):
            layers += [
                conv(i, i, nn.ReLU6, groups=i),
                conv(i, o, nn.ReLU6, 1),
                nn.Sequential(nn.MaxPool2d(2)),
            ]
        self.features = nn.Sequential(*layers)
        self.dropout = nn.Dropout(0.2)
        self.out = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        y = self.features(x)
        return self.out(self.dropout(y.mean((2, 3)) + y.amax((2, 3))))


class UNet(nn.Module):
    """Skips that are concatenated, up by a transposed convolution and by interpolation:
    [N,3,H,W] -> [N,2,H,W]
    """

    def __init__(self, w: int = 8) -> None:
        super().__init__()
        self.down, self.deeper, self.middle = (
            self._block(i, o) for i, o in ((3, w), (w, 2 * w), (2 * w, 4 * w))
        )
        self.up = nn.ConvTranspose2d(4 * w, 2 * w, 2, 2)
        self.upper, self.last, self.out = (
            self._block(4 * w, 2 * w),
            self._block(3 * w, w),
            nn.Conv2d(w, 2, 1),
        )

    def _block(self, i: int, o: int) -> nn.Sequential:
        return nn.Sequential(conv(i, o, nn.ReLU), conv(o, o, nn.ReLU))

    def forward(self, x: Tensor) -> Tensor:
        a = self.down(x)
        b = self.deeper(F.max_pool2d(a, 2))
        y = self.upper(torch.cat([b, self.up(self.middle(F.max_pool2d(b, 2)))], 1))
        return self.out(
            self.last(
                torch.cat([a, F.interpolate(y, scale_factor=2, mode="bilinear")], 1)
            )
        )


class Spotter(nn.Module):
    """A GRU behind a convolution: features [N,20,T] -> [N,12]"""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(20, 24, 5, padding=2)
        self.gru = nn.GRU(24, 32, batch_first=True)
        self.out = nn.Linear(32, 12)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.gru(F.relu(self.conv(x)).transpose(1, 2))[0][:, -1])


class Encoder(nn.Module):
    """A transformer that is told which positions are padding: [N,24,48], bool [N,24] ->
    [N,5]
    """

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            48, 4, 96, 0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.positions = nn.Parameter(0.1 * torch.randn(24, 48))
        self.out = nn.Linear(48, 5)

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        y = self.encoder(x + self.positions, src_key_padding_mask=padding)
        kept = (~padding)[..., None].float()
        return self.out((y * kept).sum(1) / kept.sum(1))


class Decoder(nn.Module):
    """A transformer with a causal mask: ids [N,24] -> [N,24,100]"""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(48, 4, 96, 0.0, batch_first=True)
        self.embedding = nn.Embedding(100, 48)
        self.out = nn.Linear(48, 100)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, ids: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        return self.out(self.layers(self.embedding(ids), mask=mask, is_causal=True))


class Squeeze(nn.Module):
    """Squeeze and excite: [N,C,H,W] -> [N,C,H,W]"""

    def __init__(self, channels: int, gate: type[nn.Module]) -> None:
        super().__init__()
        self.down = nn.Conv2d(channels, channels // 4, 1)
        self.up = nn.Conv2d(channels // 4, channels, 1)
        self.gate = gate()

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gate(self.up(F.relu(self.down(F.adaptive_avg_pool2d(x, 1)))))


class Inverted(nn.Module):
    """An inverted residual block with squeeze and excite: [N,I,H,W] ->
    [N,O,H/stride,W/stride]
    """

    def __init__(
        self,
        i: int,
        wide: int,
        o: int,
        kernel: int,
        stride: int,
        act: type[nn.Module],
        gate: type[nn.Module],
    ):
        super().__init__()
        spatial = conv(wide, wide, act, kernel, stride=stride, groups=wide)
        self.layers = nn.Sequential(
            conv(i, wide, act, 1), spatial, Squeeze(wide, gate), conv(wide, o, None, 1)
        )
        self.is_residual = i == o and stride == 1

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x) if self.is_residual else self.layers(x)


def inverted_residuals(act: type[nn.Module], gate: type[nn.Module]) -> nn.Module:
    """As MobileNetV3 with hard swish and hard sigmoid, as EfficientNet with the smooth
    ones: [N,3,64,64] -> [N,10]
    """
    widths = (
        (16, 16, 16, 3, 1),
        (16, 64, 24, 3, 2),
        (24, 96, 24, 3, 1),
        (24, 96, 40, 5, 2),
    )
    blocks = [Inverted(*width, act, gate) for width in widths]
    head = [
        conv(40, 96, act, 1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(96, 64),
        act(),
        nn.Linear(64, 10),
    ]
    return nn.Sequential(conv(3, 16, act, stride=2), *blocks, *head)


class Detector(nn.Module):
    """Two scales, split and joined, with boxes decoded on a grid: [N,3,32,32] -> boxes
    [N,4,80], scores [N,4,80]
    """

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            conv(3, 16, nn.SiLU, stride=2), conv(16, 32, nn.SiLU, stride=2)
        )
        self.split = conv(32, 32, nn.SiLU, 1)
        self.inner = conv(16, 16, nn.SiLU)
        self.joined = conv(48, 32, nn.SiLU, 1)
        self.down = conv(32, 32, nn.SiLU, stride=2)
        self.pyramid = conv(96, 64, nn.SiLU, 1)
        self.lateral = conv(96, 32, nn.SiLU, 1)
        self.fine = nn.Conv2d(32, 8, 1)
        self.coarse = nn.Conv2d(64, 8, 1)
        self.register_buffer("grid", 3 * torch.randn(2, 80))
        self.register_buffer("stride", torch.tensor([4.0] * 64 + [8.0] * 16))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        first, second = self.split(self.stem(x)).chunk(2, 1)
        x = self.joined(torch.cat([first, second, self.inner(second)], 1))
        y = self.down(x)
        pooled = F.max_pool2d(y, 5, 1, 2)
        z = self.pyramid(torch.cat([y, pooled, F.max_pool2d(pooled, 5, 1, 2)], 1))
        u = self.lateral(torch.cat([F.interpolate(z, scale_factor=2), x], 1))
        found = torch.cat([self.fine(u).flatten(2), self.coarse(z).flatten(2)], 2)
        center, size, scores = found.split([2, 2, 4], 1)
        center = (center.sigmoid() * 2 - 0.5 + self.grid) * self.stride
        return (
            torch.cat([center, (size.sigmoid() * 2) ** 2 * self.stride], 1),
            scores.sigmoid(),
        )


class SuperResolution(nn.Module):
    """PReLUs, and pixels that are shuffled: [N,3,H,W] -> [N,3,2*H,2*W]"""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Conv2d(3, 16, 3, padding=1)
        self.act = nn.PReLU(16)
        self.middle = nn.Sequential(
            nn.Conv2d(16, 16, 3, padding=1), nn.PReLU(), nn.Conv2d(16, 16, 3, padding=1)
        )
        self.tail = nn.Sequential(nn.Conv2d(16, 12, 3, padding=1), nn.PixelShuffle(2))
        nn.init.uniform_(self.act.weight, -0.1, 0.4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.act(self.head(x))
        return (self.tail(y + self.middle(y)) + F.interpolate(x, scale_factor=2)).clamp(
            0, 1
        )


class Causal(nn.Module):
    """Dilated convolutions that see the past only, and their skip: [N,I,T] -> [N,O,T]"""

    def __init__(self, i: int, o: int, dilation: int) -> None:
        super().__init__()
        self.first, self.second = (
            nn.Conv1d(n, o, 3, dilation=dilation) for n in (i, o)
        )
        self.skip = nn.Conv1d(i, o, 1) if i != o else nn.Identity()
        self.pad = (2 * dilation, 0)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.first(F.pad(x, self.pad)))
        return F.relu(F.relu(self.second(F.pad(y, self.pad))) + self.skip(x))


class Temporal(nn.Module):
    """A temporal convolutional network: [N,6,T] -> logarithms of shares [N,8]"""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            Causal(6, 24, 1), Causal(24, 24, 2), Causal(24, 24, 4)
        )
        self.out = nn.Linear(24, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.layers(x)[:, :, -1]).log_softmax(-1)


class Gated(nn.Module):
    """Gates and skips as in WaveNet: [N,4,T] -> [N,5,T]"""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(4, 16, 1)
        self.out = nn.Conv1d(16, 5, 1)
        self.dilated = nn.ModuleList(
            [nn.Conv1d(16, 32, 2, dilation=2**k) for k in range(4)]
        )
        self.mixed = nn.ModuleList([nn.Conv1d(16, 16, 1) for _ in range(4)])

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        skips = []
        for k, (dilated, mixed) in enumerate(
            zip(self.dilated, self.mixed, strict=True)
        ):
            signal, gate = dilated(F.pad(x, (2**k, 0))).chunk(2, 1)
            skips.append(mixed(torch.tanh(signal) * torch.sigmoid(gate)))
            x = x + skips[-1]
        return self.out(F.relu(sum(skips)))


class Mixer(nn.Module):
    """Linear layers over patches and over channels by turns: [N,3,32,32] -> [N,10]"""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 48, 8, 8)
        self.norm = nn.LayerNorm(48)
        self.out = nn.Linear(48, 10)
        self.tokens = nn.ModuleList([self._mlp(16, 32) for _ in range(2)])
        self.channels = nn.ModuleList([self._mlp(48, 96) for _ in range(2)])
        self.norms = nn.ModuleList([nn.LayerNorm(48) for _ in range(4)])

    def _mlp(self, width: int, hidden: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        for k, (tokens, channels) in enumerate(
            zip(self.tokens, self.channels, strict=True)
        ):
            x = x + tokens(self.norms[2 * k](x).transpose(1, 2)).transpose(1, 2)
            x = x + channels(self.norms[2 * k + 1](x))
        return self.out(self.norm(x).mean(1))


class Permuted(nn.Module):
    """What works on channels that lie last: [N,C,H,W] -> [N,C,H,W]"""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ConvNeXt(nn.Module):
    """A block of ConvNeXt with its scale for each channel: [N,C,H,W] -> [N,C,H,W]"""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(c, c, 7, padding=3, groups=c)
        self.gamma = nn.Parameter(0.5 * torch.rand(c, 1, 1))
        self.mlp = Permuted(
            nn.LayerNorm(c, 1e-6), nn.Linear(c, 4 * c), nn.GELU(), nn.Linear(4 * c, c)
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.gamma * self.mlp(self.depthwise(x))


def conv_next() -> nn.Module:
    """[N,3,32,32] -> [N,10]"""
    stem = nn.Sequential(
        nn.Conv2d(3, 24, 4, 4), Permuted(nn.LayerNorm(24)), ConvNeXt(24), ConvNeXt(24)
    )
    down = nn.Sequential(
        Permuted(nn.LayerNorm(24)), nn.Conv2d(24, 48, 2, 2), ConvNeXt(48)
    )
    return nn.Sequential(
        stem,
        down,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.LayerNorm(48),
        nn.Linear(48, 10),
    )


def autoencoder() -> nn.Module:
    """A signal [N,1,128] and what is left of it: transposed convolutions, ELU, leaky
    ReLU, tanh
    """
    down = [
        (nn.Conv1d(i, o, k, 2, k // 2), nn.LeakyReLU(0.1))
        for i, o, k in ((1, 16, 7), (16, 32, 5), (32, 8, 3))
    ]
    up = [
        (nn.ConvTranspose1d(i, o, 4, 2, 1), act())
        for i, o, act in ((8, 32, nn.ELU), (32, 16, nn.ELU), (16, 1, nn.Tanh))
    ]
    return nn.Sequential(*[layer for pair in down + up for layer in pair])


def _random(*shape: int) -> Callable[[], Inputs]:
    return lambda: (torch.randn(1, *shape),)


def _padded() -> Inputs:
    return torch.randn(1, 24, 48), torch.arange(24)[None] >= torch.randint(
        12, 24, (1, 1)
    )


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Inputs]]] = {
    "audio": (AudioNet, _random(1, 64, 50)),
    "U-Net": (UNet, _random(3, 32, 32)),
    "GRU": (Spotter, _random(20, 25)),
    "padded transformer": (Encoder, _padded),
    "causal transformer": (Decoder, lambda: (torch.randint(100, (1, 24)),)),
    "MobileNetV3": (
        lambda: inverted_residuals(nn.Hardswish, nn.Hardsigmoid),
        _random(3, 64, 64),
    ),
    "EfficientNet": (
        lambda: inverted_residuals(nn.SiLU, nn.Sigmoid),
        _random(3, 64, 64),
    ),
    "detector": (Detector, _random(3, 32, 32)),
    "super-resolution": (SuperResolution, lambda: (torch.rand(1, 3, 24, 24),)),
    "temporal": (Temporal, _random(6, 40)),
    "gated": (Gated, _random(4, 40)),
    "mixer": (Mixer, _random(3, 32, 32)),
    "ConvNeXt": (conv_next, _random(3, 32, 32)),
    "autoencoder": (autoencoder, _random(1, 128)),
}


def network(name: str, batches: int = 8) -> tuple[nn.Module, list[Inputs]]:
    """The network in eval mode, and batches to calibrate it with."""
    torch.manual_seed(0)
    build, inputs = NETWORKS[name]
    model = build().train()
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    with torch.no_grad():
        for norm in norms:
            norm.momentum = None
            norm.weight.uniform_(0.5, 1.5)
            norm.bias.uniform_(-0.3, 0.3)
        if norms:
            model(*map(torch.cat, zip(*[inputs() for _ in range(16)], strict=True)))
    return model.eval(), [inputs() for _ in range(batches)]
