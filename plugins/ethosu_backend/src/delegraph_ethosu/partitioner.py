"""``EthosUPartitioner``: gives Ethos-U what TOSA's rules lower to operators that the
NPU has.
"""

from __future__ import annotations

import json
import shlex

import delegraph
from delegraph.backend import CompileSpec
from delegraph.errors import OptionError
from delegraph.partitioner import WrappingPartitioner

from .hardware import TARGETS
from .vela import tosa_version

_DEFAULTS = {
    "u55": ("Ethos_U55_High_End_Embedded", "Shared_Sram"),
    "u65": ("Ethos_U65_High_End", "Dedicated_Sram_384KB"),
    "u85": ("Ethos_U85_SYS_DRAM_Mid", "Sram_Only"),
}
"""Processor -> system configuration and memory mode where none is given; the same as in
ExecuTorch.
"""
_OURS = {
    "--accelerator-config": "accelerator",
    "--system-config": "system_config",
    "--memory-mode": "memory_mode",
    "--config": "config",
    "--optimise": "optimise",
}
"""Flag of Vela -> the option that sets it."""
_NOT_TAKEN = (
    *(
        "--output-dir",
        "--output-format",
        "--enable-debug-db",
        "--version",
        "--api-version",
        "--help",
        "-h",
    ),
    *(
        "--supported-ops-report",
        "--list-config-files",
        "--list-configs",
        "--ignore-ops",
        "--debug-force-legacy-core",
    ),
)
"""Flags with which Vela compiles nothing, or something that is no payload."""


class EthosUPartitioner(WrappingPartitioner):
    """The options are those of ``plugin.OPTIONS``; OptionError for one that is wrong."""

    def __init__(
        self,
        accelerator: str = "ethos-u85-256",
        system_config: str | None = None,
        memory_mode: str | None = None,
        config: str = "Arm/vela.ini",
        optimise: str = "Performance",
        flags: str = "",
        seconds: int = 3600,
        weights_tag: str | None = None,
        commands_tag: str | None = None,
        keep_tosa: bool = False,
        debug_artifact_path: str | None = None,
    ) -> None:
        processor = accelerator.split("-")[1]
        system, memory = _DEFAULTS[processor]
        given = {"accelerator": accelerator, "optimise": optimise, "config": config}
        given |= {
            "system_config": system_config or system,
            "memory_mode": memory_mode or memory,
        }
        if seconds < 1:
            raise OptionError(
                "option-invalid", f"seconds is a positive number, not {seconds}"
            )
        own = {
            "ethosu_accelerator": accelerator,
            "ethosu_flags": json.dumps(
                [
                    *further(flags),
                    *(f"{flag}={given[name]}" for flag, name in _OURS.items()),
                ]
            ),
            "ethosu_seconds": str(seconds),
            "ethosu_tags": json.dumps(
                _tags(cmd_data=commands_tag, weight_data=weights_tag)
            ),
            "ethosu_keep_tosa": str(keep_tosa).lower(),
        }
        spec = f"{TARGETS[tosa_version()]}+{'u85' if processor == 'u85' else 'u55'}"
        inner = delegraph.get_partitioner(
            "tosa", spec=spec, debug_artifact_path=debug_artifact_path
        )
        super().__init__(
            inner,
            "EthosUBackend",
            [CompileSpec(key, text.encode()) for key, text in own.items()],
        )


def further(flags: str) -> list[str]:
    """The user's arguments for Vela. OptionError for an unclosed quote, a file, and
    flags that have an option.
    """
    try:
        arguments = shlex.split(flags)
    except ValueError as error:
        raise OptionError("option-invalid", f"flags {flags!r}: {error}") from error
    for argument in arguments:
        # argparse takes any beginning of a flag that is no other's beginning
        flag = argument.partition("=")[0]
        for name in (*_OURS, *_NOT_TAKEN):
            if flag == name or (len(flag) > 2 and name.startswith(flag)):
                instead = (
                    f"the option {_OURS[name]} sets it"
                    if name in _OURS
                    else "the backend reads what it changes"
                )
                raise OptionError(
                    "option-invalid", f"flags {flags!r}: {name} is not taken; {instead}"
                )
    return arguments


def _tags(**tags: str | None) -> dict[str, str]:
    """Block -> external tag, of those that are given. OptionError for a tag that is no
    name of a file.
    """
    for tag in tags.values():
        if tag is not None and not (tag.isascii() and tag.isidentifier()):
            raise OptionError(
                "option-invalid",
                f"a tag is a name of letters, digits and underscores, not {tag!r}",
            )
    return {block: tag for block, tag in tags.items() if tag is not None}
