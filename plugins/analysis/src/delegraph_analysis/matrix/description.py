"""Read a matrix from a TOML file or from arguments.

A matrix has models, targets, quantizations and settings.
"""

from __future__ import annotations

import glob
import os
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

from delegraph.errors import InputError, UsageError


@dataclass(frozen=True)
class Model:
    """A MODEL as ``delegraph lower`` takes it.

    ``calibration``: an .npz file with inputs for its quantization; None: the model's
    example inputs.
    """

    text: str
    name: str
    calibration: str | None = None


@dataclass(frozen=True)
class Target:
    """Backends in order of preference. Without backends, all operators stay on the host.

    ``options``: backend -> option -> value. ``quantizer``: replaces the quantizer of a
    ``Quantization``, if it is not None.
    """

    name: str
    backends: tuple[str, ...]
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    quantizer: str | None = None


@dataclass(frozen=True)
class Quantization:
    """How a model is quantized. With the name ``float``, it is not quantized.

    ``quantizer``: the name of a backend with a quantizer, or ``path.py:function``, which
    returns a quantizer of torchao. None chooses the target's first backend with a
    quantizer, or else the default backend with one.
    """

    name: str
    quantizer: str | None = None

    @property
    def quantizes(self) -> bool:
        return self.name != FLOAT


FLOAT = "float"
_NAMES = (FLOAT, "int8")
"""Quantizations that need no table of their own."""


@dataclass(frozen=True)
class Settings:
    """The settings of all cells.

    ``runs`` is the number of timed calls; their median is the latency. ``threads`` are
    those of PyTorch. ``files`` are the suffixes of the written formats: with
    ``keep_files`` in the store, else only for their sizes. ``time_limit`` is in
    seconds. ``memory_limit`` is in MB, without the memory of an imported PyTorch; None
    is 80 % of the machine's memory. ``cache`` is a folder of compiled partitions.
    ``tolerance`` and the gates after it are those of ``delegraph lower``. Without
    ``require_agreement``, agreement with eager is only a figure.
    """

    verify: bool = True
    runs: int = 5
    threads: int = 1
    files: tuple[str, ...] = (".pte",)
    keep_files: bool = True
    time_limit: float = 600.0
    memory_limit: float | None = None
    cache: str | None = None
    tolerance: float | None = None
    require_agreement: bool = False
    require_full: bool = False
    min_delegated: float | None = None
    max_delegates: int | None = None


LIMITS = ("time_limit", "memory_limit")
"""Settings on which only the rows of failed cells depend."""


@dataclass(frozen=True)
class Matrix:
    """Models, and the targets and quantizations for which each of them is measured.

    ``folder``: relative paths begin here. ``depends``: further files, such as modules
    that models import. If one changes, all cells are measured again.
    """

    models: tuple[Model, ...]
    targets: tuple[Target, ...]
    quantizations: tuple[Quantization, ...] = (Quantization(FLOAT),)
    settings: Settings = Settings()
    folder: Path = Path()
    depends: tuple[str, ...] = ()


def read_matrix(path: Path) -> Matrix:
    """Return the matrix in a TOML file. Paths and globs in it begin at its folder.

    Raises InputError.
    """
    try:
        content = tomllib.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as e:
        raise InputError("input-invalid", f"{path} cannot be read as TOML: {e}") from e
    try:
        return _matrix(content, path.resolve().parent)
    except Wrong as e:
        raise InputError(
            "input-invalid",
            f"{path}: {e}",
            hint="see the keys of a matrix in the user guide",
        ) from None


class Wrong(Exception):
    """An error in a file of a matrix; the text lacks the file's name."""


_KEYS = ("models", "backends", "quantize", "options", "settings", "depends")


def _matrix(content: Mapping[str, Any], folder: Path) -> Matrix:
    _expect_keys(content, _KEYS, "a matrix")
    for key in ("models", "backends"):
        if not isinstance(content.get(key), list) or not content[key]:
            raise Wrong(f"{key} is a list of at least one entry")
    options = _table(content.get("options", {}), "options")
    targets = [_target(entry, options) for entry in content["backends"]]
    unused = set(options)
    for target in targets:
        unused -= {*target.backends}
    if unused:
        raise Wrong(f"options of {min(unused)}, which no entry of backends has")
    models: list[Model] = []
    for entry in content["models"]:
        models += _models(entry, folder)
    quantize = content.get("quantize", [FLOAT])
    if not isinstance(quantize, list):
        quantize = [quantize]
    matrix = Matrix(
        models=tuple(models),
        targets=tuple(targets),
        quantizations=tuple(map(_quantization, quantize)),
        settings=settings_of(_table(content.get("settings", {}), "settings")),
        folder=folder,
        depends=tuple(_texts(content.get("depends", []), "depends")),
    )
    return checked(matrix, Wrong)


def _models(entry: Any, folder: Path) -> list[Model]:
    """Return the models of an entry of ``models``: a text, maybe a glob, or a table."""
    if isinstance(entry, str):
        return [Model(text, name_of(text)) for text in expand(entry, folder)]
    table = _table(entry, "an entry of models")
    _expect_keys(table, ("model", "name", "calibration"), "an entry of models")
    text = _text(table.get("model"), "model")
    name = _text(table.get("name", name_of(text)), "name")
    calibration = None
    if table.get("calibration") is not None:
        calibration = _text(table["calibration"], "calibration")
    return [Model(text, name, calibration)]


def expand(text: str, folder: Path) -> list[str]:
    """Return the files that a glob matches, sorted; any other text as it is.

    Raises UsageError if no file matches.
    """
    if not glob.has_magic(text):
        return [text]
    found = sorted(glob.glob(text, root_dir=folder, recursive=True))
    if not found:
        raise UsageError("usage-invalid", f"no file in {folder} matches {text!r}")
    return found


def name_of(text: str) -> str:
    """Return a short name of a MODEL, such as ``resnet18`` for ``models.py:resnet18``
    and for ``resnet18.pt2``.
    """
    head, colon, function = text.rpartition(":")
    if colon and head.endswith(".py"):
        return function
    return Path(text).stem if text.endswith((".py", ".pt2")) else text


def _target(entry: Any, shared: Mapping[str, Any]) -> Target:
    """Return the target of an entry of ``backends``: a name, a list, or a table.

    ``shared``: the options of all targets, by backend. Those of the entry precede them.
    """
    if isinstance(entry, str):
        return target_of([entry], shared)
    if isinstance(entry, list):
        return target_of(_texts(entry, "an entry of backends"), shared)
    table = _table(entry, "an entry of backends")
    _expect_keys(
        table, ("backends", "name", "options", "quantizer"), "an entry of backends"
    )
    backends = _texts(table.get("backends"), "backends")
    own = _table(table.get("options", {}), "options")
    merged = {b: {**shared.get(b, {}), **own.get(b, {})} for b in {**shared, **own}}
    target = target_of(backends, merged)
    if foreign := sorted(set(own) - set(backends)):
        raise Wrong(
            f"options of {', '.join(foreign)} in an entry for"
            f" {', '.join(backends) or 'the host'}"
        )
    if table.get("quantizer") is not None:
        target = replace(target, quantizer=_text(table["quantizer"], "quantizer"))
    if "name" in table:
        target = replace(target, name=_text(table["name"], "name"))
    return target


def target_of(
    backends: Sequence[str], options: Mapping[str, Mapping[str, Any]]
) -> Target:
    """Return the target of these backends, with their ``options``."""
    own = {}
    for backend in backends:
        if options.get(backend):
            own[backend] = dict(_table(options[backend], f"options.{backend}"))
    return Target(" + ".join(backends) or HOST, tuple(backends), own)


HOST = "host"
"""The name of the target without backends."""


def _quantization(entry: Any) -> Quantization:
    """Return the quantization of an entry of ``quantize``: a name or a table."""
    if isinstance(entry, str):
        if entry not in _NAMES:
            raise Wrong(
                f"quantize is {' or '.join(map(repr, _NAMES))} or a table with name and"
                f" quantizer, not {entry!r}"
            )
        return Quantization(entry)
    table = _table(entry, "an entry of quantize")
    _expect_keys(table, ("name", "quantizer"), "an entry of quantize")
    return Quantization(
        _text(table.get("name"), "name"), _text(table.get("quantizer"), "quantizer")
    )


class _Accepted(NamedTuple):
    """The values of a setting: their type, a check, and a description for errors."""

    kind: type
    holds: Callable[[Any], bool]
    text: str

    def accepts(self, value: Any) -> bool:
        """Return whether a value fits; an int fits a setting of floats."""
        if isinstance(value, bool) and self.kind is not bool:
            return False
        is_number = self.kind is float and isinstance(value, int)
        return (is_number or isinstance(value, self.kind)) and self.holds(value)


_FLAG = _Accepted(bool, lambda v: True, "true or false")
_COUNT = _Accepted(int, lambda v: v >= 0, "a number from 0 on")
_ACCEPTED: Mapping[str, _Accepted] = {
    "verify": _FLAG,
    "runs": _COUNT,
    "threads": _Accepted(int, lambda v: v > 0, "a number from 1 on"),
    "keep_files": _FLAG,
    "time_limit": _Accepted(float, lambda v: 0 < v < 1e9, "a number of seconds"),
    "memory_limit": _Accepted(float, lambda v: 0 < v < 1e9, "a number of MB"),
    "tolerance": _Accepted(float, lambda v: v > 0, "a number above 0"),
    "require_agreement": _FLAG,
    "require_full": _FLAG,
    "min_delegated": _Accepted(float, lambda v: 0 <= v <= 1, "a share from 0 to 1"),
    "max_delegates": _COUNT,
}


def settings_of(given: Mapping[str, Any]) -> Settings:
    """Return settings, with defaults for those that are missing or None.

    Raises Wrong for an unknown name or a value that does not fit.
    """
    names = [f.name for f in fields(Settings)]
    _expect_keys(given, names, "settings")
    known: dict[str, Any] = {}
    for name, value in given.items():
        if value is None:
            continue
        if name == "files":
            known[name] = tuple(_texts(value, name))
        elif name == "cache":
            known[name] = _text(value, name)
        else:
            accepted = _ACCEPTED[name]
            if not accepted.accepts(value):
                raise Wrong(f"{name} is {accepted.text}, not {value!r}")
            known[name] = accepted.kind(value)
    return Settings(**known)


def checked(matrix: Matrix, wrong: Callable[[str], Exception]) -> Matrix:
    """Return the matrix after a check of its names.

    Raises ``wrong(why)`` if two models, targets or quantizations have one name, or a
    target has a backend twice.
    """
    for kind, listed in (
        ("models", matrix.models),
        ("backends", matrix.targets),
        ("quantize", matrix.quantizations),
    ):
        names = [entry.name for entry in listed]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise wrong(
                f"two entries of {kind} are called {twice[0]!r}; give one another name"
            )
    for target in matrix.targets:
        for name in target.backends:
            if target.backends.count(name) > 1:
                raise wrong(f"{target.name!r} has the backend {name!r} twice")
    return matrix


def _expect_keys(table: Mapping[str, Any], known: Sequence[str], what: str) -> None:
    if unknown := sorted(set(table) - set(known)):
        raise Wrong(f"{what} has no {unknown[0]!r}; it has {', '.join(known)}")


def _table(value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise Wrong(f"{what} is a table, not {value!r:.80}")
    return value


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str) or not value:
        raise Wrong(f"{what} is a text, not {value!r:.80}")
    return value


def _texts(value: Any, what: str) -> list[str]:
    if not isinstance(value, list):
        raise Wrong(f"{what} is a list of texts, not {value!r:.80}")
    return [_text(entry, what) for entry in value]


def place_of(text: str, folder: Path) -> str:
    """Return a MODEL with absolute paths; ``scheme:name`` stays as it is."""
    model, weights = without_weights(text)
    head = model.rpartition(":")[0]
    if not (head.endswith(".py") or model.endswith((".py", ".pt2"))):
        return text
    place = os.path.join(folder, model)
    return f"{place}@{os.path.join(folder, weights)}" if weights else place


def without_weights(text: str) -> tuple[str, str]:
    """Return a MODEL without its file of weights, and that file; "" if it has none."""
    model, _, weights = text.rpartition("@")
    return (model, weights) if ".py" in model else (text, "")
