"""Types of the arguments that ``lower`` accepts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.export import ExportedProgram

Program = torch.nn.Module | ExportedProgram

Arguments = Sequence[Any] | torch.Tensor
"""Positional arguments of a call; a bare tensor means a tuple with that tensor."""
ExampleInputs = Arguments | Mapping[str, Arguments | None] | None
"""The arguments of one method, or of several methods by name."""
Transform = Callable[[ExportedProgram], ExportedProgram]
