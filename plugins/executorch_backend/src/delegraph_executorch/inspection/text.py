"""Write a method as text: one line an instruction, with the types of its results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from delegraph.io.escape_for_terminal import printable
from delegraph_programs.source_line import Source, innermost

from ..program.pte_tables import (
    NOTHING,
    Bool,
    BoolList,
    Call,
    Chain,
    DelegateCall,
    Double,
    DoubleList,
    Dynamism,
    ExecutionPlan,
    Frame,
    FreeCall,
    Int,
    IntList,
    JumpFalseCall,
    KernelCall,
    MoveCall,
    OptionalTensorList,
    String,
    Tensor,
    TensorList,
)
from ..program.scalar_types import ScalarType

_SHORT = {
    ScalarType.BYTE: "u8",
    ScalarType.CHAR: "i8",
    ScalarType.SHORT: "i16",
    ScalarType.INT: "i32",
    ScalarType.LONG: "i64",
    ScalarType.HALF: "f16",
    ScalarType.FLOAT: "f32",
    ScalarType.DOUBLE: "f64",
    ScalarType.BOOL: "bool",
    ScalarType.BFLOAT16: "bf16",
}
_ELEMENTS = 32
"""The most elements of a list, and results of an instruction, that are printed."""
_LONGEST = 120
"""The most characters of a name or text that are printed.

Each instruction may have the same long text.
"""


def method_lines(plan: ExecutionPlan) -> Iterator[str]:
    """Yield a method as text, such as ``%4: f32[2, 3] @1+0 = aten::relu.out(%1)``.

    ``%4`` is the value at position 4; ``@1+0`` is byte 0 of memory 1.
    """
    writer = _ValueWriter(plan)
    inputs = ", ".join(map(writer.typed, plan.inputs))
    outputs = ", ".join(map(writer.typed, plan.outputs))
    yield f"method {shorten(plan.name)}({inputs}) -> ({outputs}) {{"
    chain = plan.chains[0] if plan.chains else Chain()
    traces = chain.stacktrace
    for number, instruction in enumerate(chain.instructions):
        frames = traces[number].items if number < len(traces) else ()
        yield f"  {number:4}  {writer.call(instruction.call)}{_source_line(frames)}"
    yield "}"


def _source_line(frames: Sequence[Frame]) -> str:
    """Return a comment with the innermost line of the model; "" without frames.

    If all frames are in torch or Python, the innermost one counts.
    """
    listed = [Source(f.filename, f.line, f.name, f.context.strip()) for f in frames]
    found = innermost(listed) or innermost(listed, lambda file: True)
    return "" if found is None else f"  // {shorten(found.file)}:{found.line}"


def shorten(text: str, longest: int = _LONGEST) -> str:
    """Return a text of the file, printable, and cut off if it is too long."""
    escaped = printable(text[: longest + 1])
    if len(escaped) <= longest:
        return escaped
    return f"{escaped[:longest]}... ({len(text)} characters)"


def describe_tensor(tensor: Tensor) -> str:
    """Return type, sizes and memory, such as ``f32[<=8, 3] @1+0``.

    ``<=`` is before upper bounds of dynamic sizes.
    """
    bound = "<=" if tensor.dynamism != Dynamism.STATIC else ""
    sizes = ", ".join(f"{bound}{size}" for size in tensor.sizes)
    kind = ScalarType(tensor.scalar_type)
    return f"{_SHORT.get(kind, kind.name.lower())}[{sizes}]{_memory(tensor)}"


def _memory(tensor: Tensor) -> str:
    """Return the source of a tensor's content: memory, state, name or constant."""
    index = tensor.data_buffer_idx
    if tensor.allocation is not None:
        state = f" from state {index}" if index else ""
        return f" @{tensor.allocation.memory_id}+{tensor.allocation.offset}{state}"
    name = "" if tensor.extra is None else tensor.extra.fully_qualified_name
    if name:
        return f" data {shorten(name)!r}"
    return f" constant {index}" if index else ""


class _ValueWriter:
    """Writes calls and values. The first mention of a tensor has its type.

    ``mentioned``: the values that were written with their types. ``computed``: the
    values that an instruction or the caller sets.
    """

    def __init__(self, plan: ExecutionPlan) -> None:
        self.plan = plan
        self.mentioned: set[int] = set()
        self.operators = [shorten(str(operator)) for operator in plan.operators]
        self.computed = set(plan.inputs)
        for call in plan.calls:
            if isinstance(call, KernelCall) and call.args:
                self.computed.add(call.args[-1])
            elif isinstance(call, MoveCall):
                self.computed.add(call.move_to)

    def typed(self, position: int) -> str:
        """Return ``%k`` with its type."""
        value = self.plan.values[position].value
        self.mentioned.add(position)
        if isinstance(value, Tensor):
            return f"%{position}: {describe_tensor(value)}"
        return f"%{position}: {self.literal(position)}"

    def call(self, call: Call | None) -> str:
        """Return an instruction as text."""
        if isinstance(call, KernelCall):
            return self._kernel_call(call)
        if isinstance(call, DelegateCall):
            backend = shorten(self.plan.delegates[call.delegate_index].id)
            args = self._comma_separated(call.args)
            return f"delegate {call.delegate_index} ({backend}): {args}"
        if isinstance(call, MoveCall):
            return f"%{call.move_to} = {self.short(call.move_from)}"
        if isinstance(call, JumpFalseCall):
            value = self.plan.values[call.condition].value
            is_false = isinstance(value, Bool) and not value.value
            if is_false and self._is_constant(call.condition):
                return f"jump {call.destination}"
            return f"unless {self.short(call.condition)} jump {call.destination}"
        return f"free %{call.value}" if isinstance(call, FreeCall) else "nothing"

    def _kernel_call(self, call: KernelCall) -> str:
        """Return ``results = kernel(arguments)``."""
        name = self.operators[call.op_index]
        if not call.args:
            return f"{name}()"
        results = self._elements(call.args[-1])
        args = list(call.args[:-1])
        # out variants have their results among their arguments, too: leave these out
        if "out" in name:
            while args and (args[-1] == call.args[-1] or args[-1] in results):
                args.pop()
        rest = f", ... {len(results)} in all" if len(results) > _ELEMENTS else ""
        shown = self._comma_separated(results[:_ELEMENTS])
        return f"{shown}{rest} = {name}({self._comma_separated(args)})"

    def _elements(self, position: int) -> Sequence[int]:
        """Return the elements of a list of tensors; another value itself."""
        value = self.plan.values[position].value
        return value.items if isinstance(value, TensorList) else (position,)

    def _comma_separated(self, positions: Sequence[int]) -> str:
        """Return the values at ``positions``, each with its type at its first mention."""
        return ", ".join(map(self._mention, positions))

    def _mention(self, position: int) -> str:
        """Return a value, with its type at its first mention."""
        is_tensor = isinstance(self.plan.values[position].value, Tensor)
        if is_tensor and position not in self.mentioned:
            return self.typed(position)
        return self.short(position)

    def short(self, position: int) -> str:
        """Return ``%k`` for a value that the program may change, else the value itself."""
        if position == NOTHING:
            return "none"
        value = self.plan.values[position].value
        if isinstance(value, (IntList, TensorList, OptionalTensorList)):
            shown = ", ".join(map(self.short, value.items[:_ELEMENTS]))
            if len(value.items) > _ELEMENTS:
                shown = f"{shown}, ... {len(value.items)} in all"
            return f"[{shown}]"
        if isinstance(value, (Int, Bool, Double)) and not self._is_constant(position):
            return f"%{position}"
        return f"%{position}" if isinstance(value, Tensor) else self.literal(position)

    def literal(self, position: int) -> str:
        """Return the content of a value that is in the file."""
        value = self.plan.values[position].value
        if isinstance(value, (Int, Bool, Double)):
            return repr(value.value)
        if isinstance(value, String):
            return repr(shorten(value.value))
        if isinstance(value, (DoubleList, BoolList)):
            return repr(list(value.items[:_ELEMENTS]))
        return "none"

    def _is_constant(self, position: int) -> bool:
        """Return whether neither an instruction nor the caller sets a number."""
        return position not in self.computed
