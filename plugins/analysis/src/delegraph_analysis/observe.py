"""Follows delegates for an observer: their runtimes tell the values inside of them or,
for a ``Timer``, times.
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
TellTimes = Callable[[float, Callable[[], Spent]], None]
"""Called after each call of a delegate: with its seconds, and a function that returns
the times of its operators.
"""

_OBSERVED: WeakKeyDictionary[
    LoweredBackendModule, dict[type[BackendRuntime], Callable[..., Any]]
]
_OBSERVED = WeakKeyDictionary()
"""Results of ``observe``, which is slow, for all observed runs of a program."""


def hooks_of(
    observer: Observer, delegates: Iterable[DelegateInfo]
) -> Callable[[LoweredBackendModule], ObservedDelegate | TimedDelegate]:
    """Return a function from the module of one of ``delegates`` to its hook for the
    executor.

    An observer with a method ``spent`` is a ``Timer``: it gets times in place of
    values.
    """
    infos = {info.module: info for info in delegates}

    def hook_of(module: LoweredBackendModule) -> ObservedDelegate | TimedDelegate:
        info = infos[module]
        if spent := getattr(observer, "spent", None):
            return TimedDelegate(module.backend_id, partial(spent, info))
        return ObservedDelegate(module, partial(observer.inside, info))

    return hook_of


class ObservedDelegate:
    """The hook of a delegate that passes the values inside of it to ``tell``, if its
    runtime can return them.
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
        """Return the result of ``runtime.observe(*parts)``, which is kept for later
        runs.

        A delegate with state must not be reused. A runtime that is not thread-safe
        makes a new one for each run: otherwise, a call of one run might overwrite the
        values that another still reads.
        """
        if self._module.state or not runtime.thread_safe:
            return runtime.observe(*parts)
        kept = _OBSERVED.setdefault(self._module, {})
        if runtime not in kept:
            kept[runtime] = runtime.observe(*parts)
        return kept[runtime]

    def wrap(self, run: Callable[..., Any], attribute: Attribute) -> Delegate:
        """Return a function that returns the outputs of ``run`` only, and passes the
        inner values to ``tell``.

        It is ``run`` itself if the runtime has no ``observe``: its calls return the
        outputs only.
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
        """Return ``returned``, if it is a pair of outputs and inner values as
        ``BackendRuntime.observe`` asks for.

        Raises ContractViolation otherwise, also for a tensor in place of a list of
        tensors: it would be taken for a list of its rows.
        """
        backend_id = self._module.backend_id
        if not (
            isinstance(returned, tuple)
            and len(returned) == 2
            and isinstance(returned[1], Mapping)
        ):
            raise _wrong(backend_id, "observe", type(returned).__name__, _VALUES)
        for identifier, values in returned[1].items():
            if not isinstance(values, (tuple, list)):
                raise _wrong(
                    backend_id,
                    "observe",
                    f"{type(values).__name__} for {identifier!r}",
                    _VALUES,
                )
        return returned


class TimedDelegate:
    """The hook of a delegate that tells how long calls take, and its operators, if its
    runtime has ``profile``.
    """

    def __init__(self, backend_id: str, tell: TellTimes) -> None:
        self._backend_id = backend_id
        self._tell = tell
        # both are set when the runtime loads
        self._profiles = False
        # whether results are copied, as the runtime is not thread-safe
        self._copies = False
        # of the last call, until its results are copied
        self._seconds = 0.0
        self._read: Callable[..., Spent] = dict

    def loader(self, runtime: type[BackendRuntime]) -> Callable[..., Any]:
        """Return the runtime's ``profile`` in place of its ``load``, if it defines
        ``profile``.
        """
        self._profiles = runtime.profile is not BackendRuntime.profile
        self._copies = not runtime.thread_safe
        return runtime.profile if self._profiles else runtime.load

    def wrap(self, run: Callable[..., Any], attribute: Attribute) -> Delegate:
        """Return a function that returns the outputs of ``run`` only, and passes the
        times to ``tell``.
        """

        def call(*args: Any) -> tuple[Any, ...]:
            start = time.perf_counter()
            returned = run(*args)
            seconds = time.perf_counter() - start
            spent: Any = {}  # nothing is known of its operators
            if self._profiles:
                if not (isinstance(returned, tuple) and len(returned) == 2):
                    raise _wrong(
                        self._backend_id, "profile", type(returned).__name__, _AMOUNTS
                    )
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
        """Copy the results.

        Copying belongs to the call; the time of each copy goes to its ``Border``.
        """
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

        ``spent`` is the result of a profiled call besides its outputs: a mapping, or a
        function that returns it, since reading times may be slow. The times of copying,
        ``borders``, are added. Raises ContractViolation if the mapping breaks the
        contract of ``BackendRuntime.profile``.
        """
        if callable(spent):
            spent = attribute("profile", spent)()
        if not isinstance(spent, Mapping):
            raise _wrong(self._backend_id, "profile", type(spent).__name__, _AMOUNTS)
        for identifier, amounts in spent.items():
            if not isinstance(amounts, Mapping) or not all(
                _is_interval_list(amount) if name == "intervals" else _is_amount(amount)
                for name, amount in amounts.items()
            ):
                raise _wrong(
                    self._backend_id,
                    "profile",
                    f"{amounts!r:.80} for {identifier!r}",
                    _AMOUNTS,
                )
        return {**spent, **borders}


_VALUES = "lists of tensors"
_AMOUNTS = "amounts by name"


def _wrong(
    backend_id: str, method: str, returned: str, wanted: str
) -> ContractViolation:
    """Return the error for a delegate, made by ``method``, with a wrong result.

    ``wanted`` describes the value of each debug identifier.
    """
    text = (
        f"{method} of the runtime of {backend_id} makes a delegate that returned"
        f" {returned}; it"
    )
    text += (
        " returns its outputs, and a mapping from delegate debug identifiers to"
        f" {wanted}"
    )
    return ContractViolation("contract-violation", text)


def _copy(result: Any) -> Any:
    return result.clone() if isinstance(result, torch.Tensor) else result


def _is_amount(number: Any) -> bool:
    return (
        isinstance(number, (int, float))
        and not isinstance(number, bool)
        and 0 <= number <= sys.float_info.max
    )


def _is_interval_list(given: Any) -> bool:
    return isinstance(given, (list, tuple)) and all(
        isinstance(pair, (list, tuple))
        and len(pair) == 2
        and all(map(_is_amount, pair))
        and pair[0] <= pair[1]
        for pair in given
    )
