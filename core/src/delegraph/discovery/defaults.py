"""Chooses the backend of a call that names none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ..errors import BackendNotFound, OptionError
from .index import BackendInfo
from .own import names_of_backends
from .record import PluginRecord, Status


class DefaultBackends(NamedTuple):
    """The backends chosen for a call that names none. ``why``: the sentence for its
    report; "" if it needs none.
    """

    names: list[str]
    why: str


def choose_default(
    usable: Sequence[BackendInfo], suits: Callable[[BackendInfo], bool]
) -> DefaultBackends:
    """Choose the only usable backend that suits or, if there are several, the one that
    is declared as default.

    ``suits``: whether a backend can also do what the call asks for, such as write a
    file of some format. If no backend suits, all usable ones are considered, so that
    the call fails later with the reason why the chosen backend cannot do it. Raises
    OptionError if several suit and not exactly one of these is declared as default.
    """
    suitable = [b for b in usable if suits(b)] or usable
    candidates = (
        [b for b in suitable if b.is_default] if len(suitable) > 1 else suitable
    )
    if len(candidates) != 1:
        text = (
            "no backend is named, and there are several:"
            f" {', '.join(b.name for b in candidates or suitable)}"
        )
        hint = (
            "backends=[NAME, ...] in order of preference; on the command line --backend"
            " NAME"
        )
        raise OptionError("option-invalid", text, hint=hint)
    (chosen,) = candidates
    others = ", ".join(b.name for b in suitable if b is not chosen)
    why = f"is the default (others: {others})" if others else "is the only one"
    if not others and len(usable) > 1:
        why += " that suits"
    return DefaultBackends([chosen.name], f"no backend was named; {chosen.name} {why}")


def none_usable(
    plugins: Sequence[PluginRecord], backends: Sequence[BackendInfo]
) -> BackendNotFound:
    """The error for an installation without a usable backend; its text says why each
    installed one is unusable.
    """
    failed = [p for p in plugins if p.status is not Status.OK]
    # backends of a failed plugin are left out: the plugin's reason is said once, for
    # all of them
    of_usable_plugins = [
        b for b in backends if all(b.location != p.location for p in failed)
    ]
    reasons = [f"{p.name} ({p.owner}) is {p.status}: {p.error}" for p in failed]
    reasons += [f"{b.name} is {b.status}: {b.error}" for b in of_usable_plugins]
    wrong = "".join(f"; {reason}" for reason in reasons)
    ours = sorted({provider.install for provider in names_of_backends().values()})
    hint = (
        f"pip install one of {', '.join(ours)}; backends=[] (--host-only) leaves"
        " everything to the host"
    )
    return BackendNotFound(
        "backend-not-found",
        f"no backend is installed that can be used{wrong}",
        hint=hint,
    )
