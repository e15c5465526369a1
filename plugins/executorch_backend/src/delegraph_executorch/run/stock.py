"""ExecuTorch's own runtime on this host, from the wheel ``executorch``."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from delegraph.errors import InputError, NoRuntime
from delegraph.formats import Verdict

from ..containers import flatten_call, structure_of, unflatten_result
from ..serialize.reader import open_bytes, read_program

HINT = 'pip install "delegraph-executorch[runtime]"'


@cache
def stock_runtime() -> Any:
    """The runtime. Raises NoRuntime, with what to install, if the wheel is missing or cannot be imported."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from executorch.runtime import Runtime
    except ImportError as e:
        raise NoRuntime("no-runtime", f"ExecuTorch's runtime cannot be used here: {e}", hint=HINT) from e
    return Runtime.get()


class StockProgram:
    """A file in ExecuTorch's runtime, called as the module that it was made from.

    Raises NoRuntime if the wheel is missing, InputError for a file or inputs that the runtime refuses.
    """

    def __init__(self, path: str | Path, data: Sequence[str | Path] = ()) -> None:
        if len(data) > 1:
            raise InputError("input-invalid", f"the runtime takes one data file; there are {len(data)}")
        path = Path(path)
        self._plans = {plan.name: plan for plan in read_program(open_bytes(path)).program.plans}
        self._program = _say(path, lambda: stock_runtime().load_program(path, data_path=next(iter(data), None)))
        self._path = path

    @property
    def methods(self) -> list[str]:
        """Names of the methods, in the order of the file."""
        return list(self._plans)

    def method(self, name: str) -> Callable[..., Any]:
        """A method to call; it keeps the program."""
        if name not in self._plans:
            raise InputError("input-invalid", f"there is no method {name!r}; methods: {self.methods}")
        loaded = _say(self._path, lambda: self._program.load_method(name))
        container = self._plans[name].container
        takes, returns = structure_of(container, "inputs"), structure_of(container, "outputs")

        def call(*args: Any, **kwargs: Any) -> Any:
            flat = flatten_call(takes, args, kwargs)
            outputs = _say(self._path, lambda: loaded.execute(flat))  # ``self`` keeps the program that it needs
            return unflatten_result(returns, list(outputs))

        return call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.method("forward" if "forward" in self._plans else self.methods[0])(*args, **kwargs)


def _say(path: Path, work: Callable[[], Any]) -> Any:
    try:
        return work()
    except RuntimeError as e:
        raise InputError("input-invalid", f"ExecuTorch's runtime refuses {path.name}: {e}") from e


def judge_loading(path: Path) -> Verdict:
    """Whether the runtime loads all methods of a file."""
    name = "executorch.runtime"
    try:
        program = StockProgram(path, sorted(path.parent.glob(f"{path.stem}.*.ptd"))[:1])
        for method in program.methods:
            program.method(method)
    except NoRuntime as e:
        return Verdict(name, None, f"{e.message}; {e.hint}")
    except InputError as e:
        return Verdict(name, False, e.message)
    return Verdict(name, True, f"it loads {', '.join(program.methods)}")
