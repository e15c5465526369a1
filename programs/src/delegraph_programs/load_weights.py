"""Loads weights from files of safetensors and of ``torch.save``."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .errors import InputError

_LONGEST = 500
"""The most characters of torch's reason that an error repeats."""


def load_weights(modules: Iterable[Any], file: str | Path) -> None:
    """Load the weights of a file into each of ``modules``.

    safetensors reads a ``.safetensors`` file. ``torch.load`` reads any other file,
    without running code in it; the weights may be under its key ``state_dict``. Raises
    InputError if the file cannot be read, or if weights are missing, unknown or of
    other shapes. Raises it also for an ExportedProgram, which has its own weights.
    """
    path = Path(file)
    if not path.is_file():
        raise InputError(
            "input-invalid", f"the file of weights {str(path)!r} does not exist"
        )
    for module in modules:
        try:
            _load(module, path)
        except ImportError as error:
            raise InputError(
                "input-invalid",
                f"{str(path)!r} cannot be read: {error}",
                hint="pip install safetensors",
            ) from error
        except Exception as error:
            # torch and safetensors raise many kinds of errors for damaged files
            kind = type(error).__name__
            why = " ".join(str(error).split())
            if len(why) > _LONGEST:
                why = f"{why[:_LONGEST]}…"
            text = f"{str(path)!r} does not contain weights of this model: {kind}"
            raise InputError(
                "input-invalid", f"{text}: {why}" if why else text
            ) from error


def _load(module: Any, path: Path) -> None:
    """Load the weights of the file into one module; raise any error of torch."""
    import torch

    if not isinstance(module, torch.nn.Module):
        raise TypeError(
            f"an {type(module).__name__} has its own weights; a file"
            " of weights can only be loaded into modules"
        )
    if path.suffix == ".safetensors":
        from safetensors.torch import load_model

        load_model(module, path)
        return
    weights = torch.load(path, map_location="cpu", weights_only=True)
    module.load_state_dict(weights.get("state_dict", weights))
