"""Reads the inputs of a method from a ``.npz`` file, which ``numpy.savez`` writes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InputError
from .arrays import read_arrays

if TYPE_CHECKING:
    import numpy as np
    from torch.export import ExportedProgram


def read_inputs(path: Path, method: str, program: ExportedProgram, example: tuple[Any, Any]) -> tuple[Any, Any]:
    """(arguments, keyword arguments) to call ``method`` with: those of ``example`` with the file's arrays as tensors.

    In the file, arrays are named like the program's inputs, or ``arr_0``, ``arr_1``, ... in the order of its tensor
    inputs, as ``numpy.savez(file, *arrays)`` does. ``method.name`` takes precedence, for a file with inputs of several
    methods. Raises InputError if the file cannot be read or lacks an array.
    """
    import torch
    from torch.utils import _pytree as pytree

    from ..exported_program import user_inputs

    arrays = read_arrays(path)
    leaves, spec = pytree.tree_flatten(example)
    names = [node.name for node in user_inputs(program)]
    tensors = [k for k, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    for position, k in enumerate(tensors):
        keys = (f"{method}.{names[k]}", names[k], f"{method}.arr_{position}", f"arr_{position}")
        key = next((key for key in keys if key in arrays), None)
        if key is None:
            text = f"{path} has no array for the input {names[k]} of method {method}; it has {', '.join(arrays)}"
            raise InputError("input-invalid", text, hint=f"numpy.savez(file, {', '.join(names[j] for j in tensors)})")
        leaves[k] = _tensor(path, key, arrays[key], leaves[k].dtype)
    return tuple(pytree.tree_unflatten(leaves, spec))


def _tensor(path: Path, key: str, array: np.ndarray[Any, Any], dtype: Any) -> Any:
    """The file's array ``key`` as a tensor for an input of ``dtype``. Raises InputError for a type that torch lacks."""
    import torch

    try:
        tensor = torch.from_numpy(array)
    except TypeError as e:
        raise InputError("input-invalid", f"{path}: the array {key} is no tensor: {e}") from e
    return tensor.to(dtype) if dtype is torch.bfloat16 else tensor  # numpy has no bfloat16
