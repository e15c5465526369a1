"""Define programs with branches and loops.

torch needs the source file of branches, so the modules are code and not text.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch._higher_order_ops.while_loop import while_loop

from .programs import Example, Program, from_text


class Branches(torch.nn.Module):
    """A branch with weights, and one with an inner branch, between other operators."""

    def __init__(self) -> None:
        super().__init__()
        self.one = torch.nn.Linear(4, 4)
        self.two = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> Any:
        """[N, 4] -> [N, 4]"""
        y = torch.sin(x) + 1
        chosen = torch.cond(x.sum() > 0, self.positive, self.negative, (y,))
        return torch.sin(chosen) * 2

    def positive(self, y: torch.Tensor) -> Any:
        """[N, 4] -> [N, 4]"""
        return torch.sin(self.one(y)) + 1

    def negative(self, y: torch.Tensor) -> Any:
        """[N, 4] -> [N, 4]"""
        return torch.cond(
            y.sum() > 1, lambda y: torch.exp(-y) * 2, lambda y: self.two(y) + y, (y,)
        )


class Loop(torch.nn.Module):
    """A counted loop with weights and a sine in its body."""

    def __init__(self) -> None:
        super().__init__()
        self.step = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> Any:
        """[N, 4] -> [N, 4]"""
        start = (torch.tensor(0), x * 2)
        return while_loop(lambda i, y: i < 3, self.turn, start)[1] + 1  # type: ignore[no-untyped-call]

    def turn(
        self, i: torch.Tensor, y: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(count, [N, 4]) -> (count, [N, 4])"""
        return i + 1, torch.sin(self.step(y)) * 0.5 + y


_HEAD = """from typing import Any

import torch
from torch._higher_order_ops.while_loop import while_loop

"""


WITHOUT_CONTROL_FLOW = from_text(
    "the operators of branches and loops",
    """
    import torch

    torch.manual_seed(0)

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

        def forward(self, x, i):
            y = torch.sin(x) + 1
            z = torch.sin(torch.sin(self.one(y)) + 1) * 2
            return z, torch.exp(-y) * 2, self.two(y) + y, torch.sin(self.one(y)) * 0.5 + y, i + 1, i < 3, y.sum() > 1

    model = Model().eval()
    inputs = (torch.randn(3, 4), torch.tensor(0))
    """,
)
"""A program with the same operators; its faults do not come from control flow."""


def _program(name: str, module: type[torch.nn.Module]) -> Program:
    def make(n: int) -> Example:
        torch.manual_seed(0)
        return module().eval(), (torch.randn(n, 4).abs(),)

    lines = [
        inspect.getsource(module),
        f"torch.manual_seed(0)\nmodel = {module.__name__}().eval()",
    ]
    source = "\n".join([_HEAD, *lines, "inputs = (torch.randn(3, 4).abs(),)\n"])
    return Program(name, source, make, members=(WITHOUT_CONTROL_FLOW,))


CONTROL_FLOW = (_program("branches", Branches), _program("loop", Loop))
"""Programs that take the other branches for negated inputs."""
