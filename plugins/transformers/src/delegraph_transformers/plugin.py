"""The light module; it imports neither torch nor transformers."""

from __future__ import annotations

from delegraph.plugin import CommandSpec, ModelSpec, hookimpl

_INSTALL = 'pip install "delegraph-transformers[models]"'


@hookimpl
def delegraph_models() -> list[ModelSpec]:
    return [
        ModelSpec(
            "transformers",
            "delegraph_transformers.sources:read",
            types=("transformers:PreTrainedModel", "transformers:ExportedModel"),
            summary="folders with models or exports of transformers",
            requires=("transformers",),
            install_hint=_INSTALL,
        ),
        ModelSpec(
            "hf",
            "delegraph_transformers.sources:read_cached",
            summary="models in the local cache of Hugging Face, as ORG/MODEL",
            requires=("transformers",),
            install_hint=_INSTALL,
        ),
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
