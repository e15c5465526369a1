"""From MODEL on the command line to a program: a ``.pt2`` file, or ``path.py[:function]``."""

from __future__ import annotations

import importlib.util
import inspect
import logging
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from ..errors import FormatError, InputError, UsageError
from ..source import Source
from .outcome import expect_file

_FORM = "a function without arguments that returns (module, example_inputs)"


def load_model(text: str) -> tuple[Any, tuple[Any, ...] | None, dict[str, Any]]:
    """The program, its example inputs (None if a ``.pt2`` has none) and its example keyword arguments.

    Loading a path runs its code. Raises InputError, FormatError or UsageError.
    """
    path, function = _split(text)
    if path.suffix == ".pt2":
        return _load_exported(path)
    build = _find_function(_run_file(path), path, function)
    if not _needs_nothing(build):
        raise UsageError("usage-invalid", f"{path}:{build.__name__} takes arguments; {_FORM} is wanted")
    model = _guard(build, path)
    if not (isinstance(model, tuple) and len(model) == 2):
        raise InputError("input-invalid", f"{text} returned {type(model).__name__}; a model file has {_FORM}")
    program, inputs = model
    if not isinstance(inputs, (tuple, list)):
        raise InputError("input-invalid", f"{text}: example_inputs is a tuple, not {type(inputs).__name__}")
    return program, tuple(inputs), {}


def check_model(text: str) -> None:
    """Raise UsageError for what can be no MODEL, before anything of it runs."""
    _split(text)


def _split(text: str) -> tuple[Path, str | None]:
    """``path.py:function`` -> path and function. Raises UsageError."""
    head, colon, tail = text.rpartition(":")
    path, function = (Path(head), tail) if colon and head.endswith(".py") else (Path(text), None)
    if path.suffix not in (".py", ".pt2"):
        raise UsageError("usage-invalid", f"MODEL is a .pt2 file or path.py[:function], not {text!r}")
    expect_file(path)
    return path, function


def _load_exported(path: Path) -> tuple[Any, tuple[Any, ...] | None, dict[str, Any]]:
    import torch

    with _logged_errors("torch.export") as logged:
        try:
            program = torch.export.load(path)
        except Exception as e:  # whatever zip, JSON and torch raise for a damaged file
            why = [*logged, _in_short(e)][0]
            raise FormatError("format-invalid", f"{path} is not a program that this torch can load: {why}") from e
    args, kwargs = program.example_inputs or (None, {})
    return program, args, dict(kwargs or {})


@contextmanager
def _logged_errors(name: str) -> Iterator[list[str]]:
    """The exceptions that this logger is given, in short, instead of the terminal.

    torch logs why it cannot read a file, tries an older format, and raises only what is wrong with that.
    """
    errors: list[str] = []

    def keep(record: logging.LogRecord) -> bool:
        errors.extend(_in_short(e) for e in (record.exc_info or ())[1:2] if isinstance(e, BaseException))
        return False

    logger = logging.getLogger(name)
    logger.addFilter(keep)
    try:
        yield errors
    finally:
        logger.removeFilter(keep)


def _in_short(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


def _run_file(path: Path) -> ModuleType:
    """Run the file as a module. Its folder goes to the end of the path: it finds its neighbours and shadows nobody."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise InputError("input-invalid", f"{path} cannot be loaded as a Python file")
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.append(folder)
    module = importlib.util.module_from_spec(spec)
    _guard(lambda: spec.loader.exec_module(module), path)  # type: ignore[union-attr]
    return module


def _find_function(module: ModuleType, path: Path, name: str | None) -> Callable[[], Any]:
    """The function asked for; else ``model``, the one called like the file, or the only public one that fits."""
    functions = {n: f for n, f in vars(module).items() if inspect.isfunction(f) and f.__module__ == module.__name__}
    fitting = [n for n, f in functions.items() if not n.startswith("_") and _needs_nothing(f)]
    wanted = [name] if name is not None else ["model", path.stem]
    chosen = next((n for n in wanted if n in functions), None)
    if chosen is None and name is None and len(fitting) == 1:
        chosen = fitting[0]
    if chosen is None:
        there = f"it has {', '.join(fitting)}" if fitting else "it has none"
        missing = f"no function {name!r}" if name else f"no function called model or {path.stem}"
        raise UsageError("usage-invalid", f"{path} has {missing}; {_FORM} is wanted ({there})", hint=f"{path}:FUNCTION")
    return functions[chosen]


def _needs_nothing(function: Callable[..., Any]) -> bool:
    parameters = inspect.signature(function).parameters.values()
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return all(p.default is not p.empty or p.kind in variable for p in parameters)


def _guard(run: Callable[[], Any], path: Path) -> Any:
    """What the user's code raises, as an error that points to the user's line."""
    try:
        return run()
    except KeyboardInterrupt:
        raise
    except BaseException as e:  # SystemExit included: a script that exits has not given a model
        frames = [f for f in traceback.extract_tb(e.__traceback__) if Path(f.filename).resolve() == path.resolve()]
        last = frames[-1] if frames else None
        line = last and Source(last.filename, last.lineno or 0, last.name, last.line or "")
        raise InputError("input-invalid", f"{path} failed: {_in_short(e)}", source=line) from e
