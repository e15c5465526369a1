"""Tests of the ``Partitioner`` interface: tags, constants, buffers and wrong
partitioners.

A row names the test of ExecuTorch that a test here repeats. Tests under "defects" show
that a defect of ExecuTorch is absent.
"""

import gc
import inspect
import logging
import weakref

import delegraph
import delegraph_executorch.edge
import pytest
import torch
from delegraph.backend import BackendDetails, CompileSpec, PreprocessResult
from delegraph.errors import ContractViolation
from delegraph.partitioner import (
    CapabilityPartitioner,
    DelegationSpec,
    Partitioner,
    PartitionResult,
)
from delegraph_engines import tag_constant_data, tag_mutated_buffer
from delegraph_executorch.edge import (
    AllNodePartitioner,
    DontPartition,
    DontPartitionModule,
    DontPartitionName,
    get_delegates,
    get_lowered_backend_modules,
    get_non_lowered_nodes,
    to_backend,
    to_edge,
    to_edge_transform_and_lower,
)
from torch import nn

from ..support.counting import count_calls
from . import backends
from .backends import (
    CALL,
    assert_close,
    aten,
    call_targets,
    export,
    make_module,
    run_on_host,
)

BACKEND = "ExecutorBackend"


@pytest.fixture(autouse=True)
def installed():
    with backends.installed():
        yield


class Tagged(Partitioner):
    """Tags the calls for which ``tag_of(node)`` is a tag. Then runs each of
    ``tag_data`` on the program.
    """

    def __init__(self, tag_of, *tag_data, spec=()):
        super().__init__(dict(spec))
        self.tag_of = tag_of
        self.tag_data = tag_data

    def partition(self, exported_program):
        specs = [CompileSpec(key, value) for key, value in self.spec.items()]
        tags = {}
        for node in exported_program.graph.nodes:
            tag = self.tag_of(node) if node.op == "call_function" else None
            if tag is not None:
                node.meta["delegation_tag"] = tag
                tags[tag] = DelegationSpec(BACKEND, specs)
        for tag_data in self.tag_data:
            tag_data(exported_program)
        return PartitionResult(exported_program, tags)


def tag_additions(node):
    return "tag0" if node.target is aten.add.Tensor else None


def tag_everything(node):
    return "tag0"


def tag_placeholders(*names, tag="tag0", **meta):
    """Return a function that tags placeholders by name, without looking at their users."""

    def tag_data(program):
        for node in program.graph.nodes:
            if node.name in names:
                node.meta.update(meta, delegation_tag=tag)

    return tag_data


def only_delegate(program):
    """Return the only call of a delegate, and its module."""
    [lowered] = get_delegates(program.graph)
    [call] = lowered.users
    return call, getattr(program.graph_module, lowered.target)


def find_placeholder(program, name):
    return next(
        node
        for node in program.graph.nodes
        if node.op == "placeholder" and node.name == name
    )


# --- rows -----------------------------------------------------------------------------


def test_settings_become_compile_specs_and_are_read_only():
    """Row: partitioner.test_partitioner_with_spec"""

    partitioner = Tagged(tag_everything, spec={"path": b"/a/b/c/d"})
    edge = to_edge(
        export(lambda s, x: torch.relu(s.a(x)), torch.ones(2, 3), a=nn.Linear(3, 3))
    ).to_backend(partitioner)
    _, lowered = only_delegate(edge.exported_program())

    assert lowered.compile_specs == [CompileSpec("path", b"/a/b/c/d")]
    assert partitioner.spec["path"] == b"/a/b/c/d"
    with pytest.raises(TypeError, match="does not support item assignment"):
        partitioner.spec["path"] = b"elsewhere"
    with pytest.raises(AttributeError):
        partitioner.spec = {}


def test_a_tagged_output_is_refused():
    """Row: partitioner.test_bad_partitioner_tagged_output"""

    def tag_output(program):
        program.graph.output_node().meta["delegation_tag"] = "tag0"

    with pytest.raises(RuntimeError, match="output node output should not be tagged"):
        to_edge(export(lambda s, x: x + 1, torch.ones(2))).to_backend(
            Tagged(tag_additions, tag_output)
        )


def test_a_tagged_model_input_is_refused():
    """Row: partitioner.test_bad_partitioner_tagged_model_input"""
    text = (
        "placeholder node for non-params, non-buffer, and non-tensor constants should"
        " not be tagged: inputs_0"
    )

    with pytest.raises(RuntimeError, match=text):
        to_edge(export(lambda s, x: x + 1, torch.ones(2))).to_backend(
            Tagged(tag_additions, tag_placeholders("inputs_0"))
        )


class AddConst(nn.Module):
    def __init__(self):
        super().__init__()
        self.const1 = torch.ones(2, 2)
        self.register_buffer("const2", 2 * torch.ones(2, 2), persistent=False)
        self.const3 = nn.Parameter(3 * torch.ones(2, 2))

    def forward(self, x):
        return x + self.const1 + self.const2 + self.const3


CONST = ("c_const1", "b_const2", "p_const3")


def count_tensors(program):
    """Count the tensors that a program owns: (constants and buffers, parameters)."""
    signature = program.graph_signature
    constants = len(signature.buffers) + len(signature.lifted_tensor_constants)
    parameters = len(signature.parameters)
    stored = {*program.state_dict, *program.constants}
    assert len(stored) == constants + parameters
    return constants, parameters


def lower_with_constant(*tag_data):
    """Lower ``AddConst`` after ``tag_data``, and check its results.

    Return the lowered program, the number of arguments of the delegate's call, and the
    program of the delegate.
    """
    x = torch.full((2, 2), 4.0)
    lowered = to_edge(torch.export.export(AddConst().eval(), (x,))).to_backend(
        Tagged(tag_additions, *tag_data)
    )
    program = lowered.exported_program()
    assert_close(program.module(check_guards=False)(x), AddConst()(x))
    assert_close(run_on_host(program, x), AddConst()(x))
    call, inner = only_delegate(program)
    return program, len(call.args), inner.original_module


def test_untagged_constants_stay_outside_of_the_delegate():
    """Row: partitioner.test_partitioner_not_tag_data"""

    program, arguments, child = lower_with_constant()
    assert count_tensors(program) == (2, 1)
    assert count_tensors(child) == (0, 0)
    assert arguments == 5, "the delegate, x and three constants"


def test_tagged_constants_move_into_the_delegate():
    """Row: partitioner.test_partitioner_tag_data"""

    program, arguments, child = lower_with_constant(tag_placeholders(*CONST))
    assert count_tensors(program) == (0, 0)
    assert count_tensors(child) == (2, 1)
    assert arguments == 2, "the delegate and x"


def test_only_the_tagged_parameter_moves_into_the_delegate():
    """Row: partitioner.test_partitioner_tag_only_params"""
    program, arguments, child = lower_with_constant(tag_placeholders("p_const3"))
    assert count_tensors(program) == (2, 0)
    assert count_tensors(child) == (0, 1)
    assert arguments == 4, "the delegate, x and two constants"


def split_users(s, x):
    return x + s.const, x - s.const


def test_a_constant_may_be_in_delegate_and_parent():
    """Row: partitioner.test_partitioner_splits_constant_data"""
    x = torch.ones(2, 2)
    const = torch.full((2, 2), 3.0)
    edge = to_edge(export(split_users, x, const=const)).to_backend(
        Tagged(tag_additions, tag_placeholders("b_const"))
    )
    _, inner = only_delegate(edge.exported_program())

    assert count_tensors(edge.exported_program()) == (1, 0)
    assert count_tensors(inner.original_module) == (1, 0)
    assert_close(run_on_host(edge.exported_program(), x), (x + const, x - const))


def test_no_copy_refuses_a_user_outside_of_the_delegate():
    """Row: partitioner.test_partitioner_alert_split_constant_data"""
    partitioner = Tagged(tag_additions, tag_placeholders("b_const", no_copy=True))
    text = "constant b_const is tagged with tag0 but has user sub which has tag None"
    with pytest.raises(RuntimeError, match=text):
        to_edge(
            export(split_users, torch.ones(2, 2), const=torch.ones(2, 2))
        ).to_backend(partitioner)


def reads_then_writes(s, x):
    y = x + s.state
    s.state.add_(1)
    return y


def test_untagged_buffers_are_written_by_the_parent():
    """Row: partitioner.test_not_delegate_mutable_buffers"""
    edge = to_edge(export(reads_then_writes, torch.zeros(1), state=torch.zeros(1)))
    assert edge.exported_program().graph_signature.buffers_to_mutate == {
        "add_1": "state"
    }

    program = edge.to_backend(
        Tagged(tag_additions, tag_constant_data)
    ).exported_program()
    assert program.graph_signature.buffers_to_mutate == {"getitem_1": "state"}

    lowered = delegraph.lower(program, backends=[])
    eager = make_module(reads_then_writes, state=torch.zeros(1))
    for k in range(3):
        assert_close(
            lowered(torch.full((1,), float(k))), eager(torch.full((1,), float(k)))
        )


def overwrites(s, x):
    result = x + s.state
    s.state.view(-1).copy_(x * 2)
    return result


@pytest.fixture
def indirect():
    """Return a tagged program that writes a buffer through a view.

    The write is no direct user of the buffer's placeholder.
    """
    program = to_edge(
        export(overwrites, torch.ones(1), state=torch.zeros(1))
    ).exported_program()
    Tagged(tag_everything).partition(program)
    return program


def test_tag_constant_data_skips_buffers_written_through_views(indirect):
    """Row: partitioner.test_tag_constant_data_detects_indirect_buffer_mutation"""
    tag_constant_data(indirect)
    assert "delegation_tag" not in find_placeholder(indirect, "b_state").meta


def test_tag_mutated_buffer_finds_writes_through_views(indirect):
    """Row: partitioner.test_tag_mutated_buffer_detects_indirect_buffer_mutation"""
    assert [u.name for u in find_placeholder(indirect, "b_state").users] == [
        "add",
        "view",
    ], "copy writes, through view"
    tag_mutated_buffer(indirect)
    assert find_placeholder(indirect, "b_state").meta["delegation_tag"] == "tag0"


def lower_with_kept_buffer(edge, partitioner):
    """Lower a program, and check that its only delegate keeps its only buffer.

    Return the lowered program and the number of arguments of the delegate's call.
    """
    program = edge.to_backend(partitioner).exported_program()
    call, inner = only_delegate(program)
    child = inner.original_module
    assert program.graph_signature.buffers_to_mutate == {}
    assert count_tensors(program) == (0, 0)
    assert len(child.state_dict) == 1
    assert len(child.graph_signature.buffers_to_mutate) == 1
    assert count_tensors(child) == (1, 0)
    return program, len(call.args)


def accumulates(s, x):
    s.b.add_(x)
    return x + s.b


def test_delegate_keeps_the_buffer_that_it_writes():
    """Row: partitioner.test_buffer_mutation1"""

    x = torch.ones(3, 3)
    edge = to_edge(export(accumulates, x, b=torch.ones(3, 3)))
    program, arguments = lower_with_kept_buffer(
        edge, Tagged(tag_additions, tag_constant_data, tag_mutated_buffer)
    )

    assert arguments == 2
    assert_close(
        program.module(check_guards=False)(x),
        make_module(accumulates, b=torch.ones(3, 3))(x),
    )


def test_a_delegate_keeps_a_cache_of_keys():
    """Row: partitioner.test_buffer_mutation_llama_repro"""

    def attend(s, q, k_val, input_pos):
        return torch.ops.aten.index_put_(s.cache, [input_pos, None], k_val).mm(
            q.transpose(0, 1)
        )

    inputs = (torch.rand(1, 3), torch.rand(1, 3), torch.tensor([1, 1]))
    edge = to_edge(export(attend, *inputs, cache=torch.zeros(2, 3)))
    program, arguments = lower_with_kept_buffer(edge, AllNodePartitioner(BACKEND))

    assert arguments == 4, "the delegate and three inputs"
    assert_close(
        program.module(check_guards=False)(*inputs),
        make_module(attend, cache=torch.zeros(2, 3))(*inputs),
    )


def test_written_buffer_may_also_be_returned():
    """ExecuTorch raises an ``AssertionError``.

    Row: partitioner.test_buffer_mutation_unsupported
    """
    x = torch.randn(2, 3)
    edge = to_edge(export(lambda s, x: s.state.add_(x), x, state=torch.zeros(2, 3)))
    program, arguments = lower_with_kept_buffer(
        edge, Tagged(tag_additions, tag_mutated_buffer)
    )
    assert arguments == 2
    assert_close(program.module(check_guards=False)(x), x)


# --- feature table --------------------------------------------------------------------


def test_partitioner_is_abstract_and_called_like_a_function():
    assert Tagged(tag_additions).spec == {}

    program = export(lambda s, x: x + 1, torch.ones(2))
    assert Tagged(tag_additions)(program).partition_tags == {
        "tag0": DelegationSpec(BACKEND)
    }

    class Unfinished(Partitioner):
        pass

    with pytest.raises(TypeError, match="partition"):
        Unfinished()


def test_partition_result_needs_tags_and_the_given_program():
    class Returning(Partitioner):
        def __init__(self, made):
            super().__init__()
            self.made = made

        def partition(self, exported_program):
            return self.made(exported_program)

    other = export(lambda s, x: x + 2, torch.ones(2))
    bad = {
        "`partition_tags` is to map each tag": lambda p: PartitionResult(p, None),
        "returned another program": lambda p: PartitionResult(other, {}),
        "returned NoneType, not a PartitionResult": lambda p: None,
    }
    for text, made in bad.items():
        with pytest.raises(ContractViolation, match=text):
            to_backend(export(lambda s, x: x + 1, torch.ones(2)), Returning(made))


def test_delegation_spec_keeps_compile_specs_in_order():
    twice = [CompileSpec("k", b"1"), CompileSpec("k", b"2")]
    spec = DelegationSpec(BACKEND, twice)
    assert spec.backend_id == BACKEND
    assert list(spec.compile_specs) == twice
    assert spec == DelegationSpec(backend_id=BACKEND, compile_specs=tuple(twice))
    assert hash(spec)


def composites(s, x):
    return torch.nn.functional.silu(s.a(x)) + s.b(x)


def lower_two_layers(*keepers):
    """Lower a network of two linear layers with ``to_edge_transform_and_lower``."""
    program = export(composites, torch.ones(2, 3), a=nn.Linear(3, 3), b=nn.Linear(3, 3))
    return to_edge_transform_and_lower(
        program, partitioner=list(keepers)
    ).exported_program()


class Keeps(Tagged):
    """Asks to keep ``operators`` whole where ``wanted`` returns True. Delegates those
    that ``taken`` accepts.
    """

    def __init__(self, operators, wanted=None, taken=lambda node: True):
        super().__init__(
            lambda n: f"tag_{n.name}" if n.target in operators and taken(n) else None,
            tag_constant_data,
        )
        self.operators = operators
        self.wanted = wanted
        self.asked = 0

    def ops_to_not_decompose(self, exported_program):
        self.asked += 1
        return list(self.operators), self.wanted


def test_listed_operators_stay_whole_where_the_filter_agrees():
    every_linear = Keeps([aten.linear.default])
    program = lower_two_layers(every_linear)
    assert len(get_delegates(program.graph)) == 2

    second_linear = Keeps([aten.linear.default], lambda n: n.name == "linear_1")
    program = lower_two_layers(second_linear)
    assert len(get_delegates(program.graph)) == 1
    assert aten.addmm.default in call_targets(program)
    assert aten.linear.default not in call_targets(program)


def test_no_copy_accepts_users_in_one_partition():
    mark = tag_placeholders("b_const", no_copy=True)
    program = export(
        lambda s, x: (x + s.const) + s.const, torch.ones(2, 2), const=torch.ones(2, 2)
    )
    lowered = to_backend(program, Tagged(tag_additions, mark))
    assert len(get_delegates(lowered.graph)) == 1


def test_constants_get_the_tags_of_their_users():
    program = export(
        lambda s, x: (x + s.used) - s.host,
        torch.ones(2),
        used=torch.ones(2),
        host=torch.ones(2),
    )
    Tagged(tag_additions, tag_constant_data).partition(program)

    assert find_placeholder(program, "b_used").meta["delegation_tag"] == "tag0"
    assert "delegation_tag" not in find_placeholder(program, "b_host").meta


def test_buffers_are_tagged_where_all_uses_are_tagged():
    """The partition must have all readers and the last write."""

    def reads_first(s, x):
        return s.b * 2, accumulates(s, x)

    def tag_of_buffer(function, *names):
        program = to_edge(
            export(function, torch.ones(2), b=torch.ones(2))
        ).exported_program()
        Tagged(
            lambda n: "tag0" if n.name in names else None, tag_mutated_buffer
        ).partition(program)
        return find_placeholder(program, "b_b").meta.get("delegation_tag")

    for function in (accumulates, reads_first):
        edge = to_edge(export(function, torch.ones(2), b=torch.ones(2)))
        written = edge.exported_program().graph_signature.buffers_to_mutate
        assert list(written) == ["add_1"], "add_1 is the last write"

    assert tag_of_buffer(accumulates, "add_1") == "tag0"
    assert tag_of_buffer(reads_first, "add_1", "mul") == "tag0"
    assert tag_of_buffer(accumulates, "add") is None, "another call writes it"
    assert tag_of_buffer(reads_first, "add_1") is None, "mul reads it"


def test_validation_cannot_be_turned_off():
    """ExecuTorch has ``disable_validation``. Here the check takes linear time."""
    parameters = inspect.signature(to_backend).parameters
    assert not [
        p for p in (*parameters, *dir(delegraph_executorch.edge)) if "valid" in p
    ]


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.second = nn.Linear(3, 3)

    def forward(self, x):
        return torch.relu(self.first(x) + self.second(x)) * 2


def export_model():
    return torch.export.export(Model().eval(), (torch.ones(2, 3),))


@pytest.mark.parametrize(
    ("check", "kept"),
    [
        (DontPartition(aten.linear.default), {"linear", "linear_1"}),
        (DontPartition("aten.relu.default", aten.mul.Tensor), {"relu", "mul"}),
        (DontPartition("aten.l", exact=False), {"linear", "linear_1"}),
        (DontPartition("aten.l"), set()),
        (DontPartitionName("linear_1", "add"), {"linear_1", "add"}),
        (DontPartitionName("line", exact=False), {"linear", "linear_1"}),
        (DontPartitionName("line"), set()),
        (DontPartitionModule(module_name="Linear"), {"linear", "linear_1"}),
        (
            DontPartitionModule(module_name="torch.nn.modules.linear.Linear"),
            {"linear", "linear_1"},
        ),
        (DontPartitionModule(module_name="elsewhere.Linear"), set()),
        (DontPartitionModule(module_name="Lin", exact=False), {"linear", "linear_1"}),
        (DontPartitionModule(instance_name="second"), {"linear_1"}),
        (DontPartitionModule(instance_name="sec", exact=False), {"linear_1"}),
    ],
    ids=lambda value: (
        ",".join(sorted(value)) or "nothing"
        if isinstance(value, set)
        else type(value).__name__
    ),
)
def test_additional_checks_keep_calls_on_the_host(check, kept):
    program = export_model()
    result = CapabilityPartitioner(
        lambda node: None, BACKEND, additional_checks=[check]
    )(program)

    assert {refusal.node.name for refusal in result.refusals} == kept
    assert all(
        refusal.reason.endswith("is to stay on the host") for refusal in result.refusals
    )


def test_installed_backends_accept_additional_checks():
    x = torch.ones(2, 3)
    partitioner = delegraph.get_partitioner("compiler-demo")
    partitioner.additional_checks = (DontPartitionName("linear_1"),)
    lowered = delegraph.lower(Model().eval(), (x,), backends=[partitioner])
    [row] = [
        refusal for refusal in lowered.report.refusals if "linear_1" in refusal.reason
    ]

    assert row.reason == "name linear_1 is to stay on the host"
    assert lowered.verify(x).relative_error < 1e-6


def test_each_refusal_is_reported_once_and_not_logged(caplog):
    def why_not(node):
        return "it has no multiplier" if node.target is aten.mul.Tensor else None

    with caplog.at_level(logging.DEBUG, logger="delegraph"):
        lowered = delegraph.lower(
            Model().eval(),
            (torch.ones(2, 3),),
            backends=[CapabilityPartitioner(why_not, BACKEND)],
        )
    [row] = lowered.report.refusals

    assert row.operator == "aten.mul.Tensor"
    assert row.reason == "it has no multiplier"
    assert row.count == 1
    assert row.source.file.endswith("test_partitioner.py")
    assert "it has no multiplier" in str(lowered.report)
    assert not [
        record
        for record in caplog.records
        if record.name.startswith("delegraph") and record.name != "delegraph.progress"
    ]


# --- defects of ExecuTorch that are absent ---------------------------------------------


def rewriting(change):
    def tag_data(program):
        change(next(node for node in program.graph.nodes if node.op == "call_function"))

    return tag_data


def add_a_call(node):
    with node.graph.inserting_after(node):
        node.graph.call_function(aten.relu.default, (node,))


@pytest.mark.parametrize(
    "change",
    [
        lambda n: n.update_arg(1, 0.5),
        lambda n: n.update_arg(1, 0.0),
        lambda n: setattr(n, "target", aten.clamp_max.default),
        lambda n: setattr(n, "kwargs", {"max": 3.0}),
        add_a_call,
    ],
    ids=["literal", "literal_type", "target", "keyword", "added"],
)
def test_partitioners_that_change_the_graph_are_refused(change):
    """In ExecuTorch, clamp(0, 1) can become clamp(.5, .75), which changes results."""
    program = export(lambda s, x: x.clamp(0, 1), torch.ones(2))
    with pytest.raises(ContractViolation, match="changed the graph"):
        to_backend(program, Tagged(tag_everything, rewriting(change)))


def test_each_check_has_its_own_refusals():
    """ExecuTorch stores the nodes of all instances and programs in one list of the
    class.
    """
    checks = [DontPartition(aten.relu.default), DontPartition(aten.mul.Tensor)]
    program = export_model()
    results = [
        CapabilityPartitioner(lambda n: None, BACKEND, additional_checks=[c])(program)
        for c in checks
    ]
    assert [
        [refusal.node.name for refusal in result.refusals] for result in results
    ] == [
        ["relu"],
        ["mul"],
    ]

    kept = weakref.ref(program)
    del program, results
    gc.collect()
    assert kept() is None


def test_each_partition_of_a_constant_shares_it():
    """ExecuTorch tags the constant with "tag10", the smaller string, and copies it for
    tag9.
    """
    by_name = {"add": "tag9", "add_1": "tag10"}
    tagging = Tagged(lambda n: by_name.get(n.name), tag_constant_data)
    x = torch.ones(2)
    w = torch.full((2,), 3.0)
    program = export(lambda s, x: torch.sin(x + s.w) + s.w, x, w=w)
    lowered = to_backend(program, tagging)
    modules = get_lowered_backend_modules(lowered.graph_module)

    assert [count_tensors(m.original_module) for m in modules] == [(1, 0)] * 2
    assert count_tensors(lowered) == (0, 0)
    assert len({m.original_module.state_dict["w"].data_ptr() for m in modules}) == 1
    assert_close(run_on_host(lowered, x), torch.sin(x + w) + w)


def test_users_of_a_constant_share_one_tensor():
    """ExecuTorch makes a deep copy for each of the four users in the delegate."""

    def uses(s, x):
        return x + s.w + s.w + (s.w + s.w), x - s.w

    x = torch.ones(2)
    w = torch.full((2,), 3.0)
    program = export(uses, x, w=w)
    lowered = to_backend(program, Tagged(tag_additions, tag_constant_data))
    _, inner = only_delegate(lowered)

    assert list(lowered.state_dict) == ["w"] == list(inner.original_module.state_dict)
    assert (
        lowered.state_dict["w"].data_ptr()
        == inner.original_module.state_dict["w"].data_ptr()
    )
    assert (
        sum(node.op == "placeholder" for node in inner.original_module.graph.nodes) == 2
    )
    assert_close(run_on_host(lowered, x), make_module(uses, w=w)(x))


def test_a_shared_constant_may_be_in_a_list():
    """ExecuTorch raises a ``RuntimeError``."""

    def joins(s, x):
        return torch.cat([s.w, x]) + 1, x - s.w

    tagging = Tagged(
        lambda n: "tag0" if n.target in (aten.cat.default, aten.add.Tensor) else None,
        tag_constant_data,
    )
    x = torch.ones(2)
    w = torch.full((2,), 3.0)

    assert_close(
        run_on_host(to_backend(export(joins, x, w=w), tagging), x),
        make_module(joins, w=w)(x),
    )


def splits(s, x):
    left, right = torch.split(x, 2)
    return left + right


def test_a_tagged_call_may_return_several_results():
    """In ExecuTorch, the program fails with an ``IndexError`` when it runs."""
    x = torch.arange(4.0)
    lowered = to_backend(
        export(splits, x), Tagged(lambda n: "tag0" if "split" in n.name else None)
    )
    call, inner = only_delegate(lowered)

    assert [v.shape for v in call.meta["val"]] == [(2,), (2,)]
    assert len(inner.outputs) == 2
    assert_close(run_on_host(lowered, x), x[:2] + x[2:])


def test_a_getitem_without_its_call_is_refused():
    """In ExecuTorch, the delegate gets a tuple as an argument."""
    getitems = Tagged(lambda n: "tag0" if n.name.startswith("getitem") else None)
    with pytest.raises(
        ContractViolation,
        match="getitem takes an item of split.*, so it must have its tags",
    ):
        to_backend(export(splits, torch.arange(4.0)), getitems)


def around_the_host(s, x):
    return torch.sin(x + 1) + x


def test_an_error_names_the_cycle_of_a_partition():
    """ExecuTorch reports "Invalid partition, found dependency cycles", without a name."""
    text = "partitions depend on themselves: partition tag0 -> sin -> partition tag0"
    with pytest.raises(ContractViolation, match=text) as error:
        to_backend(export(around_the_host, torch.ones(2)), Tagged(tag_additions))
    assert "or split the partition" in str(error.value)


def test_an_error_names_the_cycle_of_two_partitions():
    """Each partition alone has no cycle, but each needs a result of the other."""

    def crossing(s, x, y):
        a = x + 1
        b = y * 2
        return a * 3, b + a * 4, b + 5

    by_name = {"add": "one", "add_2": "one", "mul": "two", "mul_1": "two"}
    tagging = Tagged(lambda n: by_name.get(n.name))
    with pytest.raises(
        ContractViolation, match="partition (one|two) -> .*partition (two|one)"
    ):
        to_backend(export(crossing, torch.ones(2), torch.ones(2)), tagging)


def test_the_order_of_tags_does_not_change_the_program():
    """ExecuTorch makes delegates in the order of ``partition_tags``."""

    class Reversed(Tagged):
        def partition(self, exported_program):
            result = super().partition(exported_program)
            return PartitionResult(
                exported_program, dict(reversed(result.partition_tags.items()))
            )

    by_name = {"add": "first", "add_1": "second"}
    programs = [
        to_backend(
            export(
                lambda s, x: torch.sin(x + s.w) + s.w, torch.ones(2), w=torch.ones(2)
            ),
            kind(lambda n: by_name.get(n.name), tag_constant_data),
        )
        for kind in (Tagged, Reversed)
    ]
    assert str(programs[0].graph) == str(programs[1].graph)

    blobs = [
        [m.processed_bytes for m in get_lowered_backend_modules(p.graph_module)]
        for p in programs
    ]
    assert blobs[0] == blobs[1]


def test_tags_without_a_specification_are_refused():
    """ExecuTorch does not delegate the call, and reports no error."""

    class Forgetful(Tagged):
        def partition(self, exported_program):
            super().partition(exported_program)
            return PartitionResult(exported_program, {})

    with pytest.raises(
        ContractViolation, match="tag 'tag0' of add is not in partition_tags"
    ):
        to_backend(export(lambda s, x: x + 1, torch.ones(2)), Forgetful(tag_additions))


def test_kept_operators_without_a_backend_are_decomposed():
    """ExecuTorch raises ``RuntimeError``: "Node ... was not decomposed or delegated"."""
    nobody = Keeps([aten.linear.default], taken=lambda node: False)
    program = lower_two_layers(nobody)
    assert get_delegates(program.graph) == []
    assert aten.addmm.default in call_targets(program)
    assert aten.linear.default not in call_targets(program)


def test_the_second_partitioner_gets_whole_operators():
    """ExecuTorch decomposes the operators of the second partitioner for the first one."""
    first = Keeps([aten.silu.default])
    second = Keeps([aten.linear.default])
    program = lower_two_layers(first, second)
    modules = get_lowered_backend_modules(program.graph_module)
    taken = [t for m in modules for t in call_targets(m.original_module)]

    assert sorted(map(str, taken)) == [
        "aten.linear.default",
        "aten.linear.default",
        "aten.silu.default",
    ]


def test_a_later_partitioner_does_not_open_delegates():
    """In ExecuTorch, a later partitioner may tag the call of an earlier delegate."""
    program = export(lambda s, x: torch.sin(x + 1) * 2, torch.ones(2))
    first = to_backend(
        program,
        CapabilityPartitioner(lambda n: None if n.name == "add" else "no", BACKEND),
    )
    second = to_backend(first, CapabilityPartitioner(lambda n: None, "CompilerBackend"))

    assert [m.backend_id for m in get_lowered_backend_modules(second.graph_module)] == [
        BACKEND,
        "CompilerBackend",
    ]
    assert get_non_lowered_nodes(second.graph) == []
    assert call_targets(second) == [CALL, CALL]


def test_a_symbolic_size_is_a_number_for_the_delegate():
    """In ExecuTorch, a ``SymInt`` that enters a delegate has a ``TensorArgument``."""

    def grows(s, x):
        n = x.size(0)
        return torch.sin(x) + n

    program = torch.export.export(
        make_module(grows),
        (torch.ones(3),),
        dynamic_shapes=(({0: torch.export.Dim("n", min=2)},),),
    )
    lowered = to_backend(program, Tagged(tag_additions))
    _, inner = only_delegate(lowered)
    kinds = [
        type(spec.arg).__name__
        for spec in inner.original_module.graph_signature.input_specs
    ]

    assert sorted(kinds) == ["SymIntArgument", "TensorArgument"]
    assert_close(run_on_host(lowered, torch.ones(7)), torch.sin(torch.ones(7)) + 7)


class Chain(nn.Module):
    def __init__(self, length):
        super().__init__()
        self.length = length

    def forward(self, x):
        for k in range(self.length):
            x = torch.sin(x) if k % 10 else torch.tanh(x)
        return x


def test_partitioning_a_chain_takes_linear_time():
    """ExecuTorch takes n^2.8 steps if every tenth call is refused."""
    partitioner = CapabilityPartitioner(
        lambda n: None if n.target is aten.sin.default else "sin only", BACKEND
    )
    programs = [torch.export.export(Chain(n), (torch.ones(2),)) for n in (100, 400)]
    assert len(partitioner(programs[0]).partition_tags) == 10
    small, large = (count_calls(lambda p=p: partitioner(p)) for p in programs)
    assert large < 4.4 * small


def test_backends_get_weights_without_a_copy():
    """ExecuTorch gives each ``preprocess`` a deep copy of the weights."""
    seen = []

    class Looking(BackendDetails):
        @staticmethod
        def preprocess(edge_program, compile_specs):
            seen.extend(t.data_ptr() for t in edge_program.state_dict.values())
            return PreprocessResult(b"")

    layer = nn.Linear(3, 3)
    with delegraph.register(Looking):
        to_backend(
            torch.export.export(layer.eval(), (torch.ones(2, 3),)),
            AllNodePartitioner("Looking"),
        )

    assert seen == [p.data_ptr() for p in layer.parameters()]
