"""The bodies of branches and loops are quantized, so that the whole program is integer."""

from __future__ import annotations

import delegraph
import numpy as np
import pytest
import torch
from delegraph.errors import OptionError
from delegraph_tosa.borders import integer_borders
from torch import nn
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

from ..support import reference_tools
from ..support.quantized_cases import assert_within_steps

pytestmark = pytest.mark.filterwarnings("ignore")
INT = {"tosa": {"spec": "TOSA-1.0+INT+controlflow"}}


class Branches(nn.Module):
    """A branch with a linear layer, and one with branches of its own."""

    def __init__(self):
        super().__init__()
        self.line = nn.Linear(8, 8)

    def forward(self, x):
        inner = lambda v: torch.cond(
            v.amax() > 1, lambda u: u * 0.5, lambda u: u + 1, (v,)
        )
        return (
            torch.cond(x.sum() > 0, lambda v: torch.relu(self.line(v)), inner, (x,)) * 2
        )


class Loop(Branches):
    def forward(self, x):
        steps = torch.zeros((), dtype=torch.int32)
        return while_loop(
            lambda k, v: k < 3,
            lambda k, v: (k + 1, torch.tanh(self.line(v))),
            (steps, x),
        )[1]


class Scan(Branches):
    def forward(self, x):
        return scan(
            lambda c, row: (torch.tanh(self.line(c) + row), c * row), torch.zeros(8), x
        )


@pytest.mark.parametrize("kind", [Branches, Loop, Scan])
def test_bodies_become_integers(kind):
    torch.manual_seed(0)
    module = kind().eval()
    given = [(scale * torch.rand(4, 8),) for scale in (0.2, 1, 2, -0.2, -1)]
    given += [(torch.rand(4, 8) - 0.9,)]
    given[-1][0][0, 0] = 1.5  # the sum is negative, and the maximum above 1
    program = delegraph.quantize(module, given)
    lowered = delegraph.lower(program, options=INT, transforms=[integer_borders])
    (delegate,) = lowered.delegates
    assert not lowered.report.refusals, str(lowered.report)
    reference_tools.check_strictly(delegate.processed_bytes, "pro_int", "controlflow")
    taking = next(iter(program.graph.find_nodes(op="placeholder")[-1].users))
    returned = program.graph.output_node().args[0]
    judged = []
    for (x,) in (given[1], given[-2], given[-1]):
        integers = torch.ops.quantized_decomposed.quantize_per_tensor.default(
            x, *taking.args[1:]
        )
        found = lowered(integers)
        expected = program.module(check_guards=False)(x)
        found, expected = (
            (v if isinstance(v, tuple) else (v,)) for v in (found, expected)
        )
        for ours, real, node in zip(found, expected, returned, strict=True):
            steps = torch.ops.quantized_decomposed.quantize_per_tensor.default(
                real, *node.args[1:6]
            )
            assert_within_steps(ours.numpy(), steps)
        judged.append(((bytes(delegate.processed_bytes), [integers.numpy()]), found))
        floats = module(x)
        for real, exact in zip(
            expected, floats if isinstance(floats, tuple) else (floats,), strict=True
        ):
            assert (real - exact).abs().max() < 0.1
    officials = reference_tools.run_reference_model_on_all([job for job, _ in judged])
    for official, (_, found) in zip(officials, judged, strict=True):
        assert all(
            np.array_equal(a, b.numpy()) for a, b in zip(official, found, strict=True)
        )


class LinearAroundBranch(nn.Module):
    """A linear layer outside of a branch, and one inside of it."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.second = nn.Linear(8, 8)

    def forward(self, x):
        return torch.cond(
            x.sum() > 0, lambda v: self.second(v), lambda v: v * 2, (self.first(x),)
        )


def quantize_with_floats_in(module_name):
    from delegraph_tosa.quantizer import TOSAQuantizer

    return delegraph.quantize(
        LinearAroundBranch().eval(),
        [(torch.rand(4, 8),), (-torch.rand(4, 8),)],
        quantizer=TOSAQuantizer().set_module_name(module_name, None),
    )


def test_settings_may_name_a_module_that_no_branch_calls():
    quantize_with_floats_in("first")


def test_settings_of_a_module_that_nothing_calls_are_refused():
    with pytest.raises(
        OptionError, match="no call of the program belongs to a module 'third'"
    ):
        quantize_with_floats_in("third")
