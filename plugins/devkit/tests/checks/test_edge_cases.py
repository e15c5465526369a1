"""Programs with dynamic sizes: faults of the backend, and of torch."""

import delegraph_devkit as devkit
from delegraph_devkit.checks.edge_cases import try_dynamic
from delegraph_devkit.programs import from_text

from ..support import bad_backends as backends
from ..support.kit import backend_under_test

FIXED_BY_TORCH = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x).view(3, 8)

model, inputs = Model(), (torch.randn(3, 2, 4),)
"""


def test_sizes_fixed_by_export_are_no_fault_of_backends():
    """Export with ``Dim.AUTO`` leaves a symbol with a known value."""
    one = backend_under_test(backends.register_good)
    assert try_dynamic(from_text("fixed", FIXED_BY_TORCH), one) == []
    [varying] = try_dynamic(
        from_text("varying", FIXED_BY_TORCH.replace("view(3, 8)", "flatten(1)")), one
    )
    assert not varying.faults


def test_a_size_fixed_by_the_backend_is_its_fault():
    one = backend_under_test(backends.BAD["dynamic_shapes"]["reads_sizes"])
    [varying] = try_dynamic(
        from_text("varying", FIXED_BY_TORCH.replace("view(3, 8)", "flatten(1)")), one
    )
    assert varying.faults[0].kind is devkit.trial.Kind.SIZES


WRONG_AT_ONE = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x)

model, inputs = Model(), (torch.randn(N, 4),)
"""


def test_the_least_and_largest_size_are_tried():
    program = from_text("batched", WRONG_AT_ONE, batched=True)
    assert program.dynamic_sizes == (1, 2, 4, 8)
    fixed = from_text(
        "fixed",
        WRONG_AT_ONE.replace("torch.relu(x)", "torch.relu(x) if len(x) > 1 else x"),
        batched=True,
    )
    assert fixed.dynamic_sizes == (3, 2, 5)
