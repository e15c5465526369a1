"""A network with an operator in its middle that TOSA does not have: two delegates, and
the host between them.

    delegraph lower examples/two_partitions.py --backend tosa --verify

It classifies by the covariance of its features. The Cholesky factor of that matrix is
the host's; what comes before and after it goes to the backend. The report names the
operator, the reason and the line below that calls it.
"""

from __future__ import annotations

import torch
from torch import nn


def two_partitions() -> tuple[nn.Module, tuple[torch.Tensor]]:
    """The network in eval mode and its inputs: an image of shape [1, 3, 32, 32]."""
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
