"""A classifier with one operator that TOSA lacks: it becomes two delegates, with the
host between them.

    delegraph lower examples/two_partitions.py --backend tosa --verify

The network classifies images by the covariance of their features. PyTorch computes the
Cholesky factor of the covariance on the host. The backend gets the operators before and
after it. The report names the operator, the reason and the line that calls it.
"""

from __future__ import annotations

import torch
from torch import nn


def two_partitions() -> tuple[nn.Module, tuple[torch.Tensor]]:
    """Return the network in eval mode and an image of shape [1, 3, 32, 32]."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return CovarianceClassifier().eval(), (torch.randn(1, 3, 32, 32),)


class CovarianceClassifier(nn.Module):
    """[N, 3, H, W] -> [N, classes]"""

    def __init__(self, channels: int = 8, classes: int = 10) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, channels, 3, stride=2, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels, channels, 3, padding=1),
        )
        self.register_buffer("regulariser", 0.1 * torch.eye(channels))
        self.classifier = nn.Linear(channels * channels, classes)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        features = self.features(image).flatten(2)
        centred = features - features.mean(dim=2, keepdim=True)
        covariance = (
            centred @ centred.transpose(1, 2) / features.shape[2] + self.regulariser
        )
        factor, _ = torch.linalg.cholesky_ex(covariance)
        return self.classifier(factor.flatten(1))
