"""Prove from the file alone that a memory plan is right.

A tensor is valid if its memory has the value that was last written to the tensor. A
write to a tensor makes it valid, and all tensors that overlap it invalid. The plan is
right if each instruction reads valid tensors only, on all paths through the program's
jumps. The proof does not use the lifetimes from which the plan was made.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from delegraph.errors import Unsupported

from ..program.pte_tables import (
    Call,
    DelegateCall,
    ExecutionPlan,
    JumpFalseCall,
    KernelCall,
    MoveCall,
    OptionalTensorList,
    Tensor,
    TensorList,
)
from ..serialize.check import nbytes

_VIEW = "executorch_prim::et_view.default"
_APPEND = "executorch_prim::et_copy_index.tensor"
_IN_PLACE = frozenset({"aten::copy_", "aten::index_put_"})
_MOST_TENSORS = 40_000
"""The most tensors with planned memory in a method.

The proof has a bit for each pair of tensors: 200 MB for this many.
"""
_MOST_WORK = 20_000_000
"""The most steps of a proof: about a minute.

A step visits an instruction or a tensor in a set. Instructions in loops are visited
several times.
"""


@dataclass(frozen=True)
class Conflict:
    """An instruction that reads a tensor that was overwritten or never written.

    ``instruction`` is the instruction's position. The position after the last
    instruction means the return of the method. ``value`` is the tensor's position.
    """

    instruction: int
    value: int
    why: str

    def __str__(self) -> str:
        return f"instruction {self.instruction} reads value {self.value}, {self.why}"


@dataclass(frozen=True)
class _Step:
    """The values that an instruction reads and writes.

    ``views`` are pairs (view, source) of values that share memory from now on.
    """

    reads: tuple[int, ...]
    writes: tuple[int, ...]
    views: tuple[tuple[int, int], ...] = ()


def find_conflicts(
    plan: ExecutionPlan, delegate_outputs: dict[int, int]
) -> list[Conflict]:
    """Return each read of a tensor that was overwritten or never written.

    ``delegate_outputs`` maps the position of a delegate call to its number of outputs.
    The outputs are the last arguments. Raises Unsupported if the proof would take
    gigabytes or minutes.
    """
    return _Proof(plan, delegate_outputs).conflicts()


class _Proof:
    """Computes which tensors are valid before each instruction, on every path to it.

    A set of tensors is an int with bit ``1 << k`` for value k. Python's own sets would
    take a hundred times the memory.
    """

    def __init__(self, plan: ExecutionPlan, delegate_outputs: dict[int, int]) -> None:
        self.plan = plan
        self.delegate_outputs = delegate_outputs
        # steps of the proof so far, which ``_MOST_WORK`` limits
        self._work = 0
        self.calls = plan.calls
        self.steps = [self._step(k, call) for k, call in enumerate(self.calls)]
        self.read_count = sum(len(step.reads) for step in self.steps)
        self.ranges: dict[int, _MemoryRange] = {}
        for k in range(len(plan.values)):
            memory_range = _memory_range(plan, k)
            if memory_range is not None:
                self.ranges[k] = memory_range
        if len(self.ranges) > _MOST_TENSORS:
            raise self._error_too_large()
        # tensor -> the set of other tensors that a write to this tensor overwrites
        self.overlaps = _overlaps(self.ranges)
        self._add_views_to_overlaps()
        self.states = self._find_states()
        written = (
            {k for step in self.steps for k in step.writes}
            | self.states
            | {*plan.inputs}
        )
        self.written = _bits(written)
        # For a view that no instruction makes: the tensors that contain its memory and
        # are valid when it is first read.
        self.sources: dict[int, int] = {}

    def conflicts(self) -> list[Conflict]:
        """Return each read of a tensor that is not valid.

        Passes over the instructions repeat until the valid tensors no longer change. The
        conflicts of the last pass count.
        """
        # jump target -> the tensors that are valid at every jump to it
        joined: dict[int, int] = {}
        # all bits of the int -1 are set
        all_tensors = -1
        found: dict[tuple[int, int], Conflict] = {}
        changed = True
        # A jump back may find fewer valid tensors, so repeat until nothing changes.
        while changed:
            changed = False
            found.clear()
            self._count_work(len(self.steps) + self.read_count)
            state = self._valid_at_start()
            for position, step in enumerate(self.steps):
                valid = state & joined.get(position, all_tensors)
                state = self._after_step(position, step, valid, found)
                call = self.calls[position]
                if isinstance(call, JumpFalseCall):
                    before = joined.get(call.destination, all_tensors)
                    after = before & state
                    joined[call.destination] = after
                    is_jump_back = call.destination <= position
                    if is_jump_back and after != before:
                        changed = True
        end = len(self.calls)
        # a jump may also lead to the end
        state &= joined.get(end, all_tensors)
        # The next run of the method reads the states, too.
        for value in (*self.plan.outputs, *sorted(self.states)):
            self._check_read(end, value, state, found)
        return list(found.values())

    def _count_work(self, steps: int) -> None:
        """Add to the steps of the proof; raise Unsupported if they become too many."""
        self._work += steps
        if self._work > _MOST_WORK:
            raise self._error_too_large()

    def _error_too_large(self) -> Unsupported:
        text = (
            f"method {self.plan.name!r} is too large to prove its memory plan:"
            f" {len(self.plan.values)} values, {len(self.calls)} instructions"
        )
        return Unsupported("unsupported", text)

    def _valid_at_start(self) -> int:
        """Return the set of tensors that are valid before the first instruction.

        The caller sets the inputs one after the other, so a later input may overwrite an
        earlier one.
        """
        valid = _bits(self.states)
        for value in self.plan.inputs:
            valid = self._after_write(value, valid)
        return valid

    def _after_write(self, value: int, valid: int) -> int:
        """Return the valid tensors after a write to the tensor ``value``.

        The write makes ``value`` valid, and overwrites all other tensors that overlap
        it. ``valid``: the tensors that are valid before the write.
        """
        overwritten = self.overlaps.get(value, 0)
        return (valid & ~overwritten) | 1 << value

    def _find_states(self) -> set[int]:
        """Return the states: tensors that keep their content between runs.

        A state has an initial value, or every instruction that writes it also reads it.
        An input without an initial value is no state: the caller sets it in each run.
        """
        initial = set()
        for k, entry in enumerate(self.plan.values):
            value = entry.value
            if isinstance(value, Tensor) and value.allocation and value.data_buffer_idx:
                initial.add(k)
        written = {k for step in self.steps for k in step.writes}
        replaced: set[int] = set()
        for step in self.steps:
            replaced.update(k for k in step.writes if k not in step.reads)
        only_updated = written - replaced
        return initial | (only_updated - {*self.plan.inputs})

    def _add_views_to_overlaps(self) -> None:
        """Let a write to the source of a view overwrite the view, too.

        So does a write to a tensor that overlaps the source. The view loses its own
        memory range, because its memory is that of the source.
        """
        for step in self.steps:
            for view, source in step.views:
                self.ranges.pop(view, None)
                for writer in self._each(self.overlaps.get(source, 0) | 1 << source):
                    self.overlaps[writer] = self.overlaps.get(writer, 0) | 1 << view

    def _each(self, values: int) -> Iterator[int]:
        """Yield the values of a set, which is an int with a bit for each value."""
        while values:
            lowest_bit = values & -values
            # Operations on an int take time in proportion to its length: about as much
            # as a step for each 4096 bits.
            self._count_work(1 + lowest_bit.bit_length() // 4096)
            yield lowest_bit.bit_length() - 1
            values ^= lowest_bit

    def _after_step(
        self,
        position: int,
        step: _Step,
        state: int,
        found: dict[tuple[int, int], Conflict],
    ) -> int:
        """Add the conflicts of ``step`` to ``found``; return the valid tensors after it.

        ``state``: the tensors that are valid before the step.
        """
        for value in step.reads:
            self._check_read(position, value, state, found)
            if self._overwrites(step.writes, value):
                why = "but writes a result to the same memory"
                found[position, value] = Conflict(position, value, why)
        for k, value in enumerate(step.writes):
            if self._overwrites(step.writes[:k], value):
                why = "but writes two results to the same memory"
                found[position, value] = Conflict(position, value, why)
            state = self._after_write(value, state)
        # the read of its source was checked, so a new view is valid
        return state | _bits(view for view, _ in step.views)

    def _overwrites(self, writes: Sequence[int], value: int) -> bool:
        """Return whether a write to one of ``writes`` overwrites ``value``."""
        return any(self.overlaps.get(written, 0) >> value & 1 for written in writes)

    def _check_read(
        self,
        position: int,
        value: int,
        state: int,
        found: dict[tuple[int, int], Conflict],
    ) -> None:
        """Add a conflict to ``found`` if ``value`` is not valid when it is read.

        ``state``: the tensors that are valid at ``position``.
        """
        has_planned_memory = value in self.ranges
        if not has_planned_memory or state >> value & 1:
            return
        if self.written >> value & 1:
            why = "but its memory was overwritten, or never written"
            found[position, value] = Conflict(position, value, why)
            return
        # No instruction writes the value: it has to be a view of a valid tensor.
        if value not in self.sources:
            near = self._each(self.overlaps.get(value, 0) & state)
            self.sources[value] = _bits(k for k in near if self._contains(k, value))
        if not self.sources[value] & state:
            why = "a view of memory that was overwritten, or never written"
            found[position, value] = Conflict(position, value, why)

    def _contains(self, owner: int, view: int) -> bool:
        """Return whether the memory of ``owner`` contains that of ``view``."""
        if owner not in self.ranges:
            return False
        outer = self.ranges[owner]
        inner = self.ranges[view]
        return (
            outer.memory == inner.memory
            and outer.start <= inner.start
            and inner.end <= outer.end
        )

    def _step(self, position: int, call: Call | None) -> _Step:
        """Return the tensors that an instruction reads and writes."""
        if isinstance(call, KernelCall):
            return self._kernel_step(call)
        if isinstance(call, DelegateCall):
            args = self._tensors(call.args)
            input_count = len(args) - self.delegate_outputs[position]
            inputs = tuple(args[:input_count])
            outputs = tuple(args[input_count:])
            return _Step(reads=inputs, writes=outputs)
        if isinstance(call, MoveCall) and isinstance(
            self.plan.values[call.move_from].value, Tensor
        ):
            # a move gives the same memory to another value
            view = (call.move_to, call.move_from)
            return _Step(reads=(call.move_from,), writes=(), views=(view,))
        if isinstance(call, JumpFalseCall):
            condition = self._tensors([call.condition])
            return _Step(reads=tuple(condition), writes=())
        return _Step(reads=(), writes=())

    def _kernel_step(self, call: KernelCall) -> _Step:
        """Return the reads and writes of a kernel, which has its results last.

        Out variants name a result twice: as an argument and as the result.
        """
        name = str(self.plan.operators[call.op_index])
        args = call.args
        if name == _VIEW:
            source = args[0]
            view = args[2]  # args[1] has the sizes
            return _Step(reads=(source,), writes=(), views=((view, source),))
        if name == _APPEND:
            # Row 0 starts a new result, and later rows only add to it. So no row reads
            # the content that the result had before the loop.
            result = args[0]
            row = args[1]
            return _Step(reads=(row,), writes=(result,))
        results = self._tensors(args[-1:])
        reads = self._tensors(args[:-1])
        if name not in _IN_PLACE:
            reads = [value for value in reads if value not in results]
        return _Step(tuple(reads), tuple(results))

    def _tensors(self, positions: Sequence[int]) -> list[int]:
        """Return those of the positions that are tensors, and the tensors in lists."""
        found: list[int] = []
        for position in positions:
            value = self.plan.values[position].value
            if isinstance(value, (TensorList, OptionalTensorList)):
                # Count ten steps an element: each instruction with this list stores
                # all of its elements again.
                self._count_work(10 * len(value.items))
                found += self._tensors(value.positions)
            elif isinstance(value, Tensor):
                found.append(position)
        return found


class _MemoryRange(NamedTuple):
    """The memory of a tensor, in bytes."""

    memory: int
    start: int
    end: int


def _memory_range(plan: ExecutionPlan, position: int) -> _MemoryRange | None:
    """Return the memory of a tensor; None if it has no planned memory."""
    value = plan.values[position].value
    if not isinstance(value, Tensor) or value.allocation is None or nbytes(value) == 0:
        return None
    start = value.allocation.offset
    return _MemoryRange(value.allocation.memory_id, start, start + nbytes(value))


def _overlaps(ranges: dict[int, _MemoryRange]) -> dict[int, int]:
    """Return for each tensor the set of the other tensors that share bytes with it.

    The sweep visits starts and ends of all ranges in the order of their bytes. A tensor
    overlaps those that are open at its start, and those that start before its end.
    """
    # At the same byte, ends (0) sort before starts (1): the tensors do not overlap.
    starts = [((range_.memory, range_.start), 1, k) for k, range_ in ranges.items()]
    ends = [((range_.memory, range_.end), 0, k) for k, range_ in ranges.items()]
    found: dict[int, int] = {}
    started_before: dict[int, int] = {}
    started = 0
    open_now = 0
    for _, begins, k in sorted(starts + ends):
        bit = 1 << k
        if begins:
            started_before[k] = started
            found[k] = open_now
            started |= bit
            open_now |= bit
        else:
            open_now ^= bit
            started_during = started & ~started_before.pop(k) & ~bit
            found[k] |= started_during
    return found


def _bits(values: Iterable[int]) -> int:
    """Return a set of values as an int with bit ``1 << k`` for value k."""
    listed = list(values)
    made = bytearray(max(listed, default=-1) // 8 + 1)
    for value in listed:
        made[value // 8] |= 1 << value % 8
    return int.from_bytes(made, "little")
