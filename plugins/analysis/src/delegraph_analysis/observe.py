"""Make the hooks by which an observer gets values or times from inside delegates.

A hook is an object that loads one delegate for an executor. It loads the delegate by
the runtime's ``observe`` or ``profile`` instead of ``load``. Calls of the delegate then
also return inner values or times, which the hook passes to the observer.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from delegraph.delegates import DelegateInfo, LoweredBackendModule
from delegraph.errors import ContractViolation
from delegraph.runtime import BackendRuntime, Border, Delegate, Inside, Observer, Spent

Attribute = Callable[[str, Callable[..., Any]], Callable[..., Any]]
"""Takes the plugin's task, such as "profile", and a function of the plugin.

Returns the function with errors that name the plugin and the task.
"""
TellTimes = Callable[[float, Callable[[], Spent]], None]
"""Called after each call of a delegate: with its seconds, and a function that returns
the times of its operators.
"""

_OBSERVED: WeakKeyDictionary[
    LoweredBackendModule, dict[type[BackendRuntime], Callable[..., Any]]
]
_OBSERVED = WeakKeyDictionary()
"""Module -> runtime -> result of ``observe``, which is slow, for later observed runs."""


def hooks_of(
    observer: Observer, delegates: Iterable[DelegateInfo]
) -> Callable[[LoweredBackendModule], ObservedDelegate | TimedDelegate]:
    """Return a function that makes the hook for a delegate's module.

    An observer with a method ``spent`` is a ``Timer``: it gets times instead of values.
    """
    infos = {info.module: info for info in delegates}

    def hook_of(module: LoweredBackendModule) -> ObservedDelegate | TimedDelegate:
        info = infos[module]
        spent = getattr(observer, "spent", None)
        if spent is not None:
            return TimedDelegate(module.backend_id, partial(spent, info))
        return ObservedDelegate(module, partial(observer.inside, info))

    return hook_of


class ObservedDelegate:
    """The hook of a delegate that passes its inner values to ``tell``.

    If its runtime has no ``observe``, ``tell`` is not called.
    """

    def __init__(
        self, module: LoweredBackendModule, tell: Callable[[Inside], None]
    ) -> None:
        self._module = module
        self._tell = tell
        self._observes = False  # whether the runtime has ``observe``; set when it loads

    def loader(self, runtime: type[BackendRuntime]) -> Callable[..., Any]:
        """Return the runtime's ``observe`` in place of its ``load``, if it has one."""
        self._observes = runtime.observes()
        return partial(self._observe, runtime) if self._observes else runtime.load

    def _observe(
        self, runtime: type[BackendRuntime], *parts: Any
    ) -> Callable[..., Any]:
        """Return the result of ``runtime.observe(*parts)``; keep it for later runs.

        A delegate with state is not kept: each run starts from the initial state. One of
        a runtime that is not thread-safe is not kept either: a call of one run might
        overwrite values that another run still reads.
        """
        if self._module.state or not runtime.thread_safe:
            return runtime.observe(*parts)
        kept = _OBSERVED.setdefault(self._module, {})
        if runtime not in kept:
            kept[runtime] = runtime.observe(*parts)
        return kept[runtime]

    def wrap(self, run: Callable[..., Any], attribute: Attribute) -> Delegate:
        """Return a function that calls ``run``, passes the inner values to ``tell``, and
        returns only the outputs.

        Without ``observe``, ``run`` returns only the outputs: then it is the result.
        """
        if not self._observes:
            return run

        def call(*args: Any) -> tuple[Any, ...]:
            outputs, inside = self._checked(run(*args))
            self._tell(inside)
            return outputs

        return call

    def copy(self, results: tuple[Any, ...]) -> tuple[Any, ...]:
        """Copy results that the next call of the runtime may overwrite."""
        return tuple(map(_copy, results))

    def _checked(self, returned: Any) -> tuple[tuple[Any, ...], Inside]:
        """Return ``returned`` if it is a pair of outputs and inner values.

        Raises ContractViolation if it breaks the contract of ``BackendRuntime.observe``.
        A tensor in place of a list of tensors would be taken for a list of its rows.
        """
        backend_id = self._module.backend_id
        if not (
            isinstance(returned, tuple)
            and len(returned) == 2
            and isinstance(returned[1], Mapping)
        ):
            raise _wrong_result(backend_id, "observe", type(returned).__name__, _VALUES)
        for identifier, values in returned[1].items():
            if not isinstance(values, (tuple, list)):
                found = f"{type(values).__name__} for {identifier!r}"
                raise _wrong_result(backend_id, "observe", found, _VALUES)
        return returned


class TimedDelegate:
    """The hook of a delegate that passes the times of its calls to ``tell``.

    If its runtime has ``profile``, these include the times of its operators. If the
    runtime is not thread-safe, the executor copies the results of each call by ``copy``.
    That time belongs to the call, so ``copy`` calls ``tell`` then.
    """

    def __init__(self, backend_id: str, tell: TellTimes) -> None:
        self._backend_id = backend_id
        self._tell = tell
        # whether the runtime has ``profile``, and whether its results are copied; both
        # are set when it loads
        self._profiles = False
        self._copies = False
        # the times of a call, until its results are copied
        self._seconds = 0.0
        # returns the times of operators after a call: none without ``profile``
        self._read: Callable[..., Spent] = dict

    def loader(self, runtime: type[BackendRuntime]) -> Callable[..., Any]:
        """Return the runtime's ``profile`` in place of its ``load``, if it defines
        ``profile``.
        """
        self._profiles = runtime.profile is not BackendRuntime.profile
        self._copies = not runtime.thread_safe
        return runtime.profile if self._profiles else runtime.load

    def wrap(self, run: Callable[..., Any], attribute: Attribute) -> Delegate:
        """Return a function that calls ``run``, passes the times to ``tell``, and returns
        only the outputs.
        """

        def call(*args: Any) -> tuple[Any, ...]:
            start = time.perf_counter()
            returned = run(*args)
            seconds = time.perf_counter() - start
            spent: Any = {}  # without ``profile``, the times of operators are unknown
            if self._profiles:
                if not (isinstance(returned, tuple) and len(returned) == 2):
                    found = type(returned).__name__
                    raise _wrong_result(self._backend_id, "profile", found, _AMOUNTS)
                returned, spent = returned
            read = partial(self._checked, spent, attribute)
            if self._copies:
                self._seconds = seconds
                self._read = read
            else:
                self._tell(seconds, read)
            return returned  # type: ignore[no-any-return]  # checked with the other results

        return call

    def copy(self, results: tuple[Any, ...]) -> tuple[Any, ...]:
        """Copy the results; add the time of each copy to the call, as a ``Border``."""
        copies = []
        borders: dict[Any, dict[str, Any]] = {}
        for place, result in enumerate(results):
            start = time.perf_counter()
            copies.append(_copy(result))
            end = time.perf_counter()
            borders[Border("output", place)] = {
                "seconds": end - start,
                "intervals": [(start, end)],
            }
        seconds = self._seconds + sum(
            amounts["seconds"] for amounts in borders.values()
        )
        self._tell(seconds, partial(self._read, borders=borders))
        return tuple(copies)

    def _checked(
        self, spent: Any, attribute: Attribute, borders: Spent = MappingProxyType({})
    ) -> Spent:
        """Return the times of the operators of a delegate.

        ``spent`` is the second result of a profiled call: a mapping, or a function that
        returns it, since reading times may be slow. ``borders``: the times of copying
        results, which are added. Raises ContractViolation if the mapping breaks the
        contract of ``BackendRuntime.profile``.
        """
        if callable(spent):
            spent = attribute("profile", spent)()
        if not isinstance(spent, Mapping):
            found = type(spent).__name__
            raise _wrong_result(self._backend_id, "profile", found, _AMOUNTS)
        for identifier, amounts in spent.items():
            if not _are_amounts(amounts):
                found = f"{amounts!r:.80} for {identifier!r}"
                raise _wrong_result(self._backend_id, "profile", found, _AMOUNTS)
        return {**spent, **borders}


_VALUES = "lists of tensors"
_AMOUNTS = "amounts by name"


def _wrong_result(
    backend_id: str, method: str, returned: str, wanted: str
) -> ContractViolation:
    """Return the error for a delegate, made by ``method``, with a wrong result.

    ``wanted`` describes the value of each debug identifier.
    """
    text = (
        f"{method} of the runtime of {backend_id} makes a delegate that returned"
        f" {returned}; it returns its outputs, and a mapping from delegate debug"
        f" identifiers to {wanted}"
    )
    return ContractViolation("contract-violation", text)


def _copy(result: Any) -> Any:
    return result.clone() if isinstance(result, torch.Tensor) else result


def _are_amounts(amounts: Any) -> bool:
    """Return whether a value is a mapping of amounts, and maybe ``intervals``."""
    if not isinstance(amounts, Mapping):
        return False
    for name, amount in amounts.items():
        check = _is_interval_list if name == "intervals" else _is_amount
        if not check(amount):
            return False
    return True


def _is_amount(number: Any) -> bool:
    """Return whether a value is a finite number from 0 on."""
    return (
        isinstance(number, (int, float))
        and not isinstance(number, bool)
        and 0 <= number <= sys.float_info.max
    )


def _is_interval_list(given: Any) -> bool:
    """Return whether a value is a list of pairs (start, end)."""
    if not isinstance(given, (list, tuple)):
        return False
    for pair in given:
        if not isinstance(pair, (list, tuple)) or len(pair) != 2:
            return False
        if not all(map(_is_amount, pair)) or pair[0] > pair[1]:
            return False
    return True
