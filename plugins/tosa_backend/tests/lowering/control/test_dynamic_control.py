"""Control flow on tensors of dynamic size becomes one delegate and gives the results of
eager torch at each size.
"""

from __future__ import annotations

from functools import cache

import delegraph
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from delegraph_tosa.serialize import read
from delegraph_tosa.spec import TosaSpec
from delegraph_tosa.text import parse, render
from torch import nn
from torch._higher_order_ops import scan
from torch._higher_order_ops.map import map as torch_map
from torch._higher_order_ops.while_loop import while_loop
from torch.export import Dim
from torch.utils._pytree import tree_leaves

from ...support import reference_tools
from ...support.rule_cases import Function

pytestmark = [  # torch warns about its own code when it traces map and scan
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor"),
    pytest.mark.filterwarnings(
        "ignore:.torch.jit.script_method. is deprecated:DeprecationWarning"
    ),
]
SPEC = "TOSA-1.1+FP+INT+shape+controlflow"
SIZES = [(1, 1), (2, 3), (7, 4)]
N = Dim("n", max=64)
M = Dim("m", max=64)
BOTH = {0: N, 1: M}
randn = torch.randn


class Net(nn.Module):
    """One branch has weights, the other computes with the dynamic size."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        wide = lambda x: F.relu(self.layer(x)).flatten(1)
        return torch.cond(
            x.sum() > 0, wide, lambda x: (x + x.shape[0]).flatten(1), (x,)
        )


def nested(x, y):
    """A graph two levels below uses the size of y, but not y."""

    def inner(x, s):
        return torch.cond(
            s > 0,
            lambda x: x.reshape(1, -1) * y.shape[0],
            lambda x: x.flatten()[None] + 1,
            (x,),
        )

    return torch.cond(
        x.sum() > 0, inner, lambda x, s: x.flatten().unsqueeze(0) - s, (x, y.sum())
    )


def size_without_tensor(x):
    """The branches use the size n, but no operand of theirs has n rows."""
    n = x.shape[0]
    return torch.cond(
        x.sum() > 0, lambda y: y * n, lambda y: y.expand(n, 4).sum(0) - n, (x.sum(0),)
    )


def one_step_a_row(x):
    """An int64 counts to the size of x."""
    step = lambda i, a: (
        i + 1,
        (a * 0.5 + x).flatten().view(x.shape[0], 4),
    )
    return while_loop(
        lambda i, a: i < x.shape[0], step, (torch.zeros((), dtype=torch.int64), x)
    )


def branch_in_loop(x):
    half = lambda a: (a.flatten() * 0.5).view(x.shape[0], 4)
    step = lambda i, a: (
        i + 1,
        torch.cond(a.sum() > 0, half, lambda a: a + x, (a,)),
    )
    return while_loop(lambda i, a: i < 4, step, (torch.zeros((), dtype=torch.int32), x))


def scanned(x):
    """Three steps, which the lowering unrolls."""
    return scan(
        lambda c, x: (c + x, (c * x).flatten()), torch.zeros_like(x[0]), x, dim=0
    )


def mapped(x, y):
    """As many steps as x has rows; the body computes with the size of y."""
    m = y.shape[0]
    return torch_map(lambda r, y: ((r + y).flatten() * m, r.sum() > 0), x, y)


# Name -> makes the module, makes inputs for sizes n and m, and their dynamic shapes.
CASES = {
    "cond": (Net, lambda n, m: (randn(n, m, 4),), [BOTH]),
    "nested": (
        lambda: Function(nested),
        lambda n, m: (randn(n, 4), randn(m, 3)),
        [{0: N}, {0: M}],
    ),
    "size without tensor": (
        lambda: Function(size_without_tensor),
        lambda n, m: (randn(n, 4),),
        [{0: N}],
    ),
    "while": (lambda: Function(one_step_a_row), lambda n, m: (randn(n, 4),), [{0: N}]),
    "cond in while": (
        lambda: Function(branch_in_loop),
        lambda n, m: (randn(n, 4),),
        [{0: N}],
    ),
    "scan": (lambda: Function(scanned), lambda n, m: (randn(3, n, 4),), [{1: N}]),
    "map": (
        lambda: Function(mapped),
        lambda n, m: (randn(n, m, 4), randn(m, 4)),
        [BOTH, {0: M}],
    ),
    "map of products": (
        lambda: Function(lambda x: torch_map(lambda r: r * 2, x.reshape(-1, 4))),
        lambda n, m: (randn(n, m, 4),),
        [BOTH],
    ),
}


def lower(name, spec=SPEC):
    """Return the module of a case, and the module lowered for dynamic sizes."""
    make, inputs, dynamic = CASES[name]
    torch.manual_seed(0)
    module = make().eval()
    program = torch.export.export(
        module, inputs(3, 5), dynamic_shapes=wrapped(module, dynamic), strict=False
    )
    return module, delegraph.lower(
        program, backends=["tosa"], options={"tosa": {"spec": spec}}
    )


def wrapped(module, dynamic):
    """``Function`` takes ``*args``, for which torch.export expects one nested tuple."""
    return (tuple(dynamic),) if isinstance(module, Function) else tuple(dynamic)


case = cache(lower)


def assert_equal_at_size(found, wanted, size):
    for mine, theirs in zip(found, tree_leaves(wanted), strict=True):
        assert mine.shape == theirs.shape, size
        assert mine.dtype == theirs.dtype, size
        torch.testing.assert_close(mine, theirs.detach(), rtol=1e-5, atol=1e-5)


RARE = {"cond in while", "scan", "map of products"}
"""Cases that run only with -m slow, because other cases test the same code."""


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n in RARE else n for n in CASES]
)
def test_one_delegate_for_all_sizes(name):
    _, make_inputs, _ = CASES[name]

    module, lowered = case(name)

    assert len(lowered.delegates) == 1
    assert lowered.report.host_operators == 0
    for size in SIZES:
        for sign in (1, -1):  # each takes another branch
            inputs = [sign * tensor.abs() for tensor in make_inputs(*size)]
            outputs = tree_leaves(lowered(*inputs))
            assert_equal_at_size(outputs, module(*inputs), size)


JUDGED = {"nested", "size without tensor"}
"""Cases that run through the reference tools by default."""


@pytest.mark.parametrize(
    "name",
    [n if n in JUDGED else pytest.param(n, marks=pytest.mark.slow) for n in CASES],
)
def test_reference_model_runs_dynamic_control_flow(name):
    _, make_inputs, _ = CASES[name]
    module, lowered = case(name)
    file = lowered.delegates[0].processed_bytes
    reference_tools.check_strictly_for_spec(file, TosaSpec.parse(SPEC))
    inputs = make_inputs(2, 3)
    shapes = {
        value.name: list(array.shape)
        for value, array in zip(read(file).inputs, inputs, strict=True)
    }

    outputs = reference_tools.run_reference_model(
        reference_tools.with_resolved_shapes(file, shapes),
        [np.ascontiguousarray(array) for array in inputs],
    )

    expected = tree_leaves(module(*inputs))
    tensors = [
        torch.from_numpy(output).to(wanted.dtype)
        for output, wanted in zip(outputs, expected, strict=True)
    ]
    assert_equal_at_size(tensors, expected, (2, 3))


@pytest.mark.parametrize("name", sorted(JUDGED))
def test_text_of_dynamic_control_flow_reads_back(name):
    _, lowered = case(name)

    text = render(read(lowered.delegates[0].processed_bytes))

    assert render(parse(text)) == text


@pytest.mark.parametrize(
    "name",
    [n if n == "while" else pytest.param(n, marks=pytest.mark.slow) for n in CASES],
)
def test_float_profile_runs_loops_of_dynamic_sizes(name):
    """The float profile has no integer arithmetic, so loops must count in floats."""
    _, make_inputs, _ = CASES[name]

    module, lowered = lower(name, "TOSA-1.1+FP+shape+controlflow")

    assert len(lowered.delegates) == 1
    assert lowered.report.host_operators == 0
    inputs = make_inputs(5, 2)
    assert_equal_at_size(tree_leaves(lowered(*inputs)), module(*inputs), (5, 2))


def causes_of(function, *inputs, dynamic, spec=SPEC):
    """Return the causes that the report of a lowering lists."""
    program = torch.export.export(
        Function(function), inputs, dynamic_shapes=(tuple(dynamic),), strict=False
    )
    return delegraph.lower(
        program, backends=["tosa"], options={"tosa": {"spec": spec}}
    ).report.causes


def test_loop_that_carries_a_size_is_refused_with_a_hint():
    carried = lambda x: while_loop(
        lambda i, a: i > 1, lambda i, a: (i - 1, a * 2), (x.shape[0], x)
    )

    (cause,) = causes_of(carried, randn(3, 4), dynamic=[{0: N}])

    assert cause.reason.startswith("the loop carries the size ")
    assert "torch.full((), number)" in cause.hint


def test_dynamic_map_needs_the_control_flow_extension():
    (cause,) = causes_of(
        lambda x: torch_map(torch.sin, x),
        randn(3, 4),
        dynamic=[{0: N}],
        spec="TOSA-1.1+FP+shape",
    )

    assert "steps, which are not written out" in cause.reason
    assert "FP+controlflow+shape" in cause.hint


def test_dynamic_shapes_in_branches_need_the_shape_extension():
    either = lambda x: torch.cond(
        x.sum() > 0, lambda x: x.flatten().sin(), lambda x: x.reshape(-1) * 2, (x,)
    )

    cause, *_ = causes_of(
        either, randn(3, 4), dynamic=[BOTH], spec="TOSA-1.1+FP+INT+controlflow"
    )

    assert cause.reason.startswith("true_graph_0: aten.flatten")
    assert "FP+INT+controlflow+shape" in cause.hint
