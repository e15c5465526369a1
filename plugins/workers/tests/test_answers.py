"""Answers of slow partitioners, kept in a cache."""

from typing import ClassVar

import delegraph
import pytest
from delegraph.partitioner import CapabilityPartitioner, Reason
from delegraph_workers import Compiler

from .support.caching import (
    Blocks,
    CountingBackend,
    X,
    contents_of_delegates,
    entries_in,
    make_model,
    registry,
    write_entry,
)

__all__ = ["registry"]


class Slow(CapabilityPartitioner):
    """A partitioner that says what its answer depends on, and leaves marks for its
    backend.
    """

    asked: ClassVar[list] = []

    def __init__(self, refused="cos", knows=True):
        why = Reason("none of these", hint="none", cause="x")
        super().__init__(
            lambda node: why if refused in str(node.target) else None, "CountingBackend"
        )
        self.told = refused if knows else None

    def fingerprint(self, exported_program):
        return self.told

    def partition(self, exported_program):
        self.asked.append(exported_program)
        result = super().partition(exported_program)
        for k, node in enumerate(
            node
            for node in exported_program.graph.nodes
            if node.meta.get("delegation_tag")
        ):
            node.meta |= {"mark": [k, (0.5, None)], "local:mark": object()}
        return result


def lower_with_answers(folder, registry, partitioner=None, module=None):
    Slow.asked.clear()
    given = [partitioner or Slow()]
    return delegraph.lower(
        module or make_model(),
        X,
        backends=given,
        registry=registry,
        compiler=Compiler(cache=folder),
    )


def test_an_answer_of_a_partitioner_is_found_again(registry, tmp_path):
    expected = lower_with_answers(tmp_path, registry)
    assert Slow.asked
    program = lower_with_answers(tmp_path, registry)
    assert not Slow.asked
    assert "an answer of Slow is from the cache" in program.report.notes
    assert contents_of_delegates(program) == contents_of_delegates(expected)
    # the marks are in the keys of partitions, and were put back
    assert len(CountingBackend.calls) == 2
    assert [str(cause) for cause in program.report.causes] == [
        str(cause) for cause in expected.report.causes
    ]
    assert program.report.causes[0].hint == "none"
    marks = [n.meta["mark"] for d in program.delegates for n in d.nodes]
    assert marks == [n.meta["mark"] for d in expected.delegates for n in d.nodes]
    assert isinstance(marks[0][1], tuple)


def test_answers_depend_on_program_names_and_partitioner(registry, tmp_path):
    class Renamed(Blocks):
        def forward(self, x):
            return super().forward(x.reshape(1, 64))

    lower_with_answers(tmp_path, registry)
    for others in (
        {"partitioner": Slow("relu")},
        {"module": make_model(seed=1)},
        {"module": Renamed().eval()},
    ):
        lower_with_answers(tmp_path, registry, **others)
        assert Slow.asked
    lower_with_answers(tmp_path, registry, Slow(knows=False))
    assert Slow.asked


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b'[{}, [["t", "B", []]], [], [], []]',
        b'[{}, [], [], [[999, "", false, null]], []]',
        b"[]",
    ],
)
def test_a_damaged_answer_is_a_miss(damage, registry, tmp_path):
    expected = contents_of_delegates(lower_with_answers(tmp_path, registry))
    for path in entries_in(tmp_path):
        path.write_bytes(write_entry(path, damage) if damage else b"")
    program = lower_with_answers(tmp_path, registry)
    assert Slow.asked
    assert contents_of_delegates(program) == expected
    assert sum("is not used: " in note for note in program.report.notes) == len(
        entries_in(tmp_path)
    )
