"""Programs that write buffers or inputs equal eager over several calls.

The written state is kept by the parent program or by a delegate.
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
    """Return a function that tags placeholders by name, without looking at their users."""

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
    """Writes keys and values at given positions, by an index or by slices."""

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
def test_the_parent_keeps_untagged_state(name, registry):
    lowered = lower_and_check(Tagged(lambda n: True, tag_constant_data), name, registry)
    (delegate,) = lowered.delegates
    assert delegate.module.state == ()
    mutations = lowered.exported_program().graph_signature.output_specs
    assert any(s.kind is not OutputKind.USER_OUTPUT for s in mutations)


@pytest.mark.parametrize("name", MODULES)
def test_writes_on_the_host_equal_eager(name, registry):
    lower_and_check(
        CapabilityPartitioner(lambda n: "no" if "add" in n.name else None, "Keeper"),
        name,
        registry,
    )


@pytest.mark.parametrize("name", OWNED)
@pytest.mark.parametrize("runtime", ["own", "eager"])
def test_a_delegate_keeps_tagged_state(name, runtime, registry):
    if runtime == "eager":
        registry = Registry(discover=False)
        registry.register(Keeper)
    partitioner = Tagged(lambda n: True, tag_constant_data, tag_mutated_buffer)
    lowered = lower_and_check(partitioner, name, registry)

    [delegate] = lowered.delegates
    signature = delegate.module.original_module.graph_signature
    written = tuple(signature.buffers_to_mutate.values())
    kinds = [spec.kind for spec in signature.output_specs]
    results = [OutputKind.USER_OUTPUT] * len(delegate.outputs)
    assert delegate.module.state == written
    # the writes are the first outputs of the delegate's program
    assert kinds == [OutputKind.BUFFER_MUTATION] * len(written) + results

    parent = lowered.exported_program()
    user_inputs = {
        node.name
        for node in parent.graph.nodes
        if node.op == "placeholder" and node.users
    }
    assert {value.name for value in delegate.inputs} == user_inputs
    assert parent.graph_signature.buffers_to_mutate == {}
    assert parent.state_dict == {}
    assert parent.constants == {}
    assert [spec.kind for spec in parent.graph_signature.output_specs] == results


def test_the_exported_program_of_a_stateful_delegate_equals_eager(registry):
    module = Accumulate()
    partitioner = Tagged(lambda n: True, tag_constant_data, tag_mutated_buffer)
    lowered = api.lower(
        module.eval(), vector(), backends=[partitioner], registry=registry
    )

    assert_equal_over_calls(
        lowered.exported_program().module(check_guards=False), module, vector
    )
    assert module.total.tolist() == [0, 0, 0]


def test_methods_of_separate_modules_do_not_share_state(registry):
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


def test_a_tagged_buffer_with_another_reader_is_refused(registry):
    careless = Tagged(lambda n: n.target is aten.add.Tensor, tag_buffers("b_table"))
    with pytest.raises(
        ContractViolation,
        match=r"buffer b_table is written and tagged with tag0, but outside.*reads",
    ):
        api.lower(Indirect().eval(), vector(), backends=[careless], registry=registry)


def test_a_tagged_buffer_last_written_outside_is_refused(registry):
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("total", torch.zeros(3))

        def forward(self, x):
            self.total.add_(x)
            self.total.mul_(2)
            return x + 1

    careless = Tagged(lambda n: n.target is aten.add.Tensor, tag_buffers("b_total"))
    text = "b_total.*outside of that partition mul is its last value"
    with pytest.raises(ContractViolation, match=text):
        api.lower(Twice().eval(), vector(), backends=[careless], registry=registry)

    careful = Tagged(careless.take, tag_mutated_buffer)
    lowered = api.lower(Twice().eval(), vector(), backends=[careful], registry=registry)
    assert lowered.delegates[0].module.state == ()
    assert_equal_over_calls(lowered, Twice(), vector)


def test_a_tagged_input_that_is_written_is_refused(registry):
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


@pytest.mark.parametrize(
    ("tag", "expected"), [(tag_constant_data, set()), (tag_mutated_buffer, {"b_table"})]
)
def test_tagging_sees_indirect_writes(tag, expected):
    """The write goes through views, so it is no direct user of the buffer."""
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

    assert tagged == expected


def test_a_constant_of_two_partitions_gets_both_tags():
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


def test_batch_norm_in_training_updates_its_statistics():
    """Training writes the running statistics and counts the batches."""
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
def test_instance_norm_in_training_updates_its_statistics(affine):
    """Its functional form is a batch norm with statistics averaged over the samples."""
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
    ("tag_data", "moved"),
    [((), 0), ((tag_constant_data,), 3), ((tag_buffers("p_weight"),), 1)],
    ids=["nothing", "all_constants", "the_parameter"],
)
def test_tagged_data_move_into_the_delegate(tag_data, moved, registry):
    lowered = api.lower(
        Data().eval(),
        two_vectors(),
        backends=[Tagged(lambda n: True, *tag_data)],
        registry=registry,
    )

    [delegate] = lowered.delegates
    child = delegate.module.original_module
    parent = lowered.exported_program()
    kept = 3 - moved  # of the parameter, the buffer and the constant

    assert_equal_over_calls(lowered, Data(), two_vectors)
    assert len({*child.state_dict, *child.constants}) == moved
    assert len({*parent.state_dict, *parent.constants}) == kept
    assert len(delegate.inputs) == 2 + kept, "x, y and the data of the parent"


def test_two_delegates_each_keep_a_buffer(registry):
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
    """In the program, the first user output is computed before the write."""

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
    """In eager, ``read`` would see the buffer that ``step`` wrote. Lowered methods have
    separate state.
    """
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

    separate = {"step": Accumulate().eval(), "read": Reader().eval()}
    lowered = api.lower(
        separate, {"step": vector(1), "read": vector()}, backends=[], registry=registry
    )
    assert not lowered.report.notes
