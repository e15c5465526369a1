"""Proof that a memory plan is right, from the file alone: whatever is read is what was written there last.

This follows the program on all ways through its jumps. It knows nothing of lifetimes or of how the plan was made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True)
class Conflict:
    """An instruction that reads a tensor whose memory is overwritten, or was never written. The last is the return."""

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


def find_conflicts(plan: ExecutionPlan, delegate_outputs: dict[int, int]) -> list[Conflict]:
    """Every read in a method of what is not there any more.

    ``delegate_outputs``: position of each delegate call -> how many of its last arguments are outputs.
    """
    return _Proof(plan, delegate_outputs).conflicts()


class _Proof:
    """Which tensors are whole before each instruction, on every way there."""

    def __init__(self, plan: ExecutionPlan, delegate_outputs: dict[int, int]) -> None:
        self.plan, self.delegate_outputs = plan, delegate_outputs
        self.calls = [i.call for chain in plan.chains for i in chain.instructions]
        self.steps = [self._step(k, call) for k, call in enumerate(self.calls)]
        self.places = {k: p for k in range(len(plan.values)) if (p := _place(plan, k)) is not None}
        self.overlaps = _overlaps(self.places)
        self._join_views()
        self.states = self._find_states()
        self.written = {k for step in self.steps for k in step.writes} | self.states | {*plan.inputs}
        self.sources: dict[int, set[int]] = {}
        """What each view is in the memory of, for views that the plan made without an instruction."""

    def conflicts(self) -> list[Conflict]:
        before: list[frozenset[int] | None] = [None] * (len(self.calls) + 1)
        before[0] = frozenset(self._start())
        found: dict[tuple[int, int], Conflict] = {}
        changed = True
        while changed:  # a way back in a loop may bring fewer tensors to where it leads
            changed = False
            found.clear()
            for position, step in enumerate(self.steps):
                state = before[position]
                if state is not None:
                    after = self._run(position, step, set(state), found)
                    changed |= self._hand_on(before, position, frozenset(after))
        final = before[len(self.calls)]
        if final is not None:
            for value in (*self.plan.outputs, *self.states):  # the next call needs the states
                self._read(len(self.calls), value, set(final), found)
        return list(found.values())

    def _start(self) -> set[int]:
        """What is there before the first instruction: states, then inputs as they are set one after the other."""
        state = set(self.states)
        for value in self.plan.inputs:
            state -= self.overlaps.get(value, set())
            state.add(value)
        return state

    def _find_states(self) -> set[int]:
        """Tensors that keep their content: those with an initial one, and those that are written in place only."""
        values = [entry.value for entry in self.plan.values]
        initial = {k for k, v in enumerate(values) if isinstance(v, Tensor) and v.allocation and v.data_buffer_idx}
        written = {k for step in self.steps for k in step.writes}
        anew = {k for step in self.steps for k in step.writes if k not in step.reads}
        return initial | (written - anew - {*self.plan.inputs})

    def _join_views(self) -> None:
        """Whatever overwrites the source of a view overwrites the view."""
        for step in self.steps:
            for view, source in step.views:
                self.places.pop(view, None)
                self.overlaps.setdefault(view, set())
                for writer in (source, *self.overlaps.get(source, ())):
                    self.overlaps.setdefault(writer, set()).add(view)

    def _hand_on(self, before: list[frozenset[int] | None], position: int, state: frozenset[int]) -> bool:
        call = self.calls[position]
        targets = [position + 1]
        if isinstance(call, JumpFalseCall):
            targets.append(call.destination)
        changed = False
        for target in targets:
            known = before[target]
            merged = state if known is None else known & state
            changed |= merged != known and target <= position
            before[target] = merged
        return changed

    def _run(self, position: int, step: _Step, state: set[int], found: dict[tuple[int, int], Conflict]) -> set[int]:
        for value in step.reads:
            self._read(position, value, state, found)
            if any(value in self.overlaps.get(w, ()) for w in step.writes):
                found[position, value] = Conflict(position, value, "whose memory it writes a result to")
        for k, value in enumerate(step.writes):
            if any(value in self.overlaps.get(w, ()) for w in step.writes[:k]):
                found[position, value] = Conflict(position, value, "whose memory it writes another result to")
            state -= self.overlaps.get(value, set())
            state.add(value)
        return state | {view for view, _ in step.views}

    def _read(self, position: int, value: int, state: set[int], found: dict[tuple[int, int], Conflict]) -> None:
        if value not in self.places or value in state:
            return
        if value in self.written:
            found[position, value] = Conflict(position, value, "whose memory was overwritten, or never written")
            return
        sources = self.sources.setdefault(value, {k for k in state if self._holds(k, value)})
        if not any(k in state or k not in self.places for k in sources):
            found[position, value] = Conflict(position, value, "a view of what was overwritten, or never written")

    def _holds(self, owner: int, view: int) -> bool:
        """Whether a tensor's memory contains a view of it that the plan made without an instruction."""
        if owner not in self.places:
            return False
        (memory, start, end), (its_memory, its_start, its_end) = self.places[owner], self.places[view]
        return memory == its_memory and start <= its_start and its_end <= end

    def _step(self, position: int, call: Call | None) -> _Step:
        if isinstance(call, KernelCall):
            return self._kernel_step(call)
        if isinstance(call, DelegateCall):
            args = self._tensors(call.args)
            count = len(args) - self.delegate_outputs[position]
            return _Step(tuple(args[:count]), tuple(args[count:]))
        if isinstance(call, MoveCall) and isinstance(self.plan.values[call.move_from].value, Tensor):
            return _Step((call.move_from,), (), ((call.move_to, call.move_from),))
        if isinstance(call, JumpFalseCall):
            return _Step(tuple(self._tensors([call.condition])), ())
        return _Step((), ())

    def _kernel_step(self, call: KernelCall) -> _Step:
        """The results of a kernel are its last argument; out variants name them before, too."""
        name = str(self.plan.operators[call.op_index])
        args = call.args
        if name == _VIEW:
            return _Step((args[0],), (), ((args[2], args[0]),))
        if name == _APPEND:  # the first round starts the result, later ones add to it
            return _Step((args[1],), (args[0],))
        results = self._tensors(args[-1:])
        aside = set() if name in _IN_PLACE else set(results)
        return _Step(tuple(t for t in self._tensors(args[:-1]) if t not in aside), tuple(results))

    def _tensors(self, positions: Sequence[int]) -> list[int]:
        found: list[int] = []
        for position in positions:
            value = self.plan.values[position].value
            if isinstance(value, (TensorList, OptionalTensorList)):
                found += self._tensors(value.items)
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


def _overlaps(places: dict[int, tuple[int, int, int]]) -> dict[int, set[int]]:
    """Tensor -> the others whose memory has bytes of its own."""
    found: dict[int, set[int]] = {k: set() for k in places}
    active: list[int] = []
    for k in sorted(places, key=places.__getitem__):
        memory, start, _ = places[k]
        active = [a for a in active if places[a][0] == memory and places[a][2] > start]
        for a in active:
            found[a].add(k)
            found[k].add(a)
        active.append(k)
    return found
