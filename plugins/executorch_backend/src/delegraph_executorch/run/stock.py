"""Run program files in ExecuTorch's own runtime on this host."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from delegraph.errors import (
    DelegraphError,
    FormatError,
    InputError,
    NoRuntime,
    Unsupported,
)
from delegraph.formats import Verdict

from ..containers import (
    argument_names,
    check_fixed_inputs,
    check_input_ranges,
    flatten_call,
    input_names,
    structure_of,
    unflatten_result,
)
from ..device import load_device_halves
from ..program.pte_tables import Tensor
from ..program.quantized_library import NAMESPACE
from ..program.shared_memory import sharing_methods
from ..serialize.check import check_program
from ..serialize.reader import open_bytes, read_program
from ..wheel import in_c_order, load_quantized_kernels, stock_runtime
from .arguments import check_arguments


class StockProgram:
    """A program file in ExecuTorch's runtime, called like the original module.

    Delegates run in device halves: C++ code of installed plugins for that runtime. The
    wheel's quantized kernels are loaded if the file calls them. The file is checked
    first, since native code trusts it. Raises FormatError for a damaged file, NoRuntime
    if the wheel or a backend is missing, InputError if the runtime refuses the file or
    inputs.
    """

    def __init__(self, path: str | Path, data: Sequence[str | Path] = ()) -> None:
        if len(data) > 1:
            raise InputError(
                "input-invalid",
                f"ExecuTorch's runtime for Python takes one data file, not {len(data)}",
            )
        path = Path(path)
        file = read_program(open_bytes(path))
        check_program(file)
        check_arguments(file)
        self._plans = {plan.name: plan for plan in file.program.plans}
        self._sharing = sharing_methods(file.program.plans)
        backends: list[str] = []
        kernels: list[str] = []
        for plan in file.program.plans:
            backends += [delegate.id for delegate in plan.delegates]
            kernels += [operator.name for operator in plan.operators]
        load_device_halves(backends)
        if any(name.startswith(f"{NAMESPACE}::") for name in kernels):
            load_quantized_kernels()
        data_path = data[0] if data else None
        self._program = _translate_errors(
            path, lambda: stock_runtime().load_program(path, data_path=data_path)
        )
        self._path = path

    @property
    def methods(self) -> list[str]:
        """Return the names of the methods, in the order of the file."""
        return list(self._plans)

    def method(self, name: str) -> Callable[..., Any]:
        """Load a method; return a function that takes the original method's arguments."""
        if name not in self._plans:
            raise InputError(
                "input-invalid", f"there is no method {name!r}; methods: {self.methods}"
            )
        plan = self._plans[name]
        self._check_backends(delegate.id for delegate in plan.delegates)
        if name in self._sharing:
            self._load_sharing_methods()
        loaded = _translate_errors(self._path, lambda: self._program.load_method(name))
        container = plan.container
        takes = structure_of(container, "inputs")
        returns = structure_of(container, "outputs")
        names = argument_names(container)
        names_of_inputs = input_names(plan)

        def call(*args: Any, **kwargs: Any) -> Any:
            flat = flatten_call(takes, args, kwargs, names)
            # Pass constant inputs as in the file: the runtime refuses an equal value of
            # another type, such as 2 for 2.0.
            for k in check_fixed_inputs(plan, flat, names_of_inputs):
                flat[k] = getattr(plan.values[plan.inputs[k]].value, "value", None)
            check_input_ranges(plan, flat, names_of_inputs)
            for k, position in enumerate(plan.inputs[: len(flat)]):
                flat[k] = _with_strides_of_file(flat[k], plan.values[position].value)
            # ``loaded`` needs ``self._program``, which this reference to self keeps alive.
            outputs = _translate_errors(self._path, lambda: loaded.execute(flat))
            return unflatten_result(returns, list(outputs))

        return call

    def _load_sharing_methods(self) -> None:
        """Load all methods that share buffers, before the first call of one of them.

        Loading a method resets its buffers to their first values. The runtime's program
        keeps the loaded methods.
        """
        for name in self._sharing:
            self._check_backends(
                delegate.id for delegate in self._plans[name].delegates
            )
            _translate_errors(self._path, partial(self._program.load_method, name))

    def _check_backends(self, backend_ids: Iterable[str]) -> None:
        """Raise NoRuntime if the runtime lacks one of the backends.

        The runtime itself would report only an error number.
        """
        known = stock_runtime().backend_registry.registered_backend_names
        missing = sorted(set(backend_ids) - set(known))
        if missing:
            text = (
                f"{self._path.name} needs backends that ExecuTorch's runtime on this"
                f" host does not have: {', '.join(missing)}"
            )
            hint = (
                "run it without runtime='executorch' (--runtime); a device's runtime"
                " needs the backend's device half"
            )
            raise NoRuntime("no-runtime", text, hint=hint)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        name = "forward" if "forward" in self._plans else self.methods[0]
        return self.method(name)(*args, **kwargs)


def _with_strides_of_file(given: Any, record: Any) -> Any:
    """Return an input with the strides that its record in the file has.

    The runtime refuses other strides.
    """
    if not isinstance(given, torch.Tensor) or not isinstance(record, Tensor):
        return given
    order = list(record.dim_order)
    if sorted(order) != list(range(given.dim())):
        # The runtime refuses a tensor of another rank.
        return given
    # Make the tensor contiguous in the file's dimension order, then undo the order.
    inverse = [order.index(k) for k in range(len(order))]
    return in_c_order(given.permute(order)).permute(inverse)


def _translate_errors(path: Path, work: Callable[[], Any]) -> Any:
    """Return the result of ``work``; turn the runtime's errors into delegraph's."""
    try:
        return work()
    except (RuntimeError, KeyError) as e:
        # KeyError: the runtime cuts the name of a method at a zero byte
        text = f"ExecuTorch's runtime refuses {path.name}: {e}"
        raise InputError("input-invalid", text) from e
    except MemoryError as e:
        # Loading a method allocates all of its planned memory.
        text = f"{path.name} needs more memory than ExecuTorch's runtime gets here"
        raise Unsupported("unsupported", text) from e


def judge_loading(path: Path) -> Verdict:
    """Return whether ExecuTorch's runtime loads all methods of a file."""
    name = "executorch.runtime"
    try:
        # the runtime takes at most one data file
        data = sorted(path.parent.glob(f"{path.stem}.*.ptd"))[:1]
        program = StockProgram(path, data)
        for method in program.methods:
            # loads the method; raises if the runtime refuses it
            program.method(method)
    except (InputError, FormatError) as e:
        return Verdict(name, False, e.message)
    except DelegraphError as e:
        # The file may be right: a wheel, a compiler or a plugin is missing or broken.
        text = f"{e.message}; {e.hint}" if e.hint else e.message
        return Verdict(name, None, text)
    return Verdict(name, True, f"it loads {', '.join(program.methods)}")
