"""Reads and checks the declarations of a plugin, so that no mistake of its author is
silently ignored.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pluggy

from ..plugin import (
    API_VERSION,
    DECLARATION_OF,
    PROJECT,
    BackendSpec,
    Declaration,
    Hooks,
    PartitionerSpec,
)
from .loading import missing
from .record import Fault, PluginDefect, PluginRecord, Status, suggestion


class _Manager(pluggy.PluginManager):
    """The pluggy manager of one plugin. Skips names with ``__`` in its search for
    hooks, which saves half the time.
    """

    def parse_hookspec_opts(
        self, module_or_class: Any, name: str
    ) -> pluggy.HookspecOpts | None:
        return (
            None
            if name.startswith("__")
            else super().parse_hookspec_opts(module_or_class, name)
        )

    def parse_hookimpl_opts(self, plugin: Any, name: str) -> pluggy.HookimplOpts | None:
        return (
            None if name.startswith("__") else super().parse_hookimpl_opts(plugin, name)
        )


def read_declarations(plugin: Any, record: PluginRecord) -> PluginRecord:
    """Check the hook implementations of ``plugin`` (a module or an object); returns
    ``record`` with its declarations.

    Raises PluginDefect for hooks or declarations that violate ``delegraph.plugin``.
    Backends that cannot be used here are recorded as faults. The whole plugin gets the
    first of these faults if it has nothing else to use, or if the first unusable
    backend was written for another plugin API.
    """
    manager = _Manager(PROJECT)
    manager.add_hookspecs(Hooks)
    try:
        manager.register(plugin, f"{record.distribution}/{record.name}")
    except pluggy.PluginValidationError as e:
        raise PluginDefect(" ".join(str(e).split()), _SIGNATURES) from e
    backends = _collect(manager, "delegraph_backends")
    faults = {s.name: f for s in backends if (f := fault_of(s, record)) is not None}
    first = next(iter(faults.values()), None)
    # its other hooks may be of another API version, too
    if first is not None and first.status is Status.INCOMPATIBLE:
        return replace(record, declarations=tuple(backends), faults=faults).failed(
            first
        )
    _expect_known_hooks(manager, plugin)
    others = [
        d
        for hook in DECLARATION_OF
        if hook != "delegraph_backends"
        for d in _collect(manager, hook)
    ]
    _expect_different_names([*backends, *others])
    checked = replace(
        record, declarations=(*backends, *others), faults=faults, manager=manager
    )
    # One backend may need more than the rest of the plugin: an extra that is not
    # installed does not disable the rest.
    usable = [
        *(s for s in backends if s.name not in faults),
        *(d for d in others if d.alone and not missing(d.requires)),
    ]
    return checked if first is None or usable else checked.failed(first)


_SIGNATURES = "give the hook the arguments that it has in delegraph.plugin.Hooks"


def _collect(manager: pluggy.PluginManager, hook: str) -> list[Any]:
    """The declarations that the plugin's implementation of ``hook`` returns; empty if
    it does not implement the hook.

    Raises PluginDefect if it returns anything but a list of the hook's kind of
    declaration.
    """
    caller = getattr(manager.hook, hook)
    wanted = DECLARATION_OF[hook].__name__
    answers = caller()
    # pluggy leaves out answers that are None, so there are fewer answers than
    # implementations
    if len(answers) < sum(
        not (i.hookwrapper or i.wrapper) for i in caller.get_hookimpls()
    ):
        remedy = f"return the list; without anything to declare, leave {hook} out"
        raise PluginDefect(
            f"{hook} returned None; it returns a list of {wanted}", remedy
        )
    for answer in answers:
        if not isinstance(answer, (list, tuple)):
            remedy = f"return [{wanted}(...)], a list even for one"
            raise PluginDefect(
                f"{hook} returned {_shown(answer)}; it returns a list of {wanted}",
                remedy,
            )
    declarations = [item for answer in answers for item in answer]
    for item in declarations:
        if not isinstance(item, DECLARATION_OF[hook]):
            remedy = (
                f"declare it with delegraph.plugin.{wanted}, which names the object by"
                " its target"
            )
            raise PluginDefect(
                f"{hook} returned a list with {_shown(item)}; each item is a {wanted}",
                remedy,
            )
    return declarations


def _shown(value: Any) -> str:
    """The ``repr`` of a value, cut after 60 characters, and the name of its type."""
    text = repr(value)
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({type(value).__name__})"


def _expect_known_hooks(manager: pluggy.PluginManager, plugin: Any) -> None:
    """Raise PluginDefect for an unknown hook name, and for a hook without its
    decorator: pluggy ignores both.
    """
    known = [n for n, caller in vars(manager.hook).items() if caller.has_spec()]
    for name, caller in vars(manager.hook).items():
        # an author who marks a hook as optional wants it to be ignored where it does
        # not exist
        if name not in known and not all(
            i.optionalhook for i in caller.get_hookimpls()
        ):
            remedy = f"rename it; the hooks are {', '.join(known)}"
            raise PluginDefect(
                f"there is no hook {name!r}{suggestion(name, known)}", remedy
            )
    for name in known:
        if (
            callable(getattr(plugin, name, None))
            and not getattr(manager.hook, name).get_hookimpls()
        ):
            raise PluginDefect(
                f"{name} lacks the decorator @hookimpl",
                "put delegraph.plugin.hookimpl on it",
            )


def _expect_different_names(declarations: list[Declaration]) -> None:
    """Raise PluginDefect if two declarations of one kind have the same key.

    The key of a partitioner is its backend, which may have several.
    """
    seen: set[tuple[type, str]] = set()
    for declared in declarations:
        kind_and_key = (type(declared), declared.key)
        if kind_and_key in seen and not isinstance(declared, PartitionerSpec):
            text = f"it declares {declared.title} twice"
            raise PluginDefect(text, f"give each {declared.noun} a name of its own")
        seen.add(kind_and_key)


def fault_of(spec: BackendSpec, record: PluginRecord) -> Fault | None:
    """Why a backend that the plugin ``record`` declares cannot be used here; None if it
    can. Imports nothing.
    """
    if spec.api != API_VERSION:
        error = (
            f"backend {spec.name!r} was written for plugin API {spec.api}; this"
            f" delegraph has plugin API {API_VERSION}"
        )
        outdated = record.distribution if spec.api < API_VERSION else "delegraph"
        return Fault(Status.INCOMPATIBLE, error, f"upgrade {outdated}")
    if spec.unusable:
        return Fault(Status.UNAVAILABLE, spec.unusable, spec.install_hint)
    absent = missing(spec.requires)
    if absent:
        error = (
            f"backend {spec.name!r} needs {' and '.join(map(repr, absent))}, which is"
            " not installed"
        )
        return Fault(
            Status.UNAVAILABLE,
            error,
            spec.install_hint or f"install what provides {', '.join(absent)}",
        )
    return None
