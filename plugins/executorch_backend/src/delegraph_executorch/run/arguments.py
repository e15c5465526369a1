"""Check the arguments of calls against the schemas of their operators.

torch and ExecuTorch crash if a number is no member of its enumeration, so nothing is
passed to them unchecked. Arguments that a program computes are checked when it runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from delegraph.errors import FormatError

from ..kernels import stock_kernels
from ..program.pte_tables import (
    Bool,
    BoolList,
    DelegateCall,
    Double,
    DoubleList,
    ExecutionPlan,
    FreeCall,
    Int,
    IntList,
    JumpFalseCall,
    KernelCall,
    MoveCall,
    Null,
    OptionalTensorList,
    String,
    Tensor,
    TensorList,
)
from ..program.scalar_types import TORCH_NAMES
from ..serialize.reader import ProgramFile
from ..serialize.unpack import damaged
from .scalars import SCALAR_KERNELS

_PYTHON = {Int: int, Bool: bool, Double: float, String: str, Null: Null}
_SIMPLE = tuple(_PYTHON)
"""Kinds of values that a program may replace while it runs."""
_KINDS: dict[str, tuple[type, ...]] = {
    "Tensor": (Tensor,),
    "int": (Int,),
    "SymInt": (Int,),
    "float": (Double,),
    "number": (Int, Bool, Double),
    "bool": (Bool,),
    "str": (String,),
    "ScalarType": (Int,),
    "MemoryFormat": (Int,),
    "Layout": (Int,),
    "List[Tensor]": (TensorList,),
    "List[Optional[Tensor]]": (OptionalTensorList,),
    "List[int]": (IntList,),
    "List[SymInt]": (IntList,),
    "List[float]": (DoubleList,),
    "List[bool]": (BoolList,),
}
_ENUMERATIONS: dict[str, frozenset[Any]] = {
    "ScalarType": frozenset(int(code) for code in TORCH_NAMES),
    "MemoryFormat": frozenset(range(4)),
    "Layout": frozenset({0}),
}


LateArguments = tuple[tuple[int, "Accepted"], ...]
"""Pairs of an argument's number and the values that it may have."""

_CHOICES: dict[str, frozenset[Any]] = {
    "rounding_mode": frozenset({"floor", "trunc"}),
    "approximate": frozenset({"none", "tanh"}),
    "normalization": frozenset(range(3)),
    "compute_mode": frozenset(range(3)),
}
"""Enumerations that schemas describe as texts or numbers, by argument name."""


@dataclass(frozen=True)
class Accepted:
    """The values that an argument may have.

    ``choices`` lists the valid numbers or texts, None for any.
    """

    kinds: tuple[type, ...]
    choices: frozenset[Any] | None = None

    def why_not(self, value: Any) -> str:
        """Return why a value of the file cannot be the argument; "" if it can."""
        if not isinstance(value, self.kinds):
            return f"a {type(value).__name__} instead of {self._wanted()}"
        return self._why_not_chosen(getattr(value, "value", None))

    def _wanted(self) -> str:
        """Return the accepted kinds as text."""
        return " or ".join(kind.__name__ for kind in self.kinds)

    def why_not_now(self, value: Any) -> str:
        """Return why a value of the running program cannot be the argument."""
        if isinstance(value, list):
            wrong = next((v for v in value if type(v) is not int), None)
            return "" if wrong is None else f"{wrong!r} among integers"
        if type(value) not in (_PYTHON.get(kind) for kind in self.kinds):
            return f"{value!r:.80} instead of {self._wanted()}"
        return self._why_not_chosen(value)

    def _why_not_chosen(self, value: Any) -> str:
        """Return why a value is none of ``choices``; "" if it is, or if any will do."""
        if self.choices is None or value is None or isinstance(value, Null):
            return ""
        if value in self.choices:
            return ""
        choices = ", ".join(map(repr, sorted(self.choices)))
        return f"{value!r:.80}, which must be one of {choices}"


_RESULT = Accepted(_SIMPLE)
_COPY = ((Tensor,), (Bool,), (IntList, Null), (Tensor,), (Tensor,))
_QUANTIZATION = ((Tensor,), (Double,), (Int,), (Int,), (Int,), (Int,))
_CHANNELS = ((Tensor,), (Tensor,), (Tensor, Null), (Int,), (Int,), (Int,), (Int,))
_SIGNATURES: dict[str, tuple[tuple[type, ...], ...]] = {
    "quantized_decomposed::quantize_per_tensor.out": (
        *_QUANTIZATION,
        (Tensor,),
        (Tensor,),
    ),
    "quantized_decomposed::dequantize_per_tensor.out": (
        *_QUANTIZATION,
        (Int, Null),
        (Tensor,),
        (Tensor,),
    ),
    "quantized_decomposed::quantize_per_channel.out": (
        *_CHANNELS,
        (Tensor,),
        (Tensor,),
    ),
    "quantized_decomposed::dequantize_per_channel.out": (
        *_CHANNELS,
        (Int, Null),
        (Tensor,),
        (Tensor,),
    ),
    "executorch_prim::et_view.default": ((Tensor,), (IntList,), (Tensor,)),
    "executorch_prim::et_copy_index.tensor": ((Tensor,), (Tensor,), (Int,)),
    "dim_order_ops::_to_dim_order_copy.out": _COPY,
    "dim_order_ops::_clone_dim_order.out": _COPY,
    "dim_order_ops::_empty_dim_order.out": (
        (IntList,),
        (IntList, Null),
        (Tensor,),
        (Tensor,),
    ),
    "et_copy::_h2d_copy.out": ((Tensor,), (Tensor,), (Tensor,)),
    "et_copy::_d2h_copy.out": ((Tensor,), (Tensor,), (Tensor,)),
}
"""Kernels without a schema in PyTorch -> the kinds of their arguments."""


@cache
def signature(name: str) -> tuple[Accepted, ...] | None:
    """Return the values that the arguments of a kernel may have.

    Results are among the arguments; the last element is the returned value. None for an
    unknown kernel.
    """
    if name in _SIGNATURES:
        return tuple(map(Accepted, _SIGNATURES[name]))
    namespace, _, rest = name.partition("::")
    if namespace == "executorch_prim" and rest in SCALAR_KERNELS:
        return *map(Accepted, SCALAR_KERNELS[rest].operands), _RESULT
    if namespace != "aten" or name not in stock_kernels():
        return None
    packet, _, overload = rest.partition(".")
    schema = getattr(getattr(torch.ops.aten, packet), overload or "default")._schema
    returned = _RESULT
    if all("Tensor" in str(result.real_type) for result in schema.returns):
        returned = Accepted((Tensor, TensorList))
    return *map(_accepted, schema.arguments), returned


def _accepted(argument: Any) -> Accepted:
    """Return the values that an argument of a PyTorch schema may have."""
    name = str(argument.real_type)
    is_optional = name.startswith("Optional[")
    if is_optional:
        name = name.removeprefix("Optional[").removesuffix("]")
    choices = _ENUMERATIONS.get(name) or _CHOICES.get(argument.name)
    kinds = _KINDS[name]
    return Accepted((*kinds, Null) if is_optional else kinds, choices)


def check_arguments(file: ProgramFile) -> None:
    """Raise FormatError for the first argument that its operator cannot have.

    The file must have passed ``check_program``. Kernels that are unknown here belong to
    a vendor's runtime, which checks their arguments.
    """
    for plan in file.program.plans:
        # the iterator checks each call before it yields
        for _ in late_arguments(plan):
            pass


def late_arguments(
    plan: ExecutionPlan,
) -> Iterator[tuple[int, LateArguments]]:
    """Yield each call with arguments that are only known at run time.

    A pair has the call's position and these arguments. Raises FormatError for a wrong
    argument.
    """
    return _Arguments(plan).late()


class _Arguments:
    """Checks the arguments of a method's calls.

    ``varying``: positions of values that are only known at run time: numbers that an
    instruction or the caller sets, and lists with such numbers.
    """

    def __init__(self, plan: ExecutionPlan) -> None:
        self.plan = plan
        self.values = [entry.value for entry in plan.values]
        self.calls = [i.call for i in plan.chains[0].instructions]
        self.signatures = [signature(str(o)) for o in plan.operators]
        self.varying = {*plan.inputs}
        for call in self.calls:
            if isinstance(call, MoveCall):
                self.varying.add(call.move_to)
            elif isinstance(call, DelegateCall):
                self.varying |= {*call.args}
            elif isinstance(call, KernelCall):
                known = self.signatures[call.op_index]
                # Other kernels return the tensors that they get as results.
                if known is None or known[-1] is _RESULT:
                    self.varying |= {*call.args[-1:]}
        self.varying = {k for k in self.varying if isinstance(self.values[k], _SIMPLE)}
        for k, value in enumerate(self.values):
            if isinstance(value, IntList) and not self.varying.isdisjoint(value.items):
                self.varying.add(k)

    def late(self) -> Iterator[tuple[int, LateArguments]]:
        """Check all instructions; yield calls with arguments known only at run time."""
        for index in self.plan.outputs:
            if not isinstance(self.values[index], (Tensor, *_SIMPLE)):
                kind = type(self.values[index]).__name__
                raise damaged(
                    ".pte file",
                    f"method {self.plan.name!r} returns a {kind}, neither a tensor nor"
                    " a number",
                )
        placeless = self._tensors_without_memory()
        for position, call in enumerate(self.calls):
            if isinstance(call, (KernelCall, DelegateCall)) and (
                not placeless.isdisjoint(call.args)
            ):
                why = "has a tensor without memory as an argument"
                raise self._fault(position, why)
            if isinstance(call, KernelCall):
                late = self._check_kernel(position, call)
                if late:
                    yield position, late
            elif isinstance(call, JumpFalseCall):
                self._check_jump(position, call)
            elif isinstance(call, MoveCall):
                self._check_move(position, call)
            elif isinstance(call, FreeCall):
                self._check_free(position, call)

    def _tensors_without_memory(self) -> set[int]:
        """Return the tensors with elements, but without data or memory.

        Inputs, outputs and moved tensors get their memory at run time.
        """
        moved = {c.move_to for c in self.calls if isinstance(c, MoveCall)}
        passed = {*self.plan.inputs, *self.plan.outputs, *moved}
        found = set()
        for k, value in enumerate(self.values):
            if not isinstance(value, Tensor) or k in passed or 0 in value.sizes:
                continue
            has_place = value.allocation is not None or value.extra is not None
            if not has_place and not value.data_buffer_idx:
                found.add(k)
        return found

    def _check_kernel(self, position: int, call: KernelCall) -> LateArguments:
        """Check the arguments of a kernel; return those that are known at run time."""
        accepted = self.signatures[call.op_index]
        if accepted is None:
            return ()
        if len(call.args) != len(accepted):
            raise self._fault(
                position, f"has {len(call.args)} arguments; it takes {len(accepted)}"
            )
        late = []
        for number, (index, kind) in enumerate(zip(call.args, accepted, strict=True)):
            is_argument = kind is not _RESULT
            may_vary = not {*kind.kinds}.isdisjoint(_SIMPLE)
            if is_argument and may_vary and index in self.varying:
                late.append((number, kind))
                continue
            why = kind.why_not(self.values[index])
            if why:
                raise self._fault(position, f"has as argument {number} {why}")
        return tuple(late)

    def _check_jump(self, position: int, call: JumpFalseCall) -> None:
        """Raise FormatError if the condition is neither a bool nor a tensor of bools."""
        condition = self.values[call.condition]
        of_bools = (
            isinstance(condition, Tensor)
            and TORCH_NAMES.get(condition.scalar_type) == "bool"  # type: ignore[call-overload]
        )
        if not of_bools and not isinstance(condition, Bool):
            kind = type(condition).__name__
            raise self._fault(position, f"has the condition {kind} instead of a bool")

    def _check_move(self, position: int, call: MoveCall) -> None:
        """Raise FormatError unless a tensor replaces a tensor, or a number a number."""
        source = self.values[call.move_from]
        target = self.values[call.move_to]
        for kinds in ((Tensor,), _SIMPLE):
            if isinstance(source, kinds) and isinstance(target, kinds):
                return
        raise self._fault(
            position,
            f"moves a {type(source).__name__} to a {type(target).__name__}",
        )

    def _check_free(self, position: int, call: FreeCall) -> None:
        """Check that a free call frees memory that the runtime allocated.

        ExecuTorch crashes for other tensors.
        """
        freed = self.values[call.value]
        if not isinstance(freed, Tensor):
            raise self._fault(position, f"frees a {type(freed).__name__}")
        if freed.allocation is not None or freed.data_buffer_idx:
            raise self._fault(position, "frees a tensor with planned memory or data")

    def _fault(self, position: int, why: str) -> FormatError:
        """Return the error for an instruction; ``why`` begins with a verb."""
        call = self.calls[position]
        name = (
            f" ({self.plan.operators[call.op_index]})"
            if isinstance(call, KernelCall)
            else ""
        )
        return damaged(
            ".pte file",
            f"method {self.plan.name!r}: instruction {position}{name} {why}",
        )


def check_late_arguments(args: Sequence[Any], late: LateArguments, call: str) -> None:
    """Raise FormatError for a wrong argument in ``late``; ``call`` names the call."""
    for number, accepted in late:
        why = accepted.why_not_now(args[number])
        if why:
            text = f"{call} has as argument {number} {why}"
            raise FormatError("format-invalid", text)
