"""What a new backend and the parts of its package are called, and which names are
taken.
"""

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
"""Characters of a name: with more, lines of the generated code are longer than its
linter wants.
"""
RESERVED = ("backend", "delegraph", "example", "host", "src", "tests")
"""Names that mean something else in a package of a backend, or in delegraph."""
DEVICES = frozenset(
    {
        "aux",
        "con",
        "nul",
        "prn",
        *(f"{port}{k}" for port in ("com", "lpt") for k in range(10)),
    }
)
"""Names of devices on Windows, where no file or folder can be called so, whatever its
suffix.
"""
PYTEST = ("conftest", "pytest")
"""Modules that pytest looks for: a package of that name would be taken for them."""
_FORM = re.compile(r"[A-Za-z](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")


@dataclass(frozen=True)
class Names:
    """The names of one backend, as Python and package indexes write them.

    ``distribution`` is what pip installs (delegraph-my-npu), ``package`` its module
    (delegraph_my_npu), ``backend`` what users type (my-npu), and ``prefix`` what its
    classes begin with (MyNpu).
    """

    distribution: str
    package: str
    backend: str
    prefix: str

    @classmethod
    def of(cls, text: str, backend: str | None = None) -> Names:
        """The names that follow from the distribution's and the backend's, which is the
        same unless given.

        ``why_not`` has nothing to say of either.
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
        """The name of the backend's class."""
        return f"{self.prefix}Backend"


def why_not(text: str) -> str | None:
    """Why no distribution can be called so, whose package has the same name; None if
    one can.
    """
    reason = why_no_backend(text)
    if reason is not None:
        return reason
    package = Names.of(text).package
    # ``test`` is a package of Python that its list leaves out
    if package in sys.stdlib_module_names or package == "test":
        return (
            f"{package!r} is a module of Python's own library, which the package would"
            " hide"
        )
    if package in PYTEST:
        return f"{package!r} is a module of pytest, which would take the package for it"
    return None


_KEYWORDS = frozenset(map(str.lower, keyword.kwlist))


def why_no_backend(text: str) -> str | None:
    """Why no backend can be called so in a distribution of another name; None if one
    can.
    """
    if not _FORM.fullmatch(text):
        return (
            "a name has letters, digits, '-', '_' and '.'; it begins with a letter and"
            " ends with a letter or digit"
        )
    if len(text) > LONGEST:
        return f"a name has at most {LONGEST} characters; this one has {len(text)}"
    name = canonicalize_name(text)
    if name in DEVICES:
        return f"{name!r} is a device on Windows, where no folder can have that name"
    if name in _KEYWORDS:
        return (
            f"{name!r} is a word of the Python language, and the package would have"
            " that name"
        )
    return f"{name!r} is reserved" if name in RESERVED else None


def taken(names: Names, registry: Registry | None = None) -> str | None:
    """What is installed, or in ``registry``, under one of these names; None if nothing
    is.
    """
    with warnings.catch_warnings():
        # a plugin that is broken keeps its name all the same
        warnings.simplefilter("ignore", DelegraphWarning)
        infos = delegraph.backends() if registry is None else registry.backends()
    for info in infos:
        if (
            names.backend == canonicalize_name(info.name)
            or names.backend_id.lower() == info.backend_id.lower()
        ):
            return (
                f"{info.distribution} {info.version} is installed and offers"
                f" {info.name!r} ({info.backend_id})"
            )
    with suppress(importlib.metadata.PackageNotFoundError):
        version = importlib.metadata.version(names.distribution)
        return f"the distribution {names.distribution} {version} is installed"
    # A folder without __init__.py has no origin: the folder that is about to be filled
    # may be on the path.
    spec = importlib.util.find_spec(names.package)
    return (
        f"there is a module {names.package} already ({spec.origin})"
        if spec and spec.origin
        else None
    )
