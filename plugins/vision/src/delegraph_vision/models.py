"""Makes the models ``timm:NAME`` and ``torchvision:NAME`` in eval mode, with an image."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from delegraph.errors import InputError, PluginUnavailable
from delegraph_programs import load_weights
from torch import nn

_SIZE = 224
"""Default height and width of an image."""
Model = tuple[nn.Module, tuple[torch.Tensor, ...]]
"""A model, and its example inputs."""


def from_timm(text: str) -> Model:
    """Return the model ``NAME`` or ``NAME@FILE`` of timm, and an image [1, C, H, W].

    Raises InputError for an unknown name, and for a file without weights of this model.
    """
    timm = _import_library("timm")
    name, file = _name_and_file(text, "timm", timm.list_models())
    model = _build_network(lambda: timm.create_model(name), file)
    settings: Any = getattr(model, "pretrained_cfg", None) or {}
    return model, _random_image(settings.get("input_size") or (3, _SIZE, _SIZE))


def from_torchvision(text: str) -> Model:
    """Return the model ``NAME`` or ``NAME@FILE`` of torchvision, and example inputs.

    They have the size that it was trained for. An image is [1, 3, H, W], a video [1, 3,
    16, H, W]; models of optical flow take two images. Raises InputError for an unknown
    name, for detectors, which take lists of images, and for a file without weights of
    this model.
    """
    models = _import_library("torchvision").models
    name, file = _name_and_file(text, "torchvision", models.list_models())
    module = models.get_model_builder(name).__module__
    kind = module.removeprefix("torchvision.models.").partition(".")[0]
    if kind == "detection":
        text = (
            f"torchvision:{name} takes a list of images, which torch.export does not"
            " support"
        )
        hint = (
            "write a model of its backbone and heads: the recipes in delegraph's"
            " documentation have one with anchors and boxes"
        )
        raise InputError("input-invalid", text, hint=hint)
    options = _NO_WEIGHTS.get(kind, {})
    model = _build_network(
        lambda: models.get_model(name, weights=None, **options), file
    )
    size = _image_size(models.get_model_weights(name))
    shape = (3, 16, size, size) if kind == "video" else (3, size, size)
    images = _random_image(shape)
    if kind == "optical_flow":
        images = images * 2
    return model, images


_NO_WEIGHTS: dict[str, dict[str, Any]] = {"segmentation": {"weights_backbone": None}}
"""Kind of model -> arguments that keep torchvision from downloading weights of a part.
"""


def _import_library(library: str) -> Any:
    """Import timm or torchvision; raise PluginUnavailable if that fails.

    timm imports torchvision. A torchvision for another build of torch does not find the
    functions that it registers.
    """
    try:
        return importlib.import_module(library)
    except Exception as error:
        # broken installations raise many kinds of errors
        names = dict.fromkeys((library, "torchvision", "torch"))
        found = ", ".join(f"{name} {_version(name)}" for name in names)
        text = (
            f"{library} cannot be imported: {type(error).__name__}: {error} (with"
            f" {found})"
        )
        hint = (
            "torchvision and torch must be of one build (CPU, or the same CUDA):"
            " install both in one command"
        )
        raise PluginUnavailable("plugin-unavailable", text, hint=hint) from error


def _version(distribution: str) -> str:
    """Return the version of a distribution, or a text that it is missing."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "(not installed)"


def _image_size(weights: Any) -> int:
    """Return height and width of the images that the model has weights for."""
    transforms = next(iter(weights)).transforms()
    size = getattr(transforms, "crop_size", None) or _SIZE
    return int(size[-1] if isinstance(size, Sequence) else size)


def _name_and_file(
    text: str, library: str, known: Sequence[str]
) -> tuple[str, Path | None]:
    """Return the parts of ``NAME@FILE``; raise InputError for an unknown name."""
    name, _, file = text.partition("@")
    if name in known:
        return name, Path(file) if file else None
    near = difflib.get_close_matches(name, known, n=3)
    hint = f"{library} has {len(known)} models: {library}.list_models()"
    if near:
        hint = f"did you mean {', '.join(near)}?"
    raise InputError("input-invalid", f"{library} has no model {name!r}", hint=hint)


def _build_network(build: Callable[[], nn.Module], file: Path | None) -> nn.Module:
    """Return the network in eval mode, with weights of ``file`` or fixed random ones."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = build().eval()
    if file is not None:
        load_weights([model], file)
    return model


def _random_image(shape: Sequence[int]) -> tuple[torch.Tensor, ...]:
    """Return example inputs: one image of this shape, the same in each call."""
    return (torch.randn(1, *shape, generator=torch.Generator().manual_seed(0)),)
