"""ResNet-18 and ResNet-50 (224 x 224 pixels), written from the paper:
https://arxiv.org/abs/1512.03385.

    delegraph lower examples/resnet.py:resnet18 --backend tosa -o resnet18.tosa --verify

In ResNet-50, the 3 x 3 convolution of a block has the stride, as in torchvision.
Weights are random, and batch-norm statistics come from a batch, as in mobilenet_v2.py.
The last scale of each block is small, as after training. With scales of 1, each block
would amplify rounding errors: eager float32 would differ from float64 by 1.7e-5.
"""

from __future__ import annotations

import torch
from torch import nn


def resnet18() -> tuple[nn.Module, tuple[torch.Tensor]]:
    """Return the network in eval mode and an image of shape [1, 3, 224, 224]."""
    return _prepared(Basic, blocks=(2, 2, 2, 2))


def resnet50() -> tuple[nn.Module, tuple[torch.Tensor]]:
    """Return the network in eval mode and an image of shape [1, 3, 224, 224]."""
    return _prepared(Bottleneck, blocks=(3, 4, 6, 3))


def _prepared(
    block: type[Basic | Bottleneck], blocks: tuple[int, ...]
) -> tuple[nn.Module, tuple[torch.Tensor]]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = ResNet(block, blocks)
        set_affine(model)
        set_statistics(model, torch.randn(4, 3, 224, 224))
        return model.eval(), (torch.randn(1, 3, 224, 224),)


class ResNet(nn.Module):
    """[N, 3, 224, 224] -> [N, classes]"""

    def __init__(
        self,
        block: type[Basic | Bottleneck],
        blocks: tuple[int, ...],
        classes: int = 1000,
    ) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            *convolution(3, 64, kernel=7, stride=2),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2, padding=1),
        )
        layers: list[nn.Module] = []
        channels = 64
        for stage, count in enumerate(blocks):
            width = 64 * 2**stage
            for position in range(count):
                layers.append(
                    block(
                        channels, width, stride=2 if stage > 0 and position == 0 else 1
                    )
                )
                channels = width * block.widening
        self.body = nn.Sequential(*layers)
        self.classifier = nn.Linear(channels, classes)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        features = self.body(self.stem(image))
        pooled = nn.functional.adaptive_avg_pool2d(features, 1)
        return self.classifier(torch.flatten(pooled, 1))


class Basic(nn.Module):
    """Two 3 x 3 convolutions and a shortcut."""

    widening = 1

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *convolution(inputs, width, kernel=3, stride=stride),
            nn.ReLU(inplace=True),
            *convolution(width, width, kernel=3),
        )
        self.shortcut = shortcut(inputs, width, stride)
        self.activation = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.activation(self.body(x) + self.shortcut(x))


class Bottleneck(nn.Module):
    """A 1 x 1, a 3 x 3 and a widening 1 x 1 convolution, and a shortcut."""

    widening = 4

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = width * self.widening
        self.body = nn.Sequential(
            *convolution(inputs, width, kernel=1),
            nn.ReLU(inplace=True),
            *convolution(width, width, kernel=3, stride=stride),
            nn.ReLU(inplace=True),
            *convolution(width, outputs, kernel=1),
        )
        self.shortcut = shortcut(inputs, outputs, stride)
        self.activation = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.activation(self.body(x) + self.shortcut(x))


def shortcut(inputs: int, outputs: int, stride: int) -> nn.Module:
    """The input as it is, or brought to the block's output shape by a 1 x 1
    convolution.
    """
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    return nn.Sequential(*convolution(inputs, outputs, kernel=1, stride=stride))


def convolution(
    inputs: int, outputs: int, kernel: int, stride: int = 1
) -> tuple[nn.Module, nn.Module]:
    """Convolution and batch norm."""
    conv = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
    return conv, nn.BatchNorm2d(outputs)


def set_affine(model: nn.Module) -> None:
    """Give every batch norm a scale around 1 and a small shift; the one that ends a
    body a scale from 0.1 to 0.4.
    """
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.2)
    for module in model.modules():
        if isinstance(module, (Basic, Bottleneck)):
            nn.init.uniform_(module.body[-1].weight, 0.1, 0.4)


@torch.no_grad()
def set_statistics(model: nn.Module, batch: torch.Tensor) -> None:
    """Set the statistics of each batch norm by one pass of ``batch`` in training mode."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = None  # a cumulative average, here over one batch
    model.train()
    model(batch)
