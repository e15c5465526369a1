"""The light module: backends in environments of their own, as the user's settings name them. Imports no torch."""

from __future__ import annotations

import functools
from typing import Any

from delegraph.plugin import BackendSpec, OptionSpec, PartitionerSpec, RuntimeSpec, hookimpl

from .config import KINDS, BadSettings, Setting, description_of, settings
from .message import PROTOCOL


@functools.cache
def described() -> dict[str, tuple[Setting, dict[str, Any]]]:
    """Name -> setting and description of each backend; a description with ``error`` is of one that cannot be used."""
    made = {}
    for setting in settings():
        try:
            told = description_of(setting)
            if told["protocol"] != PROTOCOL:
                told = {"error": f"{setting.python} speaks protocol {told['protocol']}, and {PROTOCOL} is known here"}
        except BadSettings as e:
            told = {"error": str(e)}
        made[setting.name] = setting, told
    return made


@hookimpl
def delegraph_backends() -> list[BackendSpec]:
    return [_spec(name, setting, told) for name, (setting, told) in described().items()]


@hookimpl
def delegraph_partitioners() -> list[PartitionerSpec]:
    home = "delegraph_workers.environments:Partitioner_"
    usable = {name: told for name, (_, told) in described().items() if "error" not in told}
    return [PartitionerSpec(name, name, f"{home}{_identifier(name)}", default=True) for name in usable]


@hookimpl
def delegraph_runtimes() -> list[RuntimeSpec]:
    home = "delegraph_workers.environments:Runtime_"
    running = [name for name, (_, told) in described().items() if told.get("runtime")]
    return [RuntimeSpec(name, f"{home}{_identifier(name)}") for name in running]


def _identifier(name: str) -> str:
    """A backend's name in a target."""
    return name.replace("-", "_")


def _spec(name: str, setting: Setting, told: dict[str, Any]) -> BackendSpec:
    """The declaration of a backend; one that cannot be used says so through what it requires."""
    home = f"delegraph_workers.environments:Backend_{_identifier(name)}"
    if "error" in told:
        hint = f"mend {setting.python}, or its line in the settings: {told['error']}"
        return BackendSpec(
            name, home, f"Backend_{_identifier(name)}", 1, requires=(f"environment_of_{name}",), install_hint=hint
        )
    options = tuple(
        OptionSpec(n, KINDS[kind], default, tuple(c), text) for n, kind, default, c, text in told["options"]
    )
    summary = f"{told['summary']} ({told['distribution']} {told['version']} in {told['prefix']})".strip()
    target = f"delegraph_workers.environments:{told['backend_id']}"
    origin = told["distribution"], told["version"]
    return BackendSpec(name, target, told["backend_id"], 2, summary, options=options, origin=origin)
