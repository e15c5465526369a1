"""Proof that a memory plan is right, from the file alone: whatever is read is what was
written there last.

This follows the program on all ways through its jumps. It knows nothing of lifetimes or
of how the plan was made.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from delegraph.errors import Unsupported

from ..program.tables import (
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
"""With planned memory, of a method: which of them overlap takes a bit for each pair,
200 MB for these.
"""
_MOST_WORK = 20_000_000
"""Instructions that are looked at, again and again where loops lead back, and tensors
in sets: about a minute.
"""


@dataclass(frozen=True)
class Conflict:
    """An instruction that reads a tensor whose memory is overwritten, or was never
    written. The last is the return.
    """

    instruction: int
    value: int
    why: str

    def __str__(self) -> str:
        return f"instruction {self.instruction} reads value {self.value}, {self.why}"


@dataclass(frozen=True)
class _Step:
    """What an instruction reads and writes, and (a view, what it is a view of)."""

    reads: tuple[int, ...]
    writes: tuple[int, ...]
    views: tuple[tuple[int, int], ...] = ()


def find_conflicts(
    plan: ExecutionPlan, delegate_outputs: dict[int, int]
) -> list[Conflict]:
    """Every read in a method of what is not there any more.

    ``delegate_outputs``: position of each delegate call -> how many of its last
    arguments are outputs. Raises Unsupported for a method of so many tensors, views and
    jumps that a proof would take gigabytes or minutes.
    """
    return _Proof(plan, delegate_outputs).conflicts()


class _Proof:
    """Which tensors are whole before each instruction, on every way there.

    A set of tensors is an int with the bit ``1 << k`` for value k: sets of sets of
    Python's own took a hundred times the memory.
    """

    def __init__(self, plan: ExecutionPlan, delegate_outputs: dict[int, int]) -> None:
        self.plan = plan
        self.delegate_outputs = delegate_outputs
        self.work = 0
        self.calls = [i.call for chain in plan.chains for i in chain.instructions]
        self.steps = [self._step(k, call) for k, call in enumerate(self.calls)]
        self.operands = sum(len(step.reads) for step in self.steps)
        self.places = {
            k: p for k in range(len(plan.values)) if (p := _place(plan, k)) is not None
        }
        if len(self.places) > _MOST_TENSORS:
            raise self._too_much()
        self.overlaps = _overlaps(self.places)
        self._join_views()
        self.states = self._find_states()
        written = (
            {k for step in self.steps for k in step.writes}
            | self.states
            | {*plan.inputs}
        )
        self.written = _bits(written)
        self.sources: dict[int, int] = {}
        """What each view is in the memory of, for views that the plan made without an
        instruction.
        """

    def conflicts(self) -> list[Conflict]:
        joined: dict[int, int] = {}
        """What is whole wherever a jump to an instruction comes from."""
        found: dict[tuple[int, int], Conflict] = {}
        changed = True
        while changed:  # a way back in a loop may bring fewer tensors to where it leads
            changed = False
            found.clear()
            self._spend(len(self.steps) + self.operands)
            state = self._start()
            for position, step in enumerate(self.steps):
                state = self._run(
                    position, step, state & joined.get(position, -1), found
                )
                call = self.calls[position]
                if isinstance(call, JumpFalseCall):
                    before = joined.get(call.destination, -1)
                    joined[call.destination] = before & state
                    changed |= call.destination <= position and before & state != before
        end = len(self.calls)
        state &= joined.get(end, -1)
        # the next call needs the states
        for value in (*self.plan.outputs, *sorted(self.states)):
            self._read(end, value, state, found)
        return list(found.values())

    def _spend(self, work: int) -> None:
        self.work += work
        if self.work > _MOST_WORK:
            raise self._too_much()

    def _too_much(self) -> Unsupported:
        text = (
            f"method {self.plan.name!r} is too large to prove its memory plan:"
            f" {len(self.plan.values)} values"
        )
        return Unsupported("unsupported", f"{text}, {len(self.calls)} instructions")

    def _start(self) -> int:
        """What is there before the first instruction: states, then inputs as they are
        set one after the other.
        """
        state = _bits(self.states)
        for value in self.plan.inputs:
            state = state & ~self.overlaps.get(value, 0) | 1 << value
        return state

    def _find_states(self) -> set[int]:
        """Tensors that keep their content: those with an initial one, and those that
        are written in place only.
        """
        values = [entry.value for entry in self.plan.values]
        initial = {
            k
            for k, v in enumerate(values)
            if isinstance(v, Tensor) and v.allocation and v.data_buffer_idx
        }
        written = {k for step in self.steps for k in step.writes}
        anew = {k for step in self.steps for k in step.writes if k not in step.reads}
        return initial | (written - anew - {*self.plan.inputs})

    def _join_views(self) -> None:
        """Whatever overwrites the source of a view overwrites the view."""
        for step in self.steps:
            for view, source in step.views:
                self.places.pop(view, None)
                for writer in self._each(self.overlaps.get(source, 0) | 1 << source):
                    self.overlaps[writer] = self.overlaps.get(writer, 0) | 1 << view

    def _each(self, values: int) -> Iterator[int]:
        """The values of a set."""
        while values:
            low = values & -values
            # an operation on a long int takes as long as it is
            self._spend(1 + low.bit_length() // 4096)
            yield low.bit_length() - 1
            values ^= low

    def _run(
        self,
        position: int,
        step: _Step,
        state: int,
        found: dict[tuple[int, int], Conflict],
    ) -> int:
        for value in step.reads:
            self._read(position, value, state, found)
            if any(self.overlaps.get(w, 0) >> value & 1 for w in step.writes):
                found[position, value] = Conflict(
                    position, value, "whose memory it writes a result to"
                )
        for k, value in enumerate(step.writes):
            if any(self.overlaps.get(w, 0) >> value & 1 for w in step.writes[:k]):
                found[position, value] = Conflict(
                    position, value, "whose memory it writes another result to"
                )
            state = state & ~self.overlaps.get(value, 0) | 1 << value
        return state | _bits(view for view, _ in step.views)

    def _read(
        self,
        position: int,
        value: int,
        state: int,
        found: dict[tuple[int, int], Conflict],
    ) -> None:
        if value not in self.places or state >> value & 1:
            return
        if self.written >> value & 1:
            found[position, value] = Conflict(
                position, value, "whose memory was overwritten, or never written"
            )
            return
        if value not in self.sources:
            near = self._each(self.overlaps.get(value, 0) & state)
            self.sources[value] = _bits(k for k in near if self._holds(k, value))
        if not any(
            state >> k & 1 or k not in self.places
            for k in self._each(self.sources[value])
        ):
            found[position, value] = Conflict(
                position, value, "a view of what was overwritten, or never written"
            )

    def _holds(self, owner: int, view: int) -> bool:
        """Whether a tensor's memory contains a view of it that the plan made without an
        instruction.
        """
        if owner not in self.places:
            return False
        (memory, start, end), (its_memory, its_start, its_end) = (
            self.places[owner],
            self.places[view],
        )
        return memory == its_memory and start <= its_start and its_end <= end

    def _step(self, position: int, call: Call | None) -> _Step:
        if isinstance(call, KernelCall):
            return self._kernel_step(call)
        if isinstance(call, DelegateCall):
            args = self._tensors(call.args)
            count = len(args) - self.delegate_outputs[position]
            return _Step(tuple(args[:count]), tuple(args[count:]))
        if isinstance(call, MoveCall) and isinstance(
            self.plan.values[call.move_from].value, Tensor
        ):
            return _Step((call.move_from,), (), ((call.move_to, call.move_from),))
        if isinstance(call, JumpFalseCall):
            return _Step(tuple(self._tensors([call.condition])), ())
        return _Step((), ())

    def _kernel_step(self, call: KernelCall) -> _Step:
        """The results of a kernel are its last argument; out variants name them before,
        too.
        """
        name = str(self.plan.operators[call.op_index])
        args = call.args
        if name == _VIEW:
            return _Step((args[0],), (), ((args[2], args[0]),))
        if name == _APPEND:  # the first round starts the result, later ones add to it
            return _Step((args[1],), (args[0],))
        results = self._tensors(args[-1:])
        aside = set() if name in _IN_PLACE else set(results)
        return _Step(
            tuple(t for t in self._tensors(args[:-1]) if t not in aside), tuple(results)
        )

    def _tensors(self, positions: Sequence[int]) -> list[int]:
        found: list[int] = []
        for position in positions:
            value = self.plan.values[position].value
            if isinstance(value, (TensorList, OptionalTensorList)):
                # each instruction that has the list keeps its elements
                self._spend(10 * len(value.items))
                found += self._tensors(value.positions)
            elif isinstance(value, Tensor):
                found.append(position)
        return found


def _place(plan: ExecutionPlan, position: int) -> tuple[int, int, int] | None:
    """(memory, start, end) of a tensor that has planned memory, in bytes."""
    value = plan.values[position].value
    if not isinstance(value, Tensor) or value.allocation is None or nbytes(value) == 0:
        return None
    start = value.allocation.offset
    return value.allocation.memory_id, start, start + nbytes(value)


def _overlaps(places: dict[int, tuple[int, int, int]]) -> dict[int, int]:
    """Tensor -> the set of the others whose memory has bytes of its own."""
    starts = [((memory, start), 1, k) for k, (memory, start, _) in places.items()]
    ends = [((memory, end), 0, k) for k, (memory, _, end) in places.items()]
    found: dict[int, int] = {}
    before: dict[int, int] = {}
    started = active = 0
    # what ends where another starts shares nothing with it
    for _, begins, k in sorted(starts + ends):
        if begins:
            before[k], found[k] = started, active
            started |= 1 << k
            active |= 1 << k
        else:
            active ^= 1 << k
            found[k] |= started & ~before.pop(k) & ~(1 << k)
    return found


def _bits(values: Iterable[int]) -> int:
    """Values as a set."""
    listed = list(values)
    made = bytearray(max(listed, default=-1) // 8 + 1)
    for value in listed:
        made[value // 8] |= 1 << value % 8
    return int.from_bytes(made, "little")
