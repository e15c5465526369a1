"""Loads weights from files of safetensors and of ``torch.save``."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .errors import InputError

_LONGEST = 500
"""The most characters of torch's reason in an error."""


def load_weights(modules: Iterable[Any], file: str | Path) -> None:
    """Load the weights of a file into each of ``modules``.

    safetensors reads a ``.safetensors`` file, ``torch.load`` any other, without running
    code. The weights of the latter may be under the key ``state_dict``. Raises
    InputError if the file cannot be read, if weights are missing, unknown or of other
    shapes, and for an ExportedProgram, which has its own weights.
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
            why = " ".join(str(error).split())
            if len(why) > _LONGEST:
                why = f"{why[:_LONGEST]}…"
            text = f"{str(path)!r} does not contain weights of this model"
            kind = type(error).__name__
            raise InputError(
                "input-invalid", f"{text}: {kind}: {why}" if why else f"{text}: {kind}"
            ) from error


def _load(module: Any, path: Path) -> None:
    import torch

    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"{type(module).__name__} has its own weights")
    if path.suffix == ".safetensors":
        from safetensors.torch import load_model

        load_model(module, path)
        return
    weights = torch.load(path, map_location="cpu", weights_only=True)
    module.load_state_dict(weights.get("state_dict", weights))
