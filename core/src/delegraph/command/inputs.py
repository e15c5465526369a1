"""Inputs of a method from ``.npz`` files, which ``numpy.savez`` writes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InputError
from .arrays import read_arrays

if TYPE_CHECKING:
    import numpy as np
    from torch.export import ExportedProgram


def read_inputs(path: Path, method: str, program: ExportedProgram, example: tuple[Any, Any]) -> tuple[Any, Any]:
    """Arguments and keyword arguments of ``method``, with the tensors of the file.

    Arrays are called ``arr_0``, ``arr_1``, ... in the order of the inputs, as ``numpy.savez(file, *arrays)`` does, or
    like the inputs of the program; ``method.name`` if several methods share the file. Inputs that are no tensors are
    those of ``example``. Raises InputError.
    """
    import torch
    from torch.utils import _pytree as pytree

    from ..exported_program import user_inputs

    arrays = read_arrays(path)
    leaves, spec = pytree.tree_flatten(example)
    names = [node.name for node in user_inputs(program)]
    wanted = [k for k, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    for position, k in enumerate(wanted):
        keys = (f"{method}.{names[k]}", names[k], f"{method}.arr_{position}", f"arr_{position}")
        found = next((key for key in keys if key in arrays), None)
        if found is None:
            text = f"{path} has no array for the input {names[k]} of method {method}; it has {', '.join(arrays)}"
            raise InputError("input-invalid", text, hint=f"numpy.savez(file, {', '.join(names[j] for j in wanted)})")
        leaves[k] = _tensor(path, found, arrays[found], leaves[k].dtype)
    return tuple(pytree.tree_unflatten(leaves, spec))


def _tensor(path: Path, key: str, array: np.ndarray[Any, Any], dtype: Any) -> Any:
    """An array of the file as a tensor for an input of ``dtype``."""
    import torch

    try:
        tensor = torch.from_numpy(array)
    except TypeError as e:
        raise InputError("input-invalid", f"{path}: the array {key} is no tensor: {e}") from e
    return tensor.to(dtype) if dtype is torch.bfloat16 else tensor  # numpy has no bfloat16
