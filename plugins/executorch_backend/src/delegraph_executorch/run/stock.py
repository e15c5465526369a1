"""Program files in ExecuTorch's own runtime on this host."""

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
    expect_fixed_inputs,
    expect_input_ranges,
    flatten_call,
    input_names,
    structure_of,
    unflatten_result,
)
from ..device import load_device_halves
from ..program.quantized_library import NAMESPACE
from ..program.shared_memory import sharing_methods
from ..program.tables import Tensor
from ..serialize.check import check_program
from ..serialize.reader import open_bytes, read_program
from ..wheel import in_c_order, load_quantized_kernels, stock_runtime
from .arguments import check_arguments


class StockProgram:
    """A file in ExecuTorch's runtime, called as the module that it was made from.

    Delegates run in the device halves that installed plugins have, and the wheel's
    quantized kernels are loaded if the file calls them. The file is checked first, as
    where torch runs it: native code trusts most of what a file says. Raises FormatError
    for a damaged one, NoRuntime if the wheel or a backend of the file is missing,
    InputError for a file or inputs that the runtime refuses.
    """

    def __init__(self, path: str | Path, data: Sequence[str | Path] = ()) -> None:
        if len(data) > 1:
            raise InputError(
                "input-invalid",
                f"the runtime takes one data file; there are {len(data)}",
            )
        path = Path(path)
        file = read_program(open_bytes(path))
        check_program(file)
        check_arguments(file)
        self._plans = {plan.name: plan for plan in file.program.plans}
        self._sharing = sharing_methods(file.program.plans)
        load_device_halves(
            delegate.id for plan in self._plans.values() for delegate in plan.delegates
        )
        if any(
            operator.name.startswith(f"{NAMESPACE}::")
            for plan in self._plans.values()
            for operator in plan.operators
        ):
            load_quantized_kernels()
        self._program = _say(
            path,
            lambda: stock_runtime().load_program(
                path, data_path=next(iter(data), None)
            ),
        )
        self._path = path

    @property
    def methods(self) -> list[str]:
        """Names of the methods, in the order of the file."""
        return list(self._plans)

    def method(self, name: str) -> Callable[..., Any]:
        """A method to call; it keeps the program."""
        if name not in self._plans:
            raise InputError(
                "input-invalid", f"there is no method {name!r}; methods: {self.methods}"
            )
        plan = self._plans[name]
        self._expect_backends(delegate.id for delegate in plan.delegates)
        if name in self._sharing:
            self._load_sharing()
        loaded = _say(self._path, lambda: self._program.load_method(name))
        container = plan.container
        takes = structure_of(container, "inputs")
        returns = structure_of(container, "outputs")
        names = argument_names(container)
        called = input_names(plan)

        def call(*args: Any, **kwargs: Any) -> Any:
            flat = flatten_call(takes, args, kwargs, names)
            for k in expect_fixed_inputs(plan, flat, called):
                # its equal may be of another type, such as 2 for 2.0, which the runtime
                # refuses
                flat[k] = getattr(plan.values[plan.inputs[k]].value, "value", None)
            expect_input_ranges(plan, flat, called)
            for k, position in enumerate(plan.inputs[: len(flat)]):
                flat[k] = _lay_out(flat[k], plan.values[position].value)
            # ``self`` keeps the program that it needs
            outputs = _say(self._path, lambda: loaded.execute(flat))
            return unflatten_result(returns, list(outputs))

        return call

    def _load_sharing(self) -> None:
        """Load all methods that share buffers, once: loading one brings the buffers'
        first values back.
        """
        for name in self._sharing:
            self._expect_backends(
                delegate.id for delegate in self._plans[name].delegates
            )
            _say(self._path, partial(self._program.load_method, name))

    def _expect_backends(self, backend_ids: Iterable[str]) -> None:
        """Raise NoRuntime for backends that the runtime has not; it would itself say
        only a number.
        """
        known = stock_runtime().backend_registry.registered_backend_names
        if lacking := ", ".join(sorted(set(backend_ids) - set(known))):
            text = (
                f"{self._path.name} needs backends that ExecuTorch's runtime on this"
                f" host does not have: {lacking}"
            )
            hint = (
                "run it without runtime='executorch' (--runtime); a device's runtime"
                " needs the backend's device half"
            )
            raise NoRuntime("no-runtime", text, hint=hint)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.method("forward" if "forward" in self._plans else self.methods[0])(
            *args, **kwargs
        )


def _lay_out(given: Any, described: Any) -> Any:
    """A tensor with its elements in the order that the file says; the runtime takes no
    other strides.
    """
    if not isinstance(given, torch.Tensor) or not isinstance(described, Tensor):
        return given
    order = list(described.dim_order)
    if sorted(order) != list(range(given.dim())):
        return given  # of another rank, which is the runtime's to refuse
    return in_c_order(given.permute(order)).permute(
        [order.index(k) for k in range(len(order))]
    )


def _say(path: Path, work: Callable[[], Any]) -> Any:
    try:
        return work()
    except (RuntimeError, KeyError) as e:
        # it knows names of methods up to their first NUL
        raise InputError(
            "input-invalid", f"ExecuTorch's runtime refuses {path.name}: {e}"
        ) from e
    except MemoryError as e:  # it takes all planned memory when a method is loaded
        raise Unsupported(
            "unsupported",
            f"{path.name} states more memory than ExecuTorch's runtime gets here",
        ) from e


def judge_loading(path: Path) -> Verdict:
    """Whether the runtime loads all methods of a file."""
    name = "executorch.runtime"
    try:
        program = StockProgram(path, sorted(path.parent.glob(f"{path.stem}.*.ptd"))[:1])
        for method in program.methods:
            program.method(method)
    except (InputError, FormatError) as e:
        return Verdict(name, False, e.message)
    except DelegraphError as e:
        # not the file's fault: a wheel, a compiler or a plugin that is missing or
        # broken
        return Verdict(name, None, f"{e.message}; {e.hint}" if e.hint else e.message)
    return Verdict(name, True, f"it loads {', '.join(program.methods)}")
