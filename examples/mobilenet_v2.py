"""MobileNetV2 (width 1.0, 224 x 224 pixels), written from the paper:
https://arxiv.org/abs/1801.04381.

    delegraph lower examples/mobilenet_v2.py --backend tosa -o mobilenet_v2.tosa
        --verify

Weights, scales and shifts are random, with a fixed seed. The statistics of batch norms
come from a batch. With the default statistics, the values of an untrained network would
shrink towards 0, and a comparison with eager PyTorch would compare zeros.
"""

from __future__ import annotations

import torch
from torch import nn

STAGES = (
    # expansion, channels, blocks, stride of the first block (table 2 of the paper)
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


def mobilenet_v2() -> tuple[nn.Module, tuple[torch.Tensor]]:
    """Return the network in eval mode and an image of shape [1, 3, 224, 224]."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = MobileNetV2()
        set_batch_norm(model, torch.randn(4, 3, 224, 224))
        return model.eval(), (torch.randn(1, 3, 224, 224),)


class MobileNetV2(nn.Module):
    """[N, 3, 224, 224] -> [N, classes]"""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        layers: list[nn.Module] = [convolution(3, 32, kernel=3, stride=2)]
        channels = 32
        for expansion, outputs, blocks, first_stride in STAGES:
            for block in range(blocks):
                layers.append(
                    InvertedResidual(
                        channels, outputs, first_stride if block == 0 else 1, expansion
                    )
                )
                channels = outputs
        layers.append(convolution(channels, 1280, kernel=1))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(1280, classes))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        features = self.features(image)
        pooled = nn.functional.adaptive_avg_pool2d(features, 1)
        return self.classifier(torch.flatten(pooled, 1))


class InvertedResidual(nn.Module):
    """Widen, filter each channel on its own, narrow without activation; add the input
    where the shapes agree.
    """

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = inputs * expansion
        widen = [convolution(inputs, wide, kernel=1)] if expansion != 1 else []
        filter_channels = convolution(wide, wide, kernel=3, stride=stride, groups=wide)
        self.body = nn.Sequential(
            *widen,
            filter_channels,
            convolution(wide, outputs, kernel=1, activate=False),
        )
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.body(x) if self.residual else self.body(x)


def convolution(
    inputs: int,
    outputs: int,
    kernel: int,
    stride: int = 1,
    groups: int = 1,
    activate: bool = True,
) -> nn.Sequential:
    """Convolution and batch norm, then ReLU6 in place unless ``activate`` is False."""
    conv = nn.Conv2d(
        inputs, outputs, kernel, stride, padding=kernel // 2, groups=groups, bias=False
    )
    activation = [nn.ReLU6(inplace=True)] if activate else []
    return nn.Sequential(conv, nn.BatchNorm2d(outputs), *activation)


@torch.no_grad()
def set_batch_norm(model: nn.Module, batch: torch.Tensor) -> None:
    """Random scales and shifts, and the statistics of ``batch``, by one pass in
    training mode.
    """
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.2)
            module.momentum = None  # a cumulative average, here over one batch
    model.train()
    model(batch)
