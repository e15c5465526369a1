"""Append the instructions of one method."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ..program.pte_tables import (
    Call,
    DelegateCall,
    JumpFalseCall,
    KernelCall,
    MoveCall,
    Operator,
    OptionalTensorList,
    TensorList,
)
from .method_values import ScalarValue, TensorValue, ValueTable


@dataclass
class Assembler:
    """The values, instructions and operators of a method.

    ``loops`` are pairs of a loop's first and last instruction. ``kept`` are tensors
    that are in use from an instruction on that does not name them. ``handle`` is the
    debug handle of the node that is being emitted, ``handles`` that of each
    instruction.
    """

    values: ValueTable = field(default_factory=ValueTable)
    instructions: list[Call] = field(default_factory=list)
    operators: dict[Operator, int] = field(default_factory=dict)
    loops: list[tuple[int, int]] = field(default_factory=list)
    kept: list[tuple[TensorValue, int]] = field(default_factory=list)
    handle: int | None = None
    handles: list[int | None] = field(default_factory=list)

    @property
    def here(self) -> int:
        """Return the position of the next instruction."""
        return len(self.instructions)

    def kernel(self, name: str, overload: str, args: Sequence[int]) -> None:
        """Call a kernel; ``args`` are positions of values, the results last."""
        operator = Operator(name, overload)
        index = self.operators.setdefault(operator, len(self.operators))
        self._append(KernelCall(index, tuple(args)))

    def delegate(self, index: int, args: Sequence[int]) -> None:
        """Call a delegate with its inputs and then its outputs."""
        self._append(DelegateCall(index, tuple(args)))

    def move(self, source: ScalarValue | int, target: ScalarValue) -> None:
        """Set a number to another one, which is a value or the position of one."""
        position = source if isinstance(source, int) else self.values.position(source)
        self._append(MoveCall(position, self.values.position(target)))

    def jump_if_false(self, condition: int, destination: int = -1) -> int:
        """Jump if the value at a position is false; return the jump, for ``land``."""
        self._append(JumpFalseCall(condition, destination))
        return self.here - 1

    def jump(self, destination: int = -1) -> int:
        """Jump always."""
        return self.jump_if_false(self.values.constant(False), destination)

    def land(self, jump: int) -> None:
        """Let a jump lead to the next instruction."""
        call = self.instructions[jump]
        assert isinstance(call, JumpFalseCall)
        self.instructions[jump] = JumpFalseCall(call.condition, self.here)

    def keep_from_here(self, tensors: Iterable[TensorValue]) -> None:
        """Keep tensors in memory from the last instruction on.

        The rounds of a loop fill such a tensor together.
        """
        self.kept += [(tensor, self.here - 1) for tensor in tensors]

    def tensors_used(self) -> list[list[TensorValue]]:
        """Return the tensors that each instruction uses."""
        uses = [self._tensors_of(call) for call in self.instructions]
        for tensor, place in self.kept:
            uses[place].append(tensor)
        return uses

    def _tensors_of(self, call: Call) -> list[TensorValue]:
        """Return the tensors that an instruction uses, with those in lists."""
        positions: list[int] = []
        if isinstance(call, (KernelCall, DelegateCall)):
            for position in call.args:
                entry = self.values.entries[position]
                if isinstance(entry, (TensorList, OptionalTensorList)):
                    positions += entry.items
                else:
                    positions.append(position)
        elif isinstance(call, MoveCall):
            positions = [call.move_from, call.move_to]
        elif isinstance(call, JumpFalseCall):
            positions = [call.condition]
        entries = [self.values.entries[p] for p in positions]
        return [e for e in entries if isinstance(e, TensorValue)]

    def _append(self, call: Call) -> None:
        self.instructions.append(call)
        self.handles.append(self.handle)
