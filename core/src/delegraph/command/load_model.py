"""Loads a MODEL of the command line: a ``.pt2`` file,
``path.py[:function][@weights]``, or ``scheme:name``.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import logging
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from delegraph_programs import Source, load_weights

from ..discovery.plugin_call import PluginCall
from ..discovery.registry import Registry, default_registry
from ..errors import FormatError, InputError, UsageError
from ..plugin import ModelSpec
from .outcome import expect_file, working_directory_kept

_FORM = (
    "a function without arguments that returns (module, args), (module, args, kwargs),"
    " an ExportedProgram or a dict"
)
_METHOD_KEYS = ("model", "args", "kwargs", "dynamic_shapes")
"""Keys of the dict for one method."""
_FILE_KEYS = (*_METHOD_KEYS, "methods", "transforms")
"""Keys of the dict that a model file may return: those of the only method, or
``methods``.
"""


@dataclass
class GivenModel:
    """A loaded model: the arguments of ``delegraph.lower``, as mappings from the name of
    each method.

    ``programs``: modules or ExportedPrograms. ``inputs``: example inputs; None for an
    ExportedProgram without any.
    """

    programs: dict[str, Any] = field(default_factory=dict)
    inputs: dict[str, tuple[Any, ...] | None] = field(default_factory=dict)
    kwargs: dict[str, dict[str, Any]] = field(default_factory=dict)
    dynamic_shapes: dict[str, Any] = field(default_factory=dict)
    transforms: tuple[Any, ...] = ()

    def add(
        self,
        method: str,
        program: Any,
        inputs: Any,
        kwargs: Any = None,
        dynamic_shapes: Any = None,
    ) -> None:
        """Add a method. ``inputs`` and ``kwargs``: its example arguments and example
        keyword arguments.
        """
        self.programs[method] = program
        self.inputs[method] = inputs
        self.kwargs[method] = dict(kwargs or {})
        self.dynamic_shapes[method] = dynamic_shapes

    def arguments(self) -> dict[str, Any]:
        """Return keyword arguments for ``delegraph.lower`` and ``delegraph.compare``."""
        return {
            "program": self.programs,
            "example_inputs": self.inputs,
            "example_kwargs": self.kwargs,
            "dynamic_shapes": self.dynamic_shapes,
            "transforms": self.transforms,
        }


def read_model(text: str) -> GivenModel:
    """Load the MODEL ``text``. For a .py file, this runs the file and calls the
    function.

    Raises UsageError if there is no such file, function or scheme, FormatError for a
    damaged ``.pt2`` file, InputError if the file's code fails or does not return a
    model, or if ``weights`` are not those of the model. For ``scheme:name`` also raises
    the errors of ``read_by_plugin``.
    """
    declared = _by_scheme(text)
    if declared is not None:
        spec, name = declared
        return read_by_plugin(spec, name, text, default_registry())
    path, function, weights = _split(text)
    if path.suffix == ".pt2":
        return _model_returned(_load_exported(path), text)
    build = _find_function(_run_file(path), path, function)
    if not _can_be_called_without_arguments(build):
        raise UsageError(
            "usage-invalid",
            f"{path}:{build.__name__} takes arguments; {_FORM} is wanted",
        )
    model = _model_returned(_run_user_code(build, path), text)
    if weights:
        load_weights(model.programs.values(), weights)
    return model


def read_object(text: str) -> Any:
    """Return the object of ``path.py:NAME``, such as a function. This runs the file.

    Raises UsageError if there is no such file or object, InputError if the file's code
    fails.
    """
    head, _, name = text.rpartition(":")
    if not head.endswith(".py"):
        raise UsageError("usage-invalid", f"path.py:NAME is wanted, not {text!r}")
    path = Path(head)
    expect_file(path)
    found = vars(_run_file(path))
    if name not in found:
        raise UsageError("usage-invalid", f"{path} has no {name!r}")
    return found[name]


def read_by_plugin(
    spec: ModelSpec, given: Any, text: str, registry: Registry
) -> GivenModel:
    """Return the model that the plugin with the declaration ``spec`` reads.

    ``given``: the name after the scheme, or an object of one of ``spec.types``.
    ``text`` names the model in errors. Raises the errors of the plugin, and InputError if
    it does not return a model.
    """
    read = registry.get(ModelSpec, spec.scheme)
    with PluginCall(read, "reading of models", registry=registry):
        returned = read(given)
    return _model_returned(returned, text)


def _by_scheme(text: str) -> tuple[ModelSpec, str] | None:
    """Return the declaration of the scheme in ``scheme:name``, and the name; None if
    ``text`` means a file.

    ``text`` means a file in three cases: a file of this name exists; ``text`` has no
    colon; it has a ``.`` or ``/`` before the first colon. Raises UsageError if no plugin
    declares the scheme, and other errors of ``Registry.find``.
    """
    scheme, colon, name = text.partition(":")
    if not colon or "." in scheme or "/" in scheme or Path(text).exists():
        return None
    return default_registry().find(ModelSpec, scheme), name


def _model_returned(returned: Any, text: str) -> GivenModel:
    """Return the model for ``returned``, which a model file or a plugin returned.

    Three forms are accepted: an ExportedProgram; a tuple of a module and its example
    inputs; a dict. In a dict, ``methods`` has several methods by name, and
    ``transforms`` applies to all of them. A dict with ``model``, and the other two forms,
    have the method ``forward`` alone. ``text`` names the model in errors. Raises
    InputError for any other form.
    """
    described = _as_dict(returned, text)
    _expect_keys(text, described, _FILE_KEYS)
    transforms = described.get("transforms", ())
    if not isinstance(transforms, (tuple, list)):
        raise _wrong(f"{text}: transforms is a list, not {_describe(transforms)}")
    model = GivenModel(transforms=tuple(transforms))
    if "methods" not in described:
        _add_method(model, text, "forward", described)
        return model
    methods = described["methods"]
    if not isinstance(methods, Mapping) or "model" in described:
        form = (
            "either 'model', or 'methods', which maps each name to the form of one"
            " method"
        )
        raise _wrong(f"{text}: the dict has {form}; it is {_describe(described)}")
    for name, method in methods.items():
        fields = _as_dict(method, text)
        _expect_keys(text, fields, _METHOD_KEYS)
        _add_method(model, text, str(name), fields)
    return model


def _as_dict(described: Any, text: str) -> Mapping[str, Any]:
    """Return a method, or a whole model, in the form of a dict. ``text`` names the model
    in errors.

    A dict stays as it is. A tuple becomes a dict with ``model``, ``args`` and, if it has
    three items, ``kwargs``. An ExportedProgram becomes a dict with ``model`` alone.
    Raises InputError for any other form.
    """
    from torch.export import ExportedProgram

    if isinstance(described, Mapping):
        return described
    if isinstance(described, ExportedProgram):
        return {"model": described}
    fits = isinstance(described, tuple) and len(described) in (2, 3)
    if fits and len(described) == 3:
        fits = isinstance(described[2], Mapping)  # the keyword arguments
    if not fits:
        raise _wrong(
            f"{text} returned {_describe(described)}; a model file has {_FORM}"
        )
    # not strict: the tuple has the values of the first two or three keys
    return dict(zip(_METHOD_KEYS, described, strict=False))


def _add_method(
    model: GivenModel, text: str, method: str, fields: Mapping[str, Any]
) -> None:
    """Add a method, which ``fields`` describe, to ``model``. ``text`` names the model in
    errors.

    If ``fields`` have an ExportedProgram and no ``args``, the example inputs are those
    that the program stores. Raises InputError if ``fields`` lack a model, or if the
    example inputs are no tuple or list.
    """
    from torch.export import ExportedProgram

    if "model" not in fields:
        raise _wrong(f"{text} returned {_describe(fields)}, which has no 'model'")
    program = fields["model"]
    args = fields.get("args", ())
    if isinstance(program, ExportedProgram) and not args:
        # ``example_inputs`` is None if the program stores none
        args, kwargs = program.example_inputs or (None, {})
        model.add(method, program, args, kwargs)
        return
    if not isinstance(args, (tuple, list)):
        raise _wrong(f"{text}: example inputs are a tuple, not {_describe(args)}")
    shapes = fields.get("dynamic_shapes")
    model.add(method, program, tuple(args), fields.get("kwargs"), shapes)


def _expect_keys(text: str, given: Mapping[Any, Any], known: Sequence[str]) -> None:
    """Raise InputError if the dict ``given`` has keys that are not in ``known``;
    ``text`` names the model.
    """
    unknown = [key for key in given if key not in known]
    if unknown:
        names = ", ".join(map(repr, unknown))
        raise _wrong(
            f"{text}: the dict has {names}; its keys can be {', '.join(known)}"
        )


def _wrong(text: str) -> InputError:
    """Return the error for a model file that returned a wrong value."""
    return InputError("input-invalid", text)


def _describe(value: Any) -> str:
    """Return the kind of a value in words, for errors: ``a tuple of 3 (Net, Tensor,
    dict)``, ``None``, ``an int``.
    """
    if isinstance(value, (tuple, list)):
        return (
            f"a {type(value).__name__} of {len(value)}"
            f" ({', '.join(type(v).__name__ for v in value)})"
        )
    if isinstance(value, Mapping):
        return f"a dict with {', '.join(map(repr, value)) or 'nothing in it'}"
    if value is None:
        return "None"
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def check_model(text: str) -> Path | None:
    """Return the file of a MODEL, without loading the model; None for ``scheme:name``.
    Raises UsageError if the file or the scheme does not exist.
    """
    return None if _by_scheme(text) is not None else _split(text).path


_MODEL = re.compile(r"(.+?\.(?:py|pt2))(?::([^@]*))?(?:@(.+))?", re.DOTALL)


class _ModelFile(NamedTuple):
    """The parts of a MODEL ``path.py[:function][@weights]`` or ``path.pt2``; None for a
    missing part.
    """

    path: Path
    function: str | None
    weights: str | None


def _split(text: str) -> _ModelFile:
    """Return the parts of a MODEL that is a file. Raises UsageError for another suffix,
    or if the file cannot be read.
    """
    match = _MODEL.fullmatch(text)
    if not match:
        raise UsageError(
            "usage-invalid",
            f"MODEL is a .pt2 file or path.py[:function][@weights], not {text!r}",
        )
    name, function, weights = match.groups()
    path = Path(name)
    expect_file(path)
    return _ModelFile(path, function, weights)


_QUANTIZED = "torch.ao.quantization.fx._decomposed"


def _load_exported(path: Path) -> Any:
    """Return the ExportedProgram in a ``.pt2`` file. Raises FormatError if torch cannot
    load it.

    If torch does not know the operators of a quantized program, the module that
    registers them is imported, and the file is loaded once more.
    """
    import torch

    with _logged_errors("torch.export") as logged:
        try:
            return torch.export.load(path)
        except Exception as e:
            # zip, JSON and torch raise all kinds of errors for a damaged file
            if _QUANTIZED not in sys.modules and any(
                "quantized_decomposed" in text for text in (*logged, str(e))
            ):
                importlib.import_module(_QUANTIZED)
                return _load_exported(path)
            # torch tries the present format first, then older ones, and raises the last
            # error; the first error, which torch logs, explains the failure
            why = logged[0] if logged else _in_short(e)
            raise FormatError(
                "format-invalid",
                f"{path} is not a program that this torch can load: {why}",
            ) from e


@contextmanager
def _logged_errors(name: str) -> Iterator[list[str]]:
    """A block in which messages of the logger ``name`` are not shown. The block's value
    is a list that collects their exceptions as one-line texts.

    If torch cannot read a file, it logs the error and tries an older format. It raises
    only the error of the older format.
    """
    errors: list[str] = []

    def keep(record: logging.LogRecord) -> bool:
        """Add the exception of a message to ``errors``. Returns False, so the logger does
        not show the message.
        """
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            errors.append(_in_short(error))
        return False

    logger = logging.getLogger(name)
    logger.addFilter(keep)
    try:
        yield errors
    finally:
        logger.removeFilter(keep)


def _in_short(error: BaseException) -> str:
    """Return ``type: first line of the message`` of an exception."""
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


def _run_file(path: Path) -> ModuleType:
    """Run the file as a module and return the module. Raises InputError if the file's
    code fails.

    The file's folder is appended to ``sys.path``, so that the file can import other
    modules in that folder. As the folder comes last, these modules do not shadow
    installed ones.
    """
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise InputError(
            "input-invalid",
            f"{path} cannot be loaded as a Python file: its name does not end in .py",
        )
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.append(folder)
    module = importlib.util.module_from_spec(spec)
    _run_user_code(lambda: spec.loader.exec_module(module), path)  # type: ignore[union-attr]
    return module


def _find_function(
    module: ModuleType, path: Path, name: str | None
) -> Callable[[], Any]:
    """Return the function ``name`` of a model file. Raises UsageError if the file has
    no such function.

    If ``name`` is None, return the first of these that exists: the function ``model``;
    the function named like the file; the only public function that can be called
    without arguments.
    """
    # the functions that the file defines; ``__module__`` excludes those that it imports
    functions = {
        n: f
        for n, f in vars(module).items()
        if inspect.isfunction(f) and f.__module__ == module.__name__
    }
    # names of public functions that can be called without arguments
    fitting = [
        n
        for n, f in functions.items()
        if not n.startswith("_") and _can_be_called_without_arguments(f)
    ]
    only = fitting if len(fitting) == 1 else []
    candidates = ["model", path.stem, *only] if name is None else [name]
    for candidate in candidates:
        if candidate in functions:
            return functions[candidate]
    known = ", ".join(fitting) or "none"
    raise UsageError(
        "usage-invalid",
        f"{path} has no function {' or '.join(map(repr, candidates))}; {_FORM} is"
        f" wanted (it has {known})",
        hint=f"{path}:FUNCTION",
    )


def _can_be_called_without_arguments(function: Callable[..., Any]) -> bool:
    """Return whether each parameter of a function is variadic or has a default."""
    try:
        inspect.signature(function).bind()
    except TypeError:
        return False
    return True


def _run_user_code(run: Callable[[], Any], path: Path) -> Any:
    """Call ``run``, which executes code of the file ``path``, and return its result.

    The working directory is restored. Every exception except KeyboardInterrupt becomes
    an InputError. Its ``source`` is the innermost line of ``path`` in the traceback, if
    there is one.
    """
    try:
        with working_directory_kept():
            return run()
    except KeyboardInterrupt:
        raise
    except BaseException as e:  # also SystemExit: a script that exits returns no model
        source = None
        # the innermost frame comes last, so the last match stays
        for frame in traceback.extract_tb(e.__traceback__):
            if Path(frame.filename).resolve() == path.resolve():
                number = frame.lineno or 0
                source = Source(frame.filename, number, frame.name, frame.line or "")
        text = _in_short(e)
        hint = None
        # ``GuardedStream`` raises an InputError with a hint of its own
        if isinstance(e, InputError):
            text = e.message
            hint = e.hint
        raise InputError(
            "input-invalid", f"{path} failed: {text}", source=source, hint=hint
        ) from e
