"""Partitions that are made from lists of nodes.

A row names the test of ExecuTorch that a test here repeats.
"""

import delegraph
import pytest
import torch
from delegraph.errors import ContractViolation
from delegraph_engines import GroupedPartitioner
from delegraph_executorch.edge import AllNodePartitioner, PatternPartitioner, matches
from torch import nn

aten = torch.ops.aten


class Convolutions(nn.Module):
    """Calls conv1, conv2, conv3 twice, and relu.

    ``between`` combines the results of conv1 and conv2; ``end`` those of both calls of
    conv3.
    """

    def __init__(self, between=lambda a, b: b, end=lambda c, d: d):
        super().__init__()
        torch.manual_seed(0)
        self.conv1, self.conv2, self.conv3 = (nn.Conv2d(4, 4, 1) for _ in range(3))
        self.relu = nn.ReLU()
        self.between = between
        self.end = end

    def forward(self, x):
        a = self.conv1(x)
        c = self.conv3(self.between(a, self.conv2(a)))
        return self.relu(self.end(c, self.conv3(c)))


INPUTS = (torch.rand(1, 4, 6, 6),)


def module_lists(program):
    """Return a list for each convolution and relu: its call and the parameters it uses."""
    lists = {}
    for node in program.graph.nodes:
        stack = list(node.meta.get("nn_module_stack", {}).values())
        if stack and stack[-1][1].endswith(("Conv2d", "ReLU")):
            parameters = [i for i in node.all_input_nodes if i.name.startswith("p_")]
            lists.setdefault(stack[-1][0], []).extend([node, *parameters])
    return list(lists.values())


def names_in_partitions(program, partitioner):
    """Return the names of the nodes of each partition, placeholders included."""
    result = partitioner(program)
    found = {tag: [] for tag in result.partition_tags}
    for node in program.graph.nodes:
        tags = node.meta.get("delegation_tag", ())
        if isinstance(tags, str):
            tags = (tags,)
        for tag in tags:
            found[tag].append(node.name)
    return list(found.values())


def export_convolutions(**parts):
    return torch.export.export(Convolutions(**parts).eval(), INPUTS)


def parameter_names(*layers):
    return [f"p_{layer}_{kind}" for layer in layers for kind in ("weight", "bias")]


def partitioner_from_lists(**options):
    return PatternPartitioner(module_lists, "Backend", grouped=False, **options)


def test_lists_that_touch_are_one_partition():
    """Row: graph_partition.test_partition_list_without_op_support_one_partition"""
    assert (
        len(names_in_partitions(export_convolutions(), partitioner_from_lists())) == 1
    )


def test_an_unlisted_call_separates_two_partitions():
    """Row: graph_partition.test_partition_list_without_op_support_two_partitions"""
    first, second = names_in_partitions(
        export_convolutions(between=torch.add), partitioner_from_lists()
    )
    assert first == [*parameter_names("conv1", "conv2"), "conv2d", "conv2d_1"]
    assert second == [*parameter_names("conv3"), "conv2d_2", "conv2d_3", "relu"]


def test_a_support_check_adds_calls_to_the_lists():
    """Row: graph_partition.test_graph_partition_with_op_support"""

    def why_not(node):
        taken = (aten.div.Tensor, aten.add.Tensor)
        return None if node.target in taken else "only div and add besides"

    def end(c, d):
        return d.max(dim=2).values - c.max(dim=2).values

    program = export_convolutions(between=torch.add, end=end)
    first, second = names_in_partitions(
        program, partitioner_from_lists(why_not=why_not)
    )
    calls = ["conv2d", "conv2d_1", "add", "conv2d_2", "conv2d_3"]

    assert first == [*parameter_names("conv1", "conv2", "conv3"), *calls]
    assert second == ["relu"]


# --- canonical partitioners (feature table) -------------------------------------------


def test_all_node_partitioner_tags_everything_but_inputs_and_output(registry):
    program = export_convolutions()
    result = AllNodePartitioner("EchoBackend")(program)
    tagged = {
        node.name: node.meta.get("delegation_tag") for node in program.graph.nodes
    }
    assert list(result.partition_tags) == ["EchoBackend"]
    assert [name for name, tag in tagged.items() if tag != "EchoBackend"] == [
        "x",
        "output",
    ]

    partitioner = AllNodePartitioner("EchoBackend")
    lowered = delegraph.lower(
        Convolutions().eval(), INPUTS, backends=[partitioner], registry=registry
    )
    assert [delegate.name for delegate in lowered.delegates] == ["lowered_module_0"]
    assert lowered.report.host_operators == 0
    assert lowered.verify(*INPUTS).relative_error < 1e-6
    assert {node.target for node in lowered.delegates[0].nodes} == {
        aten.conv2d.default,
        aten.relu.default,
    }


def test_calls_that_match_a_pattern_are_one_partition(registry):
    """ExecuTorch's ``generate_pattern_op_partitions`` does the same."""

    class Pattern(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(4, 4, 1)
            self.relu = nn.ReLU()

        def forward(self, x):
            return self.relu(self.conv(x))

    pattern = torch.export.export(Pattern().eval(), INPUTS)
    program = export_convolutions()
    assert names_in_partitions(
        program, PatternPartitioner(matches(pattern), "EchoBackend")
    ) == [[*parameter_names("conv3"), "conv2d_3", "relu"]]

    partitioner = PatternPartitioner(matches(pattern), "EchoBackend")
    lowered = delegraph.lower(
        Convolutions().eval(), INPUTS, backends=[partitioner], registry=registry
    )
    assert lowered.verify(*INPUTS).relative_error < 1e-6
    assert [
        row.count
        for row in lowered.report.refusals
        if row.reason == "it is in none of the patterns"
    ] == [3]


def test_each_list_of_nodes_is_one_partition_or_none():
    """ExecuTorch's ``generate_grouped_partitions_from_list_of_nodes`` does the same."""

    def ends(program):
        convolutions = [
            node for node in program.graph.nodes if node.target is aten.conv2d.default
        ]
        return [[convolutions[0], convolutions[-1]], convolutions[1:3]]

    program = export_convolutions()
    alone = PatternPartitioner(ends, "Backend")
    assert len(names_in_partitions(program, alone)) == 1

    apart = export_convolutions(between=lambda a, b: torch.sin(b))
    assert names_in_partitions(apart, PatternPartitioner(ends, "Backend")) == []

    each = names_in_partitions(
        export_convolutions(between=lambda a, b: torch.sin(b)),
        PatternPartitioner(ends, "Backend", grouped=False),
    )
    assert each == [
        [*parameter_names("conv1", "conv2"), "conv2d", "conv2d_1"],
        [*parameter_names("conv3"), "conv2d_2", "conv2d_3"],
    ]


def test_a_check_and_lists_replace_configurations():
    """ExecuTorch's ``ConfigerationBasedPartitioner`` has a check and a list for each
    operator.
    """
    supported = (aten.conv2d.default, aten.relu.default)

    def why_not(node):
        return None if node.target in supported else "no configuration"

    def groups(program):
        """Group each relu with the call before it."""
        relus = [n for n in program.graph.nodes if n.target is aten.relu.default]
        return [[relu, *relu.all_input_nodes] for relu in relus]

    partitioner = GroupedPartitioner(why_not, "Backend", groups=groups)
    program = export_convolutions(between=torch.add)
    assert len(names_in_partitions(program, partitioner)) == 2


def test_nodes_of_another_program_are_refused():
    program = export_convolutions()
    other = export_convolutions()
    with pytest.raises(
        ContractViolation, match="no call of the program that is partitioned"
    ):
        PatternPartitioner(lambda given: module_lists(other), "Backend")(program)


def test_lists_leave_no_metadata_in_the_program():
    """ExecuTorch writes ``meta["match"]``, and leaves it in nodes without a partition."""
    program = export_convolutions()
    before = {node.name: set(node.meta) for node in program.graph.nodes}
    names_in_partitions(
        program,
        PatternPartitioner(lambda p: [[p.graph.output_node().args[0][0]]], "Backend"),
    )

    assert {
        node.name: set(node.meta) - {"delegation_tag"} for node in program.graph.nodes
    } == before
