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

    ``operators`` maps each kernel to its position in the method's table. ``loops`` are
    pairs of a loop's first and last instruction. ``kept`` are pairs of a tensor and an
    instruction that counts as a use of it (see ``keep_from_here``). ``handle`` is the
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
    def next_position(self) -> int:
        """Return the position of the next instruction."""
        return len(self.instructions)

    def add_kernel_call(self, name: str, overload: str, args: Sequence[int]) -> None:
        """Append a call of a kernel.

        ``args`` are positions of values, the results last.
        """
        operator = Operator(name, overload)
        index = self.operators.setdefault(operator, len(self.operators))
        self._append(KernelCall(index, tuple(args)))

    def add_delegate_call(self, index: int, args: Sequence[int]) -> None:
        """Append a call of a delegate; ``args`` are its inputs and then its outputs."""
        self._append(DelegateCall(index, tuple(args)))

    def add_move(self, source: ScalarValue | int, target: ScalarValue) -> None:
        """Append ``target = source``; ``source`` may be the position of a value."""
        position = source if isinstance(source, int) else self.values.position(source)
        self._append(MoveCall(position, self.values.position(target)))

    def add_jump_if_false(self, condition: int, destination: int = -1) -> int:
        """Append a jump to ``destination`` if the value at ``condition`` is false.

        Return the jump's position. Without a destination, call ``set_target`` later.
        """
        self._append(JumpFalseCall(condition, destination))
        return self.next_position - 1

    def add_jump(self, destination: int = -1) -> int:
        """Append a jump that is always taken: one on the constant False."""
        return self.add_jump_if_false(self.values.constant(False), destination)

    def set_target(self, jump: int) -> None:
        """Let the jump at position ``jump`` lead to the next instruction."""
        call = self.instructions[jump]
        assert isinstance(call, JumpFalseCall)
        self.instructions[jump] = JumpFalseCall(call.condition, self.next_position)

    def keep_from_here(self, tensors: Iterable[TensorValue]) -> None:
        """Let the last instruction count as a use of these tensors.

        The rounds of a loop fill them together. They must be in use before the loop
        begins, so that they keep their memory through all rounds.
        """
        self.kept += [(tensor, self.next_position - 1) for tensor in tensors]

    def tensors_used(self) -> list[list[TensorValue]]:
        """Return the tensors that each instruction uses."""
        uses = [self._tensors_of(call) for call in self.instructions]
        for tensor, position in self.kept:
            uses[position].append(tensor)
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
