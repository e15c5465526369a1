"""Reads models of transformers for ``ModelSpec``.

They are objects, folders, or in the local cache of Hugging Face. Nothing is downloaded, and no code of a checkpoint is executed.
"""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Any

import torch
import transformers
from delegraph.errors import InputError

from .models import generation_steps
from .versions import naming_untried_versions

_LENGTH = 32
"""The number of tokens of an example input."""
_IMAGE = 224
"""Height and width of an example image, if the config has none."""


def read(given: Any) -> dict[str, Any]:
    """Return the methods of a model or an export of transformers.

    ``given``: a ``PreTrainedModel``, an ``ExportedModel``, or a folder with one of them.
    Raises InputError for a folder that does not exist, or that transformers cannot
    read.
    """
    if not isinstance(given, str):
        return _methods(given)
    if not Path(given).is_dir():
        raise InputError(
            "input-invalid",
            f"there is no folder {given!r} with a checkpoint",
            hint="save the model there: model.save_pretrained(folder)",
        )
    return _methods(_load(given))


def read_cached(text: str) -> dict[str, Any]:
    """Return the methods of ``ORG/MODEL`` or ``ORG/MODEL@REVISION`` in the local cache.

    Raises InputError if the cache does not have it, or if transformers cannot read it.
    """
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    name, _, revision = text.partition("@")
    try:
        found = try_to_load_from_cache(name, "config.json", revision=revision or None)
    except HFValidationError as e:
        raise InputError(
            "input-invalid",
            f"{name!r} is not a name on Hugging Face: {e}",
            hint="hf:ORG/MODEL; for a folder, use transformers:FOLDER",
        ) from e
    if isinstance(found, str):
        return _methods(_load(str(Path(found).parent)))
    download = f"hf download {name}" + (f" --revision {revision}" if revision else "")
    raise InputError(
        "input-invalid",
        f"the local cache of Hugging Face has no {text}",
        hint=f"delegraph downloads nothing; run: {download}",
    )


def _load(folder: str) -> Any:
    """Return the model or the export in a folder, a model in eval mode.

    Raises InputError if transformers cannot read it, or if weights are missing.
    """
    with naming_untried_versions():
        try:
            if Path(folder, "export.json").is_file():
                return _load_export(folder)
            model, found = _class_of(folder).from_pretrained(
                folder, output_loading_info=True, **_LOCAL
            )
        except (OSError, ValueError, KeyError, RuntimeError) as e:
            # the errors of transformers for checkpoints that it cannot read
            text = (
                f"transformers cannot read the checkpoint in {folder!r}:"
                f" {type(e).__name__}: {e}"
            )
            raise InputError("input-invalid", text) from e
    missing = sorted(found["missing_keys"])
    if missing:  # transformers would only warn, and take random weights
        raise InputError(
            "input-invalid",
            f"the checkpoint in {folder!r} lacks {len(missing)} weights of"
            f" {type(model).__name__}, such as {missing[0]}",
        )
    return model.eval()


def _load_export(folder: str) -> Any:
    """Return the export in a folder, without warnings of torch and transformers."""
    # torch's warning about a cache among the example inputs has a wrong format
    logger = logging.getLogger("torch._export.serde.serialize")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            # transformers calls a function of torch that is deprecated
            warnings.simplefilter("ignore", FutureWarning)
            return _exported_model().from_pretrained(folder, local_files_only=True)
    finally:
        logger.setLevel(level)


_LOCAL = {"local_files_only": True, "trust_remote_code": False}


def _exported_model() -> Any:
    from transformers.exporters.base import ExportedModel

    return ExportedModel


def _class_of(folder: str) -> Any:
    """Return the class of the model that was saved in ``folder``."""
    config = transformers.AutoConfig.from_pretrained(folder, **_LOCAL)
    names = config.architectures or []
    found = getattr(transformers, names[0], None) if names else None
    return found or transformers.AutoModelForCausalLM


def _methods(model: Any) -> dict[str, Any]:
    """Return the methods of a model or of an export."""
    if isinstance(model, _exported_model()):
        return {"methods": _components(model)}
    if not model.can_generate():
        return {"model": model, "kwargs": _example_inputs(model)}
    steps = generation_steps(model)
    methods: dict[str, Any] = {}
    for method, step in steps["program"].items():
        methods[method] = (step, steps["example_inputs"][method])
    return {"methods": methods}


def _components(export: Any) -> dict[str, Any]:
    """Return the programs of an export; the only one is called forward."""
    if export.export_format != "dynamo":
        raise InputError(
            "input-invalid",
            f"the model was exported for {export.export_format}, not as a program of"
            " torch.export",
            hint="export it with transformers.exporters.DynamoExporter",
        )
    programs = {name: one.program for name, one in export.components.items()}
    return {"forward": programs["model"]} if [*programs] == ["model"] else programs


def _example_inputs(model: Any) -> dict[str, torch.Tensor]:
    """Return example inputs of a model that does not generate.

    They are tokens and a mask, or an image. Raises InputError for other inputs.
    """
    config = model.config
    if model.main_input_name == "input_ids":
        length = min(_LENGTH, getattr(config, "max_position_embeddings", _LENGTH))
        tokens = torch.zeros(1, length, dtype=torch.long)
        return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    if model.main_input_name == "pixel_values":
        size = getattr(config, "image_size", _IMAGE)
        height, width = size if isinstance(size, (list, tuple)) else (size, size)
        channels = getattr(config, "num_channels", 3)
        image = torch.randn(1, channels, height, width, dtype=model.dtype)
        return {"pixel_values": image}
    raise InputError(
        "input-invalid",
        f"{type(model).__name__} takes {model.main_input_name}; there is no example of"
        " these inputs",
        hint="delegraph.lower(model, example_kwargs={...}), also in a model file",
    )
