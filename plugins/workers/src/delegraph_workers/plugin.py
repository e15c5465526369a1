"""Declare the backends of other environments that the user's settings name.

This light module does not import torch.
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
    """Return the setting and the description of each backend by name.

    ``describe`` in the backend's environment writes the description. That of an unusable
    backend has only an ``error``.
    """
    found = {}
    for setting in settings():
        try:
            description = description_of(setting)
            if description["protocol"] != PROTOCOL:
                description = {"error": _other_protocol(setting, description)}
        except BadSettings as e:
            description = {"error": str(e)}
        found[setting.name] = (setting, description)
    return found


def _other_protocol(setting: Setting, description: dict[str, Any]) -> str:
    """Return the error for an environment whose messages have another version."""
    ours = metadata.version("delegraph-workers")
    theirs = description.get("workers", "of an unknown version")
    return (
        f"{setting.python}: its delegraph-workers {theirs} has protocol"
        f" {description['protocol']}, but delegraph-workers {ours} of this environment"
        f" has protocol {PROTOCOL}; install the same version in both environments"
    )


def _usable() -> dict[str, dict[str, Any]]:
    """Return the descriptions of usable backends by name."""
    return {
        name: description
        for name, (_, description) in described().items()
        if "error" not in description
    }


@hookimpl
def delegraph_compilers() -> list[CompilerSpec]:
    flags = (
        FlagSpec(
            "cache",
            help=(
                "cache compiled partitions in this folder, or in the user's cache"
                " folder (default: $DELEGRAPH_CACHE)"
            ),
            metavar="DIR",
            bare="",
        ),
        FlagSpec(
            "cache-remote",
            help="share the cache with others at this URL, such as s3://bucket/folder",
            metavar="URL",
        ),
        FlagSpec(
            "isolation",
            choices=("process",),
            help=(
                "compile each partition in a new process; its crash costs only this"
                " partition"
            ),
        ),
        FlagSpec(
            "time-limit",
            float,
            help=(
                "stop compiling a partition after this time; it goes to the next"
                " backend or to the host"
            ),
            metavar="SECONDS",
        ),
        FlagSpec(
            "memory-limit",
            float,
            help="stop compiling a partition that uses more memory",
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
    return [
        _spec(name, setting, description)
        for name, (setting, description) in described().items()
    ]


@hookimpl
def delegraph_partitioners() -> list[PartitionerSpec]:
    home = "delegraph_workers.environments:Partitioner_"
    return [
        PartitionerSpec(name, name, f"{home}{identifier(name)}", default=True)
        for name in _usable()
    ]


@hookimpl
def delegraph_runtimes() -> list[RuntimeSpec]:
    home = "delegraph_workers.environments:Runtime_"
    specs = []
    for name, description in _usable().items():
        if description.get("runtime"):
            native = description.get("native", "")
            specs.append(RuntimeSpec(name, f"{home}{identifier(name)}", native=native))
    return specs


@hookimpl
def delegraph_quantizers() -> list[QuantizerSpec]:
    home = "delegraph_workers.quantizer:Quantizer_"
    hint = "pip install delegraph-quantize"
    return [
        QuantizerSpec(
            name,
            f"{home}{identifier(name)}",
            requires=("torchao",),
            install_hint=hint,
        )
        for name, description in _usable().items()
        if description.get("quantizer")
    ]


@hookimpl
def delegraph_formats() -> list[FormatSpec]:
    home = "delegraph_workers.formats:Format_"
    specs = []
    for suffix, name in suffixes().items():
        summary = f"of {_usable()[name]['prefix']}"
        specs.append(FormatSpec(suffix, f"{home}{identifier(suffix)}", summary))
    return specs


def suffixes() -> dict[str, str]:
    """Return the backend for each suffix of a file format in another environment.

    If several environments have a suffix, the first one in the settings counts. A
    distribution that is also installed in this environment declares its own formats.
    """
    backends: dict[str, str] = {}
    for name, description in _usable().items():
        if is_installed(description["distribution"]):
            continue
        for row in description.get("formats", ()):
            backends.setdefault(row["suffix"].lower(), name)
    return backends


def is_installed(distribution: str) -> bool:
    """Return whether this environment has a distribution."""
    try:
        metadata.distribution(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True


def identifier(name: str) -> str:
    """Return the identifier for a backend's name or a suffix.

    Different names, such as ``a-b`` and ``a_b``, have different identifiers.
    """
    return "".join(c if c.isalnum() else f"_{ord(c):02x}" for c in name)


def _spec(
    name: str, setting: Setting, description: dict[str, Any]
) -> RemoteBackendSpec:
    """Return the declaration of a backend, with the reason if it is unusable."""
    path = path_of_settings()
    table = f"[backends.{name}]"
    location = f"{table} of {path}: {setting.python}"
    hint = f"change or remove {table} in {path}"
    target = f"delegraph_workers.environments:Backend_{identifier(name)}"
    if "error" in description:
        return RemoteBackendSpec(
            name,
            target,
            backend_id=f"Backend_{identifier(name)}",
            api=1,
            install_hint=f"mend that environment, or {hint}",
            location=location,
            unusable=f"backend {name!r} is in another environment that cannot be used:"
            f" {description['error']}",
        )
    options = tuple(
        OptionSpec(option, KINDS[kind], default, tuple(choices), text)
        for option, kind, default, choices, text in description["options"]
    )
    distribution = description["distribution"]
    version = description["version"]
    summary = (
        f"{description['summary']} ({distribution} {version} in"
        f" {description['prefix']})"
    )
    return RemoteBackendSpec(
        name,
        target,
        backend_id=description["backend_id"],
        api=1,
        summary=summary.strip(),
        install_hint=hint,
        options=options,
        origin=(distribution, version),
        location=location,
    )
