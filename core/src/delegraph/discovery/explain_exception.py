"""Explains why code of a plugin failed: the exception and its line, and advice."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection
from traceback import walk_tb

from .import_by_name import ProcessExit, ShadowedByWorkingDirectory, TargetMissing
from .records import DENY, PluginRecord


class PluginDefect(Exception):
    """A plugin violates the rules of ``delegraph.plugin``; ``remedy`` is the change
    that its authors must make.
    """

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(message)
        self.remedy = remedy


_LONGEST = 1000
_SELF_EXPLANATORY = (PluginDefect, TargetMissing, ProcessExit)
"""Exceptions of delegraph itself. Their texts are clear without the class's name."""
_NOT_SHOWN = {*sys.stdlib_module_names, "delegraph", "delegraph_programs"} - {
    "__main__"
}
"""Packages of which no line is shown for a plugin's error. The line of the plugin that
calls such a package is more useful.
"""


def describe(error: BaseException, own: Collection[str] = ()) -> str:
    """Return an exception in one line of text, with the file and line of the plugin's
    code that raised it.

    The line is the traceback's innermost line in the plugin's packages. If there is
    none, it is the innermost line outside of Python's library and delegraph. ``own``:
    modules of the plugin, or their files; the top-level packages of these modules are
    the plugin's packages.

    Exceptions of delegraph itself (``_SELF_EXPLANATORY``) are described without class
    and line.
    """
    text = name_and_text(error)
    if isinstance(error, _SELF_EXPLANATORY):
        return text
    line = _plugin_line(error, own)
    # some texts contain the line already
    return f"{text} ({line})" if line and line not in text else text


def name_and_text(error: BaseException) -> str:
    """Return the name of an exception's class and the first line of its text, such as
    ``ValueError: bad size``. For exceptions in ``_SELF_EXPLANATORY``, return only the
    text.
    """
    try:  # ``__str__`` may be code of the plugin that fails
        text = str(error).strip().partition("\n")[0][:_LONGEST]
    except KeyboardInterrupt:
        raise
    except BaseException as e:
        text = f"its message cannot be shown, as that raises {type(e).__name__}"
    if isinstance(error, KeyError):
        text = repr(error.args)  # the text of a KeyError may be the key alone
    if isinstance(error, _SELF_EXPLANATORY):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _plugin_line(error: BaseException, own: Collection[str]) -> str | None:
    """Return ``file:line`` of the plugin's code that ``describe`` shows; None if the
    traceback has no such line. ``own``: see ``describe``.
    """
    # a traceback ends at the import; a SyntaxError has the line with the mistake
    if isinstance(error, SyntaxError):
        return f"{error.filename}:{error.lineno}" if error.filename else None
    own_packages = {_package(name) for name in own}
    own_line = None
    other_line = None
    for frame, number in walk_tb(error.__traceback__):
        file = frame.f_code.co_filename
        package = _package(str(frame.f_globals.get("__name__")))
        line = f"{file}:{number}"
        if file in own or package in own_packages:
            own_line = line
        # files such as "<frozen importlib._bootstrap>" cannot be opened
        elif not file.startswith("<") and package not in _NOT_SHOWN:
            other_line = line
    return own_line or other_line


def _package(module: str) -> str:
    """Return the top-level package of a module."""
    return module.partition(".")[0]


def advice(error: BaseException, record: PluginRecord) -> str:
    """Return a hint for the user of the plugin ``record``, which failed with ``error``.
    For a defect of the plugin, the hint also has a part for the plugin's authors.
    """
    owner = record.distribution
    if isinstance(error, ShadowedByWorkingDirectory):
        return "run this in another folder, or install what lies in this one"
    if isinstance(error, PluginDefect):
        hint = f"for the authors of {owner}: {error.remedy}"
    elif isinstance(error, TargetMissing):
        hint = (
            f"for the authors of {owner}: name what the module has; or reinstall"
            f" {owner}"
        )
    elif isinstance(error, ModuleNotFoundError) and isinstance(error.name, str):
        hint = _absent_module(error.name, record)
    elif isinstance(error, SyntaxError):
        python = f"Python {sys.version_info.major}.{sys.version_info.minor}"
        hint = f"reinstall {owner}, in a version that is written for {python}"
    elif isinstance(error, (SystemExit, ProcessExit)):
        hint = f"for the authors of {owner}: a module that is imported must not exit"
    else:
        hint = f"reinstall or upgrade {owner}, or tell its authors"
    return f"{hint}; {disable_hint(record)}"


def disable_hint(record: PluginRecord) -> str:
    """Return the hint how to disable the plugin ``record``."""
    return f"to go on without it, set {DENY}={record.distribution}"


def _absent_module(name: str, record: PluginRecord) -> str:
    """Return the hint for the module ``name``, which the plugin ``record`` imports and
    which is missing.

    The plugin is incomplete if its light module is missing, or if the missing module
    belongs to the package of a target or of the light module. Otherwise the user has to
    install another package.
    """
    top = _package(name)
    # ``location`` is the file of the light module; a folder if that is missing
    has_light_module = record.location.endswith(".py")
    # whether a folder or file in the path is named like the package, as ``acme_npu`` in
    # ``/usr/lib/acme_npu/light.py``
    is_of_light_module = f"{os.sep}{top}" in os.path.splitext(record.location)[0]
    # ``modules``: those of the plugin's targets
    is_of_target = top in map(_package, record.modules)
    if is_of_light_module or is_of_target or not has_light_module:
        return (
            f"reinstall {record.distribution}, whose files are incomplete unless it"
            f" forgot to declare {name!r}"
        )
    return (
        f"install what provides {name!r}; {record.distribution} should declare it in"
        " BackendSpec.requires"
    )
