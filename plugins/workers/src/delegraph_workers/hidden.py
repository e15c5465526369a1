"""Register an operator that replaces delegates of other backends.

A partitioner in another environment gets programs with this operator. No backend knows
it, so each leaves it to the host. It computes nothing.
"""

from __future__ import annotations

import torch

torch.library.define(
    "delegraph_workers::hidden", "(Tensor[] inputs, SymInt[] sizes) -> Tensor"
)
HIDDEN = torch.ops.delegraph_workers.hidden.default
"""One result of a delegate, which depends on these inputs."""
