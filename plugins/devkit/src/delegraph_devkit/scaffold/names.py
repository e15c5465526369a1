"""What a new backend and the parts of its package are called, and which names are taken."""

from __future__ import annotations

import importlib.util
import keyword
import re
import sys
import warnings
from dataclasses import dataclass

import importlib_metadata
from delegraph.discovery.distributions import canonical
from delegraph.discovery.registry import Registry
from delegraph.errors import DelegraphWarning

LONGEST = 40
"""Characters of a name: with more, lines of the generated code are longer than its linter wants."""
RESERVED = ("backend", "delegraph", "example", "host", "src", "tests")
"""Names that mean something else in a package of a backend, or in delegraph."""
_FORM = re.compile(r"[A-Za-z](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")


@dataclass(frozen=True)
class Names:
    """The names of one backend, as Python and package indexes write them.

    ``distribution`` is what pip installs (delegraph-my-npu), ``package`` its module (delegraph_my_npu), ``backend``
    what users type (my-npu), and ``prefix`` what its classes begin with (MyNpu).
    """

    distribution: str
    package: str
    backend: str
    prefix: str

    @classmethod
    def of(cls, text: str, backend: str | None = None) -> Names:
        """The names that follow from the distribution's and the backend's, which is the same unless given.

        ``why_not`` has nothing to say of either.
        """
        distribution, name = canonical(text), canonical(backend or text)
        words = name.split("-")
        named = words[:-1] if words[-1] == "backend" else words  # MyBackend, not MyBackendBackend
        return cls(distribution, distribution.replace("-", "_"), name, "".join(map(str.capitalize, named)))

    @property
    def backend_id(self) -> str:
        """The name of the backend's class."""
        return f"{self.prefix}Backend"


def why_not(text: str) -> str | None:
    """Why no distribution can be called so, whose package has the same name; None if one can."""
    reason = why_no_backend(text)
    if reason is not None:
        return reason
    package = Names.of(text).package
    if keyword.iskeyword(package):
        return f"{package!r} is a word of the Python language, and the package would have that name"
    if package in sys.stdlib_module_names:
        return f"{package!r} is a module of Python's own library, which the package would hide"
    return None


def why_no_backend(text: str) -> str | None:
    """Why no backend can be called so in a distribution of another name; None if one can."""
    if not _FORM.fullmatch(text):
        return "a name has letters, digits, '-', '_' and '.'; it begins with a letter and ends with a letter or digit"
    if len(text) > LONGEST:
        return f"a name has at most {LONGEST} characters; this one has {len(text)}"
    return f"{canonical(text)!r} is reserved" if canonical(text) in RESERVED else None


def taken(names: Names, registry: Registry) -> str | None:
    """What is installed under one of these names; None if nothing is."""
    return _backend(names, registry) or _distribution(names.distribution) or _module(names.package)


def _backend(names: Names, registry: Registry) -> str | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DelegraphWarning)  # a plugin that is broken keeps its name all the same
        infos = registry.backends()
    for info in infos:
        if names.backend == canonical(info.name) or names.backend_id.lower() == info.backend_id.lower():
            return f"{info.distribution} {info.version} is installed and offers {info.name!r} ({info.backend_id})"
    return None


def _distribution(name: str) -> str | None:
    try:
        found = importlib_metadata.distribution(name)
    except importlib_metadata.PackageNotFoundError:
        return None
    return f"the distribution {name} {found.version} is installed"


def _module(name: str) -> str | None:
    """A folder without ``__init__.py`` is none: the folder that is about to be filled may be on the path."""
    found = importlib.util.find_spec(name)
    return f"there is a module {name} already ({found.origin})" if found and found.origin else None
