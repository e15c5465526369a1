"""Tests of ``DelegateMappingBuilder``: it maps steps of a device to debug handles.

A row names the test of ExecuTorch that a test here repeats.
"""

import pytest
import torch
from delegraph.backend import BackendDetails, DelegateMappingBuilder, PreprocessResult
from delegraph.errors import ContractViolation
from delegraph_executorch.edge import to_backend, to_edge
from torch import nn

from . import backends
from .backends import CALL, aten, call_targets, export, export_wrapped


@pytest.fixture(scope="module")
def nodes():
    """Return the calls of sin(cos(x)): the sine has handle 2, the cosine has handle 1."""
    program = to_edge(
        export(lambda s, x: torch.sin(torch.cos(x)), torch.ones(1))
    ).exported_program()
    cosine, sine = (node for node in program.graph.nodes if node.op == "call_function")
    return [sine, cosine]


def build_mapping(*entries, generated=False):
    builder = DelegateMappingBuilder(generated_identifiers=generated)
    returned = [builder.insert_delegate_mapping_entry(**entry) for entry in entries]
    return returned, builder.get_delegate_mapping()


def test_generated_identifiers_count_from_zero(nodes):
    """Row: map_builder.test_basic_generated_identifier"""
    entries = [
        {"nodes": nodes},
        {"nodes": nodes[0]},
        {"handles": 2},
        {"handles": [2, 1]},
    ]
    returned, mapping = build_mapping(*entries, generated=True)

    assert returned == [0, 1, 2, 3]
    assert mapping == {0: (1, 2), 1: (2,), 2: (2,), 3: (1, 2)}


@pytest.mark.parametrize("identifiers", [(22, 55), ("22", "55")])
def test_nodes_and_handles_give_the_same_manual_map(nodes, identifiers):
    """Rows: map_builder.test_basic_manual_int_identifier,
    map_builder.test_basic_manual_string_identifier
    """
    first, second = identifiers
    by_node = build_mapping(
        {"nodes": nodes, "identifier": first}, {"nodes": nodes[0], "identifier": second}
    )
    by_handle = build_mapping(
        {"handles": [2, 1], "identifier": first}, {"handles": 2, "identifier": second}
    )

    assert by_node == by_handle == ([first, second], {first: (1, 2), second: (2,)})


def assert_entry_refused(text, builder, **entry):
    before = builder.get_delegate_mapping()
    with pytest.raises(ContractViolation, match=text):
        builder.insert_delegate_mapping_entry(**entry)
    assert builder.get_delegate_mapping() == before


@pytest.mark.parametrize("identifier", [22, "22"])
def test_builder_of_generated_identifiers_refuses_given_ones(nodes, identifier):
    """Row: map_builder.test_adding_manual_identifier_when_generated"""
    builder = DelegateMappingBuilder(generated_identifiers=True)
    assert_entry_refused(
        "generates its identifiers", builder, nodes=nodes, identifier=identifier
    )


def test_builder_without_generation_needs_identifiers(nodes):
    """Row: map_builder.test_omitting_identifier_when_not_generated"""
    assert_entry_refused("needs an identifier", DelegateMappingBuilder(), nodes=nodes)
    assert_entry_refused("needs an identifier", DelegateMappingBuilder(), handles=[1])


def test_an_identifier_is_used_once(nodes):
    """Row: map_builder.test_reinsert_delegate_debug_identifier"""
    builder = DelegateMappingBuilder()
    builder.insert_delegate_mapping_entry(nodes=nodes[0], identifier="1")
    for entry in (
        {"nodes": nodes[0]},
        {"nodes": nodes[1]},
        {"handles": 1},
        {"handles": 2},
    ):
        assert_entry_refused("'1' is used already", builder, **entry, identifier="1")


def test_an_entry_needs_either_nodes_or_handles(nodes):
    """Row: map_builder.test_passing_both_nodes_and_handles"""
    assert_entry_refused(
        "nodes or handles",
        DelegateMappingBuilder(generated_identifiers=True),
        nodes=nodes,
        handles=[1],
    )
    assert_entry_refused(
        "nodes or handles", DelegateMappingBuilder(generated_identifiers=True)
    )


def test_missing_handles_are_dropped_if_one_remains():
    """Row: map_builder.test_missing_handle_filtering"""
    for entry in ({"handles": [None]}, {"nodes": [None]}, {"handles": []}):
        assert_entry_refused(
            "at least one debug handle",
            DelegateMappingBuilder(generated_identifiers=True),
            **entry,
        )
    assert build_mapping({"handles": [None, 3]}, generated=True)[1] == {0: (3,)}


class FusesAndSplits(BackendDetails):
    """A device that runs convolution and relu as one step, and a tangent as three."""

    @staticmethod
    def preprocess(edge_program, compile_specs):
        mapping = DelegateMappingBuilder(generated_identifiers=True)
        fused = set()
        for node in edge_program.graph.nodes:
            if node.op != "call_function" or node in fused:
                continue
            nodes = [node]
            if node.target is aten.convolution.default:
                [relu] = node.users
                fused.add(relu)
                nodes.append(relu)
            steps = 3 if node.target is aten.tan.default else 1
            for _ in range(steps):
                mapping.insert_delegate_mapping_entry(nodes=nodes)
        return PreprocessResult(b"steps", mapping.get_delegate_mapping())


def test_lowered_module_has_the_map_of_its_backend():
    """Row: map_builder.test_backend_with_delegate_mapping"""
    x = torch.randn(1, 1, 4, 4)
    source = to_edge(
        export(lambda s, x: torch.tan(s.conv(x).relu()) + 1, x, conv=nn.Conv2d(1, 1, 3))
    )
    with backends.installed(FusesAndSplits):
        lowered = to_backend("FusesAndSplits", source.exported_program(), [])
    convolution, relu, tangent, addition = 1, 2, 3, 4

    assert lowered.meta["debug_handle_map"] == {
        0: (convolution, relu),
        1: (tangent,),
        2: (tangent,),
        3: (tangent,),
        4: (addition,),
    }
    assert call_targets(to_edge(export_wrapped(lowered, x)).exported_program()) == [
        CALL
    ]


def test_every_mistake_raises_an_error_with_a_code(nodes):
    """ExecuTorch raises a bare ``Exception`` here."""
    builder = DelegateMappingBuilder()
    for entry in ({}, {"nodes": nodes}, {"handles": [None], "identifier": 1}):
        with pytest.raises(ContractViolation) as caught:
            builder.insert_delegate_mapping_entry(**entry)
        assert caught.value.code == "contract-violation"
        assert str(caught.value)
