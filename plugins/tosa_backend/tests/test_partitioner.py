"""Operators that the partitioner accepts compile, alone and in every partition."""

from __future__ import annotations

import operator

import delegraph
import pytest
import torch
import torch.nn.functional as F
from delegraph.backend import BackendDetails, PreprocessResult
from delegraph.engine import planner
from delegraph.errors import OptionError, Unsupported
from delegraph.partitioner import CapabilityPartitioner
from delegraph_programs.decompose.trace import Tracer
from delegraph_tosa.backend import TOSABackend
from delegraph_tosa.ir.graph import Value
from delegraph_tosa.lowering import RULES, Tosa, lower_program
from delegraph_tosa.partitioner import TOSAPartitioner, TOSASupport
from delegraph_tosa.spec import TosaSpec, narrow
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

torch.set_num_threads(1)
aten = torch.ops.aten
SPEC = TosaSpec.parse("TOSA-1.0+FP+INT")
FP = TosaSpec.parse("TOSA-1.0+FP")


class Function(nn.Module):
    def __init__(self, function, **buffers):
        super().__init__()
        self.function = function
        for name, tensor in buffers.items():
            self.register_buffer(name, tensor)

    def forward(self, *args):
        return self.function(self, *args)


def export(function, *inputs, **buffers):
    return torch.export.export(Function(function, **buffers).eval(), inputs)


def support_and_answers(program, spec=SPEC):
    """Return the support check of a program, and node name -> reason of refusal, or None."""
    support = TOSASupport(spec)
    support.begin(program)
    calls = [
        node
        for node in program.graph.nodes
        if node.op == "call_function" and node.target is not operator.getitem
    ]
    return support, {node.name: support.why_not(node) for node in calls}


def calls_named(program, *names):
    return [node for node in program.graph.nodes if node.name in names]


def _fp32_alone(operator):
    """Return why the device "fp32alone" refuses an operator, or None."""
    types = {value.dtype.name for value in (*operator.inputs[:1], *operator.outputs)}
    return None if types <= {"FP32", "SHAPE"} else f"this device has no {sorted(types)}"


narrow("fp32alone", _fp32_alone)


def test_copied_int64_outputs_are_checked_as_int32():
    program = export(lambda m, x, i: (x * 2, i.clone()), torch.ones(3), torch.arange(3))
    options = {"spec": "TOSA-1.0+FP+fp32alone", "int32_inputs": ["args_1"]}
    lowered = delegraph.lower(program, backends=["tosa"], options={"tosa": options})
    [row] = lowered.report.refusals
    assert row.operator == "aten.clone.default"
    assert "TOSA IDENTITY: this device has no ['INT32']" in row.reason
    assert not lowered.report.given_back
    assert [len(delegate.nodes) for delegate in lowered.delegates] == [1]


def test_copied_int64_outputs_of_partitions_are_checked():
    """The partition's input is an int64 that the whole program's check sees elsewhere."""
    places = torch.empty_strided((1, 2, 1, 3), (6, 1, 6, 2), dtype=torch.int64).copy_(
        torch.arange(6).view(1, 2, 1, 3)
    )
    program = export(
        lambda m, x, i: torch.ops.aten.max_unpool2d.default(x, i, [3, 6]),
        torch.ones(1, 2, 1, 3),
        places,
    )
    lowered = delegraph.lower(
        program, backends=["tosa"], options={"tosa": {"spec": "TOSA-1.0+FP+fp32alone"}}
    )
    assert not lowered.report.given_back
    assert [
        row.operator
        for row in lowered.report.refusals
        if "IDENTITY: this device" in row.reason
    ]


def test_folded_integers_are_checked_as_constants():
    program = export(lambda m, x: (x * 2, (torch.arange(3) + 1) % 3), torch.ones(3, 2))
    lowered = delegraph.lower(
        program, backends=["tosa"], options={"tosa": {"spec": "TOSA-1.0+FP+fp32alone"}}
    )
    assert not lowered.report.given_back
    assert [
        row.operator
        for row in lowered.report.refusals
        if "IDENTITY: this device" in row.reason
    ]
    assert lowered.verify(torch.rand(3, 2)).relative_error == 0


def _no_identity(operator):
    return (
        f"this device has no {operator.name}"
        if operator.name in ("IDENTITY", "TANH")
        else None
    )


narrow("noidentity", _no_identity)
COPIED = {
    "an input": lambda m, x: (
        x.clone() + 0 * x.tanh(),
        x.reshape(-1).clone().tanh(),
        x.clone(),
    ),
    "a constant": lambda m, x: (x + m.c, m.c.clone().tanh()),
    "a result, a second time": lambda m, x: (y := x * 2, y.clone()),
}


@pytest.mark.parametrize("case", COPIED)
def test_copied_outputs_are_refused_without_identity(case):
    program = export(COPIED[case], torch.ones(2, 3), c=torch.ones(3))
    lowered = delegraph.lower(
        program, backends=["tosa"], options={"tosa": {"spec": "TOSA-1.0+FP+noidentity"}}
    )
    refused = [row for row in lowered.report.refusals if "IDENTITY" in row.reason]
    assert refused
    assert not lowered.report.given_back
    assert all(
        "result leaves the delegate: TOSA IDENTITY: this device has no IDENTITY"
        in r.reason
        for r in refused
    )
    assert lowered.verify(torch.ones(2, 3)).relative_error == 0


def test_results_without_copies_need_no_identity():
    program = export(
        lambda m, x: F.linear(x, m.c).relu().tanh() + 1,
        torch.ones(2, 3),
        c=torch.ones(3, 3),
    )
    lowered = delegraph.lower(
        program, backends=["tosa"], options={"tosa": {"spec": "TOSA-1.0+FP+noidentity"}}
    )
    assert [row.operator for row in lowered.report.refusals] == ["aten.tanh.default"]
    assert len(lowered.delegates) == 2


def test_check_and_compiler_refuse_for_the_same_reason():
    program = export(
        lambda m, x: torch.special.bessel_j0(x.exp().reshape(6)) + 1, torch.ones(2, 3)
    )
    why = "no TOSA lowering for this operator"

    _, answers = support_and_answers(program)

    assert answers == {
        "exp": None,
        "reshape": None,
        "special_bessel_j0": why,
        "add": None,
    }
    with pytest.raises(Unsupported, match=why):
        lower_program(program, Tosa(SPEC))


def test_check_reads_no_weight(monkeypatch):
    program = export(
        lambda m, x: F.conv2d(x, m.w) + m.w.sum(),
        torch.ones(1, 2, 4, 4),
        w=torch.ones(3, 2, 2, 2),
    )
    monkeypatch.setattr(
        torch.Tensor, "numpy", lambda self: pytest.fail("a weight was read")
    )
    _, answers = support_and_answers(program)
    assert set(answers.values()) == {None}


def test_constants_are_known_through_the_program():
    def positions(m, x):
        ids = m.ids[:, :3] + 1
        return x + ids.to(torch.float32), x * 2

    program = export(positions, torch.ones(2, 3), ids=torch.arange(5)[None])
    support, answers = support_and_answers(program)
    # int64 all the way, and nothing of it at run time
    assert set(answers.values()) == {None}
    constant = [
        node.name
        for node in program.graph.nodes
        if node.name in answers and support.is_constant(node)
    ]
    assert constant == ["slice_1", "add", "to"]


def test_constants_that_the_host_computes_become_inputs():
    program = export(
        lambda m, x: x + torch.special.bessel_j0(m.c), torch.ones(3), c=torch.ones(3)
    )
    support, answers = support_and_answers(program)
    assert answers["add"] is None
    assert not support.is_constant(*calls_named(program, "add"))


def test_values_of_written_buffers_are_not_constant():
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(3))

        def forward(self, x):
            self.count.add_(1)
            return x + self.count * 2

    program = torch.export.export(Counter(), (torch.ones(3),)).run_decompositions({})
    support, _ = support_and_answers(program)
    assert not any(
        support.is_constant(node)
        for node in program.graph.nodes
        if node.op == "call_function"
    )


def test_values_at_borders_must_fit_the_element_type():
    ids = torch.arange(3) << 40
    program = export(
        lambda m, x: (x + m.ids[:1].to(torch.float32), m.ids[:1]),
        torch.ones(3),
        ids=ids,
    )
    support, answers = support_and_answers(program)
    part = [node for node in program.graph.nodes if node.name in answers]
    late = support.partition_why_not(part)
    assert {n.name: why for n, why in late.items()} == {
        "slice_2": (
            "the result leaves the delegate: an int64 that may be from 0 to"
            " 2199023255552, which does not fit into 32 bits"
        )
    }


def cast_of_part(ids):
    """Return the support check of a program that casts a part of ids, and its calls."""
    program = export(
        lambda m, x: m.ids[:1].to(torch.float32) + x, torch.ones(3), ids=ids
    )
    support, _ = support_and_answers(program)
    calls = [node for node in program.graph.nodes if node.op == "call_function"]
    return support, calls


@pytest.mark.parametrize(
    ("ids", "reasons"),
    [
        (torch.arange(3), []),
        (
            torch.arange(3) - 2**31 - 1,
            [
                "the input slice_1: an int64 that may be from -2147483649 to"
                " -2147483647, which does not fit into 32 bits"
            ],
        ),
    ],
    ids=["small", "large"],
)
def test_int64_from_another_partition_must_fit_32_bits(ids, reasons):
    support, calls = cast_of_part(ids)
    only_the_cast = [node for node in calls if node.target is aten.to.dtype]

    refused = support.partition_why_not(only_the_cast)

    assert list(refused.values()) == reasons


def test_large_int64_constants_within_a_partition_fold():
    support, calls = cast_of_part(torch.arange(3) - 2**31 - 1)

    assert support.partition_why_not(calls) == {}


def test_unused_results_may_be_missing(monkeypatch):
    rule = RULES[aten.topk.default, Value]
    values_only = rule._replace(
        function=lambda t, *arguments: (rule.function(t, *arguments)[0], None)
    )
    monkeypatch.setitem(RULES, (aten.topk.default, Value), values_only)
    unused = export(lambda m, x: x.topk(2)[0] + 1, torch.randn(2, 4))
    lowered = delegraph.lower(unused, backends=["tosa"], require_full=True)
    assert len(lowered.delegates) == 1
    used = export(lambda m, x: x.topk(2), torch.randn(2, 4))
    assert delegraph.lower(used, backends=["tosa"]).delegates == []


def test_equal_scalars_of_different_types_are_distinguished():
    program = export(
        lambda m, x: (x * 2, (x * 2.0).clamp(0.5), x + True),
        torch.ones(3, dtype=torch.int32),
    )
    dtypes = [output.dtype for output in lower_program(program, Tosa(SPEC)).outputs]
    assert list(map(str, dtypes)) == ["int32", "fp32", "int32"]
    _, answers = support_and_answers(program)
    assert set(answers.values()) == {None}  # a clamp at 0.5 is taken on floats only


def test_folded_and_computed_calls_are_checked_separately():
    ids = torch.ones(2, 3, dtype=torch.int32)
    program = export(
        lambda m, x: (m.ids.reshape(6).float() + 1, x.reshape(6)), ids, ids=ids.clone()
    )
    _, answers = support_and_answers(program, FP)
    assert list(filter(None, answers.values())) == [
        "TOSA RESHAPE on int32 needs PRO-INT; the target is TOSA-1.0+FP"
    ]


def test_options_become_compile_specs():
    specs = TOSAPartitioner(
        "tosa-1.0+fp", "folder", "1,0"
    ).delegation_spec.compile_specs
    assert [(s.key, s.value) for s in specs] == [
        ("output_format", b"tosa"),
        ("tosa_spec", b"TOSA-1.0+FP"),
        ("debug_artifact_path", b"folder"),
        ("input_order", b"1,0"),
    ]
    assert TOSAPartitioner().delegation_spec.backend_id == TOSABackend.__name__
    with pytest.raises(OptionError, match="0.80 and the 1.1 draft"):
        TOSAPartitioner("TOSA-0.70+MI")


# ---- random programs, random targets

STEPS = {
    "relu": lambda m, x, y: x.relu(),
    "host": lambda m, x, y: torch.special.bessel_j0(x.clamp(-1, 1)),
    "add": lambda m, x, y: x + y,
    "linear": lambda m, x, y: F.linear(x, m.w, m.b),
    "positions": lambda m, x, y: x + m.ids[:4].float() * 0.1,
    "softmax": lambda m, x, y: x.softmax(-1),
    "pieces": lambda m, x, y: torch.cat(x.chunk(2, 1)[::-1], 1),
    "ints": lambda m, x, y: (
        (x.to(torch.int32).clamp(0, 3) + 1).reshape(4, 4).t().float()
    ),
    "mask": lambda m, x, y: x * (m.ids[:4] * 1.0),
    "rows": lambda m, x, y: x[y.argmax(1)],
    "lookup": lambda m, x, y: (
        x
        + F.embedding(y.argsort(stable=True, dim=1)[:, 0] + 1, m.w[:, :2].reshape(8, 1))
    ),
    "large": lambda m, x, y: x + ((y.argmax(1, keepdim=True) << 40) >> 39),
    "written": lambda m, x, y: x.scatter(1, y.argsort(stable=True, dim=1)[:, :2], 0.5),
    "counted": lambda m, x, y: x * (y > 0).cumsum(1),
    "bools": lambda m, x, y: x.bool().view(4, 4).to(torch.float32) - y,
}


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(sorted(STEPS)), st.integers(0, 9)),
        min_size=1,
        max_size=8,
    ),
    st.booleans(),
)
def test_accepted_programs_compile_and_equal_eager(steps, integers):
    def forward(m, x, y):
        values = [x, y]
        for name, pick in steps:
            values.append(STEPS[name](m, values[-1], values[pick % len(values)]))
        return values[-1], values[len(values) // 2]

    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(4, 4, generator=generator) for _ in range(2)]
    buffers = {
        "w": torch.randn(4, 4, generator=generator),
        "b": torch.randn(4),
        "ids": torch.arange(7),
    }
    program = export(forward, *inputs, **buffers)
    lowered = delegraph.lower(
        program,
        backends=[TOSAPartitioner("TOSA-1.0+FP+INT" if integers else "TOSA-1.0+FP")],
    )
    for found, expected in zip(
        lowered(*inputs), program.module(check_guards=False)(*inputs), strict=True
    ):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_int64_constants_shared_with_the_host_are_accepted():
    """The constant folds inside of the delegate, and the host computes its own copy."""

    def both(module, x):
        k = torch.arange(4) + 1 - 1
        return x * k, x.index_select(1, k)

    lowered = delegraph.lower(export(both, torch.ones(4, 4)), backends=["tosa"])
    (row,) = lowered.report.delegates
    assert row.operators["aten.mul.Tensor"] == 1
    assert [value.name for value in row.inputs] == ["args_0"]
    assert lowered.verify(torch.randn(4, 4)).relative_error == 0


class Elsewhere(BackendDetails):
    """Another backend, whose delegates the TOSA partitioner sees as calls."""

    @staticmethod
    def preprocess(edge_program, compile_specs):
        return PreprocessResult(b"")


@pytest.mark.parametrize(
    "elsewhere",
    [aten.gather.default, aten.sort.default],
    ids=["in a delegate", "on the host"],
)
def test_an_integer_constant_leaves_no_partition(elsewhere, monkeypatch):
    """Neither for another backend's delegate, nor where it is made of what the host
    computes.
    """

    def forward(m, x):
        rows = torch.arange(3)[:, None].expand(3, 4) + 0
        ones = torch.ones_like(torch.sort(x + 1)[0], dtype=torch.int64)
        return (
            torch.gather(x * 2, 0, rows) + ones,
            torch.special.bessel_j0(ones * 1.0) + ones,
        )

    monkeypatch.setattr(planner, "fold_constants", lambda program, may_fold: None)
    inputs = (torch.randn(3, 4),)
    other = CapabilityPartitioner(
        lambda n: None if n.target is elsewhere else "not mine", "Elsewhere"
    )
    with delegraph.register(Elsewhere):
        program = export(forward, *inputs)
        lowered = delegraph.lower(
            program, backends=[other, "tosa"]
        ).with_missing_runtime("eager")
        assert lowered.verify(*inputs).relative_error < 1e-6
    assert len({delegate.backend_id for delegate in lowered.delegates}) == 2


def test_calls_decomposed_into_host_calls_stay_whole(monkeypatch):
    for host in (aten.roll.default, aten.index_select.default, aten.index.Tensor):
        monkeypatch.delitem(RULES, (host, Value))
    lowered = delegraph.lower(
        export(lambda m, x: torch.roll(x, 1, 1) * 2, torch.ones(4, 4)),
        backends=["tosa"],
    )
    assert [refusal.operator for refusal in lowered.report.refusals] == [
        "aten.roll.default"
    ]
    assert lowered.verify(torch.randn(4, 4)).relative_error == 0


def test_operators_refused_for_dynamic_sizes_are_not_decomposed(monkeypatch):
    """The decomposed operators would have the same sizes and be refused, too."""
    traced = []
    real = Tracer.decompose
    monkeypatch.setattr(
        Tracer,
        "decompose",
        lambda self, node, *how: traced.append(node) or real(self, node, *how),
    )
    layer = nn.LayerNorm(4).eval()
    rows = {0: torch.export.Dim("rows", max=64)}
    program = torch.export.export(layer, (torch.ones(3, 4),), dynamic_shapes=(rows,))
    lowered = delegraph.lower(program, backends=["tosa"])
    assert [refusal.operator for refusal in lowered.report.refusals] == [
        "aten.layer_norm.default"
    ]
    assert "has the dynamic shape" in lowered.report.refusals[0].reason
    assert {str(n.target) for n in traced} <= {
        "aten.layer_norm.default",
        "aten.native_layer_norm.default",
    }  # for the host
    assert lowered.verify(torch.randn(5, 4)).relative_error < 1e-6


def test_constants_of_operators_refused_elsewhere_stay_out():
    """A check that the user adds refuses the product, so nothing uses the constant."""
    program = export(lambda m, x: x * m.w[0], torch.ones(4), w=torch.ones(2, 4))
    partitioner = TOSAPartitioner("TOSA-1.0+INT")
    partitioner.additional_checks = (
        lambda n: "not here" if n.target is aten.mul.Tensor else None,
    )

    lowered = delegraph.lower(program, backends=[partitioner])

    assert not lowered.delegates
    assert lowered.verify(torch.randn(4)).relative_error == 0
