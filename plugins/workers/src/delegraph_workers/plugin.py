"""The light module: backends in environments of their own, as the user's settings name
them. Imports no torch.
"""

from __future__ import annotations

import functools
from importlib import metadata
from typing import Any

from delegraph.plugin import (
    BackendSpec,
    CommandSpec,
    CompilerSpec,
    FlagSpec,
    FormatSpec,
    OptionSpec,
    PartitionerSpec,
    QuantizerSpec,
    RemoteBackendSpec,
    RuntimeSpec,
    hookimpl,
)

from .config import (
    KINDS,
    BadSettings,
    Setting,
    description_of,
    path_of_settings,
    settings,
)
from .message import PROTOCOL


@functools.cache
def described() -> dict[str, tuple[Setting, dict[str, Any]]]:
    """Name -> setting and description of each backend; a description with ``error`` is
    of one that cannot be used.
    """
    made = {}
    for setting in settings():
        try:
            told = description_of(setting)
            if told["protocol"] != PROTOCOL:
                theirs = (
                    f"delegraph-workers {told.get('workers', 'there')} speaks protocol"
                    f" {told['protocol']}"
                )
                ours = (
                    f"delegraph-workers {metadata.version('delegraph-workers')} here"
                    f" speaks {PROTOCOL}"
                )
                told = {
                    "error": (
                        f"{setting.python}: {theirs}, and {ours}; install the same one"
                        " in both"
                    )
                }
        except BadSettings as e:
            told = {"error": str(e)}
        made[setting.name] = setting, told
    return made


@hookimpl
def delegraph_compilers() -> list[CompilerSpec]:
    flags = (
        FlagSpec(
            "cache",
            help=(
                "keep compiled partitions in this folder, or in the user's, and compile"
                " none that is there (default: $DELEGRAPH_CACHE)"
            ),
            metavar="DIR",
            bare="",
        ),
        FlagSpec(
            "cache-remote",
            help="also in this one, which others share, such as s3://bucket/folder",
            metavar="URL",
        ),
        FlagSpec(
            "isolation",
            choices=("process",),
            help=(
                "compile each partition in a process of its own, which a compiler"
                " may end"
            ),
        ),
        FlagSpec(
            "time-limit",
            float,
            help=(
                "stop compiling a partition after so long; it goes to the next backend"
                " or to the host"
            ),
            metavar="SECONDS",
        ),
        FlagSpec(
            "memory-limit",
            float,
            help="the same for memory that compiling a partition takes",
            metavar="MB",
        ),
    )
    target = "delegraph_workers.compiler:from_flags"
    return [CompilerSpec("workers", target, flags, default=True)]


@hookimpl
def delegraph_commands() -> list[CommandSpec]:
    target = "delegraph_workers.cache_command:CacheCommand"
    return [
        CommandSpec(
            "cache", target, "list, check or clear a cache of compiled partitions"
        )
    ]


@hookimpl
def delegraph_backends() -> list[BackendSpec]:
    return [_spec(name, setting, told) for name, (setting, told) in described().items()]


@hookimpl
def delegraph_partitioners() -> list[PartitionerSpec]:
    home = "delegraph_workers.environments:Partitioner_"
    usable = {
        name: told for name, (_, told) in described().items() if "error" not in told
    }
    return [
        PartitionerSpec(name, name, f"{home}{identifier(name)}", default=True)
        for name in usable
    ]


@hookimpl
def delegraph_runtimes() -> list[RuntimeSpec]:
    home = "delegraph_workers.environments:Runtime_"
    running = {
        name: told for name, (_, told) in described().items() if told.get("runtime")
    }
    return [
        RuntimeSpec(name, f"{home}{identifier(name)}", native=told.get("native", ""))
        for name, told in running.items()
    ]


@hookimpl
def delegraph_quantizers() -> list[QuantizerSpec]:
    home = "delegraph_workers.quantizer:Quantizer_"
    hint = "pip install delegraph-quantize"
    having = [name for name, (_, told) in described().items() if told.get("quantizer")]
    return [
        QuantizerSpec(name, f"{home}{identifier(name)}", ("torchao",), hint)
        for name in having
    ]


@hookimpl
def delegraph_formats() -> list[FormatSpec]:
    home = "delegraph_workers.formats:Format_"
    return [
        FormatSpec(
            suffix,
            f"{home}{identifier(suffix)}",
            f"of {described()[name][1]['prefix']}",
        )
        for suffix, name in suffixes().items()
    ]


def suffixes() -> dict[str, str]:
    """Suffix of a file format -> the backend whose environment has it; of several the
    first of the settings.

    A distribution that is installed here as well declares its formats itself.
    """
    made: dict[str, str] = {}
    for name, (_, told) in described().items():
        if "formats" not in told or is_installed(told["distribution"]):
            continue
        for row in told["formats"]:
            made.setdefault(row["suffix"].lower(), name)
    return made


def is_installed(distribution: str) -> bool:
    """Whether this environment has a distribution."""
    try:
        metadata.distribution(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True


def identifier(name: str) -> str:
    """A backend's name, or a suffix, in a target: no two have the same, also ``a-b``
    and ``a_b``.
    """
    return "".join(c if c.isalnum() else f"_{ord(c):02x}" for c in name)


def _spec(name: str, setting: Setting, told: dict[str, Any]) -> RemoteBackendSpec:
    """The declaration of a backend; one whose environment cannot be used says why."""
    path = path_of_settings()
    table = f"[backends.{name}]"
    location = f"{table} of {path}: {setting.python}"
    way_out = f"change or remove {table} in {path}"
    home = f"delegraph_workers.environments:Backend_{identifier(name)}"
    if "error" in told:
        why = (
            f"backend {name!r} is in an environment of its own that cannot be used:"
            f" {told['error']}"
        )
        hint = f"mend that environment, or {way_out}"
        backend_id = f"Backend_{identifier(name)}"
        return RemoteBackendSpec(
            name,
            home,
            backend_id,
            1,
            install_hint=hint,
            location=location,
            unusable=why,
        )
    options = tuple(
        OptionSpec(n, KINDS[kind], default, tuple(c), text)
        for n, kind, default, c, text in told["options"]
    )
    return RemoteBackendSpec(
        name,
        home,
        told["backend_id"],
        1,
        f"{told['summary']} ({told['distribution']} {told['version']} in"
        f" {told['prefix']})".strip(),
        install_hint=way_out,
        options=options,
        origin=(told["distribution"], told["version"]),
        location=location,
    )
