"""Damaged files are refused with one clear error, or read as what they then are;
nothing crashes, hangs or grows.
"""

from __future__ import annotations

import random
import struct
from typing import Any

import delegraph
import pytest
import torch
from delegraph.errors import DelegraphError, FormatError, NoRuntime
from delegraph_executorch.bridging.runtime import BridgedRuntime
from delegraph_executorch.inspection import collect_facts
from delegraph_executorch.inspection.page import render_page
from delegraph_executorch.memory.verify import find_conflicts
from delegraph_executorch.run.calls import split_delegate_calls
from delegraph_executorch.serialize.check import check_program
from delegraph_executorch.serialize.reader import read_program

from ..support.cases import STATIC
from ..support.fixtures import FIXTURES, FOLDER
from ..support.judge import emit, host_program, load_delegate, lower

SEEDS = {
    "branch": [],
    "counter": [],
    "several": [],
    "rows": [],
    "convolution": ["tosa"],
}


def _files() -> list[tuple[bytes, tuple[object, ...]]]:
    """Files of ours and of ExecuTorch, with inputs for their methods."""
    ours = [(STATIC[name], backends) for name, backends in SEEDS.items()]
    files = [
        (emit(lower(m, calls[0], backends=b)).file.join(), calls[0])
        for (m, calls), b in ours
    ]
    files += [
        ((FOLDER / f"{name}.pte").read_bytes(), calls[0])
        for name, (_, calls, _) in FIXTURES.items()
    ]
    return [
        (content, tuple(torch.utils._pytree.tree_leaves(call)))
        for content, call in files
    ]


def mutate(data: bytes, source: random.Random) -> bytes:
    """Flip, replace or cut: single bytes, and words with values that are likely to
    hurt.
    """
    made = bytearray(data)
    for _ in range(source.choice([1, 1, 1, 2, 8])):
        place = source.randrange(min(len(made), 1 << 13))
        kind = source.randrange(4)
        if kind == 0:
            made[place] = source.randrange(256)
        elif kind == 1:
            made[place] ^= 1 << source.randrange(8)
        elif kind == 2 and place + 4 <= len(made):
            word = source.choice(
                [0, 1, 0xFFFFFFFF, 0x7FFFFFFF, 0x80000000, source.randrange(1 << 16)]
            )
            struct.pack_into("<I", made, place, word)
        elif source.random() < 0.1:
            del made[place:]
            return bytes(made)
    return bytes(made)


def look_at(data: bytes, inputs: tuple[object, ...]) -> bool:
    """Whether a file can be read; then it is inspected, its plan is proven, and it is
    run.
    """
    try:
        file = read_program(data)
        check_program(file)
    except FormatError:
        return False
    facts = collect_facts(file, len(data))
    assert str(facts)
    assert facts.to_json()
    assert render_page(file.program, facts, "x")
    for plan in file.program.plans:
        find_conflicts(plan, split_delegate_calls(plan))
    try:
        host_program(file, _load_in_python, max_memory=1 << 20, max_iterations=50).run(
            file.program.plans[0].name, inputs
        )
    except (DelegraphError, IndexError) as e:
        assert isinstance(e, DelegraphError) or not file.program.plans
    return True


def _load_in_python(
    backend: str, blob: bytes, specs: Any = (), data: Any = None, header: Any = None
) -> Any:
    """Not in native code, which ends the process on a damaged blob: SECURITY.md counts
    these deaths.
    """
    if issubclass(delegraph.get_runtime(backend), BridgedRuntime):
        raise NoRuntime("no-runtime", f"{backend} is not tried with damaged blobs")
    return load_delegate(backend, blob, specs, data)


def _fuzz(count: int) -> None:
    source = random.Random(20)
    files = _files()
    read = 0
    for _ in range(count):
        content, inputs = source.choice(files)
        read += look_at(mutate(content, source), inputs)
    assert 0 < read < count


@pytest.mark.filterwarnings("ignore")  # a damaged program may well divide by zero
def test_two_thousand_damaged_files_are_read_or_refused() -> None:
    _fuzz(2_000)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_twenty_thousand_damaged_files_are_read_or_refused() -> None:
    _fuzz(20_000)


def test_every_truncated_file_is_refused() -> None:
    data, _ = _files()[0]
    for length in range(len(data)):
        with pytest.raises(FormatError):
            check_program(read_program(data[:length]))
