"""Program files written table by table, for what no model gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from delegraph_executorch.program import pte_tables as t
from delegraph_executorch.serialize.file import Segment, program_file

FLOAT = 6
LONG = 4


def tensor(*sizes: int, at: int | None = 0, dtype: int = FLOAT) -> t.Tensor:
    """A tensor at byte ``at`` of the planned memory, or outside of it."""
    place = None if at is None else t.AllocationDetails.at(1, at)
    return t.Tensor(dtype, 0, sizes, tuple(range(len(sizes))), allocation=place)


def program(
    values: Sequence[Any],
    calls: Sequence[tuple[str, tuple[int, ...]] | Any] = (),
    inputs: Sequence[int] = (),
    outputs: Sequence[int] = (),
    memory: int = 1 << 12,
    container: t.ContainerMetadata | None = None,
) -> bytes:
    """A file with one method. ``calls``: name and arguments of a kernel
    (``aten::add.out``), or another instruction.
    """
    names = list(dict.fromkeys(c[0] for c in calls if isinstance(c, tuple)))
    instructions = [
        t.KernelCall(names.index(c[0]), c[1]) if isinstance(c, tuple) else c
        for c in calls
    ]
    pairs = [name.partition(".") for name in names]
    plan = t.ExecutionPlan(
        name="forward",
        container=container or t.ContainerMetadata(),
        values=tuple(map(t.EValue, values)),
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        chains=(
            t.Chain(
                tuple(inputs), tuple(outputs), tuple(map(t.Instruction, instructions))
            ),
        ),
        operators=tuple(t.Operator(name, overload) for name, _, overload in pairs),
        delegates=(
            t.BackendDelegate(
                "nobody", t.BackendDelegateDataReference(t.BlobLocation.SEGMENT, 0)
            ),
        ),
        memory_sizes=(0, memory),
    )
    if not any(isinstance(i, t.DelegateCall) for i in instructions):
        plan = t.ExecutionPlan(
            **{f: getattr(plan, f) for f in plan.__slots__ if f != "delegates"}
        )
    return program_file(
        t.Program(plans=(plan,), constant_segment=t.SubsegmentOffsets(0, (0,))),
        [Segment(b"-")],
    ).join()
