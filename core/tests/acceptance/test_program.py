"""Tests of ``to_edge``, ``to_edge_transform_and_lower`` and ``EdgeProgramManager``.

A row names the test of ExecuTorch that a test here repeats. Checks of program files are
left out.
"""

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from delegraph import errors
from delegraph.partitioner import DelegationSpec, Partitioner, PartitionResult
from delegraph_executorch.edge import (
    EdgeCompileConfig,
    to_edge,
    to_edge_transform_and_lower,
)
from torch import nn
from torch.fx.passes.infra.pass_base import PassBase, PassResult
from torch.fx.passes.infra.pass_manager import PassManager

from . import backends
from .backends import (
    CALL,
    assert_close,
    aten,
    call_targets,
    export,
    lowered_modules,
    partitioner_for,
    run_on_host,
)

F = nn.functional
LINEAR = aten.linear.default
SDPA = aten.scaled_dot_product_attention.default
Q = torch.randn(1, 2, 4, 8)
pytestmark = pytest.mark.filterwarnings("ignore:The tensor attributes")


@pytest.fixture(autouse=True)
def installed():
    with backends.installed():
        yield


def edge_with_two_methods():
    x = torch.ones(1)
    y = torch.zeros(1)
    programs = {
        "forward": export(lambda s, x, y: x * y + x, x, y),
        "foo": export(lambda s, x: x + 1, x),
    }
    return to_edge(programs, constant_methods={"bam": 3, "bar": "bar"})


def run_method(edge, method, *inputs):
    return edge.exported_program(method).module(check_guards=False)(*inputs)


class AddToMul(PassBase):
    def call(self, graph_module):
        for node in graph_module.graph.nodes:
            if node.target is aten.add.Tensor:
                node.target = aten.mul.Tensor
        return PassResult(graph_module, True)


class Keeps(Partitioner):
    """Keeps ``operators`` whole where ``wanted`` returns True. Each is a partition of
    its own.
    """

    def __init__(self, *operators, wanted=None):
        super().__init__()
        self.operators = operators
        self.wanted = wanted

    def partition(self, exported_program):
        tags = {}
        for node in exported_program.graph.nodes:
            if node.target in self.operators:
                node.meta["delegation_tag"] = tag = f"tag{len(tags)}"
                tags[tag] = DelegationSpec("ExecutorBackend")
        return PartitionResult(exported_program, tags)

    def ops_to_not_decompose(self, exported_program):
        return list(self.operators), self.wanted


def export_linear():
    torch.manual_seed(0)
    return export(lambda s, x: s.a(x).relu(), torch.randn(2, 4), a=nn.Linear(4, 3))


def export_attention():
    return export(lambda s, q: F.scaled_dot_product_attention(q, q * 2, q), Q)


def export_linear_and_attention():
    torch.manual_seed(0)
    return export(
        lambda s, q: F.scaled_dot_product_attention(s.a(q), q, s.a(q)),
        Q,
        a=nn.Linear(8, 8),
    )


def export_upsample():
    return export(lambda s, q: F.interpolate(q, scale_factor=2, mode="bilinear"), Q)


def export_recurrent(layer, steps):
    torch.manual_seed(0)
    return export(lambda s, x: s.a(x)[0], torch.randn(steps, 2, 4), a=layer(4, 3))


class Case(NamedTuple):
    """A program, its input, the operators to keep, and how often they are called."""

    export: Callable
    x: torch.Tensor
    operators: list
    count: int


CASES = {
    "linear": Case(export_linear, torch.randn(2, 4), [LINEAR], 1),
    "sdpa": Case(export_attention, Q, [SDPA], 1),
    "combined": Case(export_linear_and_attention, Q, [SDPA, LINEAR], 3),
    "upsample": Case(export_upsample, Q, [aten.upsample_bilinear2d.vec], 1),
    "lstm": Case(
        lambda: export_recurrent(nn.LSTM, 10), torch.randn(10, 2, 4), [LINEAR], 11
    ),
    "gru": Case(lambda: export_recurrent(nn.GRU, 3), torch.randn(3, 2, 4), [LINEAR], 4),
    "lstm as a whole": Case(
        lambda: export_recurrent(nn.LSTM, 3),
        torch.randn(3, 2, 4),
        [aten.lstm.input],
        1,
    ),
}


# --- to_edge_transform_and_lower ------------------------------------------------------


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_each_kept_operator_is_one_delegate(case):
    """torch decomposes an LSTM of ten steps into eleven linear layers.

    Row: program.test_to_edge_transform_and_lower
    """
    source = case.export()
    program = to_edge_transform_and_lower(
        source, partitioner=[Keeps(*case.operators)]
    ).exported_program()

    assert call_targets(program).count(CALL) == case.count
    assert set(case.operators).isdisjoint(call_targets(program))

    kept = []
    for module in lowered_modules(program):
        kept.extend(call_targets(module.original_module))
    assert len(kept) == case.count
    assert set(kept) == set(case.operators)

    expected = source.module(check_guards=False)(case.x)
    assert_close(run_on_host(program, case.x), expected)


def test_a_filter_selects_the_operators_that_stay_whole():
    """Row: program.test_to_edge_transform_and_lower_with_exception"""
    torch.manual_seed(0)
    layers = {"a": nn.Linear(4, 3), "b": nn.Linear(4, 3, bias=False)}
    source = export(lambda s, x: (s.a(x), s.b(x)), torch.randn(2, 4), **layers)
    x = torch.randn(2, 4)
    partitioner = Keeps(LINEAR, wanted=lambda node: len(node.args) == 3)

    class Biased(Keeps):
        def partition(self, exported_program):
            result = super().partition(exported_program)
            for node in exported_program.graph.nodes:
                if node.target is LINEAR and not self.wanted(node):
                    node.meta.pop("delegation_tag")
            return result

    for who in (partitioner, Biased(LINEAR, wanted=partitioner.wanted)):
        program = to_edge_transform_and_lower(
            source, partitioner=[who]
        ).exported_program()
        assert call_targets(program).count(CALL) == 1
        assert call_targets(program).count(aten.mm.default) == 1
        assert_close(run_on_host(program, x), source.module(check_guards=False)(x))


# upsample is core ATen: nothing decomposes it
@pytest.mark.parametrize("name", [name for name in CASES if name != "upsample"])
def test_operators_that_a_filter_refuses_are_decomposed(name):
    case = CASES[name]
    source = case.export()
    refusing = Keeps(*case.operators, wanted=lambda node: False)
    program = to_edge_transform_and_lower(
        source, partitioner=[refusing]
    ).exported_program()

    assert CALL not in call_targets(program)
    assert set(case.operators).isdisjoint(call_targets(program))
    assert_close(
        program.module(check_guards=False)(case.x),
        source.module(check_guards=False)(case.x),
    )


def test_preserve_ops_needs_no_partitioner():
    """Row: program.test_to_edge_transform_and_lower_with_preserve_ops_no_partitioner"""
    config = EdgeCompileConfig(preserve_ops=[LINEAR])
    found = call_targets(
        to_edge_transform_and_lower(
            export_linear(), compile_config=config
        ).exported_program()
    )

    assert LINEAR in found
    assert aten.addmm.default not in found


# --- to_edge --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "kept", "found"),
    [
        pytest.param(export_linear, [LINEAR], {LINEAR: 1}, id="single"),
        pytest.param(
            export_linear_and_attention, [LINEAR], {LINEAR: 2, SDPA: 0}, id="partial"
        ),
        pytest.param(
            export_linear_and_attention,
            [LINEAR, SDPA],
            {LINEAR: 2, SDPA: 1},
            id="multiple",
        ),
        pytest.param(
            export_attention, [LINEAR], {LINEAR: 0, SDPA: 0}, id="not_in_model"
        ),
    ],
)
def test_to_edge_keeps_the_preserved_operators_whole(make, kept, found):
    """Rows: program.test_to_edge_with_single_preserved_op,
    program.test_to_edge_with_partial_ops_preserved,
    program.test_to_edge_with_multiple_ops_preserved,
    program.test_to_edge_with_preserved_ops_not_in_model
    """
    program = to_edge(
        make(), compile_config=EdgeCompileConfig(preserve_ops=kept)
    ).exported_program()
    assert {op: call_targets(program).count(op) for op in found} == found


def test_number_in_an_operation_is_no_constant():
    """Row: program.test_no_getattr"""
    program = to_edge(export(lambda s, x: x * 3.14, torch.ones(1))).exported_program()
    assert [node.op for node in program.graph.nodes] == [
        "placeholder",
        "call_function",
        "output",
    ]


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_edge_program_may_have_a_loop():
    """ExecuTorch refuses loops with an ``InternalError``.

    Row: program.test_while
    """

    def loop(s, count, x):
        def going(k, x):
            return k - s.step > 0

        def body(k, x):
            return k - 1, s.layer(x)

        return torch._higher_order_ops.while_loop(going, body, (count, x))

    inputs = (torch.tensor(3), torch.randn(2, 2))
    source = export(loop, *inputs, layer=nn.Linear(2, 2), step=torch.tensor(1))
    program = to_edge(source).exported_program()

    assert torch.ops.higher_order.while_loop in call_targets(program)
    assert_close(
        program.module(check_guards=False)(*inputs),
        source.module(check_guards=False)(*inputs),
    )


def test_checks_of_a_number_read_from_a_tensor_stay():
    """Row: program.test_constraint_present_after_dce"""

    def function(s, x, y):
        z = y.item()
        torch._check(z > 0)
        torch._check(z < 4)
        return x[z : z + y.shape[0]]

    inputs = (torch.randn(10), torch.tensor([3]))
    source = export(function, *inputs)
    program = to_edge(source).exported_program()

    assert [(r.lower, r.upper) for r in program.range_constraints.values()] == [(1, 3)]
    assert_close(program.module(check_guards=False)(*inputs), inputs[0][3:4])


def test_a_custom_operator_may_return_data_dependent_sizes():
    """Row: program.test_data_dependent"""
    with torch.library._scoped_library("delegraph_rows", "FRAGMENT") as library:
        tag = torch.Tag.pt2_compliant_tag
        torch.library.define(
            "delegraph_rows::add",
            "(Tensor a, Tensor b) -> Tensor",
            tags=tag,
            lib=library,
        )
        torch.library.impl(
            "delegraph_rows::add", "cpu", lambda a, b: a + b, lib=library
        )

        def fake(a, b):
            return torch.empty(torch.library.get_ctx().new_dynamic_size())

        torch.library.register_fake("delegraph_rows::add", fake, lib=library)

        def function(s, a, b, count):
            total = torch.ops.delegraph_rows.add(a, b)
            k = count.item()
            torch._check(k >= 0)
            torch._check(k < total.shape[0])
            return total[:k]

        inputs = (torch.randn(10), torch.randn(10), torch.tensor(3))
        program = to_edge(export(function, *inputs)).exported_program()
        assert_close(
            program.module(check_guards=False)(*inputs), (inputs[0] + inputs[1])[:3]
        )


def test_product_of_dynamic_shapes_is_valid():
    """Row: program.test_issue_3659"""
    rows = torch.export.Dim("rows", min=2, max=100)
    columns = torch.export.Dim("columns", min=2, max=100)
    model = backends.make_module(lambda s, x, y: torch.matmul(x, y))
    inputs = (torch.randn(1, 3, 10), torch.randn(1, 10, 3))
    shapes = {"inputs": ({1: rows, 2: columns}, {1: columns, 2: rows})}
    program = to_edge(
        torch.export.export(model, inputs, dynamic_shapes=shapes)
    ).exported_program()
    other = (torch.randn(1, 5, 7), torch.randn(1, 7, 5))

    assert_close(program.module(check_guards=False)(*other), model(*other))
    assert {(r.lower, r.upper) for r in program.range_constraints.values()} == {
        (2, 100)
    }


def test_an_edge_program_may_call_custom_operators():
    """Row: program.test_edge_dialect_custom_op"""
    with torch.library._scoped_library("delegraph_rows", "FRAGMENT") as library:
        torch.library.define(
            "delegraph_rows::twice", "(Tensor a) -> Tensor", lib=library
        )
        torch.library.impl(
            "delegraph_rows::twice",
            "CompositeExplicitAutograd",
            lambda a: a * 2,
            lib=library,
        )
        program = to_edge(
            export(lambda s, x: torch.ops.delegraph_rows.twice(x), torch.ones(1))
        ).exported_program()
        assert call_targets(program) == [torch.ops.delegraph_rows.twice.default]
        assert_close(
            program.module(check_guards=False)(torch.ones(1)), 2 * torch.ones(1)
        )


def test_an_operator_without_decomposition_stays_whole():
    """ExecuTorch refuses it, because its kernels are for core ATen.

    Row: program.test_edge_dialect_non_core_aten_ops
    """
    source = export(lambda s, x: torch.linalg.matrix_rank(x), torch.eye(3))
    program = to_edge(source).exported_program()
    assert any("svd" in t.__name__ for t in call_targets(program))
    assert_close(program.module(check_guards=False)(torch.eye(3)), torch.tensor(3))


# --- EdgeProgramManager ---------------------------------------------------------------


def test_a_manager_lists_its_methods_and_programs():
    """Rows: program.test_edge_manager_basic_api,
    program.test_executorch_manager_basic_api
    """
    edge = edge_with_two_methods()
    assert edge.methods == {"forward", "foo"}
    assert edge.config_methods == {"bam", "bar"}
    assert_close(
        run_method(edge, "forward", torch.ones(1), torch.zeros(1)), torch.ones(1)
    )
    assert_close(run_method(edge, "foo", torch.ones(1)), 2 * torch.ones(1))


def test_every_call_has_a_type_and_a_handle():
    """Row: program.test_edge_manager_dialect"""
    program = edge_with_two_methods().exported_program()
    assert program.dialect == "ATEN"
    assert all(
        "debug_handle" in node.meta and "val" in node.meta
        for node in program.graph.nodes
        if node.op == "call_function"
    )


def test_transform_changes_all_methods_of_a_copy():
    """Row: program.test_edge_manager_transform"""
    edge = edge_with_two_methods()
    changed = edge.transform([AddToMul()])
    x = torch.full((1,), 2.0)
    y = torch.full((1,), 3.0)

    assert changed.methods == edge.methods
    assert changed.config_methods == edge.config_methods
    assert_close(run_method(changed, "forward", x, y), x * y * x)
    assert_close(run_method(edge, "forward", x, y), x * y + x)


def test_transform_takes_passes_for_each_method():
    """Row: program.test_transform_dict_api"""
    x = torch.full((1,), 2.0)
    y = torch.full((1,), 3.0)
    for passes in ([AddToMul()], AddToMul()):
        changed = edge_with_two_methods().transform({"forward": passes})
        assert_close(run_method(changed, "forward", x, y), x * y * x)
        assert_close(run_method(changed, "foo", x), x + 1)


def test_transform_takes_a_pass_manager():
    """Row: program.test_transform_pass_manager_api"""
    manager = PassManager()
    manager.add_pass(AddToMul())
    changed = edge_with_two_methods().transform(manager)
    x = torch.full((1,), 2.0)
    y = torch.full((1,), 3.0)
    assert_close(run_method(changed, "forward", x, y), x * y * x)
    assert_close(run_method(changed, "foo", x), x)


def test_transform_names_the_pass_that_breaks_a_rule():
    """Row: program.test__transform_override_verifiers"""

    class Writes(PassBase):
        def call(self, graph_module):
            node = next(
                node
                for node in graph_module.graph.nodes
                if node.target is aten.add.Tensor
            )
            node.target = aten.add_.Tensor
            return PassResult(graph_module, True)

    edge = edge_with_two_methods()
    with pytest.raises(
        errors.ContractViolation,
        match=r"pass Writes.*node add.*writes to its arguments",
    ):
        edge.transform([Writes()])


ADD_MUL = (aten.add.Tensor, aten.mul.Tensor)


def test_to_backend_changes_all_methods_of_a_copy():
    """Row: program.test_edge_to_backend_replaces_subgraph"""
    edge = edge_with_two_methods()
    lowered = edge.to_backend(partitioner_for(*ADD_MUL))
    for method, inputs in (
        ("forward", (torch.ones(1), torch.ones(1))),
        ("foo", (torch.ones(1),)),
    ):
        program = lowered.exported_program(method)
        assert call_targets(program) == [CALL]
        assert len(lowered_modules(program)) == 1
        assert_close(run_on_host(program, *inputs), torch.full((1,), 2.0))
        assert not lowered_modules(edge.exported_program(method))


def test_to_backend_takes_partitioners_by_method():
    """Row: program.test_edge_to_backend_selective"""
    edge = edge_with_two_methods()
    lowered = edge.to_backend({"forward": partitioner_for(*ADD_MUL)})
    assert call_targets(lowered.exported_program("forward")) == [CALL]
    assert call_targets(lowered.exported_program("foo")) == [aten.add.Tensor]
    assert not lowered_modules(edge.exported_program("forward"))
    with pytest.raises(errors.InputError, match="'other'"):
        edge.to_backend({"other": partitioner_for(*ADD_MUL)})


def test_a_wrong_suffix_is_refused_before_writing(tmp_path):
    """Row: program.test_save_fails"""
    import delegraph

    lowered = delegraph.lower(
        export_linear(),
        backends=[
            partitioner_for(LINEAR, aten.relu.default, backend="ExecutorBackend")
        ],
    )
    for name in ("model.pt", "model"):
        with pytest.raises(ValueError, match="format"):
            lowered.save(tmp_path / name)

    assert not list(tmp_path.iterdir())


# --- defects of ExecuTorch that are absent ---------------------------------------------


def test_each_step_of_a_manager_keeps_the_configuration():
    config = EdgeCompileConfig(preserve_ops=(LINEAR,))
    edge = to_edge(export_linear(), compile_config=config).to_backend(
        partitioner_for(aten.relu.default, backend="ExecutorBackend")
    )
    assert edge.compile_config is config
    assert edge.compile_config.check_validity

    lowered = edge.transform([]).to_backend(
        partitioner_for(LINEAR, backend="ExecutorBackend")
    )
    assert lowered.compile_config is config


def test_calls_after_a_delegate_are_verified():
    def untype(program):
        last = [node for node in program.graph.nodes if node.op == "call_function"][-1]
        del last.meta["val"]
        return program

    source = export(lambda s, x: torch.sin(x) * 2, torch.ones(1))
    edge = to_edge(source).to_backend(partitioner_for(aten.sin.default))
    assert call_targets(edge.exported_program()) == [CALL, aten.mul.Tensor]
    with pytest.raises(
        errors.ContractViolation, match=r"pass untype.*node mul.*has no type"
    ):
        edge.transform([untype])


def test_lowering_does_not_change_the_configuration():
    kept = [LINEAR]
    config = EdgeCompileConfig(preserve_ops=kept)
    to_edge_transform_and_lower(
        export_linear_and_attention(), partitioner=[Keeps(SDPA)], compile_config=config
    )

    assert kept == [LINEAR]
    assert config.preserve_ops == (LINEAR,)
    with pytest.raises(AttributeError):
        config.preserve_ops = ()


def test_kept_operators_that_return_views_stay_whole():
    source = export(lambda s, x: torch.split(x, [1, 3])[1] + 1, torch.randn(4))
    kept = (aten.split_with_sizes.default, aten.add.Tensor)
    program = to_edge_transform_and_lower(
        source, partitioner=[Keeps(*kept)]
    ).exported_program()

    assert [call_targets(m.original_module) for m in lowered_modules(program)] == [
        [op] for op in kept
    ]


def test_adding_a_number_stays_one_call():
    """ExecuTorch makes an int64 constant, which it casts at run time."""
    program = to_edge(export(lambda s, x: x + 1, torch.randn(3))).exported_program()
    assert call_targets(program) == [aten.add.Tensor]
    assert not program.constants
    assert not program.state_dict


def test_failed_writes_raise_and_leave_no_file(tmp_path):
    import delegraph

    [delegate] = delegraph.lower(
        export_linear(), backends=[backends.partitioner_for_all("ExecutorBackend")]
    ).delegates
    with pytest.raises(OSError, match="cannot write") as caught:
        delegate.save(tmp_path / "missing" / "blob.bin")
    assert isinstance(caught.value, errors.WriteError)

    delegate.save(tmp_path / "blob.bin")
    assert [path.name for path in tmp_path.iterdir()] == ["blob.bin"]


def test_no_tag_or_weight_of_a_delegate_stays_behind():
    partitioner = partitioner_for(LINEAR, SDPA, backend="ExecutorBackend")
    program = to_edge_transform_and_lower(
        export_linear_and_attention(), partitioner=[partitioner]
    ).exported_program()
    assert all("delegation_tag" not in node.meta for node in program.graph.nodes)
    assert [k for k, _ in program.graph_module.named_children()] == ["lowered_module_0"]
    assert not program.state_dict

    shared = export(lambda s, x: (x * s.c) - s.c, torch.ones(2), c=torch.ones(2))
    edge = (
        to_edge(shared).to_backend(partitioner_for(aten.mul.Tensor)).exported_program()
    )
    assert all("delegation_tag" not in node.meta for node in edge.graph.nodes)
    assert list(edge.state_dict) == ["c"]
