"""``to_edge``, ``to_edge_transform_and_lower`` and ``EdgeProgramManager``; docstrings
name the acceptance rows.
"""

import pytest
import torch
from delegraph import errors
from delegraph.discovery.registry import Registry
from delegraph.partitioner import (
    CapabilityPartitioner,
    DelegationSpec,
    Partitioner,
    PartitionResult,
)
from delegraph_engines import WrappingPartitioner
from delegraph_executorch.edge import (
    EdgeCompileConfig,
    EdgeProgramManager,
    to_edge,
    to_edge_transform_and_lower,
)
from torch import nn
from torch.fx.passes.infra.pass_base import PassBase, PassResult

aten = torch.ops.aten
F = nn.functional
_CALL = torch.ops.higher_order.executorch_call_delegate


class Keeps(Partitioner):
    """Keeps ``operators`` whole, where ``wanted`` says so, and makes each of them a
    partition of its own.
    """

    def __init__(self, *operators, wanted=None):
        super().__init__()
        self.operators = operators
        self.wanted = wanted

    def partition(self, exported_program):
        tags = {}
        for node in exported_program.graph.nodes:
            if node.target in self.operators:
                tag = f"tag{len(tags)}"
                tags[tag] = DelegationSpec("EchoBackend")
                for n in (
                    node,
                    *(
                        u
                        for u in node.users
                        if isinstance(node.meta["val"], (tuple, list))
                    ),
                ):
                    n.meta["delegation_tag"] = tag
        return PartitionResult(exported_program, tags)

    def ops_to_not_decompose(self, exported_program):
        return list(self.operators), self.wanted


def export(function, *inputs, **layers):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            for name, layer in layers.items():
                setattr(self, name, layer)

        def forward(self, *inputs):
            return function(self, *inputs)

    return torch.export.export(Model().eval(), inputs)


def export_linear():
    return export(lambda s, x: s.a(x).relu(), torch.randn(2, 4), a=nn.Linear(4, 3))


def call_targets(program):
    return [node.target for node in program.graph.nodes if node.op == "call_function"]


def count_delegates(program):
    return call_targets(program).count(_CALL)


def assert_equals_source(program, source, *inputs):
    actual = program.module(check_guards=False)(*inputs)
    expected = source.module(check_guards=False)(*inputs)
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6)


Q = torch.randn(1, 2, 4, 8)
PRESERVED = {
    "linear": (lambda: export_linear(), (torch.randn(2, 4),), [aten.linear.default], 1),
    "sdpa": (
        lambda: export(lambda s, q: F.scaled_dot_product_attention(q, q, q), Q),
        (Q,),
        [aten.scaled_dot_product_attention.default],
        1,
    ),
    "combined": (
        lambda: export(
            lambda s, q: F.scaled_dot_product_attention(s.a(q), q, s.a(q)),
            Q,
            a=nn.Linear(8, 8),
        ),
        (Q,),
        [aten.scaled_dot_product_attention.default, aten.linear.default],
        3,
    ),
    "upsample": (
        lambda: export(
            lambda s, q: F.interpolate(q, scale_factor=2, mode="bilinear"), Q
        ),
        (Q,),
        [aten.upsample_bilinear2d.vec],
        1,
    ),
    "lstm": (
        lambda: export(lambda s, x: s.a(x)[0], torch.randn(10, 2, 4), a=nn.LSTM(4, 3)),
        (torch.randn(10, 2, 4),),
        [aten.linear.default],
        11,
    ),
}


@pytest.mark.filterwarnings("ignore:The tensor attributes")
@pytest.mark.parametrize("case", PRESERVED)
def test_delegates_are_as_many_as_preserved_operators(case, installed):
    """program.test_program: to_edge_transform_and_lower on Linear, SDPA, combined,
    Upsample, LSTM.
    """
    make, inputs, operators, count = PRESERVED[case]
    source = make()
    edge = to_edge_transform_and_lower(source, partitioner=Keeps(*operators))
    assert count_delegates(edge.exported_program()) == count
    assert_equals_source(edge.exported_program(), source, *inputs)


@pytest.mark.filterwarnings("ignore:The tensor attributes")
@pytest.mark.parametrize("case", ["linear", "sdpa", "combined", "lstm"])
def test_operators_that_a_filter_refuses_are_decomposed(case, installed):
    """program.test_program: filter False => the operator is decomposed."""
    make, inputs, operators, _ = PRESERVED[case]
    source = make()
    edge = to_edge_transform_and_lower(
        source, partitioner=Keeps(*operators, wanted=lambda n: False)
    )
    program = edge.exported_program()
    assert count_delegates(program) == 0
    assert not {*operators} & {*call_targets(program)}
    assert_equals_source(program, source, *inputs)


def test_to_edge_is_core_aten_but_for_preserved_operators():
    """program.test_program: preserve_ops variants; lifted.test_quantized_with_delegate
    (linear becomes addmm).
    """
    assert aten.addmm.default in call_targets(
        to_edge(export_linear()).exported_program()
    )
    kept = to_edge(
        export_linear(),
        compile_config=EdgeCompileConfig(preserve_ops=[aten.linear.default]),
    )
    assert aten.linear.default in call_targets(kept.exported_program())
    with pytest.raises(errors.OptionError, match="preserve_ops"):
        EdgeCompileConfig(preserve_ops=["linear"])


def partitioner_for_relu():
    return CapabilityPartitioner(
        lambda n: None if n.target is aten.relu.default else "no relu", "EchoBackend"
    )


def test_to_backend_by_method_and_for_all(installed):
    """program.test_program: to_backend selective by method dict; original manager
    unchanged.
    """
    edge = to_edge(
        {"a": export_linear(), "b": export_linear()}, constant_methods={"version": 3}
    )
    before = {
        method: str(edge.exported_program(method).graph) for method in edge.methods
    }
    one = edge.to_backend({"b": partitioner_for_relu()})
    both = edge.to_backend(partitioner_for_relu())
    assert [count_delegates(one.exported_program(m)) for m in "ab"] == [0, 1]
    assert [count_delegates(both.exported_program(m)) for m in "ab"] == [1, 1]
    assert {
        method: str(edge.exported_program(method).graph) for method in edge.methods
    } == before
    assert one.methods == {"a", "b"}
    assert both.config_methods == {"version"}


def test_configuration_survives_every_step(installed):
    """EdgeProgramManager: ExecuTorch's to_backend loses it, and verifies nothing from
    then on.
    """
    config = EdgeCompileConfig(preserve_ops=(aten.linear.default,))
    edge = (
        to_edge(export_linear(), compile_config=config)
        .transform([lambda p: p])
        .to_backend(partitioner_for_relu())
    )
    assert edge.compile_config is config
    with pytest.raises(errors.ContractViolation, match="pass break_it"):
        edge.transform([break_it])


def break_it(program):
    call = next(node for node in program.graph.nodes if node.op == "call_function")
    with program.graph.inserting_before(call):
        program.graph.call_function(aten.relu_.default, (call.args[0],)).meta["val"] = (
            call.meta["val"]
        )
    return program


def untyped(program):
    call = next(node for node in program.graph.nodes if node.op == "call_function")
    with program.graph.inserting_before(call):
        program.graph.call_function(aten.relu.default, (call.args[0],))
    return program


def no_overload(program):
    next(
        node for node in program.graph.nodes if node.target is aten.relu.default
    ).target = torch.relu
    return program


@pytest.mark.parametrize(
    "change, message",
    [
        (break_it, "relu_.*writes to its arguments"),
        (untyped, "relu.* has no type"),
        (lambda p: 3, "returned int"),
    ],
)
def test_a_pass_that_breaks_a_rule_is_named(change, message):
    """EdgeProgramManager: verification after every step names the pass, the node and
    the rule.
    """
    with pytest.raises(errors.ContractViolation, match=message):
        to_edge(export_linear()).transform([change])


class ReluToSigmoid(PassBase):
    def call(self, graph_module):
        for node in graph_module.graph.nodes:
            if node.target is aten.relu.default:
                node.target = aten.sigmoid.default
        return PassResult(graph_module, True)


def test_passes_of_torch_and_by_method():
    """program.test_program: EdgeProgramManager.transform, all methods or by method."""
    edge = to_edge({"a": export_linear(), "b": export_linear()})
    changed = edge.transform({"b": [ReluToSigmoid()]})
    x = torch.randn(2, 4)
    a, b = (changed.exported_program(m).module(check_guards=False)(x) for m in "ab")
    assert (a >= 0).all()
    assert not torch.equal(a, b)
    assert aten.relu.default in call_targets(edge.exported_program("b"))
    with pytest.raises(errors.InputError, match="'c'"):
        edge.transform({"c": []})


def test_passes_run_before_lowering(installed):
    """to_edge_transform_and_lower(transform_passes=...)."""
    edge = to_edge_transform_and_lower(
        export_linear(), [ReluToSigmoid()], partitioner_for_relu()
    )
    assert count_delegates(edge.exported_program()) == 0
    assert aten.sigmoid.default in call_targets(edge.exported_program())


def test_several_partitioners_in_order(installed):
    """Issue row 6: ops_to_not_decompose for several partitioners in priority order."""
    source = export_linear()
    edge = to_edge_transform_and_lower(
        source, partitioner=[partitioner_for_relu(), Keeps(aten.linear.default)]
    )
    assert count_delegates(edge.exported_program()) == 2
    assert_equals_source(edge.exported_program(), source, torch.randn(2, 4))


@pytest.mark.parametrize(
    "act",
    [
        lambda e: e.to_backend({"other": partitioner_for_relu()}),
        lambda e: e.exported_program("other"),
        lambda e: to_edge_transform_and_lower(
            export_linear(), partitioner={"other": [partitioner_for_relu()]}
        ),
        lambda e: to_edge(3),
        lambda e: to_edge({}),
    ],
)
def test_bad_input_is_one_clear_error(act):
    """A method that is not there (overload 3: a partitioner for an unknown method), or
    no program.
    """
    with pytest.raises(errors.InputError):
        act(to_edge(export_linear()))


def test_program_files_need_their_plugin(monkeypatch):
    """EdgeProgramManager.to_executorch."""
    monkeypatch.setattr(
        "delegraph_executorch.edge.manager.default_registry",
        lambda: Registry(discover=False),
    )
    with pytest.raises(errors.FormatNotFound, match="pip install delegraph-executorch"):
        EdgeProgramManager({"forward": export_linear()}).to_executorch()


class Decomposes(nn.Module):
    def forward(self, x):
        return torch.linalg.svd(x)[1], torch.nn.functional.silu(x)


def test_to_edge_lists_operators_outside_core_aten():
    source = torch.export.export(Decomposes(), (torch.randn(3, 3),))
    assert to_edge(source).not_core == {"forward": ["aten._linalg_svd.default"]}
    kept = to_edge(
        source, compile_config=EdgeCompileConfig(preserve_ops=[aten.silu.default])
    )
    assert kept.not_core == {
        "forward": ["aten._linalg_svd.default", "aten.silu.default"]
    }


class Doubling(Partitioner):
    """Has every silu computed by a tanh, before anything is decomposed; tags nothing."""

    def transform_for_pre_decomposition(self, exported_program):
        for node in exported_program.graph.nodes:
            if node.target is aten.silu.default:
                node.target = aten.tanh.default
        return exported_program

    def partition(self, exported_program):
        return PartitionResult(exported_program, {})


@pytest.mark.parametrize(
    "wrap", [lambda who: who, lambda who: WrappingPartitioner(who, "Other")]
)
def test_a_partitioner_may_transform_the_program_before_it_is_decomposed(wrap):
    source = torch.export.export(Decomposes(), (torch.randn(3, 3),))
    edge = to_edge_transform_and_lower(source, partitioner=wrap(Doubling()))
    assert aten.tanh.default in call_targets(edge.exported_program())
    assert aten.silu.default in call_targets(source), "the caller's program was changed"
