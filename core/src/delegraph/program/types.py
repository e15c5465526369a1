"""The types of what a lowering accepts."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.export import ExportedProgram

Program = torch.nn.Module | ExportedProgram


Transform = Callable[[ExportedProgram], ExportedProgram]
