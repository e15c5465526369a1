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
from typing import Any

from delegraph.errors import InputError, UsageError


@dataclass(frozen=True)
class Model:
    """A MODEL as ``delegraph lower`` takes it.

    ``calibration``: an .npz file; without, its example inputs are taken.
    """

    text: str
    name: str
    calibration: str | None = None


@dataclass(frozen=True)
class Target:
    """Backends in order of preference; none of them is the host alone.

    ``options``: backend -> option -> value. ``quantizer``: as in ``Quantization``;
    None: that of the quantization.
    """

    name: str
    backends: tuple[str, ...]
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    quantizer: str | None = None


@dataclass(frozen=True)
class Quantization:
    """How a model is quantized. ``float`` is not; ``int8`` is, by ``quantizer``.

    ``quantizer``: the name of a backend that has one, or ``path.py:function``, which
    returns one of torchao's. None: that of the first of the target's backends that has
    one, else of the default backend that has one.
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
    """``folder``: where relative paths begin.

    ``depends``: files that models import, on which rows depend as well.
    """

    models: tuple[Model, ...]
    targets: tuple[Target, ...]
    quantizations: tuple[Quantization, ...] = (Quantization(FLOAT),)
    settings: Settings = Settings()
    folder: Path = Path()
    depends: tuple[str, ...] = ()


def read_matrix(path: Path) -> Matrix:
    """The matrix in a TOML file; globs and paths in it are relative to its folder.

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
    listed = content.get("quantize", [FLOAT])
    options = _table(content.get("options", {}), "options")
    targets = [_target(entry, options) for entry in content["backends"]]
    if unused := sorted(
        set(options) - {name for target in targets for name in target.backends}
    ):
        raise Wrong(f"options of {unused[0]}, which no entry of backends has")
    return checked(
        Matrix(
            tuple(
                model for entry in content["models"] for model in _models(entry, folder)
            ),
            tuple(targets),
            tuple(
                _quantization(entry)
                for entry in (listed if isinstance(listed, list) else [listed])
            ),
            settings_of(_table(content.get("settings", {}), "settings")),
            folder,
            tuple(_texts(content.get("depends", []), "depends")),
        ),
        Wrong,
    )


def _models(entry: Any, folder: Path) -> list[Model]:
    """An entry of ``models``: a text, which may be a glob, or a table."""
    if isinstance(entry, str):
        return [Model(text, name_of(text)) for text in expand(entry, folder)]
    table = _table(entry, "an entry of models")
    _expect_keys(table, ("model", "name", "calibration"), "an entry of models")
    text = _text(table.get("model"), "model")
    calibration = table.get("calibration")
    named = _text(table.get("name", name_of(text)), "name")
    return [
        Model(
            text,
            named,
            None if calibration is None else _text(calibration, "calibration"),
        )
    ]


def expand(text: str, folder: Path) -> list[str]:
    """The files that a glob finds, in order; a text that is none is itself, whether
    there is such a file or not.
    """
    if not glob.has_magic(text):
        return [text]
    found = sorted(glob.glob(text, root_dir=folder, recursive=True))
    if not found:
        raise UsageError("usage-invalid", f"no file in {folder} matches {text!r}")
    return found


def name_of(text: str) -> str:
    """A short name of a MODEL: ``resnet18`` for ``models.py:resnet18`` and for
    ``resnet18.pt2``.
    """
    head, colon, function = text.rpartition(":")
    if colon and head.endswith(".py"):
        return function
    return Path(text).stem if text.endswith((".py", ".pt2")) else text


def _target(entry: Any, shared: Mapping[str, Any]) -> Target:
    """An entry of ``backends``: a name, a list of names, or a table."""
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
    quantizer = table.get("quantizer")
    named = replace(
        target, quantizer=None if quantizer is None else _text(quantizer, "quantizer")
    )
    return (
        replace(named, name=_text(table["name"], "name")) if "name" in table else named
    )


def target_of(
    backends: Sequence[str], options: Mapping[str, Mapping[str, Any]]
) -> Target:
    """The target of these backends, with those of the options that are theirs."""
    own = {
        b: dict(_table(options[b], f"options.{b}")) for b in backends if options.get(b)
    }
    return Target(" + ".join(backends) or HOST, tuple(backends), own)


HOST = "host"
"""The name of the target without backends."""


def _quantization(entry: Any) -> Quantization:
    """An entry of ``quantize``: ``float``, ``int8``, or a table."""
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


def _is_positive(value: Any) -> bool:
    return bool(value > 0)


_BOUNDS: Mapping[str, tuple[type, Callable[[Any], bool], str]] = {
    "verify": (bool, lambda v: True, "true or false"),
    "runs": (int, lambda v: v >= 0, "a number from 0 on"),
    "threads": (int, _is_positive, "a number from 1 on"),
    "keep_files": (bool, lambda v: True, "true or false"),
    "time_limit": (float, lambda v: 0 < v < 1e9, "a number of seconds"),
    "memory_limit": (float, lambda v: 0 < v < 1e9, "a number of MB"),
    "tolerance": (float, _is_positive, "a number above 0"),
    "require_agreement": (bool, lambda v: True, "true or false"),
    "require_full": (bool, lambda v: True, "true or false"),
    "min_delegated": (float, lambda v: 0 <= v <= 1, "a share from 0 to 1"),
    "max_delegates": (int, lambda v: v >= 0, "a number from 0 on"),
}


def settings_of(given: Mapping[str, Any]) -> Settings:
    """Return settings, with defaults for those that are missing or None."""
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
            kind, holds, wanted = _BOUNDS[name]
            fits = isinstance(value, kind) or (kind is float and isinstance(value, int))
            if (
                not fits
                or (isinstance(value, bool) and kind is not bool)
                or not holds(value)
            ):
                raise Wrong(f"{name} is {wanted}, not {value!r}")
            known[name] = kind(value)
    return Settings(**known)


def checked(matrix: Matrix, wrong: Callable[[str], Exception]) -> Matrix:
    """The matrix, if no two models, targets or quantizations have one name, and no
    target has a backend twice; else raises ``wrong(why)``.
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
        if again := next(
            (name for name in target.backends if target.backends.count(name) > 1), None
        ):
            raise wrong(f"{target.name!r} has the backend {again!r} twice")
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
    """A MODEL as it is read from any folder: paths become absolute, ``scheme:name``
    stays.
    """
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
