"""Runs a lowered program so that its values can be seen, also those inside of delegates whose runtime tells them."""

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
    """A method in its initial state. Each call tells ``observer`` the values that it computes."""

    def __init__(self, executable: Executable, observer: Observer, delegates: Iterable[DelegateInfo]) -> None:
        super().__init__(executable._method, executable._delegates)
        self._observer = observer
        self._infos = {info.module: info for info in delegates}

    def _function(self) -> Callable[..., Any]:
        """The program's code, telling the observer when a call begins and ends."""
        run = self._method.watched_code.function(self._bind, self._observer)

        def watched(*values: Any) -> Any:
            self._observer.begin(dict(zip(self._method.parameters, values, strict=True)))
            results = run(*values)
            self._observer.end()
            return results

        return watched

    def _bind(self, module: LoweredBackendModule) -> Callable[..., Any]:
        """The delegate of ``module``, telling the observer the values inside of it."""
        assert self._delegates is not None
        return _Observed(module, self._delegates, partial(self._observer.inside, self._infos[module]))


class _Observed(LoadedDelegate):
    """A delegate that tells the values inside of it, if its runtime does."""

    def __init__(self, module: LoweredBackendModule, delegates: Delegates, tell: Callable[[Inside], None]) -> None:
        super().__init__(module, delegates)
        self._tell, self._observes = tell, False

    def _open(self, runtime: type[BackendRuntime]) -> Callable[..., Any]:
        """The runtime's ``observe`` in place of its ``load``, if it has one."""
        self._observes = runtime.observes()
        return partial(self._observe, runtime) if self._observes else runtime.load

    def _observe(self, runtime: type[BackendRuntime], *parts: Any) -> Callable[..., Any]:
        """The observed delegate, made once for all verifications of a program, since making it takes longer than a run.

        A runtime that is not thread-safe does not share it: its next call may overwrite the values of this one.
        """
        observers = self._delegates.observers(self._module) if runtime.thread_safe else {}
        if self._module not in observers:
            observers[self._module] = runtime.observe(*parts)
        return observers[self._module]

    def _wrap(self, run: Callable[..., Any]) -> Delegate:
        """The observed delegate as one that returns outputs only, and tells the rest."""
        if not self._observes:
            return run

        def call(*args: Any) -> tuple[Any, ...]:
            outputs, inside = self._told(run(*args))
            self._tell(inside)
            return outputs

        return call

    def _told(self, returned: Any) -> tuple[tuple[Any, ...], Inside]:
        """The outputs and inner values that the observed delegate returned.

        ContractViolation if they have another form. A tensor in place of a list of tensors is refused: it would be
        taken for the list of its rows.
        """
        whose = f"observe of the runtime of {self._module.backend_id} makes a delegate that"
        wanted = "its outputs, and a mapping from delegate debug identifiers to lists of tensors"
        if not (isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[1], Mapping)):
            text = f"{whose} returned {type(returned).__name__}; it returns {wanted}"
            raise ContractViolation("contract-violation", text)
        for identifier, values in returned[1].items():
            if not isinstance(values, (tuple, list)):
                text = f"{whose} told {type(values).__name__} under {identifier!r}; it returns {wanted}"
                raise ContractViolation("contract-violation", text)
        return returned
