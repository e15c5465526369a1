"""The light module; it imports neither torch nor the libraries of models."""

from __future__ import annotations

from delegraph.plugin import ModelSpec, hookimpl


@hookimpl
def delegraph_models() -> list[ModelSpec]:
    return [
        ModelSpec(
            library,
            f"delegraph_vision.models:from_{library}",
            summary=(
                f"models of {library}, with random weights or those of a file:"
                f" {library}:{example}@FILE"
            ),
            requires=(library,),
            install_hint=f'pip install "delegraph-vision[{library}]"',
        )
        for library, example in (
            ("timm", "efficientnet_b0"),
            ("torchvision", "resnet18"),
        )
    ]
