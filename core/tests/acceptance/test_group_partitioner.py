"""Tests of ``GroupedPartitioner``: groups of calls that share a partition, and a
comparison with torch's partitioner.

The node sets may differ from torch's, because ours also move few values. Compared are
the calls that are covered and the number of partitions. A row names the test of
ExecuTorch that a test here repeats.
"""

import math
import operator

import delegraph
import torch
import torch.nn.functional as F
from delegraph.partitioner import CapabilityPartitioner, Limits
from delegraph_engines import GroupedPartitioner
from torch import nn
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase

aten = torch.ops.aten
TAKEN = (
    aten.linear.default,
    aten.relu.default,
    aten.tanh.default,
    aten.add.Tensor,
    aten.bmm.default,
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.unsqueeze.default,
    aten.fake_quantize_per_tensor_affine.default,
)
"""The operators that the backend supports. ``sin`` always stays on the host."""


class Network(nn.Module):
    """Ten-feature linear layers ``a`` to ``f``, used by the given ``forward(self, x)``."""

    def __init__(self, forward):
        super().__init__()
        torch.manual_seed(0)
        self.given = forward
        for name in "abcdef":
            setattr(self, name, nn.Linear(10, 10))
        self.register_buffer("counter", torch.zeros(1))

    def forward(self, x):
        return self.given(self, x)


def export_network(forward, *inputs, **options):
    return torch.export.export(
        Network(forward).eval(), inputs or (torch.randn(5, 10),), **options
    )


def fake_quantize(x):
    return torch.fake_quantize_per_tensor_affine(x, 0.1, 0, 0, 255)


def torch_limits(
    allows_single_node_partition=True,
    allowed_single_node_partition_ops=(),
    non_compute_ops=(),
):
    """Return the limits that torch's partitioner offers as options."""

    def why_too_small(operators):
        work = [node for node in operators if node.target not in non_compute_ops]
        if not work:
            return "nothing in its partition computes"
        if len(work) > 1 or allows_single_node_partition:
            return None
        if work[0].target in allowed_single_node_partition_ops:
            return None
        return f"{work[0].name} would be the only operator of its partition"

    return Limits(why_too_small=why_too_small)


def our_partitions(program, taken=TAKEN, named=(), **options):
    """Return the names of the calls in each partition. ``named`` are groups of names."""

    def why_not(node):
        return None if node.target in taken else "not among what the backend takes"

    def groups(given):
        """Return the nodes with the names of each group."""
        return [
            [node for node in given.graph.nodes if node.name in group]
            for group in named
        ]

    limits = torch_limits(**options)
    result = GroupedPartitioner(why_not, "Backend", groups=groups, limits=limits)(
        program
    )
    found = {tag: set() for tag in result.partition_tags}
    for node in program.graph.nodes:
        if node.op == "call_function" and "delegation_tag" in node.meta:
            found[node.meta.pop("delegation_tag")].add(node.name)
    return list(found.values())


def torch_partitions(
    program, taken=TAKEN, allows_single_node_partition=True, **options
):
    class Support(OperatorSupportBase):
        def is_node_supported(self, submodules, node):
            return node.target in taken or node.target is operator.getitem

    options = {
        name: [f"torch.ops.{op}" for op in listed] for name, listed in options.items()
    }
    single = allows_single_node_partition
    proposed = CapabilityBasedPartitioner(
        program.graph_module, Support(), single, **options
    ).propose_partitions()
    return [{node.name for node in partition.nodes} for partition in proposed]


def is_acyclic(program, parts):
    """Return whether the program has a topological order with each part as one node."""
    home = {name: k for k, part in enumerate(parts) for name in part}
    needs = {}
    for node in program.graph.nodes:
        unit = home.get(node.name, node.name)
        inputs = {home.get(i.name, i.name) for i in node.all_input_nodes} - {unit}
        needs.setdefault(unit, set()).update(inputs)
    while ready := {u for u, ns in needs.items() if not ns}:
        needs = {u: ns - ready for u, ns in needs.items() if u not in ready}
    return not needs


def partition_and_compare_with_torch(
    forward, taken=TAKEN, inputs=(), dynamic_shapes=None, **options
):
    """Compare our partitions with torch's, and return ours."""
    program = export_network(forward, *inputs, dynamic_shapes=dynamic_shapes)
    mine = our_partitions(program, taken, **options)
    other = torch_partitions(program, taken, **options)
    covered = set().union(*mine)
    assert covered == set().union(*other)
    assert len(mine) <= len(other)
    assert sum(map(len, mine)) == len(covered), "no call is in two partitions"
    assert is_acyclic(program, mine)
    return mine


def one_part_has(parts, *names):
    """Return whether one of the partitions has all of these calls."""
    return any(set(names) <= part for part in parts)


# --- groups ---------------------------------------------------------------------------


def test_layers_of_a_quantized_input_share_a_partition():
    """Row: group_partitioner.test_qdq_linear_group_partitioning"""

    def forward(self, x):
        q = fake_quantize(x)
        first = self.a(q)
        wave = torch.sin(first)
        product = torch.bmm(wave.unsqueeze(1), wave.unsqueeze(2)).squeeze()
        return first, self.b(q), product

    program = export_network(forward)
    group = ("fake_quantize_per_tensor_affine", "linear", "linear_1")
    parts = our_partitions(program, named=[group])

    assert one_part_has(parts, *group)
    assert is_acyclic(program, parts)
    assert one_part_has(parts, "bmm", "squeeze")
    assert not one_part_has(parts, "bmm", "linear")


def test_a_group_stays_together_in_an_acyclic_partition():
    """Row: group_partitioner.test_complex_graph_with_interdependencies"""

    def forward(self, x):
        first = torch.relu(self.a(x))
        return self.d(self.c(torch.tanh(self.b(first))) + first)

    program = export_network(forward)
    parts = our_partitions(program, named=[("linear", "relu")])
    assert one_part_has(parts, "linear", "relu")
    assert is_acyclic(program, parts)


def test_quantized_branches_stay_in_one_group():
    """Row: group_partitioner.test_branching_qdq_pattern"""

    def forward(self, x):
        q = fake_quantize(x)
        return torch.sin(self.a(q)) + self.b(q)

    program = export_network(forward)
    group = ("fake_quantize_per_tensor_affine", "linear", "linear_1")
    parts = our_partitions(program, named=[group])

    assert sorted(map(sorted, parts)) == [["add"], sorted(group)]
    assert is_acyclic(program, parts)


def test_group_over_several_levels_stays_together():
    """Row: group_partitioner.test_multi_level_dependencies"""

    def forward(self, x):
        q = fake_quantize(x)
        result = self.c(self.a(q) + self.b(q))
        return result, torch.sin(result)

    program = export_network(forward)
    group = ("fake_quantize_per_tensor_affine", "linear", "linear_1", "linear_2")
    assert our_partitions(program, named=[group]) == [{*group, "add"}]


def test_two_quantized_groups_are_both_whole():
    """Row: group_partitioner.test_double_QDQ_partitioning"""

    def forward(self, x):
        q = fake_quantize(x)
        wave = torch.sin(self.a(q))
        product = torch.bmm(wave.unsqueeze(1), wave.unsqueeze(2)).squeeze()
        second = self.b(q)
        return wave + self.c(fake_quantize(x)), second, product

    program = export_network(forward)
    one = ("fake_quantize_per_tensor_affine", "linear", "linear_1")
    other = ("add", "linear_2", "fake_quantize_per_tensor_affine_1")
    parts = our_partitions(program, named=[one, other])

    assert one_part_has(parts, *one)
    assert one_part_has(parts, *other)
    assert is_acyclic(program, parts)


def test_cross_attention_groups_share_the_quantized_memory(registry):
    """The keys and values of both layers use one quantized input.

    Row: group_partitioner.test_interleaved_groups_no_false_merge
    """

    class Decoder(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            for name in ("q0", "k0", "v0", "q1", "k1", "v1"):
                setattr(self, name, nn.Linear(8, 8, bias=False))

        def quantized(self, x):
            scale = x.abs().amax() / 127
            return torch.round(x / scale) * scale

        def forward(self, x, memory):
            shared = self.quantized(memory)
            for q, k, v in ((self.q0, self.k0, self.v0), (self.q1, self.k1, self.v1)):
                scores = torch.bmm(
                    q(self.quantized(x)), k(shared).transpose(1, 2)
                ) / math.sqrt(8)
                x = x + torch.bmm(torch.softmax(scores, -1), v(shared))
            return x

    def groups(program):
        """A linear layer goes with what quantizes its input, so layers that share an
        input go together.
        """
        layers = [
            node for node in program.graph.nodes if node.target is aten.linear.default
        ]
        return [[n.args[0], n] for n in layers]

    def why_not(node):
        host = (aten.softmax.int, aten._softmax.default, aten.exp.default)
        return "softmax stays on the host" if node.target in host else None

    model = Decoder().eval()
    inputs = (torch.randn(1, 3, 8), torch.randn(1, 5, 8))
    grouped = GroupedPartitioner(why_not, "EchoBackend", groups=groups)
    lowered = delegraph.lower(model, inputs, backends=[grouped], registry=registry)
    assert lowered.verify(*inputs).relative_error < 1e-6

    homes = [{node.name for node in delegate.nodes} for delegate in lowered.delegates]
    assert one_part_has(homes, "linear_1", "linear_2", "linear_4", "linear_5"), (
        "keys and values of both layers share memory"
    )
    assert len(homes) == 3


def test_each_partition_computes_its_own_constants(registry):
    """Calls on constants alone do not bind partitions together."""

    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.full((3,), 2.0))

        def forward(self, x):
            scale = self.w * 0.5
            return torch.tanh(x + scale) - scale

    def groups(program):
        calls = {node.name: node for node in program.graph.nodes}
        return [[calls["mul"], calls["add"]], [calls["mul"], calls["sub"]]]

    def why_not(node):
        return "tanh stays on the host" if node.target is aten.tanh.default else None

    partitioner = GroupedPartitioner(why_not, "EchoBackend", groups=groups)
    lowered = delegraph.lower(
        Scaled().eval(), (torch.randn(3),), backends=[partitioner], registry=registry
    )

    assert lowered.verify(torch.randn(3)).relative_error < 1e-6
    assert [
        [node.name for node in delegate.nodes] for delegate in lowered.delegates
    ] == [
        ["mul", "add"],
        ["mul", "sub"],
    ]


# --- no groups: as torch's partitioner does -------------------------------------------


def test_a_chain_is_one_partition_as_in_torch():
    """Row: group_partitioner.test_null_node_groups_simple_model"""

    def forward(self, x):
        return self.b(torch.relu(self.a(x)))

    assert len(partition_and_compare_with_torch(forward)) == 1


def two_paths(self, x):
    return self.c(torch.relu(self.a(x)) + torch.tanh(self.b(x)))


def test_two_paths_are_one_partition_as_in_torch():
    """Row: group_partitioner.test_null_node_groups_complex_model"""
    [part] = partition_and_compare_with_torch(two_paths)
    assert {"linear", "relu", "linear_1", "tanh"} <= part


def test_calls_around_a_host_call_partition_as_in_torch():
    """Row: group_partitioner.test_null_node_groups_with_cycles"""

    def forward(self, x):
        deep = torch.tanh(self.b(torch.sin(torch.relu(self.a(x)))))
        return self.c(torch.cat([deep, x])[:5])

    taken = (*TAKEN, aten.cat.default)
    parts = partition_and_compare_with_torch(forward, taken)
    assert set().union(*parts) == {
        "linear",
        "relu",
        "linear_1",
        "tanh",
        "cat",
        "linear_2",
    }


def test_a_host_call_in_one_branch_partitions_as_in_torch():
    """Row: group_partitioner.test_compare_with_capability_partitioner_branching"""

    def forward(self, x):
        return self.c(torch.relu(self.a(x)) + torch.tanh(torch.sin(self.b(x))))

    assert len(partition_and_compare_with_torch(forward)) == 2


def test_squeezes_partition_as_in_torch():
    """Row: group_partitioner.test_null_node_groups_with_unsqueeze_squeeze"""

    def forward(self, x):
        return self.b(torch.squeeze(torch.relu(torch.unsqueeze(self.a(x), 1)), 1))

    partition_and_compare_with_torch(forward)


def test_three_paths_partition_as_in_torch():
    """Row: group_partitioner.test_complex_model_with_multiple_paths"""

    def forward(self, x):
        paths = [
            torch.relu(self.a(x)),
            torch.tanh(torch.sin(self.b(x))),
            torch.relu(torch.sin(self.c(torch.sin(x)))),
        ]
        return self.d(sum(paths))

    assert len(partition_and_compare_with_torch(forward)) == 2


def test_reshapes_partition_as_in_torch():
    """Row: group_partitioner.test_with_reshape_operations"""

    def forward(self, x):
        return self.b(torch.relu(self.a(x).reshape(5, 2, 5)).reshape(5, 10))

    partition_and_compare_with_torch(forward, (*TAKEN, aten.reshape.default))
    partition_and_compare_with_torch(forward)


def test_several_outputs_partition_as_in_torch():
    """Row: group_partitioner.test_with_multiple_outputs"""

    def forward(self, x):
        first = torch.relu(self.a(x))
        left, right = torch.sin(first).chunk(2, 1)
        return self.b(first), torch.relu(left), torch.tanh(right)

    partition_and_compare_with_torch(forward)
    partition_and_compare_with_torch(forward, (*TAKEN, aten.chunk.default))


def test_shared_subgraphs_partition_as_in_torch():
    """Row: group_partitioner.test_with_shared_subgraphs"""

    def forward(self, x):
        shared = torch.relu(self.a(x))
        return self.c(self.b(shared) + torch.tanh(torch.sin(shared)))

    assert len(partition_and_compare_with_torch(forward)) == 2


def reshaped(self, x):
    return self.b(torch.relu(torch.sin(self.a(x).reshape(5, 2, 5))).reshape(5, 10))


def test_non_compute_operators_partition_as_in_torch():
    """Row: group_partitioner.test_with_non_compute_ops"""
    taken = (*TAKEN, aten.reshape.default)
    partition_and_compare_with_torch(
        reshaped, taken, non_compute_ops=[aten.reshape.default]
    )
    options = {
        "non_compute_ops": [aten.reshape.default],
        "allows_single_node_partition": False,
    }

    assert partition_and_compare_with_torch(reshaped, taken, **options) == [
        {"relu", "reshape_1", "linear_1"}
    ]


def test_a_partition_of_only_reshapes_is_refused():
    program = export_network(lambda self, x: torch.sin(torch.sin(x).reshape(2, 25)))
    partitioner = CapabilityPartitioner(
        lambda node: "no waves" if node.target is aten.sin.default else None,
        "Backend",
        limits=torch_limits(non_compute_ops=[aten.reshape.default]),
    )
    [reason] = [
        refusal.reason
        for refusal in partitioner(program).refusals
        if refusal.node.name == "reshape"
    ]

    assert reason == "nothing in its partition computes"


def sines_between_layers(self, x):
    return self.b(torch.sin(torch.tanh(torch.sin(self.a(x)))))


def test_only_allowed_operators_may_be_alone():
    """Row: group_partitioner.test_with_allowed_single_node_partition_ops"""
    options = {
        "allows_single_node_partition": False,
        "allowed_single_node_partition_ops": [aten.tanh.default],
    }
    assert partition_and_compare_with_torch(sines_between_layers, **options) == [
        {"tanh"}
    ]


def test_three_uses_of_one_result_partition_as_in_torch():
    """Row: group_partitioner.test_with_complex_dependency_cycles"""

    def forward(self, x):
        first = torch.relu(self.a(x))
        left = torch.tanh(self.b(first))
        right = torch.relu(torch.sin(self.c(first)))
        return self.d(left + right + first)

    assert len(partition_and_compare_with_torch(forward)) == 2


def test_written_buffers_partition_as_in_torch():
    """Row: group_partitioner.test_with_buffer_mutations"""

    def forward(self, x):
        self.counter.add_(1.0)
        return self.a(x + self.counter)

    partition_and_compare_with_torch(forward, (*TAKEN, aten.add_.Tensor))
    partition_and_compare_with_torch(forward)


def test_dynamic_shapes_partition_as_in_torch():
    """Row: group_partitioner.test_with_dynamic_shapes"""

    def forward(self, x):
        return self.b(torch.relu(torch.sin(self.a(x))).reshape(x.size(0), -1))

    shapes = {"x": {0: torch.export.Dim("batch", min=2, max=64)}}
    taken = (*TAKEN, aten.reshape.default, aten.sym_size.int)
    partition_and_compare_with_torch(forward, taken, (torch.randn(4, 10),), shapes)


def test_crossing_paths_partition_as_in_torch():
    """Row: group_partitioner.test_with_complex_graph_structure"""

    def forward(self, x):
        one = torch.relu(self.a(x))
        two = torch.tanh(self.b(x))
        three = torch.relu(torch.sin(self.c(one)))
        four = torch.tanh(self.d(torch.sin(two)))
        return self.e(three + four + one + two)

    assert len(partition_and_compare_with_torch(forward)) == 2


def test_other_supported_operators_partition_as_in_torch():
    """Row: group_partitioner.test_with_custom_operator_support"""

    def forward(self, x):
        return self.b(torch.tanh(torch.sigmoid(torch.relu(self.a(x)))))

    taken = (aten.linear.default, aten.relu.default, aten.sigmoid.default)
    assert len(partition_and_compare_with_torch(forward, taken)) == 2


def test_activations_are_in_the_partition_of_their_layer():
    """Row: group_partitioner.test_with_fusion_patterns"""

    def forward(self, x):
        normed = F.relu(F.batch_norm(self.a(x), torch.zeros(10), torch.ones(10)))
        return self.c(normed + torch.tanh(self.b(torch.sin(x))))

    parts = partition_and_compare_with_torch(forward, (*TAKEN, aten.batch_norm.default))
    assert one_part_has(parts, "linear", "batch_norm", "relu")
    assert one_part_has(parts, "linear_1", "tanh")


def test_sixty_calls_make_ten_partitions_as_in_torch():
    """Row: group_partitioner.test_with_large_model"""

    activations = (torch.relu, torch.tanh, torch.sin)

    def forward(self, x):
        for k in range(30):
            x = activations[k % 3](getattr(self, "abcdef"[k % 6])(x))
        return x

    assert len(partition_and_compare_with_torch(forward)) == 10


def test_the_order_of_calls_does_not_change_partitions():
    """Row: group_partitioner.test_with_different_traversal_orders"""

    def forward(self, x):
        return (
            torch.relu(self.a(x))
            + torch.tanh(self.b(torch.sin(x)))
            + torch.relu(self.c(x))
        )

    def reordered(self, x):
        last = torch.relu(self.c(x))
        middle = torch.tanh(self.b(torch.sin(x)))
        return torch.relu(self.a(x)) + middle + last

    parts = partition_and_compare_with_torch(forward)
    parts_of_reordered = partition_and_compare_with_torch(reordered)
    sizes = sorted(len(part) for part in parts)

    assert sorted(len(part) for part in parts_of_reordered) == sizes


def test_partitions_of_one_call_can_be_excluded():
    """Row: group_partitioner.test_null_node_groups_single_node_partition_control"""

    def forward(self, x):
        return self.b(torch.sin(self.a(x)))

    excluded = partition_and_compare_with_torch(
        forward, allows_single_node_partition=False
    )
    assert excluded == []

    allowed = partition_and_compare_with_torch(
        forward, allows_single_node_partition=True
    )
    assert len(allowed) == 2


# --- defects of ExecuTorch that are absent ---------------------------------------------


def test_overlapping_groups_share_one_partition():
    """ExecuTorch's ``GroupBasedPartitioner`` raises a ``ValueError``."""
    program = export_network(
        lambda self, x: self.c(torch.relu(self.b(torch.tanh(self.a(x)))))
    )
    parts = our_partitions(program, named=[("linear", "tanh"), ("tanh", "linear_1")])
    assert len(parts) == 1


def test_a_group_with_a_refused_call_is_refused_whole():
    """ExecuTorch's ``GroupBasedPartitioner`` delegates the rest of the group."""
    program = export_network(lambda self, x: torch.relu(torch.sin(self.a(x))))

    def why_not(node):
        return "no waves" if node.target is aten.sin.default else None

    def groups(given):
        return [[node for node in given.graph.nodes if node.name in ("linear", "sin")]]

    result = GroupedPartitioner(why_not, "Backend", groups=groups)(program)
    reasons = {refusal.node.name: refusal.reason for refusal in result.refusals}
    assert reasons == {
        "linear": "it goes with sin, which is refused: no waves",
        "sin": "no waves",
    }
    assert [
        node.name for node in program.graph.nodes if "delegation_tag" in node.meta
    ] == ["relu"]


def test_a_group_around_a_host_call_names_the_call():
    """torch's fusion fails with "found dependency cycles"."""
    program = export_network(
        lambda self, x: torch.relu(torch.sin(self.a(x))) + self.b(x)
    )

    def why_not(node):
        return "no waves" if node.target is aten.sin.default else None

    def groups(given):
        return [[node for node in given.graph.nodes if node.name in ("linear", "relu")]]

    result = GroupedPartitioner(why_not, "Backend", groups=groups)(program)
    reasons = {refusal.node.name: refusal.reason for refusal in result.refusals}
    text = (
        "its group (linear, relu) cannot be one partition: it would need its own result"
        " through sin"
    )

    assert reasons == {"linear": text, "relu": text, "sin": "no waves"}
