"""Arguments of calls by the schemas of their operators: looked at before torch, or
ExecuTorch, is given one of them.

Both take a number of an enumeration for what it says, and neither survives one that the
enumeration does not have. What a program computes while it runs (``Call.late``) is
looked at when it is there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from delegraph.errors import FormatError

from ..kernels import stock_kernels
from ..program.scalar_types import TORCH_NAMES
from ..program.tables import (
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
_CHOICES: dict[str, frozenset[Any]] = {
    "rounding_mode": frozenset({"floor", "trunc"}),
    "approximate": frozenset({"none", "tanh"}),
    "normalization": frozenset(range(3)),
    "compute_mode": frozenset(range(3)),
}
"""Enumerations that schemas write as texts or numbers, by the names of their arguments.
"""


@dataclass(frozen=True)
class Accepted:
    """What an argument may be: kinds of values and, of a number or a text, the choices
    that there are.
    """

    kinds: tuple[type, ...]
    choices: frozenset[Any] | None = None

    def why_not(self, value: Any) -> str:
        """Why a value of the file cannot be the argument; empty if it can."""
        if not isinstance(value, self.kinds):
            return (
                f"a {type(value).__name__} where"
                f" {' or '.join(k.__name__ for k in self.kinds)} is wanted"
            )
        return self._why_not_chosen(getattr(value, "value", None))

    def why_not_now(self, value: Any) -> str:
        """The same for what a value is while the program runs."""
        if isinstance(value, list):
            wrong = next((v for v in value if type(v) is not int), None)
            return "" if wrong is None else f"{wrong!r} among integers"
        if type(value) not in (_PYTHON.get(kind) for kind in self.kinds):
            return (
                f"{value!r:.80} where {' or '.join(k.__name__ for k in self.kinds)} is"
                " wanted"
            )
        return self._why_not_chosen(value)

    def _why_not_chosen(self, value: Any) -> str:
        if (
            self.choices is None
            or value is None
            or isinstance(value, Null)
            or value in self.choices
        ):
            return ""
        return (
            f"{value!r:.80}, which is none of"
            f" {', '.join(map(repr, sorted(self.choices)))}"
        )


_RESULT = Accepted(_SIMPLE)
_COPY = ((Tensor,), (Bool,), (IntList, Null), (Tensor,), (Tensor,))
_QUANTIZATION = ((Tensor,), (Double,), (Int,), (Int,), (Int,), (Int,))
_CHANNELS = ((Tensor,), (Tensor,), (Tensor, Null), (Int,), (Int,), (Int,), (Int,))
_OWN: dict[str, tuple[tuple[type, ...], ...]] = {
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
"""What PyTorch has no schema of."""


@cache
def signature(name: str) -> tuple[Accepted, ...] | None:
    """What the arguments of a kernel may be, its results among them and, last, what it
    returns; None if nobody says.
    """
    if name in _OWN:
        return tuple(map(Accepted, _OWN[name]))
    namespace, _, rest = name.partition("::")
    if namespace == "executorch_prim" and rest in SCALAR_KERNELS:
        return *map(Accepted, SCALAR_KERNELS[rest][0]), _RESULT
    if namespace != "aten" or name not in stock_kernels():
        return None
    packet, _, overload = rest.partition(".")
    schema = getattr(getattr(torch.ops.aten, packet), overload or "default")._schema
    returned = [str(r.real_type) for r in schema.returns]
    of_tensors = all("Tensor" in kind for kind in returned)
    return *map(_accepted, schema.arguments), (
        Accepted((Tensor, TensorList)) if of_tensors else _RESULT
    )


def _accepted(argument: Any) -> Accepted:
    written = str(argument.real_type)
    optional = written.startswith("Optional[")
    plain = written.removeprefix("Optional[").removesuffix("]") if optional else written
    choices = _ENUMERATIONS.get(plain) or _CHOICES.get(argument.name)
    return Accepted((*_KINDS[plain], *((Null,) if optional else ())), choices)


def check_arguments(file: ProgramFile) -> None:
    """Raise FormatError for the first argument that its operator cannot have.
    ``check_program`` comes before.

    Kernels that neither PyTorch nor this plugin knows are those of a vendor's runtime,
    which knows what they take.
    """
    for plan in file.program.plans:
        for _ in late_arguments(plan):
            pass


def late_arguments(
    plan: ExecutionPlan,
) -> Iterator[tuple[int, tuple[tuple[int, Accepted], ...]]]:
    """(position of a call, (argument, what it may be) for each that is known only when
    the program runs).

    Raises FormatError for an argument that is wrong already.
    """
    return _Arguments(plan).late()


class _Arguments:
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
                # others return the tensors that they were given
                if known is None or known[-1] is _RESULT:
                    self.varying |= {*call.args[-1:]}
        self.varying = {k for k in self.varying if isinstance(self.values[k], _SIMPLE)}
        lists = ((k, v) for k, v in enumerate(self.values) if isinstance(v, IntList))
        self.varying |= {k for k, v in lists if not self.varying.isdisjoint(v.items)}

    def late(self) -> Iterator[tuple[int, tuple[tuple[int, Accepted], ...]]]:
        for index in self.plan.outputs:
            if not isinstance(self.values[index], (Tensor, *_SIMPLE)):
                kind = type(self.values[index]).__name__
                raise damaged(
                    ".pte file",
                    f"method {self.plan.name!r} returns a {kind}, neither a tensor nor"
                    " a number",
                )
        placeless = self._placeless()
        for position, call in enumerate(self.calls):
            if isinstance(
                call, (KernelCall, DelegateCall)
            ) and not placeless.isdisjoint(call.args):
                raise self._fault(
                    position, "has as an argument a tensor that lies nowhere"
                )
            if isinstance(call, KernelCall):
                late = self._kernel(position, call)
                if late:
                    yield position, late
            elif isinstance(call, JumpFalseCall):
                self._jump(position, call)
            elif isinstance(call, MoveCall):
                self._move(position, call)
            elif isinstance(call, FreeCall):
                self._free(position, call)

    def _placeless(self) -> set[int]:
        """Tensors that have elements and no memory: no data, no plan, and nobody who
        hands them in.
        """
        handed = {
            *self.plan.inputs,
            *self.plan.outputs,
            *(c.move_to for c in self.calls if isinstance(c, MoveCall)),
        }
        tensors = (
            (k, v)
            for k, v in enumerate(self.values)
            if isinstance(v, Tensor) and k not in handed
        )
        return {
            k
            for k, v in tensors
            if v.allocation is None
            and not v.data_buffer_idx
            and v.extra is None
            and 0 not in v.sizes
        }

    def _kernel(
        self, position: int, call: KernelCall
    ) -> tuple[tuple[int, Accepted], ...]:
        accepted = self.signatures[call.op_index]
        if accepted is None:
            return ()
        if len(call.args) != len(accepted):
            raise self._fault(
                position, f"has {len(call.args)} arguments; it takes {len(accepted)}"
            )
        late = []
        for number, (index, kind) in enumerate(zip(call.args, accepted, strict=True)):
            if (
                kind is _RESULT
                or index not in self.varying
                or not {*kind.kinds} & {*_SIMPLE}
            ):
                if why := kind.why_not(self.values[index]):
                    raise self._fault(position, f"has as argument {number} {why}")
            else:
                late.append((number, kind))
        return tuple(late)

    def _jump(self, position: int, call: JumpFalseCall) -> None:
        condition = self.values[call.condition]
        of_bools = (
            isinstance(condition, Tensor)
            and TORCH_NAMES.get(condition.scalar_type) == "bool"  # type: ignore[call-overload]
        )
        if not of_bools and not isinstance(condition, Bool):
            raise self._fault(
                position,
                f"jumps on a {type(condition).__name__}, which is neither true nor"
                " false",
            )

    def _move(self, position: int, call: MoveCall) -> None:
        here, there = (self.values[k] for k in (call.move_from, call.move_to))
        for kinds in ((Tensor,), _SIMPLE):
            if isinstance(here, kinds) and isinstance(there, kinds):
                return
        raise self._fault(
            position,
            f"moves a {type(here).__name__} to where a {type(there).__name__} is",
        )

    def _free(self, position: int, call: FreeCall) -> None:
        """Only a tensor that the runtime allocated can be freed: ExecuTorch ends the
        process when another one is.
        """
        freed = self.values[call.value]
        if not isinstance(freed, Tensor):
            raise self._fault(position, f"frees a {type(freed).__name__}")
        if freed.allocation is not None or freed.data_buffer_idx:
            raise self._fault(position, "frees a tensor that the file has a place for")

    def _fault(self, position: int, why: str) -> FormatError:
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


def expect_now(
    args: Sequence[Any], late: Sequence[tuple[int, Accepted]], what: str
) -> None:
    """Raise FormatError if one of the arguments that were not known before is wrong;
    ``what`` names the call.
    """
    for number, accepted in late:
        if why := accepted.why_not_now(args[number]):
            raise FormatError(
                "format-invalid", f"{what} has as argument {number} {why}"
            )
