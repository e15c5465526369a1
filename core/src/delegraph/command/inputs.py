"""Reads inputs from ``.npy`` and ``.npz`` files that are not trusted."""

from __future__ import annotations

import contextlib
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InputError

if TYPE_CHECKING:
    import numpy as np
    from torch.export import ExportedProgram


def read_array(path: Path) -> np.ndarray[Any, Any]:
    """Return the array in a ``.npy`` file. Raises InputError for any other file."""
    import numpy as np

    with _reading(path, ".npy"):
        # for an archive of arrays, ``np.load`` would return no array
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                names = ", ".join(
                    name.removesuffix(".npy") for name in archive.namelist()
                )
            raise InputError(
                "input-invalid",
                f"{path} is an archive of arrays: {names}",
                hint="give an .npy file for each input, in the order of the inputs",
            )
        array: np.ndarray[Any, Any] = np.load(path, allow_pickle=False)
    return array


def read_arrays(path: Path) -> Mapping[str, np.ndarray[Any, Any]]:
    """Return name -> array in a ``.npz`` file. Raises InputError for any other file."""
    import numpy as np

    # numpy does not close a damaged file that it opened itself
    with _reading(path, ".npz"), path.open("rb") as file:
        opened = np.load(file, allow_pickle=False)
        return {key: opened[key] for key in opened.files}


@contextlib.contextmanager
def _reading(path: Path, kind: str) -> Iterator[None]:
    """A block that turns errors about a damaged file into an InputError. An InputError
    from inside passes unchanged. ``kind``: the expected suffix, for errors.
    """
    try:
        yield
    except InputError:
        raise
    # numpy, zipfile, zlib and their parsers raise many errors for damaged files, among
    # them MemoryError, because the header of a damaged file may have a huge shape
    except Exception as e:
        raise InputError(
            "input-invalid", f"{path} is not a readable {kind} file: {e}"
        ) from e


def read_inputs(
    path: Path, method: str, program: ExportedProgram, example: tuple[Any, Any]
) -> tuple[Any, Any]:
    """Return arguments and keyword arguments for ``method``: those of ``example``, with
    the arrays of a ``.npz`` file in place of the tensors.

    In the file, arrays are named like the inputs of ``program``, the method's program.
    Or their names are ``arr_0``, ``arr_1``, ... in the order of the tensor inputs, as
    ``numpy.savez(file, *arrays)`` makes them. A file with inputs of several methods has
    names such as ``forward.x``, which take precedence.

    ``example``: (arguments, keyword arguments). If the arguments are None, the inputs
    of the export take the place of ``example``. Raises InputError if the file cannot be
    read, lacks an array, or has an array that torch cannot convert.
    """
    import torch
    from delegraph_programs import flat_arguments, user_inputs
    from torch.utils import _pytree as pytree

    arrays = read_arrays(path)
    spec = program.call_spec.in_spec
    nodes = user_inputs(program)
    # all inputs in one flat list; only tensors are replaced
    leaves = [node.meta["val"] for node in nodes]
    if example[0] is not None:
        leaves = flat_arguments(spec, *example)
    names = [node.name for node in nodes]
    # positions of the tensors in ``leaves``
    tensors = [k for k, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    # ``number``: position of a tensor among the tensors, as in ``arr_0``
    for number, k in enumerate(tensors):
        keys = (
            f"{method}.{names[k]}",
            names[k],
            f"{method}.arr_{number}",
            f"arr_{number}",
        )
        key = next((key for key in keys if key in arrays), None)
        if key is None:
            raise InputError(
                "input-invalid",
                f"{path} has no array for the input {names[k]} of method {method}; it"
                f" has {', '.join(arrays)}",
                hint=f"numpy.savez(file, {', '.join(names[j] for j in tensors)})",
            )
        leaves[k] = _tensor(path, key, arrays[key], leaves[k].dtype)
    return tuple(pytree.tree_unflatten(leaves, spec))


def _tensor(path: Path, key: str, array: np.ndarray[Any, Any], dtype: Any) -> Any:
    """Return the file's ``array``, called ``key``, as a tensor for an input of
    ``dtype``.

    For a bfloat16 input, the tensor is converted. Otherwise it keeps the type of the
    array, even if that is not ``dtype``: the call of the program checks the type later.
    Raises InputError for a type that torch lacks.
    """
    import torch

    try:
        tensor = torch.from_numpy(array)
    except TypeError as e:
        raise InputError(
            "input-invalid", f"{path}: the array {key} is no tensor: {e}"
        ) from e
    # numpy has no bfloat16
    return tensor.to(dtype) if dtype is torch.bfloat16 else tensor
