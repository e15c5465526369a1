"""Runs a lowered program and passes its values to an observer, with those inside of delegates if runtimes have them.

A ``Timer`` gets times of delegates in place of the values inside.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import torch

from ..delegates.delegates import DelegateInfo
from ..delegates.lowered_module import LoweredBackendModule
from ..discovery.attribution import AtWork
from ..errors import ContractViolation
from ..runtime import BackendRuntime, Border, Delegate, Inside, Observer, Spent
from .executor import Delegates, Executable, LoadedDelegate, StoredDelegate


class ObservedExecutable(Executable):
    """A method in its initial state that passes every value that a call computes to ``observer``."""

    def __init__(self, executable: Executable, observer: Observer, delegates: Iterable[DelegateInfo]) -> None:
        """``delegates``: what is known of the program's delegates; ``observer`` gets the entry of each."""
        super().__init__(executable._method, executable._delegates)
        self._observer = observer
        self._infos = {info.module: info for info in delegates}

    def _function(self) -> Callable[..., Any]:
        """The program's code, which also tells the observer when a call begins and ends, and each value between."""
        run = self._method.watched_code.function(self._bind, self._observer)

        def watched(*values: Any) -> Any:
            """One call, from ``begin`` to ``end``."""
            self._observer.begin(dict(zip(self._method.parameters, values, strict=True)))
            results = run(*values)
            self._observer.end()
            return results

        return watched

    def _bind(self, module: LoweredBackendModule) -> Callable[..., Any]:
        """The delegate of ``module``, which also passes the values inside of it to the observer.

        An observer with a method ``spent`` is a ``Timer``: it gets the times of the delegate in place of the values.
        """
        assert self._delegates is not None
        if spent := getattr(self._observer, "spent", None):
            return TimedDelegate(module, self._delegates, partial(spent, self._infos[module]))
        return _Observed(module, self._delegates, partial(self._observer.inside, self._infos[module]))


class _Telling(LoadedDelegate):
    """A delegate whose runtime is to return more than its outputs, of which the observer is told."""

    def _wrong(self, method: str, returned: str, wanted: str) -> ContractViolation:
        """The error for a delegate that the runtime's ``method`` made and that ``returned`` something else.

        ``wanted``: what it is to return for each debug identifier.
        """
        text = f"{method} of the runtime of {self._module.backend_id} makes a delegate that returned {returned}; it"
        text += f" returns its outputs, and a mapping from delegate debug identifiers to {wanted}"
        return ContractViolation("contract-violation", text)


class _Observed(_Telling):
    """A delegate that passes the values inside of it to ``tell``, if its runtime can return them."""

    def __init__(self, module: LoweredBackendModule, delegates: Delegates, tell: Callable[[Inside], None]) -> None:
        super().__init__(module, delegates)
        self._tell, self._observes = tell, False  # ``_observes``: the runtime has ``observe``; set when it loads

    def _open(self, runtime: type[BackendRuntime]) -> Callable[..., Any]:
        """The runtime's ``observe`` in place of its ``load``, if it has one."""
        self._observes = runtime.observes()
        return partial(self._observe, runtime) if self._observes else runtime.load

    def _observe(self, runtime: type[BackendRuntime], *parts: Any) -> Callable[..., Any]:
        """What the runtime's ``observe`` returns for the delegate; ``parts`` are the arguments of ``observe``.

        The result is kept for all observed runs of a program, since making it is slow. A runtime that is not
        thread-safe makes a new one for each run: if runs shared it, a call of one might overwrite the values that
        another still reads.
        """
        observers = self._delegates.observers(self._module) if runtime.thread_safe else {}
        if self._module not in observers:
            observers[self._module] = runtime.observe(*parts)
        return observers[self._module]

    def _wrap(self, run: Callable[..., Any]) -> Delegate:
        """``run`` as a function that returns the outputs only, and passes the inner values to ``tell``.

        ``run`` itself if the runtime has no ``observe``: its calls return the outputs only.
        """
        if not self._observes:
            return run

        def call(*args: Any) -> tuple[Any, ...]:
            """Call the observed delegate; returns its outputs."""
            outputs, inside = self._checked(run(*args))
            self._tell(inside)
            return outputs

        return call

    def _checked(self, returned: Any) -> tuple[tuple[Any, ...], Inside]:
        """``returned``, if it is a pair of outputs and inner values as ``BackendRuntime.observe`` asks for.

        Raises ContractViolation otherwise, also for a tensor in place of a list of tensors: it would be taken for a
        list of its rows.
        """
        if not (isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[1], Mapping)):
            raise self._wrong("observe", type(returned).__name__, "lists of tensors")
        for identifier, values in returned[1].items():
            if not isinstance(values, (tuple, list)):
                raise self._wrong("observe", f"{type(values).__name__} for {identifier!r}", "lists of tensors")
        return returned


TellTimes = Callable[[float, Callable[[], Spent]], None]
"""Called after each call of a delegate: with its seconds, and a function that returns what its operators took."""


class TimedDelegate(_Telling):
    """A delegate that tells how long a call of its runtime took, and its operators, if the runtime can say that."""

    def __init__(self, module: LoweredBackendModule | StoredDelegate, delegates: Delegates, tell: TellTimes) -> None:
        super().__init__(module, delegates)
        self._tell, self._profiles = tell, False  # ``_profiles``: the runtime has ``profile``; set when it loads
        self._seconds, self._spent = 0.0, dict[Any, Any]()  # of the last call

    def _open(self, runtime: type[BackendRuntime]) -> Callable[..., Any]:
        """Return the runtime's ``profile`` in place of its ``load``, if it defines ``profile``."""
        self._profiles = runtime.profile is not BackendRuntime.profile
        return runtime.profile if self._profiles else runtime.load

    def _wrap(self, run: Callable[..., Any]) -> Delegate:
        """``run`` as a function that returns the outputs only, and passes the times to ``tell``."""

        def call(*args: Any) -> tuple[Any, ...]:
            """Call the delegate, and tell how long that took."""
            start = time.perf_counter()
            returned = run(*args)
            seconds = time.perf_counter() - start
            spent: Any = {}  # nothing is known of its operators
            if self._profiles:
                if not (isinstance(returned, tuple) and len(returned) == 2):
                    raise self._wrong("profile", type(returned).__name__, _AMOUNTS)
                returned, spent = returned
            if self._copies:
                self._seconds, self._spent = seconds, spent  # told when its results are copied
            else:
                self._tell(seconds, partial(self._read, spent))
            return returned  # type: ignore[no-any-return]  # checked with the other results

        return call

    def _copied(self, results: tuple[Any, ...]) -> tuple[Any, ...]:
        """The results in memory of their own. Copying belongs to the call, and the time of each to its ``Border``."""
        copies, borders = list[Any](), dict[Any, dict[str, float]]()
        for place, result in enumerate(results):
            start = time.perf_counter()
            copies.append(result.clone() if isinstance(result, torch.Tensor) else result)
            borders[Border("output", place)] = {"seconds": time.perf_counter() - start}
        seconds = self._seconds + sum(amounts["seconds"] for amounts in borders.values())
        self._tell(seconds, partial(self._read, self._spent, borders))
        return tuple(copies)

    def _read(self, spent: Any, borders: Spent = MappingProxyType({})) -> Spent:
        """What the operators of a delegate took. ``spent``: what a profiled call returned beside its outputs.

        ``borders``: what copying took, which is added to it. ``spent`` is a mapping, or a function that returns the
        mapping: reading times may be slow, and is done only here.
        Raises ContractViolation if the mapping is not what ``BackendRuntime.profile`` asks for.
        """
        if callable(spent):
            runtime = self._delegates.registry.runtime_for(self._module.backend_id)
            with AtWork(runtime, "profile", *self._module.place, self._delegates.registry):
                spent = spent()
        if not isinstance(spent, Mapping):
            raise self._wrong("profile", type(spent).__name__, _AMOUNTS)
        for identifier, amounts in spent.items():
            if not isinstance(amounts, Mapping) or not all(map(_is_amount, amounts.values())):
                raise self._wrong("profile", f"{amounts!r:.80} for {identifier!r}", _AMOUNTS)
        return {**spent, **borders}


_AMOUNTS = "amounts by name"


def _is_amount(number: Any) -> bool:
    return isinstance(number, (int, float)) and not isinstance(number, bool) and 0 <= number <= sys.float_info.max
