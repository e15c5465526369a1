"""List the cells of a matrix: each is one model, quantized in one way, for one target.

The identity of a cell is a hash of everything on which its row of figures depends. If
the store has a row of this identity, the cell is not measured again.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import urlparse
from urllib.request import url2pathname

from delegraph import default_registry
from delegraph.command import check_model
from delegraph.errors import DelegraphError, OptionError, UsageError
from delegraph.plugin import BackendSpec, FormatSpec, ModelSpec

from .description import (
    LIMITS,
    Matrix,
    Model,
    Quantization,
    Settings,
    Target,
    place_of,
    without_weights,
)

FORM = 1
"""Part of each identity; changes when the way of measuring changes."""


@dataclass(frozen=True)
class Cell:
    """One model, quantized in one way, for one target.

    ``depends`` has everything on which its row depends except the names in ``key``, as a
    JSON value. The machine is not part of it.
    """

    model: Model
    target: Target
    quantization: Quantization
    settings: Settings
    folder: Path
    depends: Mapping[str, Any]

    @property
    def identity(self) -> str:
        """Return a hash of the dependencies of the row, in 32 hexadecimal digits."""
        text = json.dumps([FORM, self.key, self.depends], sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    @property
    def key(self) -> tuple[str, str, str]:
        """Return the name of the cell: (model, target, quantization)."""
        return self.model.name, self.target.name, self.quantization.name

    def __str__(self) -> str:
        return ", ".join(self.key)

    def limits(self) -> dict[str, Any]:
        """Return the limits of time and memory."""
        return {name: getattr(self.settings, name) for name in LIMITS}

    def job(self) -> dict[str, Any]:
        """Return the facts that another process needs to do the cell, as a JSON value."""
        return {
            "cell": self.identity,
            "model": self.model.text,
            "name": self.model.name,
            "calibration": self.model.calibration,
            "target": self.target.name,
            "backends": list(self.target.backends),
            "options": {b: dict(o) for b, o in self.target.options.items()},
            "quantize": self.quantization.name,
            "quantizer": self.target.quantizer or self.quantization.quantizer,
            "settings": asdict(self.settings),
            "versions": self.depends["versions"],
            "folder": str(self.folder),
        }


def cells_of(matrix: Matrix) -> list[Cell]:
    """Return all cells, model by model.

    Raises UsageError or InputError for missing files, BackendNotFound for backends and
    quantizers, FormatNotFound, OptionError.
    """
    registry = default_registry()
    for target in matrix.targets:
        _check_options(target, {name: registry.spec(name) for name in target.backends})
    quantizers = [
        *(target.quantizer for target in matrix.targets),
        *(kind.quantizer for kind in matrix.quantizations),
    ]
    for quantizer in filter(None, quantizers):
        if not quantizer.rpartition(":")[0].endswith(".py"):
            registry.spec(quantizer)
    # raises FormatNotFound, but if the default format is missing, its rows have the error
    for suffix in sorted({*matrix.settings.files} - {*Settings.files}):
        registry.find(FormatSpec, f"program{suffix}")
    digests = _Digests(matrix.folder)
    known_versions = functools.cache(versions_of)
    found = []
    for model in matrix.models:
        check_model(place_of(model.text, matrix.folder))
        for quantization in matrix.quantizations:
            for target in matrix.targets:
                versions = known_versions(
                    target.backends, scheme_of(model.text), matrix.settings.files
                )
                found.append(
                    Cell(
                        model,
                        target,
                        quantization,
                        settings=matrix.settings,
                        folder=matrix.folder,
                        depends=_depends(
                            matrix, model, target, quantization, digests, versions
                        ),
                    )
                )
    return found


def _check_options(target: Target, backends: Mapping[str, BackendSpec]) -> None:
    """Raise OptionError for an unknown option, or for a value of a wrong type."""
    for backend, given in target.options.items():
        known = {spec.name: spec for spec in backends[backend].options}
        for name, value in given.items():
            if name not in known:
                accepted = f"it takes {', '.join(known)}" if known else "it takes none"
                raise OptionError(
                    "option-invalid",
                    f"backend {backend!r} has no option {name!r} ({accepted})",
                )
            if not known[name].accepts(value):
                text = (
                    f"option {name!r} of backend {backend!r} is"
                    f" {known[name].values}, not {value!r}"
                )
                raise OptionError("option-invalid", text)


def _depends(
    matrix: Matrix,
    model: Model,
    target: Target,
    quantization: Quantization,
    digests: _Digests,
    versions: Mapping[str, str],
) -> dict[str, Any]:
    """Return ``Cell.depends``.

    It has hashes of files instead of absolute paths: the folder may be moved.
    """
    settings = asdict(matrix.settings)
    for name in (*LIMITS, "cache"):
        del settings[name]
    quantizer = target.quantizer or quantization.quantizer
    quantize: Any = False
    if quantization.quantizes:
        quantize = {
            "calibration": model.calibration and digests.of(model.calibration),
            "quantizer": quantizer,
            "content": quantizer and digests.of_model(quantizer),
        }
    return {
        "model": model.text,
        "content": digests.of_model(model.text),
        "depends": [[name, digests.of(name)] for name in matrix.depends],
        "backends": list(target.backends),
        "options": {b: dict(o) for b, o in target.options.items()},
        "quantize": quantize,
        "settings": settings,
        "versions": dict(versions),
    }


def scheme_of(model: str) -> str:
    """Return the scheme of a MODEL: ``timm`` for ``timm:resnet18``.

    For a file, the result is a text that no plugin has as a scheme.
    """
    return model.partition(":")[0]


class _Digests:
    """SHA-256 of files in a folder, each read once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known = dict[str, str]()

    def of(self, name: str) -> str:
        """Return the hash of a file. Raises UsageError if it cannot be read."""
        if name not in self._known:
            digest = hashlib.sha256()
            try:
                with (self._folder / name).open("rb") as file:
                    for piece in iter(lambda: file.read(1 << 20), b""):
                        digest.update(piece)
            except OSError as e:
                raise UsageError(
                    "usage-invalid",
                    f"cannot read {self._folder / name}: {e.strerror or e}",
                ) from e
            self._known[name] = digest.hexdigest()
        return self._known[name]

    def of_model(self, text: str) -> str | None:
        """Return the hash of the file of a MODEL, and that of its weights, if it has any.

        Returns None for a MODEL without a file, such as ``timm:resnet18``.
        """
        model, weights = without_weights(text)
        head = model.rpartition(":")[0]
        name = head if head.endswith(".py") else model
        if not name.endswith((".py", ".pt2")):
            return None
        return f"{self.of(name)} {self.of(weights)}" if weights else self.of(name)


def versions_of(
    backends: Sequence[str], scheme: str, files: Sequence[str]
) -> dict[str, str]:
    """Return name -> version of all distributions that lower a model for these backends.

    These are the distributions of the backends, of the model's ``scheme`` and of the
    formats of ``files``, and the requirements of all these. Plugins that cannot be used
    count, too: the row changes when their missing requirements are installed.
    """
    registry = default_registry()
    wanted = {"delegraph", "torch", "torchao", "delegraph-quantize"}
    for spec, record in registry.declared(ModelSpec):
        if spec.scheme == scheme:
            wanted.add(record.distribution)
    for format_spec, record in registry.declared(FormatSpec):
        if format_spec.suffix in files:
            wanted.add(record.distribution)
    for name in backends:
        try:
            distribution = registry.entry(name).producer[0]
        except DelegraphError:  # broken: its row has the error
            continue
        wanted |= {distribution, *registry.spec(name).traits.composes}
    for distribution in tuple(wanted):
        wanted.update(_required(distribution))
    found = {}
    for name in sorted(wanted):
        version = _installed_version(name)
        if version is not None:
            found[name] = version
    return found


def _required(distribution: str) -> list[str]:
    """Return the names of the requirements of a distribution of delegraph.

    For another one, such as torch, return []: its version determines them.
    """
    if not distribution.startswith("delegraph"):
        return []
    try:
        listed = metadata.requires(distribution) or []
    except metadata.PackageNotFoundError:
        return []
    # "torch_x>=2; extra == 'y'" -> "torch-x"
    return [re.split(r"[^\w.-]", text)[0].lower().replace("_", "-") for text in listed]


@functools.cache
def _installed_version(distribution: str) -> str | None:
    """Return the version of a distribution; None if it is not installed.

    For an editable install, the version has a hash of the Python files.
    """
    try:
        found = metadata.distribution(distribution)
    except metadata.PackageNotFoundError:
        return None
    url = json.loads(found.read_text("direct_url.json") or "{}")
    if not url.get("dir_info", {}).get("editable"):
        return found.version
    folder = Path(url2pathname(urlparse(url["url"]).path))
    digest = hashlib.sha256()
    for path in sorted(_python_files(folder)):
        digest.update(f"{path.relative_to(folder).as_posix()}\0".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return f"{found.version}+edited.{digest.hexdigest()[:12]}"


def _python_files(folder: Path) -> Iterator[Path]:
    """Yield the Python files below a folder, without tests and hidden folders."""
    for place, folders, files in os.walk(folder):
        # ``os.walk`` descends only into the folders that remain in its list
        folders[:] = [
            name for name in folders if not name.startswith(".") and name != "tests"
        ]
        yield from (Path(place, name) for name in files if name.endswith(".py"))


def shard(cells: Sequence[Cell], text: str) -> list[Cell]:
    """Return the cells of shard ``i/n``, such as the second of four for ``2/4``.

    The identity of a cell determines its shard, so the shard does not change if other
    cells are added or removed. Raises UsageError for another text.
    """
    found = re.fullmatch(r"(\d+)/(\d+)", text)
    if found is None or not 1 <= int(found[1]) <= int(found[2]):
        raise UsageError(
            "usage-invalid", f"a shard is one of n, such as 1/4, not {text!r}"
        )
    wanted = int(found[1]) - 1
    count = int(found[2])
    return [cell for cell in cells if int(cell.identity, 16) % count == wanted]
