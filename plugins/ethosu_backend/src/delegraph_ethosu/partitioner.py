"""``EthosUPartitioner``: gives Ethos-U the calls that TOSA's rules and the NPU support."""

from __future__ import annotations

import json
import shlex

import delegraph
from delegraph.backend import CompileSpec
from delegraph.errors import OptionError
from delegraph_engines import WrappingPartitioner

from .hardware import TARGETS
from .vela import tosa_version

_DEFAULTS = {
    "u55": ("Ethos_U55_High_End_Embedded", "Shared_Sram"),
    "u65": ("Ethos_U65_High_End", "Dedicated_Sram_384KB"),
    "u85": ("Ethos_U85_SYS_DRAM_Mid", "Sram_Only"),
}
"""Processor -> default system configuration and memory mode; the same as in ExecuTorch.
"""
_FLAGS_OF_OPTIONS = {
    "--accelerator-config": "accelerator",
    "--system-config": "system_config",
    "--memory-mode": "memory_mode",
    "--config": "config",
    "--optimise": "optimise",
}
"""Flag of Vela -> the option that sets it."""
_REFUSED_FLAGS = (
    "--output-dir",
    "--output-format",
    "--enable-debug-db",
    "--version",
    "--api-version",
    "--help",
    "-h",
    "--supported-ops-report",
    "--list-config-files",
    "--list-configs",
    "--ignore-ops",
    "--debug-force-legacy-core",
)
"""Flags that would change the form of Vela's results, or with which it writes none."""


class EthosUPartitioner(WrappingPartitioner):
    """Gives Ethos-U the operators that the NPU supports.

    The options are those of ``plugin.OPTIONS``; OptionError for an invalid one.
    """

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
        if seconds < 1:
            raise OptionError(
                "option-invalid", f"seconds must be a positive number; got {seconds}"
            )
        processor = accelerator.split("-")[1]
        system, memory = _DEFAULTS[processor]
        options = {
            "accelerator": accelerator,
            "system_config": system_config or system,
            "memory_mode": memory_mode or memory,
            "config": config,
            "optimise": optimise,
        }
        arguments = user_arguments(flags)
        arguments += [
            f"{flag}={options[name]}" for flag, name in _FLAGS_OF_OPTIONS.items()
        ]
        tags = _tags(cmd_data=commands_tag, weight_data=weights_tag)
        settings = {
            "ethosu_accelerator": accelerator,
            "ethosu_flags": json.dumps(arguments),
            "ethosu_seconds": str(seconds),
            "ethosu_tags": json.dumps(tags),
            "ethosu_keep_tosa": str(keep_tosa).lower(),
        }
        device = "u85" if processor == "u85" else "u55"
        spec = f"{TARGETS[tosa_version()]}+{device}"
        inner = delegraph.get_partitioner(
            "tosa", spec=spec, debug_artifact_path=debug_artifact_path
        )
        specs = [CompileSpec(key, text.encode()) for key, text in settings.items()]
        super().__init__(inner, "EthosUBackend", specs)


def user_arguments(flags: str) -> list[str]:
    """Return the user's arguments for Vela.

    Raises OptionError for an unclosed quote, and for flags that the backend sets.
    """
    try:
        arguments = shlex.split(flags)
    except ValueError as error:
        raise OptionError("option-invalid", f"flags {flags!r}: {error}") from error
    for argument in arguments:
        # argparse accepts an abbreviated flag if it is unambiguous
        flag = argument.partition("=")[0]
        for name in (*_FLAGS_OF_OPTIONS, *_REFUSED_FLAGS):
            if flag == name or (len(flag) > 2 and name.startswith(flag)):
                reason = "the backend depends on its default"
                if name in _FLAGS_OF_OPTIONS:
                    reason = f"set it by the option {_FLAGS_OF_OPTIONS[name]}"
                raise OptionError(
                    "option-invalid",
                    f"flags {flags!r}: {name} is not allowed here; {reason}",
                )
    return arguments


def _tags(**tags: str | None) -> dict[str, str]:
    """Return block -> external tag, for the given tags.

    Raises OptionError for a tag that is no identifier, since it names a file.
    """
    for tag in tags.values():
        if tag is not None and not (tag.isascii() and tag.isidentifier()):
            raise OptionError(
                "option-invalid",
                f"a tag must consist of letters, digits and underscores; got {tag!r}",
            )
    return {block: tag for block, tag in tags.items() if tag is not None}
