"""The text form of a method: one line an instruction, with the types of what it
computes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from delegraph.io.escape import printable
from delegraph_programs.source_line import Source, innermost

from ..program.scalar_types import ScalarType
from ..program.tables import (
    NOTHING,
    Bool,
    BoolList,
    Call,
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
"""Elements of a list that are printed, and results of one instruction."""
_LONGEST = 120
"""Characters of a name or a text that are printed: each instruction may have the same
long one.
"""


def method_lines(plan: ExecutionPlan) -> Iterator[str]:
    """A method as text: its values ``%k`` by position, tensors with type, sizes and
    place.
    """
    names = _Names(plan)
    inputs, outputs = (
        ", ".join(map(names.typed, p)) for p in (plan.inputs, plan.outputs)
    )
    yield f"method {shorten(plan.name)}({inputs}) -> ({outputs}) {{"
    traces = plan.chains[0].stacktrace if plan.chains else ()
    for number, instruction in enumerate(
        plan.chains[0].instructions if plan.chains else ()
    ):
        frames = traces[number].items if number < len(traces) else ()
        yield f"  {number:4}  {names.call(instruction.call)}{_line(frames)}"
    yield "}"


def _line(frames: Sequence[Frame]) -> str:
    """The innermost line that is neither torch's nor Python's own; the innermost of all
    if there is none.
    """
    listed = [Source(f.filename, f.line, f.name, f.context.strip()) for f in frames]
    found = innermost(listed) or innermost(listed, lambda file: True)
    return "" if found is None else f"  // {shorten(found.file)}:{found.line}"


def shorten(shown: str, longest: int = _LONGEST) -> str:
    """A text of the file that prints, cut off if it is longer."""
    escaped = printable(shown[: longest + 1])
    return (
        escaped
        if len(escaped) <= longest
        else f"{escaped[:longest]}... ({len(shown)} characters)"
    )


def describe_tensor(tensor: Tensor) -> str:
    """Type and sizes; ``<=`` before sizes that are bounds; where the content is."""
    bound = "<=" if tensor.dynamism != Dynamism.STATIC else ""
    sizes = ", ".join(f"{bound}{size}" for size in tensor.sizes)
    kind = ScalarType(tensor.scalar_type)
    return f"{_SHORT.get(kind, kind.name.lower())}[{sizes}]{_place(tensor)}"


def _place(tensor: Tensor) -> str:
    name = "" if tensor.extra is None else tensor.extra.fully_qualified_name
    if tensor.allocation is not None:
        state = (
            f" from state {tensor.data_buffer_idx}" if tensor.data_buffer_idx else ""
        )
        return f" @{tensor.allocation.memory_id}+{tensor.allocation.offset}{state}"
    if name:
        return f" data {shorten(name)!r}"
    return f" constant {tensor.data_buffer_idx}" if tensor.data_buffer_idx else ""


class _Names:
    """How values are written. A tensor is described where it is written first, and by
    its number after that.
    """

    def __init__(self, plan: ExecutionPlan) -> None:
        self.plan = plan
        self.described: set[int] = set()
        self.operators = [shorten(str(operator)) for operator in plan.operators]
        calls = [i.call for chain in plan.chains for i in chain.instructions]
        self.computed = {
            c.args[-1] for c in calls if isinstance(c, KernelCall) and c.args
        }
        self.computed |= {c.move_to for c in calls if isinstance(c, MoveCall)} | set(
            plan.inputs
        )

    def typed(self, position: int) -> str:
        """``%k`` with what it is."""
        value = self.plan.values[position].value
        self.described.add(position)
        if isinstance(value, Tensor):
            return f"%{position}: {describe_tensor(value)}"
        return f"%{position}: {self.literal(position)}"

    def call(self, call: Call | None) -> str:
        if isinstance(call, KernelCall):
            return self._kernel(call)
        if isinstance(call, DelegateCall):
            backend = shorten(self.plan.delegates[call.delegate_index].id)
            return (
                f"delegate {call.delegate_index} ({backend}): {self._listed(call.args)}"
            )
        if isinstance(call, MoveCall):
            return f"%{call.move_to} = {self.short(call.move_from)}"
        if isinstance(call, JumpFalseCall):
            value = self.plan.values[call.condition].value
            always = (
                isinstance(value, Bool)
                and not value.value
                and self._is_constant(call.condition)
            )
            return (
                f"jump {call.destination}"
                if always
                else f"unless {self.short(call.condition)} jump {call.destination}"
            )
        return f"free %{call.value}" if isinstance(call, FreeCall) else "nothing"

    def _kernel(self, call: KernelCall) -> str:
        name = self.operators[call.op_index]
        if not call.args:
            return f"{name}()"
        results = self._elements(call.args[-1])
        args = list(call.args[:-1])
        while (
            args
            and (args[-1] == call.args[-1] or args[-1] in results)
            and "out" in name
        ):
            args.pop()  # out variants name their results among their arguments, too
        rest = f", ... {len(results)} in all" if len(results) > _ELEMENTS else ""
        return (
            f"{self._listed(results[:_ELEMENTS])}{rest} = {name}({self._listed(args)})"
        )

    def _elements(self, position: int) -> Sequence[int]:
        value = self.plan.values[position].value
        return value.items if isinstance(value, TensorList) else (position,)

    def _listed(self, positions: Sequence[int]) -> str:
        return ", ".join(map(self.introduce, positions))

    def introduce(self, position: int) -> str:
        """A value with its type where it occurs first."""
        known = position in self.described or not isinstance(
            self.plan.values[position].value, Tensor
        )
        return self.short(position) if known else self.typed(position)

    def short(self, position: int) -> str:
        """``%k`` for what the program may change, the value itself for what it cannot."""
        if position == NOTHING:
            return "none"
        value = self.plan.values[position].value
        if isinstance(value, (IntList, TensorList, OptionalTensorList)):
            rest = (
                f", ... {len(value.items)} in all"
                if len(value.items) > _ELEMENTS
                else ""
            )
            return f"[{', '.join(map(self.short, value.items[:_ELEMENTS]))}{rest}]"
        if isinstance(value, (Int, Bool, Double)) and not self._is_constant(position):
            return f"%{position}"
        return f"%{position}" if isinstance(value, Tensor) else self.literal(position)

    def literal(self, position: int) -> str:
        value = self.plan.values[position].value
        if isinstance(value, (Int, Bool, Double)):
            return repr(value.value)
        if isinstance(value, String):
            return repr(shorten(value.value))
        if isinstance(value, (DoubleList, BoolList)):
            return repr(list(value.items[:_ELEMENTS]))
        return "none"

    def _is_constant(self, position: int) -> bool:
        """Whether neither an instruction computes a number nor the caller gives it."""
        return position not in self.computed
