"""Damaged and hostile files give a graph or a FormatError, without a hang, and in memory
that the size of the file bounds.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest
from delegraph_tosa.serialize import TosaFile, read
from delegraph_tosa.spec import TosaSpec

from ..support import hostile
from ..support.mutations import mutate_file, reads_or_refuses
from ..support.samples import samples

FILES = [
    TosaFile(sample.graph, TosaSpec(version)).join()
    for version in ((1, 0), (1, 1))
    for sample in list(samples(version=version))[::5]
]


def outcomes(count: int, seed: int) -> tuple[int, int]:
    """(graphs, refusals) of so many damaged files."""
    generator = random.Random(seed)
    numbers = Counter(
        reads_or_refuses(mutate_file(FILES[number % len(FILES)], generator))
        for number in range(count)
    )
    return numbers[True], numbers[False]


@pytest.fixture(scope="module", autouse=True)
def once():
    """What the first file of its kind loads is no memory of a later one."""
    for file in FILES:
        read(file)


def test_two_thousand_damaged_files():
    graphs, refusals = outcomes(2_000, seed=1)
    assert graphs + refusals == 2_000
    assert graphs > 100


@pytest.mark.parametrize("kind", hostile.KINDS, ids=lambda kind: kind.__name__)
def test_sharing_in_a_file_does_not_multiply_memory(kind):
    assert reads_or_refuses(hostile.file(kind)) == (kind in hostile.LEGAL)


@pytest.mark.slow
def test_two_hundred_thousand_damaged_files_are_read_or_refused():
    assert sum(outcomes(200_000, seed=2)) == 200_000
