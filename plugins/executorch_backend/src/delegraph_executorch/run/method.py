"""One method of a program file on this host: its instructions, one after the other,
over its planned memory.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from delegraph.errors import DelegraphError, FormatError, InputError, Unsupported

from ..containers import expect_fixed_inputs, expect_input_ranges, input_names
from ..program.input_sizes import input_sizes
from ..program.shared_memory import MEMORY
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
    Int,
    IntList,
    JumpFalseCall,
    KernelCall,
    Location,
    MoveCall,
    Null,
    OptionalTensorList,
    String,
    Tensor,
    TensorList,
    Value,
)
from ..serialize.check import nbytes
from .arguments import expect_now, late_arguments
from .data import Data, as_tensor, is_external
from .kernels import kernel
from .shared import SharedMemory
from .tensors import HostTensor, arrange, dtype_of, reserve

Runner = Callable[..., tuple[Any, ...]]
"""A loaded delegate."""


class HostMethod:
    """A method, loaded: memory of its own, and state that is kept from call to call.
    Calls are made one by one.

    ``outputs_of``: position of each delegate call -> how many of its last arguments are
    outputs. ``ran``: is told the position of each instruction after it was executed.
    ``shared``: a memory that other methods have as well.
    """

    def __init__(
        self,
        plan: ExecutionPlan,
        data: Data,
        delegates: Sequence[Runner],
        outputs_of: Mapping[int, int],
        max_memory: int,
        max_jumps: int,
        ran: Callable[[int], None] | None = None,
        shared: SharedMemory | None = None,
    ) -> None:
        self.plan = plan
        self._max_jumps = max_jumps
        self._delegates = delegates
        self._ran = ran
        expect_memory(plan, max_memory)
        self._shared = shared
        self._memories = _reserve_planned(plan, shared)
        self._values = [self._load(entry.value, data) for entry in plan.values]
        self._lists = [_list_of(entry.value) for entry in plan.values]
        self._calls: list[Call] = [
            i.call for i in plan.chains[0].instructions if i.call is not None
        ]
        self._outputs_of = outputs_of
        self._late = dict(late_arguments(plan))
        self._kernels = [kernel(str(o)) for o in plan.operators]
        self._names = input_names(plan)
        tables = [plan.values[index].value for index in plan.inputs]
        ranks = [
            len(table.sizes) if isinstance(table, Tensor) else None for table in tables
        ]
        self._sizes = input_sizes(plan.container, ranks)
        self._turn = threading.RLock() if shared is None else shared.turn

    def __call__(self, inputs: Sequence[Any]) -> list[Any]:
        """The outputs, as tensors of the caller's own, for the inputs.

        Raises InputError for inputs of another number, type or size.
        """
        with self._turn, torch.no_grad():
            if len(inputs) != len(self.plan.inputs):
                raise InputError(
                    "input-invalid",
                    f"{len(self.plan.inputs)} inputs are wanted, not {len(inputs)}",
                )
            fixed = expect_fixed_inputs(self.plan, inputs, self._names)
            for number, (index, given) in enumerate(
                zip(self.plan.inputs, inputs, strict=True)
            ):
                if number not in fixed:
                    self._set_input(index, given, self._names[number])
            if self._sizes is not None:
                self._sizes.check(
                    [getattr(given, "shape", ()) for given in inputs], self._names
                )
            expect_input_ranges(self.plan, inputs, self._names)
            self._run()
            return [self._output(index) for index in self.plan.outputs]

    def _load(self, value: Value | None, data: Data) -> Any:
        if isinstance(value, Tensor):
            return self._load_tensor(value, data)
        return value.value if isinstance(value, (Int, Bool, Double, String)) else value

    def _load_tensor(self, table: Tensor, data: Data) -> HostTensor:
        made = HostTensor(table)
        if table.allocation is not None:
            start = table.allocation.offset
            made.memory = as_tensor(
                self._memories[table.allocation.memory_id][
                    start : start + nbytes(table)
                ].data
            )
            if start % made.dtype.itemsize:
                raise FormatError(
                    "format-invalid",
                    f"damaged .pte file: a tensor of {made.dtype} lies at byte {start}",
                )
            made.now = arrange(made.memory, made.dtype, table.sizes, table.dim_order)
        external = table.extra is not None and table.extra.location == Location.EXTERNAL
        if table.data_buffer_idx or external:
            content = arrange(
                data.content(table), dtype_of(table), table.sizes, table.dim_order
            )
            if table.allocation is None:
                made.now = content
            elif self._starts(table):
                made.write(content)
        return made

    def _starts(self, table: Tensor) -> bool:
        """Whether planned memory gets its first content; not if another method may have
        written it already.
        """
        place = table.allocation
        if self._shared is None or place is None or place.memory_id != MEMORY:
            return True
        return self._shared.starts(place.offset, nbytes(table))

    def _set_input(self, index: int, given: Any, name: str) -> None:
        value = self._values[index]
        if isinstance(value, HostTensor):
            checked = value.expect_input(given, name)
            if value.table.allocation is None:
                # the caller's own memory, which the method may write
                value.now = checked
            else:
                value.write(checked)
        elif isinstance(value, (bool, int, float, str)) and type(given) is type(value):
            self._values[index] = given
        elif not (isinstance(value, Null) and given is None):
            raise InputError(
                "input-invalid",
                f"input {name} is to be a {type(value).__name__}; it is {given!r}",
            )

    def _output(self, index: int) -> Any:
        value = self._values[index]
        if isinstance(value, HostTensor):
            return value.read().clone(memory_format=torch.contiguous_format)
        return None if isinstance(value, Null) else value

    def _run(self) -> None:
        place = 0
        jumps = 0
        while place < len(self._calls):
            call = self._calls[place]
            target = self._step(call, place)
            if self._ran is not None:
                self._ran(place)
            if target <= place:
                jumps += 1
                if jumps > self._max_jumps:
                    text = (
                        f"method {self.plan.name!r} ran {self._max_jumps} rounds of its"
                        " loops and is not done"
                    )
                    raise Unsupported(
                        "unsupported",
                        text,
                        hint="max_iterations allows more: load, delegraph run",
                    )
            place = target

    def _step(self, call: Call, place: int) -> int:
        """Run one instruction; the position of the next."""
        if isinstance(call, KernelCall):
            self._call_kernel(call, place)
        elif isinstance(call, DelegateCall):
            self._call_delegate(call, self._outputs_of[place])
        elif isinstance(call, MoveCall):
            self._values[call.move_to] = self._values[call.move_from]
        elif isinstance(call, JumpFalseCall) and not self._is_true(
            self._values[call.condition]
        ):
            return call.destination
        return place + 1

    def _is_true(self, value: Any) -> bool:
        if isinstance(value, HostTensor):
            return bool(value.read().all())
        if not isinstance(value, bool):
            raise FormatError(
                "format-invalid",
                f"a jump of method {self.plan.name!r} depends on {value!r:.80}",
            )
        return value

    def _call_kernel(self, call: KernelCall, place: int) -> None:
        args = [self._argument(index) for index in call.args]
        if place in self._late:
            expect_now(
                args,
                self._late[place],
                f"{self.plan.operators[call.op_index]} in method {self.plan.name!r}",
            )
        try:
            computed = self._kernels[call.op_index](args)
        except DelegraphError:
            raise
        except Exception as e:
            # kernels raise what torch does for operands that the file should not have
            text = (
                f"{self.plan.operators[call.op_index]} failed in method"
                f" {self.plan.name!r}"
            )
            if sizes := self._varying_sizes():
                hint = (
                    "the file does not say all that the export did of sizes which have"
                    " to be equal, or multiples"
                )
                raise InputError(
                    "input-invalid", f"{text} for {sizes}: {e}", hint=hint
                ) from e
            raise FormatError("format-invalid", f"{text}: {e}") from e
        if computed is not None:
            self._values[call.args[-1]] = computed

    def _varying_sizes(self) -> str:
        """The sizes in this call of those inputs whose sizes are not fixed."""
        inputs = [
            (name, self._values[index])
            for name, index in zip(self._names, self.plan.inputs, strict=True)
        ]
        tensors = [
            (name, value)
            for name, value in inputs
            if isinstance(value, HostTensor) and value.now is not None
        ]
        varying = [
            (name, v.read())
            for name, v in tensors
            if v.table.dynamism != Dynamism.STATIC
        ]
        return ", ".join(
            f"input {name} of sizes {list(value.shape)}" for name, value in varying
        )

    def _argument(self, index: int) -> Any:
        listed = self._lists[index]
        if listed is None:
            value = self._values[index]
            return None if isinstance(value, Null) else value
        if isinstance(listed, tuple):
            return [
                None if i == NOTHING or isinstance(v := self._values[i], Null) else v
                for i in listed
            ]
        return listed

    def _call_delegate(self, call: DelegateCall, outputs: int) -> None:
        args = [self._argument(index) for index in call.args]
        count = len(args) - outputs
        inputs = [a.read() if isinstance(a, HostTensor) else a for a in args[:count]]
        results = self._delegates[call.delegate_index](*inputs)
        if len(results) != outputs:
            delegate = self.plan.delegates[call.delegate_index].id
            raise FormatError(
                "format-invalid",
                f"{delegate} returned {len(results)} results; the file has {outputs}",
            )
        for index, result in zip(call.args[count:], results, strict=True):
            value = self._values[index]
            if isinstance(value, HostTensor) and isinstance(result, torch.Tensor):
                value.write(result)
            elif isinstance(value, (bool, int, float)) and type(result) is type(value):
                self._values[index] = result
            else:
                name = self.plan.delegates[call.delegate_index].id
                wanted = type(self.plan.values[index].value).__name__
                raise FormatError(
                    "format-invalid",
                    f"{name} returned a {type(result).__name__}, not a {wanted}",
                )


def expect_memory(plan: ExecutionPlan, allowed: int) -> None:
    """Raise Unsupported for a method that states more bytes than allowed: planned, or
    of results outside the plan.
    """
    planned = sum(plan.memory_sizes[1:])
    computed = {
        k
        for i in plan.chains[0].instructions
        if isinstance(i.call, (KernelCall, DelegateCall))
        for k in i.call.args
    }
    tensors = [
        v
        for k in computed - {*plan.inputs}
        if isinstance(v := plan.values[k].value, Tensor)
    ]
    returned = sum(
        nbytes(t)
        for t in tensors
        if t.allocation is None and not t.data_buffer_idx and not is_external(t)
    )
    if planned + returned > allowed:
        what = f"plans {planned} bytes of memory" + (
            f" and {returned} of results outside of it" if returned else ""
        )
        text = f"method {plan.name!r} {what}, and {allowed} are allowed"
        raise Unsupported(
            "unsupported", text, hint="max_memory allows more: load, delegraph run"
        )


def _reserve_planned(plan: ExecutionPlan, shared: SharedMemory | None) -> list[Any]:
    try:
        sizes = (0, *plan.memory_sizes[1:])
        taken = {} if shared is None else {MEMORY: shared.bytes}
        return [
            taken[k] if k in taken else reserve(size).numpy()
            for k, size in enumerate(sizes)
        ]
    except MemoryError as e:
        text = (
            f"method {plan.name!r} plans {sum(plan.memory_sizes[1:])} bytes of memory,"
            " which this host has not"
        )
        raise Unsupported("unsupported", text) from e


def _list_of(value: Value | None) -> list[Any] | tuple[int, ...] | None:
    """Positions of the elements, or the elements of a list of numbers; None for what is
    no list.
    """
    if isinstance(value, (IntList, TensorList, OptionalTensorList)):
        return value.items
    return list(value.items) if isinstance(value, (DoubleList, BoolList)) else None
