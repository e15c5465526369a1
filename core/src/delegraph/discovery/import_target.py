"""Imports the object that a declaration names, and checks that it is of the declared
kind.
"""

from __future__ import annotations

import inspect
import sys
from typing import Any

from ..errors import PluginBroken
from ..plugin import IN_PROCESS, Declaration
from .explain_exception import advice, describe, disable_hint
from .import_by_name import exits_raise, load
from .records import PluginRecord
from .torch_settings import settings_kept


def import_target(spec: Declaration, record: PluginRecord) -> Any:
    """Import and return the target of ``spec``, which the plugin ``record`` declares.

    Raises PluginBroken if the import fails, with the error of the import as cause, or
    if the object is not of the declared kind.
    """
    title = f"{spec.noun} {spec.target!r} of {record.owner}"
    try:
        with exits_raise(), settings_kept(f"importing {title}"):
            target = load(spec.target, installed=record.distribution != IN_PROCESS)
            reason = wrong_kind(spec, target)
    except KeyboardInterrupt:
        raise
    except BaseException as e:  # also SystemExit
        why = describe(e, [record.location, *record.modules])
        raise PluginBroken(
            "plugin-broken", f"{title} cannot be loaded: {why}", hint=advice(e, record)
        ) from e
    if reason is not None:
        # the kind that the authors must provide, in words
        rules = [spec.rule] if spec.rule else []
        if spec.base:
            base = spec.base.replace(":", ".")
            rules.insert(0, f"a {spec.noun} is a subclass of {base}")
        hint = (
            f"for the authors of {record.distribution}: {', and '.join(rules)};"
            f" {disable_hint(record)}"
        )
        raise PluginBroken("plugin-broken", f"{title} {reason}", hint=hint)
    return target


def wrong_kind(spec: Declaration, target: Any) -> str | None:
    """Return why the object ``target`` is not of the kind that ``spec`` declares; None
    if it is.
    """
    if not spec.base:
        return spec.why_not(target)
    base = load(spec.base, installed=False)
    if isinstance(target, type) and issubclass(target, base):
        return spec.why_not(target)
    text = (
        f"is no subclass of {spec.base.replace(':', '.')} but {type(target).__name__}"
        f" {target!r:.60}"
    )
    # Other objects lack ``__module__``, or have that of their class, whose file would
    # mislead.
    if isinstance(target, type) or inspect.isfunction(target):
        file = getattr(sys.modules.get(target.__module__), "__file__", None)
        text += f" of {file}" if file else ""
    return text
