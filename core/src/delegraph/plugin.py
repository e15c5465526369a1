"""What a plugin imports to declare itself. Imports the standard library and pluggy, nothing else.

A distribution names a *light module* in its entry-point group ``delegraph``; hook implementations in it return the
declarations below. The ``target`` of a declaration (``"package.module:Name"``) is imported when it is first used.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pluggy

PROJECT = "delegraph"
"""Name of the pluggy project and of the entry-point group."""
API_VERSION = 1
"""Version of this page. A plugin says in ``BackendSpec.api`` which one it was written for."""

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@dataclass(frozen=True)
class OptionSpec:
    """One option of a backend: ``options={"<backend>": {"<name>": value}}`` or ``--option <backend>.<name>=value``.

    ``type`` is one of str, int, float, bool; text from the command line is converted to it.
    """

    name: str
    type: type = str
    default: Any = None
    choices: tuple[Any, ...] = ()
    help: str = ""


@dataclass(frozen=True)
class BackendSpec:
    """A backend: its short ``name``, its ``backend_id`` (the class's name, what a ``.pte`` stores) and where it lives.

    ``requires`` names modules that must be importable, ``formats`` the file suffixes that a whole delegate can be
    saved as (``(".tosa",)``). ``api`` is the plugin API version that it was written for.
    """

    name: str
    target: str
    backend_id: str
    api: int
    summary: str = ""
    requires: tuple[str, ...] = ()
    install_hint: str = ""
    options: tuple[OptionSpec, ...] = ()
    formats: tuple[str, ...] = ()


@dataclass(frozen=True)
class PartitionerSpec:
    """A partitioner of ``backend`` (its short name); called with the backend's options as keyword arguments."""

    name: str
    backend: str
    target: str
    default: bool = False


@dataclass(frozen=True)
class RuntimeSpec:
    """What executes the blobs of ``backend`` on this host: a ``delegraph.runtime.BackendRuntime``."""

    backend: str
    target: str
    requires: tuple[str, ...] = ()


@dataclass(frozen=True)
class QuantizerSpec:
    """The quantiser of ``backend``."""

    backend: str
    target: str
    requires: tuple[str, ...] = ()


class Hooks:
    """The hooks of API version 1. The first four collect declarations, the last two are events."""

    @hookspec
    def delegraph_backends(self) -> Iterable[BackendSpec]:
        """The backends that this distribution offers."""
        raise NotImplementedError

    @hookspec
    def delegraph_partitioners(self) -> Iterable[PartitionerSpec]:
        """The partitioners that this distribution offers."""
        raise NotImplementedError

    @hookspec
    def delegraph_runtimes(self) -> Iterable[RuntimeSpec]:
        """The runtimes that this distribution offers."""
        raise NotImplementedError

    @hookspec
    def delegraph_quantizers(self) -> Iterable[QuantizerSpec]:
        """The quantisers that this distribution offers."""
        raise NotImplementedError

    @hookspec
    def delegraph_after_partition(self, report: Any) -> None:
        """A program was partitioned; an error raised here is a line in the report."""

    @hookspec
    def delegraph_after_lower(self, result: Any) -> None:
        """A program was lowered; an error raised here is a line in the report."""


Declaration = BackendSpec | PartitionerSpec | RuntimeSpec | QuantizerSpec
Declarations = Sequence[Declaration]
