"""The types of what a lowering accepts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.export import ExportedProgram

Program = torch.nn.Module | ExportedProgram

Arguments = Sequence[Any] | torch.Tensor
"""The positional arguments of a call; a bare tensor stands for a tuple that contains it
alone.
"""
ExampleInputs = Arguments | Mapping[str, Arguments | None] | None
"""The arguments of one method, or of several methods by name."""
Transform = Callable[[ExportedProgram], ExportedProgram]
