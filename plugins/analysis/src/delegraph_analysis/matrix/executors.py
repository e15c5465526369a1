"""Make executors by name: threads of this process, Dask, submitit, or a user's own.

A user's own has the methods of ``concurrent.futures.Executor``. A job of an executor
starts a process for its cell, and waits for it.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from delegraph.errors import DelegraphError, OptionError, PluginUnavailable

from .forking import close_all

FORMS = (
    "serial, process:N, dask:ADDRESS, slurm[:KEY=VALUE,...], submitit:local, or"
    " module:function"
)


@dataclass
class Engine:
    """An executor. ``most``: the most jobs that it gets at a time; None: all."""

    executor: Any
    most: int | None = None


@contextlib.contextmanager
def engine_of(text: str, store: Path, time_limit: float) -> Iterator[Engine]:
    """Yield the executor that ``text`` names, and stop its processes after the block.

    Raises OptionError for an unknown name, PluginUnavailable for a missing package.
    """
    kind, _, rest = text.partition(":")
    with contextlib.ExitStack() as stack:
        stack.callback(close_all)
        if kind in _KINDS:
            yield _KINDS[kind](rest, stack, store, time_limit)
        else:
            yield Engine(_named(text))


def _threads(count: int, stack: contextlib.ExitStack) -> Engine:
    pool = ThreadPoolExecutor(count, thread_name_prefix="cells")
    stack.callback(pool.shutdown, wait=False, cancel_futures=True)
    return Engine(pool)


def _serial(
    rest: str, stack: contextlib.ExitStack, store: Path, time_limit: float
) -> Engine:
    if rest:
        raise OptionError(
            "option-invalid", f"the executor serial has no parameters, but got {rest!r}"
        )
    return _threads(1, stack)


def _process(
    rest: str, stack: contextlib.ExitStack, store: Path, time_limit: float
) -> Engine:
    return _threads(_count(rest, "process"), stack)


def _dask(
    rest: str, stack: contextlib.ExitStack, store: Path, time_limit: float
) -> Engine:
    distributed = _import("distributed")
    if not rest:
        raise OptionError(
            "option-invalid",
            "the executor dask needs the address of a scheduler: dask:tcp://HOST:PORT",
        )
    try:
        client = stack.enter_context(distributed.Client(rest))
    except (OSError, ValueError, TimeoutError) as e:
        raise OptionError(
            "option-invalid", f"no Dask scheduler answers at {rest}: {e}"
        ) from e
    return Engine(client.get_executor())


def _slurm(
    rest: str, stack: contextlib.ExitStack, store: Path, time_limit: float
) -> Engine:
    return _submitit("slurm", _parameters(rest), store, time_limit)


def _submitit_named(
    rest: str, stack: contextlib.ExitStack, store: Path, time_limit: float
) -> Engine:
    cluster, _, more = rest.partition(":")
    return _submitit(cluster or "local", _parameters(more), store, time_limit)


def _submitit(
    cluster: str, parameters: Mapping[str, Any], store: Path, time_limit: float
) -> Engine:
    """Return an executor of submitit; its own files are in the store.

    ``jobs=N`` of the parameters limits the jobs in the queue.
    """
    submitit = _import("submitit")
    given = {"timeout_min": math.ceil(time_limit / 60) + 10, **parameters}
    # the local cluster would start all jobs at once
    most = given.pop("jobs", (os.cpu_count() or 1) if cluster == "local" else None)
    try:
        executor = submitit.AutoExecutor(folder=store / "jobs", cluster=cluster)
        executor.update_parameters(**given)
    except (RuntimeError, ValueError, NameError, TypeError) as e:
        raise OptionError(
            "option-invalid", f"submitit has no executor {cluster} with {given}: {e}"
        ) from e
    return Engine(executor, most=most)


_KINDS: Mapping[str, Callable[[str, contextlib.ExitStack, Path, float], Engine]] = {
    "serial": _serial,
    "process": _process,
    "dask": _dask,
    "slurm": _slurm,
    "submitit": _submitit_named,
}


def _parameters(text: str) -> dict[str, Any]:
    """Return ``partition=cpu,mem_gb=16`` as a dictionary; numbers become ints."""
    found: dict[str, Any] = {}
    for part in filter(None, text.split(",")):
        name, equals, value = part.partition("=")
        if not equals:
            raise OptionError(
                "option-invalid",
                f"parameter {part!r} of the executor has no value: write KEY=VALUE",
            )
        found[name] = int(value) if value.isdecimal() else value
    return found


def _count(text: str, kind: str) -> int:
    """Return the number of processes in a text; "" is one for each processor."""
    if not text:
        return os.cpu_count() or 1
    if not text.isdecimal() or not int(text):
        raise OptionError(
            "option-invalid", f"N in {kind}:N must be 1 or more, not {text!r}"
        )
    return int(text)


def _import(package: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError as e:
        text = f"this executor needs {package}, which cannot be imported: {e}"
        raise PluginUnavailable(
            "plugin-unavailable", text, hint=f"pip install {package}"
        ) from e


def _named(text: str) -> Any:
    """Return the executor that ``module:function`` makes."""
    module, colon, function = text.partition(":")
    is_module = module.replace(".", "").isidentifier()
    if not colon or not is_module or not function.isidentifier():
        raise OptionError(
            "option-invalid", f"there is no executor {text!r}", hint=f"choose {FORMS}"
        )
    try:
        executor = getattr(importlib.import_module(module), function)()
    except DelegraphError:
        raise
    except Exception as e:  # a user's function may raise any error
        raise OptionError(
            "option-invalid",
            f"{text} raised {type(e).__name__} in place of an executor: {e}",
        ) from e
    if not callable(getattr(executor, "submit", None)):
        raise OptionError(
            "option-invalid",
            f"{text} returned {executor!r:.80}, which has no method submit",
        )
    return executor
