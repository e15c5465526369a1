"""Networks on images, each written small from its paper: few blocks and channels, all
of its kinds of operators.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

IMAGE = 3


def convolution(
    inputs, outputs, kernel=3, stride=1, groups=1, dilation=1, activation=nn.ReLU
):
    """Convolution, batch norm, and an activation unless that is None."""
    padding = (kernel - 1) // 2 * dilation
    conv = nn.Conv2d(
        inputs, outputs, kernel, stride, padding, dilation, groups, bias=False
    )
    return nn.Sequential(
        conv, nn.BatchNorm2d(outputs), *([activation()] if activation else [])
    )


class SqueezeExcite(nn.Module):
    """Weighs the channels by what a bottleneck makes of their means:
    https://arxiv.org/abs/1709.01507
    """

    def __init__(
        self,
        channels: int,
        narrow: int,
        activation: type[nn.Module],
        gate: type[nn.Module],
    ) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(channels, narrow, 1),
            activation(),
            nn.Conv2d(narrow, channels, 1),
            gate(),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x * self.body(x)


class InvertedResidual(nn.Module):
    """Widen, filter each channel, weigh the channels, narrow; MobileNetV3's and
    EfficientNet's block.
    """

    def __init__(
        self, inputs, wide, outputs, kernel, stride, activation, squeezed, gate
    ) -> None:
        super().__init__()
        narrowed = nn.ReLU if gate is nn.Hardsigmoid else activation
        self.body = nn.Sequential(
            *(
                [convolution(inputs, wide, 1, activation=activation)]
                if wide != inputs
                else []
            ),
            convolution(wide, wide, kernel, stride, groups=wide, activation=activation),
            *([SqueezeExcite(wide, squeezed, narrowed, gate)] if squeezed else []),
            convolution(wide, outputs, 1, activation=None),
        )
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x) if self.residual else self.body(x)


def mobilenet_v3() -> nn.Module:
    """The first stages of the small network and its head:
    https://arxiv.org/abs/1905.02244, table 2
    """
    relu = nn.ReLU
    swish = nn.Hardswish
    gate = nn.Hardsigmoid
    return nn.Sequential(
        convolution(IMAGE, 16, stride=2, activation=swish),
        InvertedResidual(16, 16, 16, 3, 2, relu, 8, gate),
        InvertedResidual(16, 72, 24, 3, 2, relu, 0, gate),
        InvertedResidual(24, 88, 24, 3, 1, relu, 0, gate),
        InvertedResidual(24, 96, 40, 5, 2, swish, 24, gate),
        InvertedResidual(40, 240, 40, 5, 1, swish, 64, gate),
        convolution(40, 64, 1, activation=swish),
        *(
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(64, 96),
            nn.Hardswish(inplace=True),
        ),
        *(nn.Dropout(0.2, inplace=True), nn.Linear(96, 10)),
    )


def efficientnet() -> nn.Module:
    """The first stages of B0 and its head: https://arxiv.org/abs/1905.11946, table 1"""

    def block(
        inputs: int, outputs: int, expansion: int, kernel: int, stride: int
    ) -> nn.Module:
        squeezed = max(1, inputs // 4)
        return InvertedResidual(
            inputs,
            inputs * expansion,
            outputs,
            kernel,
            stride,
            nn.SiLU,
            squeezed,
            nn.Sigmoid,
        )

    return nn.Sequential(
        convolution(IMAGE, 16, stride=2, activation=nn.SiLU),
        *(block(16, 8, 1, 3, 1), block(8, 12, 6, 3, 2), block(12, 12, 6, 3, 1)),
        *(block(12, 20, 6, 5, 2), block(20, 20, 6, 5, 1)),
        convolution(20, 48, 1, activation=nn.SiLU),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(48, 10)),
    )


class LayerNorm2d(nn.LayerNorm):
    """Layer norm over the channels of an image."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ConvNeXtBlock(nn.Module):
    """A large depthwise filter, then a layer norm and an MLP over the channels, scaled."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.filter = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        self.widen = nn.Linear(channels, 4 * channels)
        self.narrow = nn.Linear(4 * channels, channels)
        self.scale = nn.Parameter(torch.full((channels, 1, 1), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.filter(x).permute(0, 2, 3, 1))
        return x + self.scale * self.narrow(F.gelu(self.widen(y))).permute(0, 3, 1, 2)


def convnext() -> nn.Module:
    """https://arxiv.org/abs/2201.03545"""
    return nn.Sequential(
        *(
            nn.Conv2d(IMAGE, 16, 4, 4),
            LayerNorm2d(16, eps=1e-6),
            ConvNeXtBlock(16),
            ConvNeXtBlock(16),
        ),
        *(
            LayerNorm2d(16, eps=1e-6),
            nn.Conv2d(16, 32, 2, 2),
            ConvNeXtBlock(32),
            ConvNeXtBlock(32),
        ),
        *(
            nn.AdaptiveAvgPool2d(1),
            LayerNorm2d(32, eps=1e-6),
            nn.Flatten(),
            nn.Linear(32, 10),
        ),
    )


class ShuffleUnit(nn.Module):
    """Half of the channels passes by, or both halves are filtered with a stride; then
    they are shuffled.
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        half = outputs // 2
        self.stride = stride
        given = inputs if stride == 2 else half
        self.passing = nn.Sequential(
            convolution(given, given, 3, stride, groups=given, activation=None),
            convolution(given, half, 1),
        )
        self.filtered = nn.Sequential(
            convolution(given, half, 1),
            convolution(half, half, 3, stride, groups=half, activation=None),
            convolution(half, half, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        if self.stride == 1:
            passing, filtered = x.chunk(2, dim=1)
        else:
            passing = self.passing(x)
            filtered = x
        y = torch.cat((passing, self.filtered(filtered)), 1)
        n, channels, height, width = y.shape
        return (
            y.view(n, 2, channels // 2, height, width)
            .transpose(1, 2)
            .contiguous()
            .view(n, -1, height, width)
        )


def shufflenet() -> nn.Module:
    """ShuffleNetV2: https://arxiv.org/abs/1807.11164"""
    return nn.Sequential(
        *(convolution(IMAGE, 24, stride=2), nn.MaxPool2d(3, 2, 1)),
        *(
            ShuffleUnit(24, 48, 2),
            ShuffleUnit(48, 48, 1),
            ShuffleUnit(48, 96, 2),
            ShuffleUnit(96, 96, 1),
        ),
        *(
            convolution(96, 64, 1),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(64, 10),
        ),
    )


class DenseLayer(nn.Module):
    """Norm and activation before each convolution; what is new stands beside all that
    was before.
    """

    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(
                nn.BatchNorm2d(inputs),
                nn.ReLU(inplace=True),
                nn.Conv2d(inputs, 4 * growth, 1, bias=False),
            ),
            *(nn.BatchNorm2d(4 * growth), nn.ReLU(inplace=True)),
            nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat((x, self.body(x)), 1)


def densenet() -> nn.Module:
    """https://arxiv.org/abs/1608.06993"""
    between = (
        nn.BatchNorm2d(40),
        nn.ReLU(),
        nn.Conv2d(40, 20, 1, bias=False),
        nn.AvgPool2d(2),
    )
    return nn.Sequential(
        *(convolution(IMAGE, 16, 7, 2), nn.MaxPool2d(3, 2, 1)),
        *(DenseLayer(16, 8), DenseLayer(24, 8), DenseLayer(32, 8), *between),
        *(DenseLayer(20, 8), DenseLayer(28, 8), nn.BatchNorm2d(36), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(36, 10)),
    )


class UNet(nn.Module):
    """Down by pools, up by transposed convolutions, each beside what it came down from:
    arxiv.org/abs/1505.04597
    """

    def __init__(self) -> None:
        super().__init__()
        widths = (8, 16, 32)
        self.down = nn.ModuleList(
            self.double(a, b) for a, b in zip((IMAGE, *widths), widths, strict=False)
        )
        self.raised = nn.ModuleList(
            nn.ConvTranspose2d(2 * w, w, 2, stride=2) for w in (16, 8)
        )
        self.up = nn.ModuleList(self.double(2 * w, w) for w in (16, 8))
        self.head = nn.Conv2d(8, 4, 1)

    @staticmethod
    def double(inputs: int, outputs: int) -> nn.Module:
        return nn.Sequential(
            convolution(inputs, outputs), convolution(outputs, outputs)
        )

    def forward(self, x: Tensor) -> Tensor:
        first = self.down[0](x)
        second = self.down[1](F.max_pool2d(first, 2))
        x = self.down[2](F.max_pool2d(second, 2))
        for raise_, up, beside in zip(
            self.raised, self.up, (second, first), strict=True
        ):
            x = up(torch.cat((beside, raise_(x)), 1))
        return self.head(x).argmax(1), self.head(x)


class DeepLabHead(nn.Module):
    """Atrous spatial pyramid pooling, and the result as large as the image:
    https://arxiv.org/abs/1706.05587
    """

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            convolution(IMAGE, 16, stride=2), convolution(16, 32, stride=2)
        )
        rates = (2, 4, 6)
        self.pyramid = nn.ModuleList(
            [convolution(32, 16, 1), *(convolution(32, 16, dilation=r) for r in rates)]
        )
        self.whole = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(32, 16, 1, bias=False), nn.ReLU()
        )
        self.project = nn.Sequential(
            convolution(80, 16, 1),
            nn.Dropout(0.5),
            convolution(16, 16),
            nn.Conv2d(16, 5, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        features = self.body(x)
        whole = F.interpolate(
            self.whole(features),
            features.shape[-2:],
            mode="bilinear",
            align_corners=False,
        )
        y = self.project(
            torch.cat([*(part(features) for part in self.pyramid), whole], 1)
        )
        return F.interpolate(y, x.shape[-2:], mode="bilinear", align_corners=False)


class YOLOHead(nn.Module):
    """Boxes and classes at two scales: a side of a box is the mean of a distribution
    (https://arxiv.org/abs/2006.04388).

    [N, 3, H, W] -> [N, 4 + classes, anchors]; centres and sizes in pixels, as YOLOv8
    makes them.
    """

    BINS = 8
    CLASSES = 5

    def __init__(self) -> None:
        super().__init__()
        swish = {"activation": nn.SiLU}
        self.body = nn.Sequential(
            convolution(IMAGE, 16, stride=2, **swish),
            convolution(16, 24, stride=2, **swish),
        )
        self.pools = nn.ModuleList(nn.MaxPool2d(5, 1, 2) for _ in range(3))
        self.fused = convolution(96, 24, 1, **swish)
        self.lower = convolution(24, 24, stride=2, **swish)
        self.merged = convolution(48, 24, 1, **swish)
        self.boxes = nn.ModuleList(nn.Conv2d(24, 4 * self.BINS, 1) for _ in range(2))
        self.classes = nn.ModuleList(nn.Conv2d(24, self.CLASSES, 1) for _ in range(2))
        self.register_buffer("bins", torch.arange(self.BINS, dtype=torch.float32))

    def forward(self, x: Tensor) -> Tensor:
        features = [self.body(x)]
        for pool in self.pools:
            features.append(pool(features[-1]))
        fine = self.fused(torch.cat(features, 1))
        coarse = self.lower(fine)
        fine = self.merged(
            torch.cat(
                (F.interpolate(coarse, scale_factor=2.0, mode="nearest"), fine), 1
            )
        )
        levels = zip((fine, coarse), self.boxes, self.classes, (4, 8), strict=True)
        return torch.cat(
            [
                self.decode(y, boxes, classes, stride)
                for y, boxes, classes, stride in levels
            ],
            2,
        )

    def decode(
        self, y: Tensor, boxes: nn.Module, classes: nn.Module, stride: int
    ) -> Tensor:
        n, _, height, width = y.shape
        sides = boxes(y).view(n, 4, self.BINS, -1).softmax(2)
        sides = (sides * self.bins[None, None, :, None]).sum(2)
        rows, columns = torch.meshgrid(
            torch.arange(height) + 0.5, torch.arange(width) + 0.5, indexing="ij"
        )
        anchors = torch.stack((columns, rows)).view(1, 2, -1).to(y.dtype)
        before = anchors - sides[:, :2]
        after = anchors + sides[:, 2:]
        box = torch.cat(((before + after) / 2, after - before), 1) * stride
        return torch.cat((box, classes(y).flatten(2).sigmoid()), 1)


MODELS = {
    "MobileNetV3": mobilenet_v3,
    "EfficientNet": efficientnet,
    "ConvNeXt": convnext,
    "ShuffleNetV2": shufflenet,
    "DenseNet": densenet,
    "U-Net": UNet,
    "DeepLab head": DeepLabHead,
    "YOLO head": YOLOHead,
}


@torch.no_grad()
def built(name: str) -> tuple[nn.Module, tuple[Tensor]]:
    """A model in eval mode and an image; the statistics of batch norms come from a
    batch, else signals fade.
    """
    torch.manual_seed(0)
    model = MODELS[name]()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.2)
            module.momentum = None
    model.train()(torch.randn(4, IMAGE, 32, 32))
    return model.eval(), (torch.randn(1, IMAGE, 32, 32),)
