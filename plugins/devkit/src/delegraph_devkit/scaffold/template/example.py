"""A small network to try the backend. The report shows why softmax stays on the host."""

from __future__ import annotations

import torch


class Network(torch.nn.Module):
    """Two linear layers, the first with a shortcut: [N, 8] -> [N, 4]."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = torch.nn.Linear(8, 8)
        self.last = torch.nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + torch.relu(self.hidden(x))
        return torch.softmax(self.last(x), dim=-1)


def model() -> tuple[torch.nn.Module, tuple[torch.Tensor]]:
    """Return the network in eval mode and its inputs. `delegraph lower` calls this function."""
    torch.manual_seed(0)
    return Network().eval(), (torch.randn(2, 8),)
