"""Files beyond 4 GB store constants by offset and size, because the offsets of a
flatbuffer have 32 bits. The test files are sparse, so that they take no space.
"""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pytest
from delegraph_tosa.format import TosaFormat
from delegraph_tosa.ir import operators as ops
from delegraph_tosa.ir.graph import Deferred, Graph, Value
from delegraph_tosa.ir.types import DType, Type
from delegraph_tosa.serialize import TosaFile, read
from delegraph_tosa.spec import TosaSpec

from ..support import reference_tools
from ..support.samples import make_operator

MEGABYTE = 1 << 20
LENGTH = 32 * MEGABYTE
"""Elements of a constant."""


def weight(number: int) -> Value:
    def load() -> np.ndarray:
        elements = np.zeros(LENGTH, np.float32)
        elements[-1] = number
        return elements

    return Value(Type((LENGTH,), DType.FP32), Deferred(load))


def sums(count: int) -> Graph:
    """The input and ``count`` constants, added up."""
    value = x = Value(Type((LENGTH,), DType.FP32), name="x")
    made = []
    for number in range(1, count + 1):
        made.append(make_operator(ops.ADD, value, weight(number)))
        (value,) = made[-1].outputs
    return Graph([x], [value], made)


class Sparse:
    """A file whose megabytes of zeros are holes."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file

    def write(self, data: bytes) -> None:
        view = memoryview(data).cast("B")
        for start in range(0, len(view), MEGABYTE):
            piece = view[start : start + MEGABYTE]
            if np.frombuffer(piece, np.uint8).any():
                self.file.write(piece)
            else:
                self.file.seek(len(piece), 1)


def write_large_file(count: int, path: Path) -> Path:
    file = TosaFile(sums(count), TosaSpec())
    with path.open("wb") as target:
        file.write_to(Sparse(target))
        target.truncate(len(file))
    return path


@pytest.fixture
def large(tmp_path):
    """A bit more than 4 GB, removed behind the test, since pytest keeps the folders of
    its last runs.
    """
    path = write_large_file(33, tmp_path / "large.tosa")
    yield path
    path.unlink()


def test_large_files_are_read_one_constant_at_a_time(large):
    assert large.stat().st_size > 1 << 32
    tracemalloc.start()
    found = TosaFormat.inspect(large)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16 * MEGABYTE
    assert found.parameters == 33 * LENGTH
    assert found.constants == 33
    graph = read(np.memmap(large, np.uint8, "r").data)
    for number, operator in enumerate(graph.operators, start=1):
        elements = operator.inputs[1].constant.materialize()
        assert elements[0] == 0
        assert elements[-1] == number


@pytest.mark.slow  # about three minutes, nearly all of which is theirs
def test_official_tools_read_files_beyond_2_gigabytes(tmp_path):
    reference_tools.tools()
    path = write_large_file(17, tmp_path / "large.tosa")
    try:
        assert path.stat().st_size > 1 << 31
        assert [(v.judge, v.accepted) for v in TosaFormat.verify(path)] == [
            ("tosa-opt", True),
            ("reference model", True),
        ]
    finally:
        path.unlink()
