"""Operators are decomposed on demand: until a backend supports the pieces.

Results stay the same, and the host keeps the operators of the model.
"""

import copy
import operator
from collections import Counter

import delegraph.api as api
import pytest
import torch
from delegraph.engine.decompose_on_demand import Decomposer, in_core_aten
from delegraph.partitioner import (
    CapabilityPartitioner,
    DelegationSpec,
    Partitioner,
    PartitionResult,
)
from delegraph.report.left_on_host import host_calls
from delegraph_programs import all_nodes, normalize, to_core
from delegraph_programs.call_names import LEFT
from delegraph_programs.decompose import trace
from delegraph_programs.decompose.decomposition_tables import beyond_core, is_composite
from delegraph_programs.decompose.inline import Inlining
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils import _pytree as pytree

aten = torch.ops.aten
F = nn.functional


def partitioner_for(*operators):
    """Return a partitioner whose backend supports only these operators."""
    return CapabilityPartitioner(
        lambda n: None if n.target in operators else "unknown operator", "EchoBackend"
    )


class Tags(Partitioner):
    """Tags the calls of ``tagged`` and keeps ``kept`` whole. It has no check for single
    calls.
    """

    def __init__(self, tagged, kept=(), wanted=None):
        super().__init__()
        self.tagged = tagged
        self.kept = list(kept)
        self.wanted = wanted
        self.seen = []

    def partition(self, exported_program):
        tags = {}
        for node in exported_program.graph.nodes:
            if node.target in self.tagged:
                tag = node.meta["delegation_tag"] = f"tag{len(tags)}"
                tags[tag] = DelegationSpec("EchoBackend")
        self.seen.append(
            {
                node.target
                for node in exported_program.graph.nodes
                if node.op == "call_function"
            }
        )
        return PartitionResult(exported_program, tags)

    def ops_to_not_decompose(self, exported_program):
        return self.kept, self.wanted


class Block(nn.Module):
    """Attention and a feed-forward layer, as in any transformer."""

    def __init__(self, layers=1):
        super().__init__()
        torch.manual_seed(0)
        self.qkv = nn.ModuleList(nn.Linear(8, 24) for _ in range(layers))
        self.out = nn.ModuleList(nn.Linear(8, 8) for _ in range(layers))

    def forward(self, x):
        for qkv, out in zip(self.qkv, self.out, strict=True):
            q, k, v = qkv(x).chunk(3, -1)
            x = x + F.silu(out(F.scaled_dot_product_attention(q, k, v)))
        return x


def lower_and_verify(module, inputs, backends, registry, **options):
    lowered = api.lower(
        module.eval(), inputs, backends=backends, registry=registry, **options
    )
    assert lowered.verify(*inputs).relative_error < 1e-6
    assert difference_from_eager(lowered.core_program(), module, inputs) < 1e-6
    return lowered


def difference_from_eager(program, module, inputs):
    """Return the largest difference of a core ATen program from eager, relative to the
    largest value.
    """
    with torch.no_grad():
        given, expected = (
            pytree.tree_leaves(run(*inputs)) for run in (program.module(), module)
        )
    return max(
        float((g - w).abs().max() / w.abs().max().clamp(min=1))
        for g, w in zip(given, expected, strict=True)
    )


def call_targets(program):
    return [node.target for node in program.graph.nodes if node.op == "call_function"]


def operators_by_delegate(made):
    return [dict(delegate.operators) for delegate in made.report.delegates]


def test_supported_operators_stay_whole(registry):
    lowered = lower_and_verify(
        Block(),
        (torch.randn(2, 4, 8),),
        [partitioner_for(aten.linear.default)],
        registry,
    )
    assert operators_by_delegate(lowered) == [{"aten.linear.default": 1}] * 2


def test_refused_calls_are_decomposed_into_supported_pieces(registry):
    """linear is refused. One of its pieces is addmm, which is supported."""
    lowered = lower_and_verify(
        Block(),
        (torch.randn(2, 4, 8),),
        [partitioner_for(aten.addmm.default)],
        registry,
    )
    assert operators_by_delegate(lowered) == [{"aten.addmm.default": 1}] * 2


def test_pieces_of_pieces_are_delegated(registry):
    """mish contains softplus, which contains log1p."""

    class Mish(nn.Module):
        def forward(self, x):
            return F.mish(x) + 1

    x = torch.randn(3)
    lowered = lower_and_verify(
        Mish(), (x,), [partitioner_for(aten.softplus.default)], registry
    )
    assert operators_by_delegate(lowered) == [{"aten.softplus.default": 1}]

    lowered = lower_and_verify(
        Mish(), (x,), [partitioner_for(aten.log1p.default)], registry
    )
    assert operators_by_delegate(lowered) == [{"aten.log1p.default": 1}], (
        "pieces of softplus, where softplus is refused as well"
    )


class Recurrent(nn.Module):
    """An LSTM and a GRU. torch decomposes both before a tracer sees their pieces."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.lstm = nn.LSTM(4, 3)
        self.gru = nn.GRU(3, 3)

    def forward(self, x):
        return self.gru(self.lstm(x)[0])[0]


@pytest.mark.parametrize("asks", [False, True], ids=["tags", "can be asked"])
def test_linear_layers_of_recurrent_layers_are_delegated(asks, registry, no_folding):
    """Each recurrent layer has four linear layers over three steps."""
    linear = aten.linear.default
    backend = partitioner_for(linear) if asks else Tags([linear], kept=[linear])
    lowered = lower_and_verify(
        Recurrent(), (torch.randn(3, 2, 4),), [backend], registry
    )
    delegated = Counter()
    for operators in operators_by_delegate(lowered):
        delegated.update(operators)

    assert delegated == {"aten.linear.default": 8}


def test_a_filter_selects_linear_layers_of_recurrent_layers(registry, no_folding):
    """The filter accepts the layer that sees all three steps at once: one for each
    recurrent layer.
    """
    linear = aten.linear.default
    backend = Tags(
        [linear], kept=[linear], wanted=lambda n: n.meta["val"].shape[0] == 3
    )
    lowered = lower_and_verify(
        Recurrent(), (torch.randn(3, 2, 4),), [backend], registry
    )
    left = Counter(call_targets(lowered.exported_program()))

    assert len(lowered.delegates) == 2
    assert left[linear] == 0
    assert left[aten.addmm.default] == 6


def test_nothing_is_traced_if_all_calls_are_supported(registry, monkeypatch):
    monkeypatch.setattr(trace.Tracer, "decompose", lambda *_: pytest.fail("traced"))
    everything = CapabilityPartitioner(lambda n: None, "EchoBackend")
    lowered = api.lower(
        Block().eval(),
        (torch.randn(2, 4, 8),),
        backends=[everything],
        registry=registry,
    )

    assert lowered.report.host_operators == 0


def test_the_program_is_never_retraced_as_a_whole(registry, monkeypatch):
    monkeypatch.setattr(
        torch.export.ExportedProgram,
        "run_decompositions",
        lambda *_: pytest.fail("retraced"),
    )
    lower_and_verify(
        Block(), (torch.randn(2, 4, 8),), [partitioner_for(aten.mm.default)], registry
    )


def test_equal_layers_are_traced_once(registry, monkeypatch):
    traced = record_traces(monkeypatch)
    lower_and_verify(Block(1), (torch.randn(2, 4, 8),), [], registry)
    for_one_layer = len(traced)
    traced.clear()

    lower_and_verify(Block(6), (torch.randn(2, 4, 8),), [], registry)

    assert for_one_layer > 0
    assert len(traced) == for_one_layer


def record_traces(monkeypatch):
    """Return a list to which each traced operator is added from now on."""
    traced = []
    run = trace._trace

    def counted(node, *how):
        traced.append(node.target)
        return run(node, *how)

    monkeypatch.setattr(trace, "_trace", counted)
    return traced


class Mixed(nn.Module):
    """Operators with decompositions of several steps, some with several results."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.block = Block(2)
        self.norm = nn.GroupNorm(2, 4)
        self.lstm = nn.LSTM(8, 8, batch_first=True)

    def forward(self, x):
        y = self.norm(self.block(x))
        mean, var = torch.var_mean(y, -1)
        attended = F.scaled_dot_product_attention(y, y, x, is_causal=True)
        return (
            self.lstm(attended)[0],
            F.cosine_similarity(x, y),
            mean,
            var,
            F.huber_loss(x, y),
            torch.tril(y[0], -1),
        )


def test_core_program_is_core_aten_and_equals_eager(registry):
    inputs = (torch.randn(2, 4, 8),)
    lowered = lower_and_verify(Mixed(), inputs, [], registry)
    program = lowered.core_program()

    assert not [target for target in call_targets(program) if to_core(target)]
    for actual, expected in zip(
        program.module()(*inputs), lowered(*inputs), strict=True
    ):
        torch.testing.assert_close(actual, expected)


def test_a_kept_operator_stays_whole_inside_of_another():
    program = torch.export.export(Block().eval(), (torch.randn(2, 4, 8),))

    decomposed = call_targets(in_core_aten(normalize(program)[0], []))
    keeping_t = call_targets(in_core_aten(normalize(program)[0], [aten.t.default]))

    assert aten.t.default not in decomposed
    assert aten.t.default in keeping_t
    assert aten.linear.default not in decomposed
    assert aten.linear.default not in keeping_t


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
def test_calls_on_sparse_tensors_are_decomposed(registry):
    """Sparse tensors have no strides, by which equal calls are otherwise found."""

    class Sparse(nn.Module):
        def forward(self, a, b):
            return F.linear(torch.sparse.mm(a, b), b)

    a = torch.eye(3).to_sparse_csr()
    b = torch.randn(3, 2)
    lowered = api.lower(
        torch.export.export(Sparse(), (a, b)), backends=[], registry=registry
    )

    assert torch.equal(lowered(a, b), F.linear(b, b))


def test_calls_with_different_types_have_different_signatures():
    class Clamped(nn.Module):
        def forward(self, x):
            return (
                x.clamp(0, 1),
                x.clamp(0.0, 1.0),
                x.clamp(False, True),
                x.t().clamp(0, 1),
                x.clamp(0, 1),
            )

    program = torch.export.export(Clamped().eval(), (torch.randn(3, 3),))
    calls = [node for node in program.graph.nodes if "clamp" in node.name]
    signatures = [trace.Tracer().signature(node) for node in calls]
    *different, repeated = signatures

    assert len(set(different)) == 4
    assert repeated == signatures[0]


def test_pieces_keep_debug_handle_and_source(registry):
    lowered = lower_and_verify(
        Block(),
        (torch.randn(2, 4, 8),),
        [partitioner_for(aten.addmm.default)],
        registry,
    )
    program, _ = normalize(torch.export.export(Block().eval(), (torch.randn(2, 4, 8),)))
    linear = [
        node for node in program.graph.nodes if node.target is aten.linear.default
    ]
    pieces = [n for d in lowered.delegates for n in d.nodes]

    assert [p.meta["debug_handle"] for p in pieces] == [
        n.meta["debug_handle"] for n in linear
    ]
    assert [p.meta["stack_trace"] for p in pieces] == [
        n.meta["stack_trace"] for n in linear
    ]
    assert all(p.meta["nn_module_stack"] for p in pieces)


def test_host_calls_the_operators_of_the_model(registry):
    """A partitioner that only tags gets a decomposed program. Calls it leaves become
    whole again.
    """
    x = torch.randn(2, 4, 8)
    whole = lower_and_verify(Block(), (x,), [], registry).report.host
    tagged = lower_and_verify(Block(), (x,), [Tags((aten.bmm.default,))], registry)
    assert whole["forward"]["aten.linear.default"] == 2
    assert tagged.report.host["forward"]["aten.linear.default"] == 2
    assert tagged.report.host["forward"]["aten.silu.default"] == 1
    assert len(tagged.delegates) == 2
    assert aten.addmm.default not in call_targets(tagged.exported_program())

    rows = {refusal.operator: refusal.reason for refusal in tagged.report.refusals}
    assert rows["aten.linear.default"]
    assert rows["aten.silu.default"] == "not tagged by its partitioner"


def test_infinities_and_overflows_stay_as_in_eager(registry):
    """Decompositions may differ: squares of large numbers overflow, and 0 times
    infinity is NaN.
    """

    class Large(nn.Module):
        def forward(self, x):
            attended = F.scaled_dot_product_attention(
                x[None, None], x[None, None], x[None, None], is_causal=True
            )
            return x.std(), attended, torch.special.logit(x.bfloat16(), 1e-3), x.var(0)

    x = torch.linspace(1e38, 3e38, 12).reshape(3, 4)
    infinite = torch.where(
        torch.arange(12).reshape(3, 4) == 5, torch.inf, torch.ones(())
    )
    for values in (x, infinite):
        for backends in ([], [Tags((aten.sin.default,))]):
            lowered = api.lower(
                Large().eval(), (values,), backends=backends, registry=registry
            )
            for ours, eager in zip(lowered(values), Large()(values), strict=True):
                assert torch.equal(ours.nan_to_num(7), eager.nan_to_num(7))


def test_core_program_has_the_operators_of_torchs_decomposition(registry):
    x = torch.randn(2, 4, 8)
    lowered = lower_and_verify(Block(), (x,), [], registry)
    judged = torch.export.export(Block().eval(), (x,)).run_decompositions()
    left = set(call_targets(lowered.core_program()))

    assert not any(to_core(t) for t in left)
    assert left - set(call_targets(judged)) <= {
        aten._to_copy.default,
        aten.clone.default,
        *call_targets(judged),
        *_views(left),
    }


def _views(found):
    return {t for t in found if getattr(t, "is_view", False)}


def test_refusals_name_the_part_and_its_composite_operator(registry):
    lowered = lower_and_verify(
        Block(), (torch.randn(2, 4, 8),), [partitioner_for(aten.bmm.default)], registry
    )
    rows = {(refusal.operator, refusal.reason) for refusal in lowered.report.refusals}

    assert (
        "aten._softmax.default",
        "unknown operator (part of aten.scaled_dot_product_attention.default)",
    ) in rows
    assert (
        "aten.silu.default",
        "unknown operator",
    ) in rows, "nothing of it was taken: it counts as what it was"
    assert not any(op == "aten.sigmoid.default" for op, _ in rows)
    assert all(
        refusal.source and "test_decompose.py" in refusal.source.file
        for refusal in lowered.report.refusals
    )


def test_a_partition_of_only_views_makes_no_delegate(registry):
    lowered = lower_and_verify(
        Block(),
        (torch.randn(2, 4, 8),),
        [partitioner_for(aten.view.default, aten.permute.default)],
        registry,
    )
    assert lowered.delegates == []


def test_core_operators_are_decomposed_only_if_all_pieces_are_supported(registry):
    """native_layer_norm is core ATen. Its pieces would only be slower on the host."""

    class Norm(nn.Module):
        def forward(self, x):
            return F.layer_norm(x, [8])

    x = torch.randn(3, 8)
    pieces = (
        aten.mean.dim,
        aten.sub.Tensor,
        aten.mul.Tensor,
        aten.sum.dim_IntList,
        aten.div.Tensor,
        aten.add.Tensor,
    )
    some = lower_and_verify(Norm(), (x,), [partitioner_for(*pieces)], registry)
    assert some.delegates == []
    assert some.report.host == {"forward": {"aten.layer_norm.default": 1}}
    assert call_targets(some.exported_program()) == [aten.layer_norm.default]
    assert aten.native_layer_norm.default in call_targets(some.core_program())
    assert call_targets(some.core_program(keep=[aten.layer_norm.default])) == [
        aten.layer_norm.default
    ]

    every = lower_and_verify(
        Norm(), (x,), [partitioner_for(*pieces, aten.rsqrt.default)], registry
    )
    assert every.report.host_operators == 0


def test_later_backend_keeps_operators_refused_by_the_first(registry):
    x = torch.randn(2, 4, 8)
    lowered = lower_and_verify(
        Block(),
        (x,),
        [
            partitioner_for(aten.addmm.default, aten.bmm.default),
            partitioner_for(aten.linear.default),
        ],
        registry,
    )
    whole = [
        d for d in operators_by_delegate(lowered) if d == {"aten.linear.default": 1}
    ]
    assert len(whole) == 2
    assert {"aten.bmm.default": 1} in operators_by_delegate(lowered)

    swapped = [
        partitioner_for(aten.linear.default),
        partitioner_for(aten.addmm.default, aten.bmm.default),
    ]
    assert sorted(
        map(
            str,
            operators_by_delegate(lower_and_verify(Block(), (x,), swapped, registry)),
        )
    ) == sorted(map(str, operators_by_delegate(lowered)))


def test_tagging_partitioner_keeps_the_operators_it_names(registry):
    both = (aten.linear.default, aten.addmm.default)
    keeps = Tags(both, kept=[aten.linear.default])
    lowered = lower_and_verify(Block(), (torch.randn(2, 4, 8),), [keeps], registry)
    assert operators_by_delegate(lowered) == [{"aten.linear.default": 1}] * 2
    assert aten.silu.default not in keeps.seen[0], (
        "it is asked about core ATen otherwise"
    )

    lowered = lower_and_verify(Block(), (torch.randn(2, 4, 8),), [Tags(both)], registry)
    assert operators_by_delegate(lowered) == [{"aten.addmm.default": 1}] * 2


def test_the_filter_decides_for_each_call(registry):
    first = Tags(
        (aten.linear.default, aten.addmm.default),
        kept=[aten.linear.default],
        wanted=lambda n: n.meta["val"].shape[-1] == 24,
    )
    lowered = lower_and_verify(Block(), (torch.randn(2, 4, 8),), [first], registry)

    assert operators_by_delegate(lowered) == [
        {"aten.linear.default": 1},
        {"aten.addmm.default": 1},
    ]


def test_kept_operators_without_a_delegate_stay_whole(registry):
    lowered = lower_and_verify(
        Block(),
        (torch.randn(2, 4, 8),),
        [Tags((), kept=[aten.linear.default])],
        registry,
    )

    assert lowered.report.host["forward"]["aten.linear.default"] == 2
    assert aten.addmm.default in call_targets(lowered.core_program())


def test_a_second_tagging_partitioner_gets_its_kept_operators(registry):
    first = Tags((aten.bmm.default,))
    second = Tags((aten.linear.default,), kept=[aten.linear.default])
    lowered = lower_and_verify(
        Block(), (torch.randn(2, 4, 8),), [first, second], registry
    )

    assert (
        operators_by_delegate(lowered)
        == [{"aten.bmm.default": 1}] * 2 + [{"aten.linear.default": 1}] * 2
    )


class Left(nn.Module):
    def forward(self, x, n):
        return torch.rand_like(x), F.dropout(x, 0.5, True), x[x > 0], torch.nonzero(x)


def test_random_and_data_dependent_operators_are_not_decomposed():
    program, _ = normalize(
        torch.export.export(Left().eval(), (torch.randn(3), torch.randn(2)))
    )
    before = [t for t in call_targets(program) if not to_core(t)]
    after = call_targets(in_core_aten(program))

    assert [t for t in before if t not in after] == []
    for op in (
        aten.item.default,
        aten.nonzero.default,
        aten.add_.Tensor,
        torch.ops.higher_order.cond,
    ):
        assert to_core(op) is None
        assert beyond_core(op) is None


def test_attention_with_dropout_stays_whole(registry):
    class Dropped(nn.Module):
        def forward(self, x):
            return F.scaled_dot_product_attention(x, x, x, dropout_p=0.5)

    lowered = api.lower(
        Dropped().eval(), (torch.randn(1, 2, 4, 8),), backends=[], registry=registry
    )

    assert lowered.report.host == {
        "forward": {"aten.scaled_dot_product_attention.default": 1}
    }
    assert call_targets(lowered.core_program()) == [
        aten.scaled_dot_product_attention.default
    ]


def test_decomposition_keeps_symbolic_sizes(registry):
    x = torch.randn(2, 4, 8)
    batch = torch.export.Dim("batch", min=2, max=64)
    shapes = {"x": {0: batch}}
    lowered = lower_and_verify(
        Block(),
        (x,),
        [partitioner_for(aten.addmm.default, aten.bmm.default)],
        registry,
        dynamic_shapes=shapes,
    )
    assert (
        sum(
            d.get("aten.bmm.default", 0) + d.get("aten.addmm.default", 0)
            for d in operators_by_delegate(lowered)
        )
        == 4
    )

    for size in (3, 17):
        assert lowered.verify(torch.randn(size, 4, 8)).relative_error < 1e-6
    assert not any(to_core(t) for t in call_targets(lowered.core_program()))


def test_a_recurrent_layer_reaches_core_aten(registry):
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = nn.LSTM(4, 3)

        def forward(self, x):
            return self.lstm(x)

    lowered = lower_and_verify(Recurrent(), (torch.randn(3, 2, 4),), [], registry)
    assert lowered.report.host == {
        "forward": {"aten.lstm.input": 1, "aten.zeros.default": 2}
    }

    names = [
        str(t)
        for t in call_targets(lowered.core_program())
        if t is not operator.getitem
    ]
    assert not [
        n for n in names if not n.startswith("aten.") or "mkldnn" in n or "lstm" in n
    ], lowered.report.notes


def test_calls_on_one_and_several_values_decompose_separately(
    registry,
):
    class Twice(nn.Module):
        def forward(self, x):
            return torch.addcmul(x, x, torch.addcmul(x, x, x, value=0.5), value=0.5)

    assert (
        lower_and_verify(Twice(), (torch.randn(3),), [], registry)
        .verify(torch.full((3,), 2.0))
        .relative_error
        < 1e-6
    )


OPERATORS = {
    "linear": lambda s, a, b: F.linear(a, s.w, b[0]),
    "matmul": lambda s, a, b: a @ b.t(),
    "softmax": lambda s, a, b: torch.softmax(a, -1),
    "silu": lambda s, a, b: F.silu(a),
    "mish": lambda s, a, b: F.mish(a),
    "hardshrink": lambda s, a, b: F.hardshrink(a),
    "addcmul": lambda s, a, b: torch.addcmul(a, a, b, value=0.5),
    "glu": lambda s, a, b: F.glu(torch.cat([a, b], -1)),
    "norm": lambda s, a, b: F.layer_norm(a, [4], s.w[0]),
    "group": lambda s, a, b: F.group_norm(a, 2, s.w[0], s.w[1]),
    "std": lambda s, a, b: a - b.std(1, keepdim=True),
    "chunk": lambda s, a, b: torch.cat(a.chunk(2, 1)[::-1], 1),
    "sdpa": lambda s, a, b: F.scaled_dot_product_attention(a[None], b[None], a[None])[
        0
    ],
    "write": lambda s, a, b: a.clone().mul_(0.5),
    "view": lambda s, a, b: a.t().contiguous().view(4, 4),
    "relu": lambda s, a, b: F.relu6(a) + F.elu(b),
    "batch": lambda s, a, b: F.batch_norm(
        a, s.w.detach()[0], s.w.detach()[1].abs() + 1
    ),
    "einsum": lambda s, a, b: torch.einsum("ij,kj->ik", a, b),
    "split": lambda s, a, b: a.split(3, 1)[0].sum(1, keepdim=True) * b,
}


def test_equally_decomposed_operands_stay_separate(registry):
    """The heads of attention are such operands: pieces of their transposes share
    recorded values.
    """

    class Heads(nn.Module):
        def forward(self, *qkv):
            q, k, v = (x.view(2, 5, 2, 4).transpose(1, 2) for x in qkv)
            return F.scaled_dot_product_attention(q, k, v)

    inputs = tuple(torch.randn(2, 5, 8) for _ in range(3))
    on_host = api.lower(Heads().eval(), inputs, backends=[], registry=registry)
    assert on_host.verify(*inputs).relative_error < 1e-6

    pieces = partitioner_for(
        aten.permute.default, aten.bmm.default, aten.mul.Scalar, aten._softmax.default
    )
    in_part = api.lower(Heads().eval(), inputs, backends=[pieces], registry=registry)
    assert in_part.verify(*inputs).relative_error < 1e-6


def test_a_decomposition_may_write_to_its_argument_lists(registry):
    x = torch.randn(4, 3)
    rows = torch.tensor([0, 3])

    class Masked(nn.Module):
        def forward(self, x, rows):
            return aten._unsafe_masked_index(x, rows > 0, [rows, rows - 1], 7.0)

    lowered = api.lower(Masked().eval(), (x, rows), backends=[], registry=registry)
    assert lowered.report.notes == []

    core = lowered.core_program()
    assert aten._unsafe_masked_index.default not in call_targets(core)
    assert difference_from_eager(core, Masked(), (x, rows)) == 0


def test_a_copy_of_an_expanded_tensor_has_recorded_strides(registry):
    """Views of a decomposition depend on these strides."""

    class Expanded(nn.Module):
        def forward(self, x, w):
            wide = F.dropout(x[:, None].expand(5, 2, 4), 0.1, False)
            return torch.einsum("ibh,hnd->ibnd", wide.to(torch.float32), w)

    inputs = torch.randn(5, 4), torch.randn(4, 2, 3)
    program = torch.export.export(Expanded().eval(), inputs)
    lowered = api.lower(
        program,
        backends=[partitioner_for(aten.expand.default, aten.to.dtype)],
        registry=registry,
    )

    assert lowered.verify(*inputs).relative_error < 1e-6
    torch.testing.assert_close(
        lowered.exported_program().module()(*inputs), program.module()(*inputs)
    )


class Random(nn.Module):
    def __init__(self, steps):
        super().__init__()
        torch.manual_seed(0)
        self.steps = steps
        self.w = nn.Parameter(torch.randn(4, 4))

    def forward(self, x):
        pool = [x + 0]
        for name, i, j in self.steps:
            pool.append(OPERATORS[name](self, pool[i % len(pool)], pool[j % len(pool)]))
        return tuple(pool[-2:])


steps = st.lists(
    st.tuples(st.sampled_from(list(OPERATORS)), st.integers(0, 5), st.integers(0, 5)),
    min_size=1,
    max_size=5,
)


def supported(target, mask):
    """Return a pseudo-random support check that is the same in every process."""
    return bool(mask >> (sum(map(ord, str(target))) % 31) & 1)


@given(steps, st.integers(0, 2**31 - 1), st.integers(0, 2**31 - 1))
@settings(max_examples=25, deadline=None)
def test_random_programs_equal_eager(echo_registry, steps, first, second):
    module = Random(steps).eval()
    x = torch.randn(4, 4)
    backends = [
        CapabilityPartitioner(
            lambda n, mask=mask: None if supported(n.target, mask) else "masked",
            "EchoBackend",
        )
        for mask in (first, second)
    ]
    lowered = api.lower(module, (x,), backends=backends, registry=echo_registry)
    assert lowered.verify(copy.deepcopy(x)).relative_error < 1e-5

    left = host_calls(lowered.exported_program().graph.nodes)
    assert not any(
        supported(n.target, first | second)
        for n in left
        if "decomposed_from" not in n.meta and n.target is not operator.getitem
    )

    core = lowered.core_program()
    assert difference_from_eager(core, module, (x,)) < 1e-5
    assert not any(to_core(n.target) for n in host_calls(core.graph.nodes)), (
        "it has an operator that is not core ATen"
    )


class OnlyTags(Partitioner):
    """Tags as ``CapabilityPartitioner`` does, but has no check for single calls."""

    def __init__(self, mask):
        super().__init__()
        self.inner = CapabilityPartitioner(
            lambda n: None if supported(n.target, mask) else "masked", "EchoBackend"
        )

    def partition(self, exported_program):
        return self.inner.partition(exported_program)


@given(steps, st.integers(0, 2**31 - 1), st.integers(0, 2**31 - 1))
@settings(max_examples=25, deadline=None)
def test_random_programs_for_partitioners_that_only_tag(
    echo_registry, steps, first, second
):
    """No piece of a delegate is on the host as well, and no delegate is inside of a
    call.
    """
    module = Random(steps).eval()
    x = torch.randn(4, 4)
    lowered = api.lower(
        module,
        (x,),
        backends=[OnlyTags(first), OnlyTags(second)],
        registry=echo_registry,
    )

    assert lowered.verify(copy.deepcopy(x)).relative_error < 1e-5
    assert difference_from_eager(lowered.core_program(), module, (x,)) < 1e-5


@pytest.mark.parametrize("name", OPERATORS)
def test_each_single_operator_runs_on_the_host(name, echo_registry):
    x = torch.randn(4, 4)
    module = Random([(name, 0, 0)]).eval()
    lowered = api.lower(module, (x,), backends=[], registry=echo_registry)
    assert lowered.verify(x).relative_error == 0, "the host calls what eager calls"
    assert difference_from_eager(lowered.core_program(), module, (x,)) < 1e-6
    assert not any(to_core(t) for t in call_targets(lowered.core_program()))


class Dynamic(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def lower_with_dynamic_sizes(function):
    """Lower for no backend, with a symbolic batch and a symbolic height."""
    sizes = {0: torch.export.Dim("n"), 2: torch.export.Dim.DYNAMIC}
    program = torch.export.export(
        Dynamic(function), (torch.rand(20, 3, 16, 8),), dynamic_shapes=(sizes,)
    )
    return api.lower(program, backends=[])


def test_a_note_names_sizes_that_a_decomposition_needs():
    lowered = lower_with_dynamic_sizes(lambda x: F.pixel_unshuffle(x, 2))
    program = lowered.core_program()
    (node,) = [
        node
        for node in program.graph.nodes
        if node.target is aten.pixel_unshuffle.default
    ]
    decomposer = Decomposer()
    decomposer.tracer.begin(program)
    assert decomposer.tracer.decompose(node, to_core(node.target)) is None

    (note,) = decomposer.notes
    assert note.startswith(
        "aten.pixel_unshuffle.default (core/tests/engine/test_decompose.py:"
    )
    assert (
        ") was left whole: torch decomposes it in different ways for different sizes"
        in note
    )

    x = torch.rand(2, 3, 4, 8)
    assert torch.equal(lowered(x), F.pixel_unshuffle(x, 2))


def test_a_convolution_of_a_dynamic_batch_is_decomposed():
    """torch compares the batch with 16 to choose a kernel. The decomposition does not
    depend on it.
    """
    weight = torch.rand(5, 3, 3, 3)
    lowered = lower_with_dynamic_sizes(lambda x: F.conv2d(x, weight))
    assert call_targets(lowered.core_program()) == [aten.convolution.default]
    x = torch.rand(2, 3, 7, 8)
    torch.testing.assert_close(lowered.core_program().module()(x), F.conv2d(x, weight))


class Spread(nn.Module):
    def forward(self, x):
        return torch.var_mean(x, 1)[0]


def test_unused_results_add_no_node_to_a_decomposition():
    program = torch.export.export(Spread(), (torch.ones(2, 3),))
    program.graph.eliminate_dead_code()
    call = next(node for node in program.graph.nodes if "var_mean" in str(node.target))
    decomposition = trace.Tracer().decompose(
        call, to_core(call.target) or beyond_core(call.target)
    )
    inlining = Inlining(call, decomposition)
    used, unused = inlining.results()

    assert used.graph is program.graph
    assert unused is None


def test_operators_decompose_as_in_torch_without_its_table():
    """Collecting torch's table takes a tenth of a second."""
    table = dict(torch.export.default_decompositions().items())
    told = {op: to_core(op) for op in table if isinstance(op, torch._ops.OpOverload)}
    own = (
        "aten::batch_norm",
        "aten::native_batch_norm",
        "aten::lstm_cell",
        "aten::gru_cell",
    )
    told = {
        op: how for op, how in told.items() if how is not None and op.name() not in own
    }
    composite = set(filter(is_composite, told))

    assert len(composite) > 150
    assert all(told[op] in (op.decompose, table[op]) for op in composite)
    assert len(told) - len(composite) > 150
    assert all(told[op] is table[op] for op in told.keys() - composite)


@pytest.mark.filterwarnings("ignore:The tensor attributes self._flat_weights")
@pytest.mark.parametrize("layer", [torch.nn.GRU, torch.nn.LSTM])
def test_recurrent_layers_decompose_by_a_table_of_torch(layer):
    """``OpOverload.decompose`` would call itself for decompositions written in Python."""
    program = torch.export.export(layer(3, 2).eval(), (torch.randn(4, 3),))
    [recurrent] = [
        node.target for node in program.graph.nodes if node.name in ("gru", "lstm")
    ]
    left = {
        node.target
        for node in program.run_decompositions(
            {recurrent: to_core(recurrent)}
        ).graph.nodes
    }

    assert recurrent not in left
    assert torch.ops.aten.tanh.default in left


def test_python_only_decompositions_of_torch_are_used():
    assert to_core(torch.ops.aten._upsample_nearest_exact2d.default) is not None


def test_the_program_in_core_aten_is_a_copy(registry):
    class Branches(nn.Module):
        def forward(self, x, sign):
            return torch.cond(
                sign.sum() > 0,
                lambda x: F.layer_norm(x, (4,)),
                lambda x: F.softplus(x),
                (x,),
            )

    inputs = (torch.ones(2, 4), torch.ones(2))
    lowered = api.lower(Branches().eval(), inputs, backends=[], registry=registry)
    lowered.core_program()
    nodes = all_nodes(lowered.exported_program().graph_module)

    assert [node.name for node in nodes if LEFT in node.meta] == []
