"""Runs a lowered program and passes its values to an observer, with those inside of delegates if runtimes have them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from ..delegates.delegates import DelegateInfo
from ..delegates.lowered_module import LoweredBackendModule
from ..errors import ContractViolation
from ..runtime import BackendRuntime, Delegate, Inside, Observer
from .executor import Delegates, Executable, LoadedDelegate


class ObservedExecutable(Executable):
    """A method in its initial state that passes every value that a call computes to ``observer``."""

    def __init__(self, executable: Executable, observer: Observer, delegates: Iterable[DelegateInfo]) -> None:
        super().__init__(executable._method, executable._delegates)
        self._observer = observer
        self._infos = {info.module: info for info in delegates}

    def _function(self) -> Callable[..., Any]:
        """The program's code, which also tells the observer when a call begins and ends."""
        run = self._method.watched_code.function(self._bind, self._observer)

        def watched(*values: Any) -> Any:
            """One call, from ``begin`` to ``end``."""
            self._observer.begin(dict(zip(self._method.parameters, values, strict=True)))
            results = run(*values)
            self._observer.end()
            return results

        return watched

    def _bind(self, module: LoweredBackendModule) -> Callable[..., Any]:
        """The delegate of ``module``, which also passes the values inside of it to the observer."""
        assert self._delegates is not None
        return _Observed(module, self._delegates, partial(self._observer.inside, self._infos[module]))


class _Observed(LoadedDelegate):
    """A delegate that passes the values inside of it to ``tell``, if its runtime can return them."""

    def __init__(self, module: LoweredBackendModule, delegates: Delegates, tell: Callable[[Inside], None]) -> None:
        super().__init__(module, delegates)
        self._tell, self._observes = tell, False

    def _open(self, runtime: type[BackendRuntime]) -> Callable[..., Any]:
        """The runtime's ``observe`` in place of its ``load``, if it has one."""
        self._observes = runtime.observes()
        return partial(self._observe, runtime) if self._observes else runtime.load

    def _observe(self, runtime: type[BackendRuntime], *parts: Any) -> Callable[..., Any]:
        """The observed delegate. It is made once for all observed runs of a program, since making it is slow.

        A runtime that is not thread-safe makes a new one each time: its next call may overwrite the values of an
        earlier one.
        """
        observers = self._delegates.observers(self._module) if runtime.thread_safe else {}
        if self._module not in observers:
            observers[self._module] = runtime.observe(*parts)
        return observers[self._module]

    def _wrap(self, run: Callable[..., Any]) -> Delegate:
        """``run`` as a function that returns the outputs only, and passes the inner values to ``tell``."""
        if not self._observes:
            return run

        def call(*args: Any) -> tuple[Any, ...]:
            outputs, inside = self._checked(run(*args))
            self._tell(inside)
            return outputs

        return call

    def _checked(self, returned: Any) -> tuple[tuple[Any, ...], Inside]:
        """``returned``, if it is a pair of outputs and inner values as ``BackendRuntime.observe`` asks for.

        Raises ContractViolation otherwise, also for a tensor in place of a list of tensors: it would be taken for a
        list of its rows.
        """
        subject = f"observe of the runtime of {self._module.backend_id} makes a delegate that"
        wanted = "its outputs, and a mapping from delegate debug identifiers to lists of tensors"
        if not (isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[1], Mapping)):
            text = f"{subject} returned {type(returned).__name__}; it returns {wanted}"
            raise ContractViolation("contract-violation", text)
        for identifier, values in returned[1].items():
            if not isinstance(values, (tuple, list)):
                text = f"{subject} returned {type(values).__name__} for {identifier!r}; it returns {wanted}"
                raise ContractViolation("contract-violation", text)
        return returned
