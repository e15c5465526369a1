"""Checks and converts a backend's options, which become keyword arguments of its
partitioner.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ..errors import OptionError
from ..plugin import OptionSpec
from .nearest_name import suggestion


def complete_options(
    specs: Sequence[OptionSpec], given: Mapping[str, Any], owner: str
) -> dict[str, Any]:
    """Return option -> value: the values in ``given``, checked against ``specs``, and
    the defaults of the other options.

    A value of None counts as not given. An option that is not given and has no default
    is left out of the result, so that the partitioner decides. ``owner`` names the
    backend in errors. Raises OptionError for an unknown option or a value of the wrong
    type.
    """
    known = {s.name: s for s in specs}
    # this also checks the names of options with the value None
    checked = {
        name: _checked(_option(known, name, owner), value, owner)
        for name, value in given.items()
    }
    values = {}
    for spec in specs:
        value = checked.get(spec.name)
        if value is None:
            value = spec.default
        if value is not None:
            values[spec.name] = value
    return values


def from_text(
    specs: Sequence[OptionSpec], texts: Mapping[str, str], owner: str
) -> dict[str, Any]:
    """Return option -> value, where ``texts`` from the command line are converted to
    the types in ``specs``. ``owner`` names the backend in errors.

    Raises OptionError for an unknown option or a text that cannot be converted.
    """
    known = {s.name: s for s in specs}
    return {
        name: _parse(_option(known, name, owner), text, owner)
        for name, text in texts.items()
    }


def assigned_backends(assignments: Iterable[str]) -> list[str]:
    """Return the backends in texts of the form ``BACKEND.OPTION=VALUE``: "tosa" for
    ``tosa.spec=TOSA-1.0``, and none for ``spec=TOSA-1.0``. Each is returned once, in
    order.
    """
    names = (text.partition("=")[0].rpartition(".")[0] for text in assignments)
    return list(dict.fromkeys(filter(None, names)))


def split_assignments(
    assignments: Iterable[str], backends: Sequence[str]
) -> dict[str, dict[str, str]]:
    """Return backend -> {option: text}: for ``["tosa.spec=TOSA-1.0"]``, return
    ``{"tosa": {"spec": "TOSA-1.0"}}``.

    If ``backends`` has a single one, ``spec=...`` is enough. Raises OptionError for
    another form, or for a backend that is not in ``backends``.
    """
    texts: dict[str, dict[str, str]] = {}
    for text in assignments:
        path, equals, value = text.partition("=")
        backend, _, option = path.rpartition(".")  # ``backend`` is "" in ``spec=...``
        if not equals or not option or (not backend and len(backends) != 1):
            raise OptionError(
                "option-invalid",
                f"--option {text!r} is not of the form BACKEND.OPTION=VALUE",
            )
        target = backend or backends[0]
        if target not in backends:
            why = (
                f"--option {text!r}: backend {target!r} is not among the backends"
                f" ({', '.join(backends) or 'none'})"
            )
            raise OptionError("option-invalid", why, hint=f"add --backend {target}")
        texts.setdefault(target, {})[option] = value
    return texts


def _option(known: Mapping[str, OptionSpec], name: str, owner: str) -> OptionSpec:
    """Return the option called ``name``. Raises OptionError if ``known`` has none."""
    if name not in known:
        accepted = f"it takes {', '.join(known)}" if known else "it takes none"
        raise OptionError(
            "option-invalid",
            f"{owner} has no option {name!r}{suggestion(name, known)} ({accepted})",
        )
    return known[name]


def _checked(spec: OptionSpec, value: Any, owner: str) -> Any:
    """Return ``value`` converted to the option's type; None stays None. Raises
    OptionError if the option does not accept the value.
    """
    if value is None:
        return None
    if spec.type is str and isinstance(value, os.PathLike):
        value = os.fspath(value)
    if not spec.accepts(value):
        raise OptionError(
            "option-invalid",
            f"option {spec.name!r} of {owner} is {spec.values}, not {value!r}",
        )
    return spec.type(value)


def _parse(spec: OptionSpec, text: str, owner: str) -> Any:
    """Return ``text`` converted to the option's type. Raises OptionError if that is not
    possible, or if the option does not accept the value.
    """
    # A text that cannot be converted stays a str. ``_checked`` then raises the error.
    value: Any = text
    with contextlib.suppress(ValueError, KeyError):
        value = _PARSERS[spec.type](text)
    return _checked(spec, value, owner)


_BOOLEANS = {
    **dict.fromkeys(("true", "yes", "on", "1"), True),
    **dict.fromkeys(("false", "no", "off", "0"), False),
}
_PARSERS: dict[type, Callable[[str], Any]] = {
    str: str,
    int: lambda text: int(text, 0),
    float: float,
    list: lambda text: [entry.strip() for entry in text.split(",")],
    bool: lambda text: _BOOLEANS[text.lower()],
}
