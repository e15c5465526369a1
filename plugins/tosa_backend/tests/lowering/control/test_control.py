"""cond, while_loop, map and scan lower to control flow of TOSA and give the results of
eager torch.
"""

from __future__ import annotations

import delegraph
import pytest
import torch
import torch.ao.quantization.fx._decomposed  # registers the operators
from delegraph_tosa.backend import compile_program
from delegraph_tosa.evaluate import bounded_iterations, evaluate
from delegraph_tosa.ir.operators import COND_IF
from delegraph_tosa.serialize import TosaFile, read
from delegraph_tosa.spec import TosaSpec
from delegraph_tosa.text import parse, render
from torch import nn
from torch._higher_order_ops import scan
from torch._higher_order_ops.map import map as torch_map
from torch._higher_order_ops.while_loop import while_loop
from torch.utils._pytree import tree_leaves

from ...support import reference_tools
from ...support.rule_cases import Family, Function, WithConstant, randn, random_integers

pytestmark = [  # torch warns about its own code when it traces map and scan
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor"),
    pytest.mark.filterwarnings(
        "ignore:.torch.jit.script_method. is deprecated:DeprecationWarning"
    ),
]
TARGET = "TOSA-1.0+FP+INT+controlflow"
SPEC = TosaSpec.parse(TARGET)
FAMILY = Family()
x = randn(2, 4)


def zero(dtype=torch.int64):
    return torch.zeros((), dtype=dtype)


def branches_with_weights(weight, shift, x):
    return (
        torch.cond(
            x.sum() > 0,
            lambda x: x @ weight + shift,
            lambda x: (x @ weight.t()).sin(),
            (x + 1,),
        )
        + 2
    )


def nested(weight, x, y):
    def deep(x, y):
        return torch.cond(
            x.sum() > 1,
            lambda x, y: (x @ weight, y + 1),
            lambda x, y: (x.cos(), y * 2),
            (x, y),
        )

    return torch.cond((y > 0).all(), deep, lambda x, y: (x - 1, y.clone()), (x, y))


def returns_what_it_has(weight, x, y):
    """Branches that return an operand or a constant, and do not use an operand."""
    return torch.cond(
        x.sum() > 0,
        lambda x, y: (x.clone(), weight.clone()),
        lambda x, y: (x + 1, weight * 2),
        (x, y),
    )


def counted(weight, x):
    def step(i, a):
        return i + 1, (a @ weight).sin()

    return while_loop(lambda i, a: i < 5, step, (zero(), x))


def counted_to(n, x):
    """The number of steps is known at run time only; the loop uses but does not carry x."""
    return while_loop(
        lambda i, a: i < n,
        lambda i, a: (i + 1, a * 0.5 + x),
        (torch.ones((), dtype=torch.int64), x),
    )


def until(x):
    """The condition depends on a float, and the carried values swap places."""
    return while_loop(
        lambda a, b: a.sum() < 50.0, lambda a, b: (b.clone(), a + b), (x, x + 1)
    )


def modular(k):
    """An int64 that stays small only because of the modulo 16."""
    step = lambda i, k: (i + 1, (k * 7 + i) & 15)
    return while_loop(
        lambda i, k: torch.logical_and(i < 9, k >= 0), step, (zero(), k.clamp(0, 9))
    )[1]


def inner_loop(x):
    def row(i, a):
        _, b = while_loop(
            lambda j, b: j < 3, lambda j, b: (j + 1, b * 1.5 + i.float()), (zero(), a)
        )
        return i + 1, b

    return while_loop(lambda i, a: i <= 2, row, (zero(), x))


def recurrent(weight, xs):
    def step(carry, x):
        after = torch.mm(carry, weight).tanh() + x
        return after, after * 2

    return scan(step, torch.ones(2, 4), xs, dim=0, reverse=True)


def mapped(weight, xs, y):
    choose = lambda x, y: torch.cond(
        x.sum() > 0, lambda x: x @ weight, lambda x: x.cos(), (x + y,)
    )
    return torch_map(choose, xs, y)


weight = randn(4, 4)
FAMILY.cases(
    "cond",
    WithConstant(branches_with_weights, weight, randn(4)),
    x.abs(),
    -x.abs(),
    spec=SPEC,
)
pairs = [
    (x, random_integers(3)),
    (x.abs(), random_integers(3).abs() + 1),
    (-x.abs(), random_integers(3).abs() + 1),
]
FAMILY.cases("cond-nested", WithConstant(nested, weight), *pairs, spec=SPEC)
FAMILY.cases(
    "cond-returns",
    WithConstant(returns_what_it_has, weight),
    (x.abs(), x),
    (-x.abs(), x),
    spec=SPEC,
)
FAMILY.case("while", WithConstant(counted, weight), x, spec=SPEC)
FAMILY.cases(
    "while-runtime",
    counted_to,
    *((torch.tensor(n, dtype=torch.int64), x) for n in (0, 7)),
    spec=SPEC,
)
FAMILY.case("while-float", until, x.abs(), spec=SPEC)
FAMILY.case("while-modular", modular, torch.tensor(3, dtype=torch.int64), spec=SPEC)
FAMILY.case("while-in-while", inner_loop, x, spec=SPEC)
FAMILY.case("scan", WithConstant(recurrent, weight), randn(3, 2, 4), spec=SPEC)
FAMILY.case(
    "map-of-cond", WithConstant(mapped, weight), randn(3, 2, 4), randn(4), spec=SPEC
)

test_equals_eager = FAMILY.equals_eager()
judged, test_equals_eager_through_the_reference_model = (
    FAMILY.equals_eager_through_the_reference_model()
)


@pytest.mark.parametrize("name", ["cond-nested-0", "while-in-while", "map-of-cond"])
def test_files_with_control_flow_are_legal_and_read_back(name):
    graph = compile_program(FAMILY.exported(name), SPEC)

    file = TosaFile(graph, SPEC).join()

    reference_tools.check_strictly(file, "pro_fp,pro_int", "controlflow")
    text = render(read(file))
    assert render(parse(text)) == text


def test_a_weight_that_both_branches_use_is_stored_once():
    def either(weight, x):
        return torch.cond(
            x.sum() > 0, lambda x: x @ weight, lambda x: (x @ weight).sin(), (x,)
        )

    module = WithConstant(either, randn(64, 64)).eval()
    x = randn(2, 64)

    (delegate,) = lower(module, x).delegates

    weight_bytes = 64 * 64 * 4
    assert weight_bytes < len(delegate.processed_bytes) < 2 * weight_bytes
    (result,) = reference_tools.run_reference_model(
        delegate.processed_bytes, [x.numpy()]
    )
    torch.testing.assert_close(torch.from_numpy(result), module(x).detach())


def test_weights_are_constants_of_the_branches_that_use_them():
    graph = compile_program(FAMILY.exported("cond-0"), SPEC)

    (cond_if,) = (op for op in graph.operators if isinstance(op, COND_IF))
    assert len(cond_if.inputs) == 2  # the predicate and x + 1; no weight
    assert len(cond_if.then_graph.constants()) > 0
    assert len(cond_if.else_graph.constants()) > 0


def lower(function, *inputs, target=TARGET):
    options = {"tosa": {"spec": target}}
    if isinstance(function, torch.export.ExportedProgram):
        return delegraph.lower(function, backends=["tosa"], options=options)
    module = function if isinstance(function, nn.Module) else Function(function)
    return delegraph.lower(module.eval(), inputs, backends=["tosa"], options=options)


def test_cond_becomes_one_delegate_with_control_flow_extension():
    module = WithConstant(branches_with_weights, weight, randn(4)).eval()
    positive = x.abs()

    lowered = lower(module, positive)

    assert len(lowered.delegates) == 1
    assert lowered.report.refusals == []
    for input in (positive, -positive):  # one takes each branch
        torch.testing.assert_close(lowered(input), module(input))


def test_branches_are_delegates_of_their_own_without_control_flow_extension():
    module = WithConstant(branches_with_weights, weight, randn(4)).eval()
    positive = x.abs()

    lowered = lower(module, positive, target="TOSA-1.0+FP")

    # Two delegates compute what is before and after the branches.
    assert [delegate.name for delegate in lowered.delegates][2:] == [
        "true_graph_0.lowered_module_2",
        "false_graph_0.lowered_module_3",
    ]
    (refusal,) = lowered.report.refusals
    assert (
        refusal.reason
        == "TOSA COND_IF on bool needs EXT-CONTROLFLOW; the target is TOSA-1.0+FP"
    )
    for input in (positive, -positive):  # one takes each branch
        torch.testing.assert_close(lowered(input), module(input))


def test_operators_in_branches_are_decomposed():
    """TOSA has no rule for addcmul itself."""

    def either(w, x):
        return torch.cond(
            x.sum() > 0, lambda x: torch.addcmul(x, x, w), lambda x: x.sin(), (x,)
        )

    function = WithConstant(either, randn(4))

    lowered = lower(function.eval(), x)

    assert len(lowered.delegates) == 1
    assert lowered.report.refusals == []
    torch.testing.assert_close(lowered(x.abs()), function(x.abs()))


REFUSED = {
    "random": (
        lambda x: torch.cond(x.sum() > 0, torch.rand_like, torch.sin, (x,)),
        "true_graph_0: aten.rand_like.default: it draws random numbers",
    ),
    "counter": (
        lambda x: while_loop(
            lambda i, a: a.sum() < 50, lambda i, a: (i + 1, a + 1), (zero(), x)
        ),
        (
            "while_loop_body_graph_0: aten.add.Tensor: TOSA ADD: its int64 result may"
            " be from 1 to 2147483648"
        ),
    ),
    "python-number": (
        lambda x: while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, a + 1), (0, x)),
        "the loop carries the Python value 0, not a tensor",
    ),
    "sizes": (
        lambda x: torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x[:1] + 1, (x,)),
        "TOSA COND_IF: the two graphs return different types",
    ),
    "float-predicate": (
        lambda x: torch.cond(x.sum(), lambda x: x + 1, lambda x: x - 1, (x,)),
        "TOSA COND_IF takes bool where it is given fp32",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_control_flow_reports_the_reason(name):
    function, reason = REFUSED[name]

    lowered = lower(function, x.abs())

    reasons = [refusal.reason for refusal in lowered.report.refusals]
    assert any(text.startswith(reason) for text in reasons), reasons
    if name != "random":
        torch.testing.assert_close(lowered(x.abs()), function(x.abs()))


def long_map(x, n, y):
    """Map over rows of floats and booleans, some of them in a nested tuple."""

    def step(row, n, y):
        number, truth, (a, b) = row
        return (
            torch.where(truth, number + y, number * 2),
            truth.logical_not(),
            torch.stack([a, b * n]),
        )

    return torch_map(step, (x[:, 0] + 1, x[:, 0] > 0, (x * 3, x * 2)), n, y)


def long_scan(weight, x):
    def step(carry, row):
        total, count = carry
        total = total @ weight + row
        return (total, count + 1), (total * 2, count.clone())

    return scan(step, (torch.zeros(1, 4), torch.tensor(0, dtype=torch.int32)), x)


LONG = 1200
"""More steps than the lowering unrolls."""
LONG_FUNCTIONS = {
    "map": (long_map, randn(LONG, 4), torch.tensor(3.0), torch.tensor(0.5)),
    "scan": (WithConstant(long_scan, weight / 4), randn(LONG, 4)),
}


@pytest.mark.parametrize(
    ("name", "target"),
    [("map", TARGET), ("map", "TOSA-1.0+FP+controlflow"), ("scan", TARGET)],
)
def test_map_and_scan_of_many_steps_become_one_loop(name, target):
    function, *inputs = LONG_FUNCTIONS[name]
    module = function if isinstance(function, nn.Module) else Function(function)

    lowered = lower(module, *inputs, target=target)

    (delegate,) = lowered.delegates
    assert lowered.report.host_operators == 0
    file = delegate.processed_bytes
    assert [op.name for op in read(file).operators].count("WHILE_LOOP") == 1
    profiles = "pro_fp,pro_int" if "INT" in target else "pro_fp"
    reference_tools.check_strictly(file, profiles, "controlflow")
    torch.testing.assert_close(
        tree_leaves(lowered(*inputs)), tree_leaves(module(*inputs))
    )


def test_map_of_many_steps_needs_the_control_flow_extension():
    many = lambda x: torch_map(
        lambda row: row.sin(), x.reshape(8, 1).expand(8, 200).reshape(1600)
    )

    lowered = lower(many, x.abs(), target="TOSA-1.0+FP")

    (cause,) = (c for c in lowered.report.causes if "steps" in c.reason)
    assert (
        cause.reason
        == "its 1600 steps are more than the 1024 that are written out without a loop"
    )
    assert cause.hint == "if your device has it, lower for spec=TOSA-1.0+FP+controlflow"
    torch.testing.assert_close(lowered(x.abs()), many(x.abs()))


def deep(depth):
    """Return a function of nested ``torch.cond``."""
    if depth == 0:
        return torch.cos
    return lambda x: torch.cond(x.sum() > depth, deep(depth - 1), torch.sin, (x,))


MOST_NESTED = SPEC.max_nesting - 1
"""The program's own graph counts as one level, too."""


def test_branches_as_deep_as_the_target_allows_are_lowered():
    assert lower(deep(MOST_NESTED), x).report.refusals == []


def test_branches_nested_too_deeply_are_refused():
    function = deep(MOST_NESTED + 1)

    lowered = lower(function, x)

    reason = (
        f"graphs are nested {SPEC.max_nesting + 1} deep, the program's own among them,"
        f" and MAX_NESTING of the target is {SPEC.max_nesting}"
    )
    assert lowered.report.refusals[0].reason.endswith(reason)
    torch.testing.assert_close(lowered(x + 9), function(x + 9))


def test_bounded_iterations_ends_an_endless_loop():
    endless = lambda x: while_loop(
        lambda a: (a * 0 == 0).all(), lambda a: (a * 0.5,), (x,)
    )
    lowered = lower(endless, x)
    graph = read(lowered.delegates[0].processed_bytes)
    with (
        bounded_iterations(100),
        pytest.raises(
            delegraph.errors.Unsupported, match="WHILE_LOOP: the program runs more"
        ),
    ):
        evaluate(graph, [x.numpy()])


def test_passes_optimize_the_graphs_of_branches():
    lowered = lower(
        lambda x: torch.cond(
            x.sum() > 0,
            lambda x: (x * 2 + x * 2, x * 2),
            lambda x: (x.clone(), x.clone()),
            (x,),
        ),
        x,
    )

    (cond_if,) = (
        op
        for op in read(lowered.delegates[0].processed_bytes).operators
        if isinstance(op, COND_IF)
    )
    # The three equal products are computed once.
    assert [op.name for op in cond_if.then_graph.operators] == ["MUL", "ADD"]
    # Values that a file returns twice need two names.
    assert [op.name for op in cond_if.else_graph.operators] == ["IDENTITY", "IDENTITY"]


def rounded(x):
    """Quantize to int8 and dequantize."""
    quantized = torch.ops.quantized_decomposed
    limits = (0.05, 3, -128, 127, torch.int8)
    return quantized.dequantize_per_tensor.default(
        quantized.quantize_per_tensor.default(x, *limits), *limits
    )


# Functions of a predicate and a tensor.
QUANTIZED = {
    "cond": lambda p, x: torch.cond(
        p, lambda x: rounded(torch.relu(x)), lambda x: rounded(x * 0.5), (x,)
    ),
    "while": lambda p, x: while_loop(
        lambda i, x: i < 3,
        lambda i, x: (i + 1, rounded(torch.relu(x) * 0.5)),
        (zero(torch.int32), x),
    )[1],
}


@pytest.mark.parametrize("name", QUANTIZED)
def test_quantized_values_enter_branches_as_integers(name):
    function = lambda p, x: rounded(QUANTIZED[name](p, rounded(x)).reshape(8))
    inputs = (torch.tensor(True), x)

    lowered = lower(function, *inputs, target="TOSA-1.0+INT+controlflow")

    (delegate,) = lowered.delegates
    # Only the quantization of the input and the dequantization of the output are floats.
    host_operators = {
        refusal.operator.split(".")[1] for refusal in lowered.report.refusals
    }
    assert host_operators == {"quantize_per_tensor", "dequantize_per_tensor"}
    host_program = lowered.exported_program().graph_module
    assert "true_graph_0" not in dict(host_program.named_modules())
    reference_tools.check_strictly(delegate.processed_bytes, "pro_int", "controlflow")
    for each in (inputs, (torch.tensor(False), -x)):
        torch.testing.assert_close(lowered(*each), function(*each), rtol=0, atol=0)
