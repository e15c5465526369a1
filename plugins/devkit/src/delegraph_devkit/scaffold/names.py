"""Derive the names of a new backend and its package, and find names that are taken."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import keyword
import re
import sys
import warnings
from contextlib import suppress
from dataclasses import dataclass

import delegraph
from delegraph import Registry
from delegraph.errors import DelegraphWarning
from packaging.utils import canonicalize_name

LONGEST = 40
"""Characters of a name: longer names make lines that the package's linter refuses."""
RESERVED = ("backend", "delegraph", "example", "host", "src", "tests")
"""Names with another meaning in a package of a backend, or in delegraph."""
DEVICES = frozenset(
    {
        "aux",
        "con",
        "nul",
        "prn",
        *(f"{port}{k}" for port in ("com", "lpt") for k in range(10)),
    }
)
"""Names of devices on Windows: no file or folder can have them, with any suffix."""
PYTEST = ("conftest", "pytest")
"""Modules that pytest imports: a package of that name would replace them."""
_FORM = re.compile(r"[A-Za-z](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")


@dataclass(frozen=True)
class Names:
    """The names of one backend, as Python and package indexes write them.

    ``distribution`` is the name for pip (delegraph-my-npu), ``package`` the module
    (delegraph_my_npu), ``backend`` the name for users (my-npu), and ``prefix`` the
    beginning of class names (MyNpu).
    """

    distribution: str
    package: str
    backend: str
    prefix: str

    @classmethod
    def of(cls, text: str, backend: str | None = None) -> Names:
        """Return the names for a distribution, and for a backend of the same name unless
        given.

        Both names are valid: ``why_not`` returns None.
        """
        distribution = canonicalize_name(text)
        name = canonicalize_name(backend or text)
        words = name.split("-")
        # MyBackend, not MyBackendBackend
        named = words[:-1] if words[-1] == "backend" else words
        return cls(
            distribution,
            distribution.replace("-", "_"),
            name,
            "".join(map(str.capitalize, named)),
        )

    @property
    def backend_id(self) -> str:
        """Return the name of the backend's class."""
        return f"{self.prefix}Backend"


def why_not(text: str) -> str | None:
    """Return the reason why no distribution and package can have a name; else None."""
    reason = why_no_backend(text)
    if reason is not None:
        return reason
    package = Names.of(text).package
    # ``test`` is a package of Python that its list leaves out
    if package in sys.stdlib_module_names or package == "test":
        return (
            f"the package would hide the module {package!r} of Python's standard"
            " library"
        )
    if package in PYTEST:
        return f"pytest would import the package instead of its own module {package!r}"
    return None


_KEYWORDS = frozenset(map(str.lower, keyword.kwlist))


def why_no_backend(text: str) -> str | None:
    """Return the reason why no backend can have a name; None if one can.

    The distribution of the backend may have another name.
    """
    if not _FORM.fullmatch(text):
        return (
            "a name consists of letters, digits, '-', '_' and '.'; it begins with a"
            " letter, and ends with a letter or digit"
        )
    if len(text) > LONGEST:
        return f"a name has at most {LONGEST} characters; this one has {len(text)}"
    name = canonicalize_name(text)
    if name in DEVICES:
        return f"{name!r} is a device on Windows, where no folder can have that name"
    if name in _KEYWORDS:
        return f"{name!r} is a keyword of Python, so no package can have that name"
    return f"{name!r} is reserved" if name in RESERVED else None


def taken(names: Names, registry: Registry | None = None) -> str | None:
    """Describe the owner of one of these names; None if all are free.

    Owners are installed distributions, and backends in ``registry``.
    """
    with warnings.catch_warnings():
        # a broken plugin keeps its name
        warnings.simplefilter("ignore", DelegraphWarning)
        infos = delegraph.backends() if registry is None else registry.backends()
    for info in infos:
        same_name = names.backend == canonicalize_name(info.name)
        same_class = names.backend_id.lower() == info.backend_id.lower()
        if same_name or same_class:
            return (
                f"{info.distribution} {info.version} is installed and offers"
                f" {info.name!r} ({info.backend_id})"
            )
    with suppress(importlib.metadata.PackageNotFoundError):
        version = importlib.metadata.version(names.distribution)
        return f"the distribution {names.distribution} {version} is installed"
    spec = importlib.util.find_spec(names.package)
    # a folder without __init__.py has no origin; it may be the new package's own folder
    if spec is None or spec.origin is None:
        return None
    return f"the module {names.package} is installed ({spec.origin})"
