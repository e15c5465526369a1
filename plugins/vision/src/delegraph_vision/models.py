"""What ``timm:NAME`` and ``torchvision:NAME`` mean: a network in eval mode, and an
image for it.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from delegraph.errors import InputError, PluginUnavailable
from torch import nn

_SIZE = 224
"""Height and width of an image where the library says none."""
Model = tuple[nn.Module, tuple[torch.Tensor, ...]]


def from_timm(text: str) -> Model:
    """The model ``NAME`` or ``NAME@FILE`` of timm, and an image [1, C, H, W] of its
    size.

    Raises InputError for an unknown name, and for a file that does not hold weights of
    this model.
    """
    timm = _imported("timm")
    name, file = _name_and_file(text, "timm", timm.list_models())
    model = _built(lambda: timm.create_model(name), file)
    settings: Any = getattr(model, "pretrained_cfg", None) or {}
    return model, _images(settings.get("input_size") or (3, _SIZE, _SIZE))


def from_torchvision(text: str) -> Model:
    """The model ``NAME`` or ``NAME@FILE`` of torchvision, and inputs of the size that
    it was trained for.

    An image is [1, 3, H, W], a video [1, 3, 16, H, W]; models of optical flow take two
    images. Raises InputError for an unknown name, for detectors, which take lists of
    images, and for a file that does not hold weights of this model.
    """
    models = _imported("torchvision").models
    name, file = _name_and_file(text, "torchvision", models.list_models())
    kind = (
        models.get_model_builder(name)
        .__module__.removeprefix("torchvision.models.")
        .partition(".")[0]
    )
    if kind == "detection":
        what = (
            f"torchvision:{name} takes a list of images, as no program of torch.export"
            " does"
        )
        hint = (
            "give its backbone and heads as a model of your own: docs/recipes.md has"
            " one with anchors and boxes"
        )
        raise InputError("input-invalid", what, hint=hint)
    model = _built(
        lambda: models.get_model(name, weights=None, **_NO_WEIGHTS.get(kind, {})), file
    )
    size = _size(models.get_model_weights(name))
    images = _images((3, 16, size, size) if kind == "video" else (3, size, size))
    return model, images * 2 if kind == "optical_flow" else images


_NO_WEIGHTS: dict[str, dict[str, Any]] = {"segmentation": {"weights_backbone": None}}
"""Kind of model -> arguments without which torchvision would download the weights of a
part.
"""


def _imported(library: str) -> Any:
    """timm or torchvision. Raises PluginUnavailable if it does not load: timm imports
    torchvision, made for one torch.

    A torchvision that was built for another torch, or for one with CUDA, does not find
    the functions that it registers.
    """
    try:
        return importlib.import_module(library)
    except Exception as error:
        # what a library does that is only half there has no class in common
        found = ", ".join(
            f"{name} {_version(name)}"
            for name in dict.fromkeys((library, "torchvision", "torch"))
        )
        text = (
            f"{library} does not load: {type(error).__name__}: {error} (with {found})"
        )
        hint = (
            "torchvision and torch have to be of one build (CPU, or one CUDA): install"
            " both in one command"
        )
        raise PluginUnavailable("plugin-unavailable", text, hint=hint) from error


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "(not installed)"


def _size(weights: Any) -> int:
    """Height and width of the images for which the model has weights."""
    transforms = next(iter(weights)).transforms()
    size = getattr(transforms, "crop_size", None) or _SIZE
    return int(size[-1] if isinstance(size, Sequence) else size)


def _name_and_file(
    text: str, library: str, known: Sequence[str]
) -> tuple[str, Path | None]:
    """The parts of ``NAME@FILE``. Raises InputError if the library has no model of the
    name.
    """
    name, _, file = text.partition("@")
    if name in known:
        return name, Path(file) if file else None
    near = difflib.get_close_matches(name, known, n=3)
    hint = (
        f"did you mean {', '.join(near)}?"
        if near
        else f"{library} has {len(known)} models: {library}.list_models()"
    )
    raise InputError("input-invalid", f"{library} has no model {name!r}", hint=hint)


def _built(build: Callable[[], nn.Module], file: Path | None) -> nn.Module:
    """The network in eval mode, with random weights that are the same each time, or
    those of ``file``.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = build().eval()
    if file is not None:
        _load(model, file)
    return model


def _load(model: nn.Module, file: Path) -> None:
    """Read the weights of a model from a file. Raises InputError if it is none, or of
    another model.
    """
    if not file.is_file():
        raise InputError(
            "input-invalid", f"there is no file {str(file)!r} with weights"
        )
    try:
        if file.suffix == ".safetensors":
            from safetensors.torch import load_file

            weights: Any = load_file(file)
        else:
            weights = torch.load(file, map_location="cpu", weights_only=True)
        model.load_state_dict(weights.get("state_dict", weights))
    except Exception as error:
        # what torch and safetensors raise for damaged files has no class in common
        reason = "".join(f": {line}" for line in str(error).strip().splitlines()[:1])
        text = (
            f"{str(file)!r} does not hold weights of this model:"
            f" {type(error).__name__}{reason}"
        )
        raise InputError("input-invalid", text) from error


def _images(shape: Sequence[int]) -> tuple[torch.Tensor, ...]:
    return (torch.randn(1, *shape, generator=torch.Generator().manual_seed(0)),)
