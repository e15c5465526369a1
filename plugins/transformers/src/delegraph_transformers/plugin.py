"""The light module; it imports neither torch nor transformers."""

from __future__ import annotations

from delegraph.plugin import CommandSpec, ModelSpec, hookimpl


@hookimpl
def delegraph_models() -> list[ModelSpec]:
    return [
        ModelSpec(
            "transformers",
            "delegraph_transformers.models:read",
            types=("transformers:PreTrainedModel",),
            summary="language models of transformers, as prefill and decode",
            requires=("transformers",),
            install_hint='pip install "delegraph-transformers[models]"',
        )
    ]


@hookimpl
def delegraph_commands() -> list[CommandSpec]:
    return [
        CommandSpec(
            "generate",
            "delegraph_transformers.command:Generate",
            "generate tokens with a lowered language model",
        )
    ]
