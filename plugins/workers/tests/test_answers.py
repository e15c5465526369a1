"""The cache keeps the results of partitioners that declare a fingerprint."""

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


class SlowPartitioner(CapabilityPartitioner):
    """Marks nodes for its backend, and counts its calls.

    ``fingerprint`` identifies its settings; None means that its results are not kept.
    """

    partitioned: ClassVar[list] = []

    def __init__(self, refused="cos", has_fingerprint=True):
        reason = Reason("none of these", hint="none", cause="x")
        super().__init__(
            lambda node: reason if refused in str(node.target) else None,
            "CountingBackend",
        )
        self.refused = refused
        self.has_fingerprint = has_fingerprint

    def fingerprint(self, exported_program):
        return self.refused if self.has_fingerprint else None

    def partition(self, exported_program):
        self.partitioned.append(exported_program)
        result = super().partition(exported_program)
        delegated = [
            node
            for node in exported_program.graph.nodes
            if node.meta.get("delegation_tag")
        ]
        for index, node in enumerate(delegated):
            node.meta["mark"] = [index, (0.5, None)]
            node.meta["local:mark"] = object()
        return result


def lower_with_answers(folder, registry, partitioner=None, module=None):
    """Lower with a cache; ``SlowPartitioner.partitioned`` is of this lowering alone."""
    SlowPartitioner.partitioned.clear()
    return delegraph.lower(
        module or make_model(),
        X,
        backends=[partitioner or SlowPartitioner()],
        registry=registry,
        compiler=Compiler(cache=folder),
    )


@pytest.fixture
def computed(registry, tmp_path):
    """Return a program for which the partitioner ran."""
    program = lower_with_answers(tmp_path, registry)
    assert SlowPartitioner.partitioned
    return program


@pytest.fixture
def found(computed, registry, tmp_path):
    """Return the same program, with the partitioner's result from the cache."""
    program = lower_with_answers(tmp_path, registry)
    assert not SlowPartitioner.partitioned
    return program


def test_a_result_from_the_cache_gives_the_same_delegates(computed, found):
    assert "an answer of SlowPartitioner is from the cache" in found.report.notes
    assert contents_of_delegates(found) == contents_of_delegates(computed)


def test_a_result_from_the_cache_gives_the_same_refusals(computed, found):
    causes = found.report.causes

    assert causes[0].hint == "none"
    assert [str(cause) for cause in causes] == [
        str(cause) for cause in computed.report.causes
    ]


def marks_of(program):
    """Return what the partitioner left in the delegated nodes."""
    return [
        node.meta["mark"] for delegate in program.delegates for node in delegate.nodes
    ]


def test_a_result_from_the_cache_gives_the_same_marks(computed, found):
    marks = marks_of(found)

    assert marks == marks_of(computed)
    assert isinstance(marks[0][1], tuple)
    # marks are in the keys of partitions, and the second lowering compiled none
    assert len(CountingBackend.calls) == 2


class BlocksWithReshape(Blocks):
    def forward(self, x):
        return super().forward(x.reshape(1, 64))


@pytest.mark.parametrize(
    "changed",
    [
        {"partitioner": SlowPartitioner("relu")},
        {"partitioner": SlowPartitioner(has_fingerprint=False)},
        {"module": make_model(seed=1)},
        {"module": BlocksWithReshape().eval()},
    ],
    ids=["other settings", "no fingerprint", "other weights", "other operators"],
)
def test_another_program_or_partitioner_is_partitioned_again(
    changed, computed, registry, tmp_path
):
    lower_with_answers(tmp_path, registry, **changed)

    assert SlowPartitioner.partitioned


@pytest.mark.parametrize(
    "header",
    [
        None,  # an empty file
        b'[{}, [["t", "B", []]], [], [], []]',
        b'[{}, [], [], [[999, "", false, null]], []]',
        b"[]",
    ],
)
def test_damaged_results_are_computed_again(header, computed, registry, tmp_path):
    paths = entries_in(tmp_path)
    for path in paths:
        path.write_bytes(write_entry(path, header) if header else b"")

    program = lower_with_answers(tmp_path, registry)

    assert SlowPartitioner.partitioned
    assert contents_of_delegates(program) == contents_of_delegates(computed)
    unused = [note for note in program.report.notes if "is not used: " in note]
    assert len(unused) == len(paths)
