"""Check the arguments of calls against the schemas of their operators.

torch and ExecuTorch crash if a number is no member of its enumeration, so nothing is
passed to them unchecked. Most arguments are in the file. Run-time arguments are numbers
that an instruction or the caller sets, and lists with such numbers. They are checked
when the program runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

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
"""Kind of value in the file -> the Python type of such a value in a running program."""
_REPLACEABLE = tuple(_PYTHON)
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
"""Type in a schema of PyTorch -> kinds of values in the file."""
_ENUMERATIONS: dict[str, frozenset[Any]] = {
    "ScalarType": frozenset(int(code) for code in TORCH_NAMES),
    "MemoryFormat": frozenset(range(4)),
    "Layout": frozenset({0}),
}
"""Type in a schema of PyTorch -> the numbers of its members."""
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

    ``kinds``: classes of values in the file. ``choices``: the valid numbers or texts;
    None for any.
    """

    kinds: tuple[type, ...]
    choices: frozenset[Any] | None = None

    def why_not(self, value: Any) -> str:
        """Return why a value of the file cannot be the argument; "" if it can."""
        if not isinstance(value, self.kinds):
            return f"a {type(value).__name__} instead of {self._kinds_as_text()}"
        # lists, tensors and nulls have no ``value``
        return self._why_no_choice(getattr(value, "value", None))

    def _kinds_as_text(self) -> str:
        return " or ".join(kind.__name__ for kind in self.kinds)

    def why_not_at_run_time(self, value: Any) -> str:
        """Return why a value of the running program cannot be the argument, or ""."""
        if isinstance(value, list):
            wrong = next((v for v in value if type(v) is not int), None)
            return "" if wrong is None else f"{wrong!r} among integers"
        # not isinstance: a bool would pass as an int
        if type(value) not in (_PYTHON.get(kind) for kind in self.kinds):
            return f"{value!r:.80} instead of {self._kinds_as_text()}"
        return self._why_no_choice(value)

    def _why_no_choice(self, value: Any) -> str:
        """Return why a value is none of ``choices``; "" if it is one of them.

        Without ``choices``, every value is valid. So is a missing optional value.
        """
        if self.choices is None or value is None or isinstance(value, Null):
            return ""
        if value in self.choices:
            return ""
        choices = ", ".join(map(repr, sorted(self.choices)))
        return f"{value!r:.80}, which must be one of {choices}"


class RunTimeArgument(NamedTuple):
    """The number of an argument in its call, and the values that it may have."""

    number: int
    accepted: Accepted


_RESULT = Accepted(_REPLACEABLE)
"""The last argument of a kernel that returns a number: the value that it sets."""
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
    """Return the values that each argument of a kernel may have; None if unknown.

    Results are arguments, too. If the kernel returns a number, the number replaces the
    last argument, and the last element is ``_RESULT``.
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
        check_method(plan)


def check_method(plan: ExecutionPlan) -> dict[int, list[RunTimeArgument]]:
    """Raise FormatError for the first wrong argument of a method.

    Return the run-time arguments of each call that has some, by the call's position.
    """
    return _Arguments(plan).check()


class _Arguments:
    """Checks the arguments of a method's calls.

    ``varying``: positions of values that are only known at run time.
    """

    def __init__(self, plan: ExecutionPlan) -> None:
        self.plan = plan
        self.values = [entry.value for entry in plan.values]
        self.calls = plan.calls
        self.signatures = [signature(str(o)) for o in plan.operators]
        self.varying = {*plan.inputs}
        for call in self.calls:
            if isinstance(call, MoveCall):
                self.varying.add(call.move_to)
            elif isinstance(call, DelegateCall):
                self.varying |= {*call.args}
            elif isinstance(call, KernelCall):
                known = self.signatures[call.op_index]
                # A number that a kernel returns replaces the last argument. A kernel
                # that returns tensors writes to them instead.
                if known is None or known[-1] is _RESULT:
                    self.varying |= {*call.args[-1:]}
        self.varying = {
            k for k in self.varying if isinstance(self.values[k], _REPLACEABLE)
        }
        # a list varies if one of its elements does
        for k, value in enumerate(self.values):
            if isinstance(value, IntList) and not self.varying.isdisjoint(value.items):
                self.varying.add(k)

    def check(self) -> dict[int, list[RunTimeArgument]]:
        """Check all instructions; return the run-time arguments by call."""
        for index in self.plan.outputs:
            if not isinstance(self.values[index], (Tensor, *_REPLACEABLE)):
                kind = type(self.values[index]).__name__
                raise damaged(
                    ".pte file",
                    f"method {self.plan.name!r} returns a {kind}, neither a tensor nor"
                    " a number",
                )
        without_memory = self._tensors_without_memory()
        found = {}
        for position, call in enumerate(self.calls):
            if isinstance(call, (KernelCall, DelegateCall)):
                if not without_memory.isdisjoint(call.args):
                    why = "has a tensor without memory as an argument"
                    raise self._fault(position, why)
            if isinstance(call, KernelCall):
                at_run_time = self._check_kernel(position, call)
                if at_run_time:
                    found[position] = at_run_time
            elif isinstance(call, JumpFalseCall):
                self._check_jump(position, call)
            elif isinstance(call, MoveCall):
                self._check_move(position, call)
            elif isinstance(call, FreeCall):
                self._check_free(position, call)
        return found

    def _tensors_without_memory(self) -> set[int]:
        """Return the tensors that have elements, but neither data nor memory.

        Inputs, outputs and targets of moves are left out: they get memory at run time.
        """
        moved = {c.move_to for c in self.calls if isinstance(c, MoveCall)}
        passed = {*self.plan.inputs, *self.plan.outputs, *moved}
        found = set()
        for k, value in enumerate(self.values):
            if not isinstance(value, Tensor) or k in passed or 0 in value.sizes:
                continue
            # ``extra`` names a tensor in a data file, or a buffer of the caller
            has_memory = value.allocation is not None or value.extra is not None
            if not has_memory and not value.data_buffer_idx:
                found.add(k)
        return found

    def _check_kernel(self, position: int, call: KernelCall) -> list[RunTimeArgument]:
        """Check the arguments of a kernel; return the run-time arguments."""
        accepted = self.signatures[call.op_index]
        if accepted is None:
            return []
        if len(call.args) != len(accepted):
            raise self._fault(
                position, f"has {len(call.args)} arguments; it takes {len(accepted)}"
            )
        at_run_time = []
        for number, index in enumerate(call.args):
            argument = accepted[number]
            value = self.values[index]
            is_operand = argument is not _RESULT
            if is_operand and index in self.varying:
                at_run_time.append(RunTimeArgument(number, argument))
                # A list stays a list when its elements vary, so check it here as well.
                takes_number = any(kind in _REPLACEABLE for kind in argument.kinds)
                if takes_number and not isinstance(value, IntList):
                    continue
            why = argument.why_not(value)
            if why:
                raise self._fault(position, f"has as argument {number} {why}")
        return at_run_time

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
        for kinds in ((Tensor,), _REPLACEABLE):
            if isinstance(source, kinds) and isinstance(target, kinds):
                return
        raise self._fault(
            position,
            f"moves a {type(source).__name__} to a {type(target).__name__}",
        )

    def _check_free(self, position: int, call: FreeCall) -> None:
        """Raise FormatError unless the runtime allocated the memory that a call frees.

        ExecuTorch crashes if a call frees planned memory or data of the file.
        """
        freed = self.values[call.value]
        if not isinstance(freed, Tensor):
            raise self._fault(position, f"frees a {type(freed).__name__}")
        if freed.allocation is not None or freed.data_buffer_idx:
            raise self._fault(position, "frees a tensor with planned memory or data")

    def _fault(self, position: int, why: str) -> FormatError:
        """Return the error for an instruction; ``why`` begins with a verb."""
        call = self.calls[position]
        name = ""
        if isinstance(call, KernelCall):
            name = f" ({self.plan.operators[call.op_index]})"
        return damaged(
            ".pte file",
            f"method {self.plan.name!r}: instruction {position}{name} {why}",
        )


def check_run_time_arguments(
    args: Sequence[Any], checked: Sequence[RunTimeArgument], call: str
) -> None:
    """Raise FormatError if one of the ``checked`` arguments among ``args`` is wrong.

    ``call`` names the call in the error.
    """
    for number, accepted in checked:
        why = accepted.why_not_at_run_time(args[number])
        if why:
            text = f"{call} has as argument {number} {why}"
            raise FormatError("format-invalid", text)
