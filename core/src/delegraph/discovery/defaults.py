"""Which backend a call gets that names none (docs/decisions/0014-who-names-no-backend.md)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ..errors import BackendNotFound, OptionError
from .index import BackendInfo
from .record import PluginRecord, Status


class DefaultBackends(NamedTuple):
    """The backends of a call that names none, and why it gets these, for its report."""

    names: list[str]
    why: str


def choose_default(usable: Sequence[BackendInfo], suits: Callable[[BackendInfo], bool]) -> DefaultBackends:
    """Among the usable backends that suit: the only one, or, of several, the one that its plugin declares as default.

    The result has its name and the sentence that tells the user why. If none suits, all are considered: the chosen
    backend then says itself why it cannot do what is asked. Raises OptionError if it is not clear which one is meant.
    """
    suited = [b for b in usable if suits(b)] or usable
    defaults = [b for b in suited if b.is_default] if len(suited) > 1 else suited
    if len(defaults) != 1:
        text = f"no backend is named, and there are several: {', '.join(b.name for b in defaults or suited)}"
        hint = "backends=[NAME, ...] in order of preference; on the command line --backend NAME"
        raise OptionError("option-invalid", text, hint=hint)
    (chosen,) = defaults
    others = ", ".join(b.name for b in suited if b is not chosen)
    why = f"is the default (others: {others})" if others else "is the only one"
    if not others and len(usable) > 1:
        why += " that suits"
    return DefaultBackends([chosen.name], f"no backend was named; {chosen.name} {why}")


def none_usable(plugins: Sequence[PluginRecord], backends: Sequence[BackendInfo]) -> BackendNotFound:
    """The error for an installation without a usable backend; it says what is wrong with each one that is there."""
    failed = [p for p in plugins if p.status is not Status.OK]
    others = [b for b in backends if all(b.location != p.location for p in failed)]
    listed = [f"{p.name} ({p.owner}) is {p.status}: {p.error}" for p in failed]
    listed += [f"{b.name} is {b.status}: {b.error}" for b in others]
    wrong = "".join(f"; {each}" for each in listed)
    hint = "install the distribution of one; backends=[] (--host-only) leaves everything to the host"
    return BackendNotFound("backend-not-found", f"no backend is installed that can be used{wrong}", hint=hint)
