"""From MODEL on the command line to a program: a ``.pt2`` file, ``path.py[:function]``, or ``scheme:name``."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import logging
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from ..discovery.attribution import AtWork
from ..discovery.registry import Registry, default_registry
from ..errors import FormatError, InputError, UsageError
from ..plugin import ModelSpec
from ..source import Source
from .outcome import expect_file

_FORM = "a function without arguments that returns (module, args), (module, args, kwargs), an ExportedProgram or a dict"
_KEYS = ("model", "args", "kwargs", "dynamic_shapes", "methods", "transforms")
"""Keys of the dict that a model file may return; each dict in its ``methods`` may have the first four."""


@dataclass
class GivenModel:
    """What MODEL names, by method, as ``delegraph.lower`` takes it. ``inputs`` are None for a program that has none."""

    programs: dict[str, Any] = field(default_factory=dict)
    inputs: dict[str, tuple[Any, ...] | None] = field(default_factory=dict)
    kwargs: dict[str, dict[str, Any]] = field(default_factory=dict)
    dynamic_shapes: dict[str, Any] = field(default_factory=dict)
    transforms: tuple[Any, ...] = ()

    def add(self, method: str, program: Any, inputs: Any, kwargs: Any = None, dynamic_shapes: Any = None) -> None:
        """Add a method."""
        self.programs[method], self.inputs[method] = program, inputs
        self.kwargs[method], self.dynamic_shapes[method] = dict(kwargs or {}), dynamic_shapes

    def arguments(self) -> dict[str, Any]:
        """The arguments with which ``delegraph.lower`` and ``delegraph.compare`` lower this model."""
        of_methods = {
            "example_inputs": self.inputs,
            "example_kwargs": self.kwargs,
            "dynamic_shapes": self.dynamic_shapes,
        }
        return {"program": self.programs, **of_methods, "transforms": self.transforms}


def read_model(text: str) -> GivenModel:
    """Read a MODEL with everything that it gives. Raises InputError, FormatError or UsageError.

    A .py file is run for this.
    """
    found = _by_scheme(text)
    if found is not None:
        spec, name = found
        return from_elsewhere(spec, name, text, default_registry())
    path, function = _path_and_function(text)
    given = GivenModel()
    if path.suffix == ".pt2":
        _add_program(given, "forward", _load_exported(path))
        return given
    build = _find_function(_run_file(path), path, function)
    if not _can_be_called_without_arguments(build):
        raise UsageError("usage-invalid", f"{path}:{build.__name__} takes arguments; {_FORM} is wanted")
    return _model_returned(_guard(build, path), text)


def from_elsewhere(spec: ModelSpec, given: Any, text: str, registry: Registry) -> GivenModel:
    """The model that the plugin which declares ``spec`` makes of ``given``: a name behind its scheme, or an object.

    ``text`` names the model in errors.
    """
    read = registry.get(ModelSpec, spec.scheme)
    with AtWork(read, "reading of models", registry=registry):
        returned = read(given)
    return _model_returned(returned, text)


def _by_scheme(text: str) -> tuple[ModelSpec, str] | None:
    """``timm:efficientnet_b0`` -> the declaration of ``timm``, and the name; None if ``text`` is a file."""
    scheme, colon, name = text.partition(":")
    if not colon or "." in scheme or "/" in scheme or Path(text).exists():
        return None
    return default_registry().find(ModelSpec, scheme), name


def _model_returned(returned: Any, text: str) -> GivenModel:
    """The model that the function of a model file returned, in any of the forms that are allowed."""
    given = GivenModel()
    if isinstance(returned, Mapping):
        _expect_keys(text, returned, _KEYS)
        transforms = returned.get("transforms", ())
        if not isinstance(transforms, (tuple, list)):
            raise InputError("input-invalid", f"{text}: transforms is a list, not {_describe(transforms)}")
        given.transforms = tuple(transforms)
        methods = returned.get("methods", {"forward": returned})
        if not isinstance(methods, Mapping) or ("methods" in returned and "model" in returned):
            wanted = "either 'model' or 'methods', which maps names to dicts or to what one method alone would return"
            raise InputError("input-invalid", f"{text}: the dict has {wanted}; it is {_describe(returned)}")
    else:
        methods = {"forward": returned}
    for method, one in methods.items():
        _add_method(given, text, str(method), one)
    return given


def load_model(text: str) -> tuple[Any, tuple[Any, ...] | None, dict[str, Any]]:
    """The program of a MODEL with a single method, its example inputs (None if it has none) and keyword arguments.

    For commands that take nothing else; InputError for a MODEL that gives more. Raises what ``read_model`` does.
    """
    given = read_model(text)
    if list(given.programs) != ["forward"] or given.dynamic_shapes["forward"] or given.transforms:
        more = "methods, dynamic_shapes or transforms"
        raise InputError("input-invalid", f"{text} gives {more}; this command takes a model and its inputs only")
    return given.programs["forward"], given.inputs["forward"], given.kwargs["forward"]


def _add_method(given: GivenModel, text: str, method: str, one: Any) -> None:
    """Add one method, which a function returned in any of the allowed forms."""
    from torch.export import ExportedProgram

    if isinstance(one, ExportedProgram):
        _add_program(given, method, one)
        return
    if isinstance(one, Mapping):
        _expect_keys(text, one, _KEYS if method == "forward" else _KEYS[:4])
        if "model" not in one:
            raise InputError("input-invalid", f"{text} returned {_describe(one)}, which has no 'model'")
        one = (one["model"], one.get("args", ()), one.get("kwargs"), one.get("dynamic_shapes"))
        if isinstance(one[0], ExportedProgram) and not one[1]:
            _add_program(given, method, one[0])
            return
    elif not (isinstance(one, tuple) and (len(one) == 2 or (len(one) == 3 and isinstance(one[2], Mapping)))):
        raise InputError("input-invalid", f"{text} returned {_describe(one)}; a model file has {_FORM}")
    if not isinstance(one[1], (tuple, list)):
        raise InputError("input-invalid", f"{text}: example inputs are a tuple, not {_describe(one[1])}")
    given.add(method, one[0], tuple(one[1]), *one[2:])


def _add_program(given: GivenModel, method: str, program: Any) -> None:
    """Add a method that is an exported program, with its example inputs."""
    args, kwargs = program.example_inputs or (None, {})
    given.add(method, program, args, kwargs)


def _expect_keys(text: str, given: Mapping[Any, Any], known: Sequence[str]) -> None:
    """Raise InputError for keys of a dict that are not ``known``."""
    unknown = [key for key in given if key not in known]
    if unknown:
        names = ", ".join(map(repr, unknown))
        raise InputError("input-invalid", f"{text}: the dict has {names}; what it may have is {', '.join(known)}")


def _describe(value: Any) -> str:
    """A value that a function returned, in words: ``a tuple of 3 (Net, Tensor, dict)``, ``None``, ``an int``."""
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {len(value)} ({', '.join(type(v).__name__ for v in value)})"
    if isinstance(value, Mapping):
        return f"a dict with {', '.join(map(repr, value)) or 'nothing in it'}"
    if value is None:
        return "None"
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def check_model(text: str) -> Path | None:
    """The file of a MODEL; None if it comes from a plugin by its scheme. Raises UsageError, before anything is run."""
    return None if _by_scheme(text) is not None else _path_and_function(text)[0]


def _path_and_function(text: str) -> tuple[Path, str | None]:
    """``path.py:function`` -> path and function, which is None if it is not named. Raises UsageError."""
    head, colon, tail = text.rpartition(":")
    path, function = (Path(head), tail) if colon and head.endswith(".py") else (Path(text), None)
    if path.suffix not in (".py", ".pt2"):
        raise UsageError("usage-invalid", f"MODEL is a .pt2 file or path.py[:function], not {text!r}")
    expect_file(path)
    return path, function


_QUANTIZED = "torch.ao.quantization.fx._decomposed"


def _load_exported(path: Path) -> Any:
    """The program in a ``.pt2`` file. Raises FormatError."""
    import torch

    with _logged_errors("torch.export") as logged:
        try:
            return torch.export.load(path)
        except Exception as e:  # zip, JSON and torch raise all kinds of errors for a damaged file
            if _QUANTIZED not in sys.modules and any("quantized_decomposed" in said for said in (*logged, str(e))):
                importlib.import_module(_QUANTIZED)  # torch registers these operators when it is asked to quantize
                return _load_exported(path)
            why = [*logged, _in_short(e)][0]
            raise FormatError("format-invalid", f"{path} is not a program that this torch can load: {why}") from e


@contextmanager
def _logged_errors(name: str) -> Iterator[list[str]]:
    """A block in which exceptions that a logger gets are collected, in short, and not shown on the terminal.

    torch logs why it cannot read a file, then tries an older format, and raises only what is wrong with that one.
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
    """An exception in one line."""
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


def _run_file(path: Path) -> ModuleType:
    """Run the file as a module.

    Its folder is appended to the path, so that it finds its neighbours but shadows nothing.
    """
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
    """The function ``name``.

    Without a name ``model``, the one called like the file, or the only public one that fits.
    """
    functions = {n: f for n, f in vars(module).items() if inspect.isfunction(f) and f.__module__ == module.__name__}
    fitting = [n for n, f in functions.items() if not n.startswith("_") and _can_be_called_without_arguments(f)]
    wanted = [name] if name is not None else ["model", path.stem]
    chosen = next((n for n in wanted if n in functions), None)
    if chosen is None and name is None and len(fitting) == 1:
        chosen = fitting[0]
    if chosen is None:
        there = f"it has {', '.join(fitting)}" if fitting else "it has none"
        missing = f"no function {name!r}" if name else f"no function called model or {path.stem}"
        raise UsageError("usage-invalid", f"{path} has {missing}; {_FORM} is wanted ({there})", hint=f"{path}:FUNCTION")
    return functions[chosen]


def _can_be_called_without_arguments(function: Callable[..., Any]) -> bool:
    """Whether a function has no parameters that need an argument."""
    parameters = inspect.signature(function).parameters.values()
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return all(p.default is not p.empty or p.kind in variable for p in parameters)


def _guard(run: Callable[[], Any], path: Path) -> Any:
    """Call ``run``; errors of the user's code become InputErrors that point to the user's line."""
    try:
        return run()
    except KeyboardInterrupt:
        raise
    except BaseException as e:  # also SystemExit: a script that exits has given no model
        frames = [f for f in traceback.extract_tb(e.__traceback__) if Path(f.filename).resolve() == path.resolve()]
        last = frames[-1] if frames else None
        line = last and Source(last.filename, last.lineno or 0, last.name, last.line or "")
        raise InputError("input-invalid", f"{path} failed: {_in_short(e)}", source=line) from e
