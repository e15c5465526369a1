"""An operator that stands for a delegate of another backend where a program is shown to
a partitioner elsewhere.

Importing this module registers it. It computes nothing; no backend knows it, so each
leaves it to the host.
"""

from __future__ import annotations

import torch

torch.library.define(
    "delegraph_workers::hidden", "(Tensor[] inputs, SymInt[] sizes) -> Tensor"
)
HIDDEN = torch.ops.delegraph_workers.hidden.default
"""One value that a delegate returns: it depends on these inputs."""
