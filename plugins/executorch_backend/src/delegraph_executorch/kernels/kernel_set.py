"""List the kernels that a runtime has, such as those of a vendor's selective build."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from delegraph.errors import OptionError

from ..program.quantized_library import QUANTIZED_LIBRARY


@dataclass(frozen=True)
class KernelSet:
    """Names of kernels (``aten::add.out``), and the runtime that has them.

    ``linked`` are kernels of a library that the build of the runtime has to link.
    """

    runtime: str
    names: frozenset[str]
    linked: frozenset[str] = frozenset()

    def __contains__(self, name: object) -> bool:
        return name in self.names or name in self.linked


@cache
def stock_kernels() -> KernelSet:
    """Return the kernels of the wheel ``executorch`` and of its quantized library."""
    own = _from_json(
        json.loads(files(__package__).joinpath("stock.json").read_text()),
        "the plugin's own list",
    )
    return replace(own, linked=QUANTIZED_LIBRARY)


def kernel_set(given: str | Path | Iterable[str] | KernelSet | None) -> KernelSet:
    """Return the set that the option ``kernels`` describes.

    None means the stock runtime's set. A path is that of a JSON file: ``{"runtime":
    "...", "kernels": ["aten::add.out", ...]}``. A list of names is also a set. Raises
    OptionError for anything else.
    """
    if given is None:
        return stock_kernels()
    if isinstance(given, KernelSet):
        return given
    if not isinstance(given, (str, Path)):
        names = list(given) if isinstance(given, Iterable) else [given]
        return _from_json({"kernels": names}, repr(given))
    try:
        return _from_json(json.loads(Path(given).read_text()), str(given))
    except (OSError, ValueError) as e:
        raise OptionError(
            "option-invalid", f"kernels: {given} cannot be read: {e}"
        ) from e


def _from_json(content: Any, where: str) -> KernelSet:
    """Return the set in a JSON object; ``where`` names its source in the error."""
    kernels = content.get("kernels") if isinstance(content, dict) else None
    if not isinstance(kernels, list) or not all(isinstance(k, str) for k in kernels):
        hint = 'use the form {"runtime": "acme 1.0", "kernels": ["aten::add.out", ...]}'
        raise OptionError(
            "option-invalid", f"kernels: {where} is not a list of kernels", hint=hint
        )
    return KernelSet(str(content.get("runtime", "the runtime")), frozenset(kernels))
