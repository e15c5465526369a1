"""``CapabilityPartitioner`` refuses wrong answers of support objects."""

import pytest
import torch
from delegraph.errors import ContractViolation
from delegraph.partitioner import CapabilityPartitioner
from torch import nn


class Wave(nn.Module):
    def forward(self, x):
        return torch.cos(torch.sin(x))


class Answers:
    """Takes each call, and returns ``answer`` for partitions."""

    def __init__(self, answer):
        self.answer = answer

    def begin(self, exported_program):
        self.nodes = list(exported_program.graph.nodes)

    def why_not(self, node):
        return None

    def is_constant(self, node):
        return False

    def partition_why_not(self, nodes):
        return self.answer(self, nodes)


@pytest.fixture
def program():
    return torch.export.export(Wave(), (torch.ones(2),))


@pytest.mark.parametrize(
    "answer",
    [
        lambda support, nodes: {support.nodes[0]: "it is an input"},
        lambda support, nodes: {nodes[0]: True},
        lambda support, nodes: None,
    ],
    ids=["a placeholder", "no text", "no mapping"],
)
def test_wrong_refusals_of_a_partition_are_an_error(answer, program):
    partitioner = CapabilityPartitioner(Answers(answer), "WaveBackend")
    with pytest.raises(ContractViolation, match="of WaveBackend"):
        partitioner(program)


def test_a_wrong_answer_of_an_additional_check_is_named(program):
    partitioner = CapabilityPartitioner(
        lambda node: None, "WaveBackend", additional_checks=[lambda node: False]
    )
    with pytest.raises(ContractViolation, match="^an additional check of WaveBackend"):
        partitioner(program)


def test_a_support_without_answers_is_an_error():
    with pytest.raises(ContractViolation, match="Wave is neither a function nor"):
        CapabilityPartitioner(type("Wave", (), {})(), "WaveBackend")
