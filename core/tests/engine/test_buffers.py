"""State: what a program writes, kept by the parent or by a delegate, equals eager over
several calls.
"""

import copy
import operator

import delegraph.api as api
import pytest
import torch
from delegraph.discovery.registry import Registry
from delegraph.errors import ContractViolation
from delegraph.host.executor import Executable
from delegraph.partitioner import CapabilityPartitioner
from delegraph_engines import tag_constant_data, tag_mutated_buffer
from delegraph_programs import normalize
from torch import nn
from torch.export.graph_signature import OutputKind

from ..support.stateful_backend import COMPILED, Keeper, KeeperRuntime, Tagged

aten = torch.ops.aten


def tag_buffers(*names):
    """Tags placeholders without looking, as a careless partitioner does."""

    def tag(program):
        for node in program.graph.nodes:
            if node.name in names:
                node.meta["delegation_tag"] = "tag0"

    return tag


@pytest.fixture
def registry():
    registry = Registry(discover=False)
    registry.register(Keeper, runtime=KeeperRuntime)
    yield registry
    COMPILED.clear()


class Accumulate(nn.Module):
    def __init__(self, persistent=True):
        super().__init__()
        self.register_buffer("total", torch.zeros(3), persistent=persistent)
        self.register_buffer("scale", torch.full((3,), 2.0))

    def forward(self, x):
        self.total.add_(x)
        return self.total * self.scale


class ReturnsState(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(3))

    def forward(self, x):
        self.total.add_(x)
        return self.total, x + 1


class Overwrites(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("last", torch.zeros(3))

    def forward(self, x):
        self.last.copy_(x * 2)
        return x + 1


class Indirect(nn.Module):
    """Writes through a view of a view of the buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.zeros(2, 3))

    def forward(self, x):
        self.table.view(-1)[1:4].add_(x)
        return self.table.sum(0) + x


class KVCache(nn.Module):
    """Keys and values at the positions that the caller gives; ``index`` or slices write
    them.
    """

    def __init__(self, indexed=True):
        super().__init__()
        self.indexed = indexed
        self.register_buffer("k", torch.zeros(1, 8, 4), persistent=False)
        self.register_buffer("v", torch.zeros(1, 8, 4), persistent=False)

    def forward(self, position, q, k, v):
        if self.indexed:
            self.k[:, position] = k
            self.v[:, position] = v
        else:
            self.k[:, 2:4] = k
            self.v.narrow(1, 2, 2).copy_(v)
        return torch.softmax(q @ self.k.transpose(1, 2), -1) @ self.v


class Aliased(nn.Module):
    """Two buffers that are one tensor."""

    def __init__(self):
        super().__init__()
        shared = torch.zeros(2, 3)
        self.register_buffer("a", shared)
        self.register_buffer("b", shared)

    def forward(self, x):
        before = self.b * 1
        self.a[0].add_(x)
        return before + self.b


class WritesInput(nn.Module):
    def forward(self, x):
        row = x[0]
        x.mul_(2)
        row.add_(1)
        return row * 3


def vector(k=0):
    return (torch.arange(3.0) + k,)


def matrix(k=0):
    return (torch.arange(6.0).reshape(2, 3) + k,)


def tokens(k=0):
    torch.manual_seed(k)
    return torch.tensor([k % 8, (k + 3) % 8]), *(torch.randn(1, 2, 4) for _ in range(3))


MODULES = {
    "accumulate": (Accumulate(), vector),
    "non_persistent": (Accumulate(persistent=False), vector),
    "returns_state": (ReturnsState(), vector),
    "overwrites": (Overwrites(), vector),
    "indirect": (Indirect(), vector),
    "kv_cache": (KVCache(), tokens),
    "kv_cache_slices": (KVCache(indexed=False), tokens),
    "aliased": (Aliased(), vector),
    "writes_input": (WritesInput(), matrix),
}
OWNED = (
    "accumulate",
    "non_persistent",
    "returns_state",
    "overwrites",
    "indirect",
    "kv_cache",
    "kv_cache_slices",
)


def assert_equal_over_calls(ours, module, inputs, calls=4):
    theirs = copy.deepcopy(module)
    for k in range(calls):
        mine = inputs(k)
        eager = inputs(k)
        torch.testing.assert_close(ours(*mine), theirs(*eager))
        torch.testing.assert_close(mine, eager, rtol=0, atol=0)


def lower_and_check(partitioner, name, registry):
    module, inputs = MODULES[name]
    before = copy.deepcopy(module.state_dict())
    lowered = api.lower(
        module.eval(), inputs(), backends=[partitioner], registry=registry
    )
    lowered = lowered.with_missing_runtime("eager")
    assert not any("retraced" in note for note in lowered.report.notes)
    assert_equal_over_calls(lowered, module, inputs)
    assert lowered.verify(*inputs(1)).relative_error < 1e-6, (
        "verify starts from the initial state"
    )
    torch.testing.assert_close(module.state_dict(), before, rtol=0, atol=0)
    return lowered


@pytest.mark.parametrize("name", MODULES)
def test_kept_by_the_parent(name, registry):
    """Row test_not_delegate_mutable_buffers: what nobody tags is passed in and stored
    by the parent.
    """
    lowered = lower_and_check(Tagged(lambda n: True, tag_constant_data), name, registry)
    (delegate,) = lowered.delegates
    assert delegate.module.state == ()
    mutations = lowered.exported_program().graph_signature.output_specs
    assert any(s.kind is not OutputKind.USER_OUTPUT for s in mutations)


@pytest.mark.parametrize("name", MODULES)
def test_untagged_buffers_stay_outside_of_the_delegate(name, registry):
    """The writes stay on the host; the rest is delegated."""
    lower_and_check(
        CapabilityPartitioner(lambda n: "no" if "add" in n.name else None, "Keeper"),
        name,
        registry,
    )


@pytest.mark.parametrize("name", OWNED)
@pytest.mark.parametrize("runtime", ["own", "eager"])
def test_kept_by_the_delegate(name, runtime, registry):
    """Rows test_buffer_mutation1, test_buffer_mutation_llama_repro,
    test_buffer_mutation_unsupported (supported).
    """
    if runtime == "eager":
        registry = Registry(discover=False)
        registry.register(Keeper)
    partitioner = Tagged(lambda n: True, tag_constant_data, tag_mutated_buffer)
    lowered = lower_and_check(partitioner, name, registry)
    (delegate,) = lowered.delegates
    child = delegate.module.original_module
    parent = lowered.exported_program()
    assert delegate.module.state == tuple(
        child.graph_signature.buffers_to_mutate.values()
    )
    kinds = [spec.kind for spec in child.graph_signature.output_specs]
    assert kinds == sorted(kinds, key=lambda k: k is not OutputKind.BUFFER_MUTATION), (
        "mutations come first"
    )
    assert len(delegate.outputs) == kinds.count(OutputKind.USER_OUTPUT)
    passed = {
        node.name
        for node in parent.graph.nodes
        if node.op == "placeholder" and node.users
    }
    assert {value.name for value in delegate.inputs} == passed, (
        "only what the caller passes crosses the border"
    )
    assert parent.graph_signature.buffers_to_mutate == {}
    assert parent.state_dict == {}
    assert parent.constants == {}
    assert [spec.kind for spec in parent.graph_signature.output_specs] == [
        OutputKind.USER_OUTPUT
    ] * len(delegate.outputs)


def test_torchs_own_call_of_a_delegate_with_state(registry):
    """Row test_buffer_mutation1: ``exported_program().module()`` equals eager, and
    leaves the user's module alone.
    """
    module = Accumulate()
    partitioner = Tagged(lambda n: True, tag_constant_data, tag_mutated_buffer)
    lowered = api.lower(
        module.eval(), vector(), backends=[partitioner], registry=registry
    )
    assert_equal_over_calls(
        lowered.exported_program().module(check_guards=False), module, vector
    )
    assert module.total.tolist() == [0, 0, 0]


def test_methods_and_programs_do_not_share_state(registry):
    partitioner = Tagged(lambda n: True, tag_mutated_buffer)
    methods = {"a": Accumulate().eval(), "b": Accumulate().eval()}
    lowered = api.lower(
        methods,
        {"a": vector(), "b": vector()},
        backends=[partitioner],
        registry=registry,
    )
    for _ in range(2):
        lowered.method("a")(*vector(1))
    torch.testing.assert_close(
        lowered.method("b")(*vector(1)), methods["b"](*vector(1))
    )


def test_reader_outside_of_the_partition(registry):
    """A tagged buffer that somebody else reads, or writes last, is refused, with the
    names.
    """
    careless = Tagged(lambda n: n.target is aten.add.Tensor, tag_buffers("b_table"))
    with pytest.raises(
        ContractViolation,
        match=r"buffer b_table is written and tagged with tag0, but outside.*reads",
    ):
        api.lower(Indirect().eval(), vector(), backends=[careless], registry=registry)


def test_last_write_outside_of_the_partition(registry):
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("total", torch.zeros(3))

        def forward(self, x):
            self.total.add_(x)
            self.total.mul_(2)
            return x + 1

    careless = Tagged(lambda n: n.target is aten.add.Tensor, tag_buffers("b_total"))
    with pytest.raises(
        ContractViolation,
        match="b_total.*outside of that partition mul is its last value",
    ):
        api.lower(Twice().eval(), vector(), backends=[careless], registry=registry)
    lowered = api.lower(
        Twice().eval(),
        vector(),
        backends=[Tagged(careless.take, tag_mutated_buffer)],
        registry=registry,
    )
    assert lowered.delegates[0].module.state == ()
    assert_equal_over_calls(lowered, Twice(), vector)


def test_tagged_input_is_refused(registry):
    """Row test_bad_partitioner_tagged_model_input, for an input that is written."""
    with pytest.raises(
        RuntimeError,
        match="placeholder node for non-params, non-buffer, and non-tensor constants",
    ):
        api.lower(
            WritesInput().eval(),
            matrix(),
            backends=[Tagged(lambda n: True, tag_buffers("x"))],
            registry=registry,
        )


@pytest.mark.parametrize("tag", [tag_constant_data, tag_mutated_buffer])
def test_tagging_sees_indirect_writes(tag):
    """Rows test_tag_constant_data_detects_indirect_buffer_mutation and
    test_tag_mutated_buffer_...: the write is no direct user of the buffer.
    """
    program, _ = normalize(torch.export.export(Indirect(), vector()))
    for node in program.graph.nodes:
        if node.op == "call_function":
            node.meta["delegation_tag"] = "t"
    tag(program)
    tagged = {
        node.name
        for node in program.graph.nodes
        if node.op == "placeholder" and "delegation_tag" in node.meta
    }
    assert tagged == (set() if tag is tag_constant_data else {"b_table"})


def test_constant_of_two_partitions_is_tagged_for_both():
    program, _ = normalize(torch.export.export(Accumulate(), vector()))
    calls = [node for node in program.graph.nodes if node.op == "call_function"]
    scale = next(node for node in program.graph.nodes if node.name == "b_scale")
    with program.graph.inserting_after(calls[-1]):
        calls.append(program.graph.call_function(aten.add.Tensor, (calls[-1], scale)))
    for k, node in enumerate(calls):
        node.meta["delegation_tag"] = f"t{k}"
    tag_constant_data(program)
    assert scale.meta["delegation_tag"] == ("t1", "t2")
    tag_mutated_buffer(program)
    total = next(node for node in program.graph.nodes if node.name == "b_total")
    assert total.meta["delegation_tag"] == "t0"


def test_batch_norm_in_training():
    """The hidden write of running statistics, and ``num_batches_tracked += 1``."""
    module = nn.Sequential(
        nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(inplace=True)
    ).train()

    def inputs(k=0):
        torch.manual_seed(k)
        return (torch.randn(2, 2, 5, 5),)

    program, notes = normalize(torch.export.export(copy.deepcopy(module), inputs()))
    assert notes == []
    written = {"1.running_mean", "1.running_var", "1.num_batches_tracked"}
    assert set(program.graph_signature.buffers_to_mutate.values()) == written
    ours = Executable(program, None)
    assert_equal_over_calls(ours, module, inputs, calls=3)
    assert ours._state["1.num_batches_tracked"] == 3


@pytest.mark.parametrize("affine", [False, True])
def test_instance_norm_in_training(affine):
    """As batch norm, whose functional form it is made of: the statistics are means over
    the samples.
    """
    module = nn.InstanceNorm2d(3, affine=affine, track_running_stats=True).train()

    def inputs(k=0):
        torch.manual_seed(k)
        return (torch.randn(2, 3, 4, 5),)

    program, notes = normalize(torch.export.export(copy.deepcopy(module), inputs()))
    assert notes == []
    assert {"running_mean", "running_var"} <= set(
        program.graph_signature.buffers_to_mutate.values()
    )
    assert_equal_over_calls(Executable(program, None), module, inputs, calls=3)


class Data(nn.Module):
    """A parameter, a non-persistent buffer and a constant."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.register_buffer("shift", torch.full((3,), 2.0), persistent=False)
        self.constant = torch.full((3,), 3.0)

    def forward(self, x, y):
        return x * self.weight + self.shift + y * self.constant


def two_vectors(k=0):
    return torch.arange(3.0) + k, torch.ones(3) - k


@pytest.mark.parametrize(
    ("tags", "passed"),
    [((), 5), ((tag_constant_data,), 2), ((tag_buffers("p_weight"),), 4)],
    ids=[
        "test_partitioner_not_tag_data",
        "test_partitioner_tag_data",
        "test_partitioner_tag_only_params",
    ],
)
def test_tagged_data_goes_to_its_partition(tags, passed, registry):
    """Rows of those names: what is untagged stays with the parent and is passed; what
    is tagged moves.
    """
    lowered = api.lower(
        Data().eval(),
        two_vectors(),
        backends=[Tagged(lambda n: True, *tags)],
        registry=registry,
    )
    assert_equal_over_calls(lowered, Data(), two_vectors)
    (delegate,) = lowered.delegates
    child = delegate.module.original_module
    parent = lowered.exported_program()
    held = [len({*p.state_dict, *p.constants}) for p in (child, parent)]
    assert len(delegate.inputs) == passed
    assert held == [5 - passed, passed - 2]


def test_partitions_with_a_buffer_each(registry):
    """Row test_partitioner_with_attributes: two buffers, one in each delegate, which
    gets only the user's input.
    """

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("a", torch.ones(3))
            self.register_buffer("b", torch.ones(3))

        def forward(self, x):
            self.a.add_(x)
            y = torch.sort(self.a)[0]
            self.b.mul_(y)
            return self.b + 1

    class PerSide(CapabilityPartitioner):
        def partition(self, exported_program):
            result = super().partition(exported_program)
            tag_mutated_buffer(exported_program)
            return result

    partitioner = PerSide(
        lambda n: "no" if n.target is aten.sort.default else None, "Keeper"
    )
    lowered = api.lower(
        Two().eval(), vector(), backends=[partitioner], registry=registry
    )
    assert_equal_over_calls(lowered, Two(), vector)
    assert [delegate.module.state for delegate in lowered.delegates] == [("a",), ("b",)]
    for delegate in lowered.delegates:
        nodes = [
            node
            for node in delegate.module.original_module.graph.nodes
            if node.op == "placeholder"
        ]
        assert len(delegate.module.original_module.state_dict) == 1
        assert len(nodes) == 2
    assert lowered.exported_program().graph_signature.buffers_to_mutate == {}


def test_mutations_come_before_user_outputs(registry):
    """Row test_arrange_graph_outputs: the first value that leaves is computed before
    the write.
    """

    class Between(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("total", torch.zeros(3))

        def forward(self, x):
            first = x * 2
            self.total.add_(first)
            return first, self.total - 1

    partitioner = Tagged(lambda n: True, tag_mutated_buffer)
    lowered = api.lower(
        Between().eval(), vector(), backends=[partitioner], registry=registry
    )
    assert_equal_over_calls(lowered, Between(), vector)
    specs = lowered.delegates[0].module.original_module.graph_signature.output_specs
    assert [s.kind for s in specs] == [
        OutputKind.BUFFER_MUTATION,
        OutputKind.USER_OUTPUT,
        OutputKind.USER_OUTPUT,
    ]
    graph = lowered.exported_program().graph
    indices = [node.args[1] for node in graph.nodes if node.target is operator.getitem]
    assert indices == [0, 1]


def test_a_note_names_methods_that_share_a_written_buffer(registry):
    """Eager would give x + 2 and x + 1; each lowered method counts by itself."""
    shared = Accumulate().eval()

    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.state = shared

        def forward(self, x):
            return x + self.state.total

    methods = {"step": shared, "read": Reader().eval()}
    lowered = api.lower(
        methods, {"step": vector(1), "read": vector()}, backends=[], registry=registry
    )
    note = (
        "total is used by step, read and written by step: no method sees what another"
        " writes"
    )
    assert lowered.report.notes == [note]
    lowered.method("step")(*vector(1))
    torch.testing.assert_close(lowered.method("read")(*vector()), vector()[0])
    apart = {"step": Accumulate().eval(), "read": Reader().eval()}
    assert not api.lower(
        apart, {"step": vector(1), "read": vector()}, backends=[], registry=registry
    ).report.notes
