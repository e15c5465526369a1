"""Run one method of a program file on this host, instruction by instruction."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from delegraph.errors import DelegraphError, FormatError, InputError, Unsupported

from ..containers import check_fixed_inputs, check_input_ranges, input_names
from ..program.input_sizes import input_sizes
from ..program.pte_tables import (
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
    MoveCall,
    Null,
    OptionalTensorList,
    String,
    Tensor,
    TensorList,
    Value,
)
from ..program.shared_memory import MEMORY
from ..serialize.check import nbytes
from .arguments import check_method, check_run_time_arguments
from .data import Data, as_tensor, is_external
from .kernels import kernel
from .shared import SharedMemory
from .tensors import HostTensor, arrange, dtype_of, reserve

Runner = Callable[..., tuple[Any, ...]]
"""A loaded delegate: a function from its inputs to its outputs."""


class HostMethod:
    """A loaded method with its memory, and with state that it keeps between calls.

    A lock lets one call run at a time. ``output_counts`` maps the position of a delegate
    call to its number of outputs. After each instruction, ``ran`` is called with the
    instruction's position. ``shared`` is a memory that other methods use as well.
    """

    def __init__(
        self,
        plan: ExecutionPlan,
        data: Data,
        delegates: Sequence[Runner],
        output_counts: Mapping[int, int],
        max_memory: int,
        max_jumps: int,
        ran: Callable[[int], None] | None = None,
        shared: SharedMemory | None = None,
    ) -> None:
        self.plan = plan
        self._max_jumps = max_jumps
        self._delegates = delegates
        self._ran = ran
        # before memory is reserved
        check_memory(plan, max_memory)
        self._shared = shared
        self._memories = _reserve_planned(plan, shared)
        self._values = [self._load(entry.value, data) for entry in plan.values]
        self._lists = [_list_of(entry.value) for entry in plan.values]
        self._calls: list[Call] = [call for call in plan.calls if call is not None]
        self._output_counts = output_counts
        self._run_time_arguments = check_method(plan)
        self._kernels = [kernel(str(o)) for o in plan.operators]
        self._names = input_names(plan)
        ranks: list[int | None] = []
        for index in plan.inputs:
            value = plan.values[index].value
            ranks.append(len(value.sizes) if isinstance(value, Tensor) else None)
        self._sizes = input_sizes(plan.container, ranks)
        # methods that share memory also share its lock
        self._lock = threading.RLock() if shared is None else shared.lock

    def __call__(self, inputs: Sequence[Any]) -> list[Any]:
        """Run the method; return its outputs, as new tensors.

        Raises InputError if the number, type or size of the inputs is wrong.
        """
        with self._lock, torch.no_grad():
            if len(inputs) != len(self.plan.inputs):
                raise InputError(
                    "input-invalid",
                    f"the method takes {len(self.plan.inputs)} inputs, not {len(inputs)}",
                )
            # constant inputs keep their value in the file
            fixed = check_fixed_inputs(self.plan, inputs, self._names)
            for number, (index, given) in enumerate(
                zip(self.plan.inputs, inputs, strict=True)
            ):
                if number not in fixed:
                    self._set_input(index, given, self._names[number])
            if self._sizes is not None:
                self._sizes.check(
                    [getattr(given, "shape", ()) for given in inputs], self._names
                )
            check_input_ranges(self.plan, inputs, self._names)
            self._run()
            return [self._output(index) for index in self.plan.outputs]

    def _load(self, value: Value | None, data: Data) -> Any:
        """Return a value as it is before the first call.

        A tensor becomes a HostTensor. Numbers and strings become Python objects. Other
        values stay records of the file.
        """
        if isinstance(value, Tensor):
            return self._load_tensor(value, data)
        if isinstance(value, (Int, Bool, Double, String)):
            return value.value
        return value

    def _load_tensor(self, table: Tensor, data: Data) -> HostTensor:
        """Return a tensor with its planned memory and its first content, if it has them.

        Raises FormatError if the tensor's offset is no multiple of its element size.
        """
        made = HostTensor(table)
        if table.allocation is not None:
            start = table.allocation.offset
            memory = self._memories[table.allocation.memory_id]
            made.memory = as_tensor(memory[start : start + nbytes(table)].data)
            if start % made.dtype.itemsize:
                raise FormatError(
                    "format-invalid",
                    f"damaged .pte file: a tensor of {made.dtype} begins at byte {start},"
                    f" which is not a multiple of {made.dtype.itemsize}",
                )
            made.content = arrange(
                made.memory, made.dtype, table.sizes, table.dim_order
            )
        if table.data_buffer_idx or is_external(table):
            content = arrange(
                data.content(table), dtype_of(table), table.sizes, table.dim_order
            )
            if table.allocation is None:
                made.content = content
            elif self._gets_first_content(table):
                made.write(content)
        return made

    def _gets_first_content(self, table: Tensor) -> bool:
        """Return whether to write a tensor's first content to its planned memory.

        A buffer that methods share gets its first content only once. Otherwise, a method
        that is loaded later would erase the writes of the others.
        """
        planned = table.allocation
        if self._shared is None or planned is None or planned.memory_id != MEMORY:
            return True
        return self._shared.claim_first_write(planned.offset, nbytes(table))

    def _set_input(self, index: int, given: Any, name: str) -> None:
        """Set the value of an input; InputError if it has another type or size."""
        value = self._values[index]
        if isinstance(value, HostTensor):
            checked = value.expect_input(given, name)
            if value.table.allocation is None:
                # not copied: the method may have to write to the caller's memory
                value.content = checked
            else:
                value.write(checked)
        elif isinstance(value, (bool, int, float, str)) and type(given) is type(value):
            self._values[index] = given
        elif not (isinstance(value, Null) and given is None):
            raise InputError(
                "input-invalid",
                f"input {name} must be a {type(value).__name__}; it is {given!r}",
            )

    def _output(self, index: int) -> Any:
        """Return an output; a tensor is copied, since the next call reuses its memory."""
        value = self._values[index]
        if isinstance(value, HostTensor):
            return value.read().clone(memory_format=torch.contiguous_format)
        return None if isinstance(value, Null) else value

    def _run(self) -> None:
        """Run all instructions; raise Unsupported if loops jump back too often."""
        position = 0
        jumps_back = 0
        while position < len(self._calls):
            next_position = self._step(self._calls[position], position)
            if self._ran is not None:
                self._ran(position)
            if next_position <= position:
                jumps_back += 1
                if jumps_back > self._max_jumps:
                    text = (
                        f"method {self.plan.name!r} ran {self._max_jumps} rounds of its"
                        " loops without an end"
                    )
                    hint = "raise max_iterations of load or delegraph run"
                    raise Unsupported("unsupported", text, hint=hint)
            position = next_position

    def _step(self, call: Call, position: int) -> int:
        """Run one instruction; return the position of the instruction to run next."""
        if isinstance(call, KernelCall):
            self._call_kernel(call, position)
        elif isinstance(call, DelegateCall):
            self._call_delegate(call, self._output_counts[position])
        elif isinstance(call, MoveCall):
            self._values[call.move_to] = self._values[call.move_from]
        elif isinstance(call, JumpFalseCall):
            if not self._is_true(self._values[call.condition]):
                return call.destination
        # a FreeCall does nothing here
        return position + 1

    def _is_true(self, value: Any) -> bool:
        """Return a jump's condition. A tensor of bools is true if all its elements are."""
        if isinstance(value, HostTensor):
            return bool(value.read().all())
        if not isinstance(value, bool):
            raise FormatError(
                "format-invalid",
                f"a jump of method {self.plan.name!r} has the condition {value!r:.80},"
                " which must be a bool",
            )
        return value

    def _call_kernel(self, call: KernelCall, position: int) -> None:
        """Run a kernel. It writes its tensors itself; a number that it returns is stored.

        If the kernel fails, raises InputError for a method with dynamic sizes, and
        FormatError for others.
        """
        args = [self._argument(index) for index in call.args]
        if position in self._run_time_arguments:
            check_run_time_arguments(
                args,
                self._run_time_arguments[position],
                f"{self.plan.operators[call.op_index]} in method {self.plan.name!r}",
            )
        try:
            computed = self._kernels[call.op_index](args)
        except DelegraphError:
            raise
        except Exception as e:
            # torch raises various errors for operands that a correct file never has.
            text = (
                f"{self.plan.operators[call.op_index]} failed in method"
                f" {self.plan.name!r}"
            )
            sizes = self._varying_sizes()
            if sizes:
                hint = (
                    "use sizes that the program was exported for; the file does not"
                    " store all relations between sizes"
                )
                raise InputError(
                    "input-invalid", f"{text} for {sizes}: {e}", hint=hint
                ) from e
            raise FormatError("format-invalid", f"{text}: {e}") from e
        if computed is not None:
            self._values[call.args[-1]] = computed

    def _varying_sizes(self) -> str:
        """Return the sizes of inputs with dynamic sizes in this call, as text."""
        found = []
        for name, index in zip(self._names, self.plan.inputs, strict=True):
            value = self._values[index]
            if not isinstance(value, HostTensor) or value.content is None:
                continue
            if value.table.dynamism != Dynamism.STATIC:
                found.append(f"input {name} of sizes {list(value.read().shape)}")
        return ", ".join(found)

    def _argument(self, index: int) -> Any:
        """Return the value at ``index``, with its elements if it is a list."""
        elements = self._lists[index]
        if elements is None:
            return self._value_or_none(index)
        if isinstance(elements, tuple):
            # positions of values, which may change between calls
            return [self._value_or_none(i) for i in elements]
        return elements

    def _value_or_none(self, index: int) -> Any:
        """Return the value at ``index``; None if an optional argument is missing."""
        if index == NOTHING or isinstance(self._values[index], Null):
            return None
        return self._values[index]

    def _call_delegate(self, call: DelegateCall, output_count: int) -> None:
        """Run a delegate, and store its results.

        The last ``output_count`` arguments of the call are its results. Raises
        FormatError if the delegate returns another number of results or other types.
        """
        input_count = len(call.args) - output_count
        inputs = []
        for index in call.args[:input_count]:
            argument = self._argument(index)
            is_tensor = isinstance(argument, HostTensor)
            inputs.append(argument.read() if is_tensor else argument)
        results = self._delegates[call.delegate_index](*inputs)
        name = self.plan.delegates[call.delegate_index].id
        if len(results) != output_count:
            raise FormatError(
                "format-invalid",
                f"{name} returned {len(results)} results; the file has {output_count}",
            )
        for index, result in zip(call.args[input_count:], results, strict=True):
            value = self._values[index]
            if isinstance(value, HostTensor) and isinstance(result, torch.Tensor):
                value.write(result)
            elif isinstance(value, (bool, int, float)) and type(result) is type(value):
                self._values[index] = result
            else:
                wanted = type(self.plan.values[index].value).__name__
                raise FormatError(
                    "format-invalid",
                    f"{name} returned a {type(result).__name__}, not a {wanted}",
                )


def check_memory(plan: ExecutionPlan, allowed: int) -> None:
    """Raise Unsupported if a method needs more than ``allowed`` bytes of memory.

    The method needs its planned memory, and memory for results outside of the plan.
    """
    planned = sum(plan.memory_sizes[1:])
    computed: set[int] = set()
    for call in plan.calls:
        if isinstance(call, (KernelCall, DelegateCall)):
            computed |= {*call.args}
    returned = 0
    for k in computed - {*plan.inputs}:
        value = plan.values[k].value
        if not isinstance(value, Tensor) or value.allocation is not None:
            continue
        if not value.data_buffer_idx and not is_external(value):
            returned += nbytes(value)
    if planned + returned > allowed:
        needs = f"plans {planned} bytes of memory"
        if returned:
            needs += f" and {returned} of results outside of it"
        text = f"method {plan.name!r} {needs}, and {allowed} are allowed"
        hint = "raise max_memory of load or delegraph run"
        raise Unsupported("unsupported", text, hint=hint)


def _reserve_planned(plan: ExecutionPlan, shared: SharedMemory | None) -> list[Any]:
    """Return the planned memories of a method; Unsupported if the host has too little.

    Memories are numbered from 1; number 0 is empty.
    """
    try:
        memories = []
        for k, size in enumerate((0, *plan.memory_sizes[1:])):
            if shared is not None and k == MEMORY:
                memories.append(shared.bytes)
            else:
                memories.append(reserve(size).numpy())
        return memories
    except MemoryError as e:
        text = (
            f"method {plan.name!r} plans {sum(plan.memory_sizes[1:])} bytes of memory,"
            " more than this host has"
        )
        raise Unsupported("unsupported", text) from e


def _list_of(value: Value | None) -> list[Any] | tuple[int, ...] | None:
    """Return the elements of a list in the file; None for a value that is no list.

    A returned list has the elements. A returned tuple has their positions among the
    values of the method.
    """
    if isinstance(value, (IntList, TensorList, OptionalTensorList)):
        return value.items
    if isinstance(value, (DoubleList, BoolList)):
        return list(value.items)
    return None
