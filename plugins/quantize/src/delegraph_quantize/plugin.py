"""The light module: the command of this distribution. Imports neither torch nor numpy."""

from __future__ import annotations

from delegraph.plugin import CommandSpec, hookimpl


@hookimpl
def delegraph_commands() -> list[CommandSpec]:
    return [
        CommandSpec(
            "quantize",
            "delegraph_quantize.command:QuantizeCommand",
            "quantize a model with a backend's quantizer and write it as a .pt2 file",
        )
    ]
