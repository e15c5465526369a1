"""Read the samples of ``--data``: a folder, a ``.npz`` file, or a Python object."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import length_hint
from pathlib import Path
from typing import TYPE_CHECKING, Any

from delegraph.command import expect_file, read_arrays, read_object
from delegraph.errors import InputError, PluginUnavailable, UsageError

from .samples import LABELS, Signature, series_of, takes_one

if TYPE_CHECKING:
    from PIL.Image import Image

PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff")


def check_data(text: str) -> Iterable[Any] | None:
    """Return the samples of ``path.py:NAME``; None for files, which are read later.

    Raises UsageError for data that no function here can read.
    """
    if text.rpartition(":")[0].endswith(".py"):
        return _read_python(text)
    if Path(text).is_dir():
        return None
    if Path(text).suffix != ".npz":
        raise UsageError(
            "usage-invalid",
            f"--data is a folder, an .npz file or path.py:NAME, not {text!r}",
        )
    expect_file(Path(text))
    return None


def read_files(
    path: Path, signature: Signature, example: Mapping[str, Any]
) -> Iterable[Any]:
    """Return the samples of a folder or a ``.npz`` file.

    ``signature``: the arguments of the model. ``example``: its example inputs by name.
    Raises InputError.
    """
    if path.is_dir():
        return _read_folder(path, signature, example)
    return _read_rows(path, example)


def _read_python(text: str) -> Iterable[Any]:
    """Return the data ``path.py:NAME``, or the result of the function there."""
    found = read_object(text)
    if callable(found) and not isinstance(found, Iterable):
        found = _guard(found, text)
    return GuardedSamples(found, text)


class GuardedSamples:
    """Samples from the user's code; an exception in it becomes an InputError."""

    def __init__(self, data: Any, name: str) -> None:
        self._samples = series_of(data)
        self._count = length_hint(data)
        self._name = name

    def __length_hint__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Any]:
        iterator = _guard(lambda: iter(self._samples), self._name)
        end = object()
        while True:
            sample = _guard(lambda: next(iterator, end), self._name)
            if sample is end:
                return
            yield sample


def _guard(call: Callable[[], Any], name: str) -> Any:
    """Return the result of ``call``. Raises InputError if it fails."""
    try:
        return call()
    except Exception as e:  # code of the user may raise anything
        text = f"{name} failed: {type(e).__name__}: {e}"
        raise InputError("input-invalid", text) from e


def _read_rows(path: Path, example: Mapping[str, Any]) -> list[Any]:
    """Return the rows of the arrays in a ``.npz`` file as samples."""
    arrays = _tensors(path, example)
    sizes = {len(array) if array.dim() else 0 for array in arrays.values()}
    if len(sizes) != 1:
        shapes = {name: list(array.shape) for name, array in arrays.items()}
        raise InputError(
            "input-invalid",
            f"{path}: all arrays need one row for each sample; shapes: {shapes}",
        )
    samples = []
    for index in range(sizes.pop()):
        row = {name: array[index] for name, array in arrays.items()}
        samples.append({**_numbers(example), **row})
    return samples


def _tensors(path: Path, example: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arrays of a ``.npz`` file as tensors, by name of input, and the label.

    Unnamed arrays, ``arr_0`` and so on, are the inputs in order. A single array for a
    single input may have any name. The label is optional.
    """
    import torch

    try:
        arrays = {
            name: torch.from_numpy(array) for name, array in read_arrays(path).items()
        }
    except TypeError as e:
        raise InputError(
            "input-invalid", f"an array of {path} does not contain numbers: {e}"
        ) from e
    names = [name for name in example if name not in _numbers(example)]
    for number, name in enumerate(names):
        if f"arr_{number}" in arrays and name not in arrays:
            arrays[name] = arrays.pop(f"arr_{number}")
    others = [key for key in arrays if key not in (*names, *LABELS)]
    if len(names) == 1 and names[0] not in arrays and len(others) == 1:
        arrays[names[0]] = arrays.pop(others.pop())
    if others or not {*names} <= {*arrays}:
        raise InputError(
            "input-invalid",
            f"{path} has the arrays {', '.join(arrays)}; the inputs and the optional"
            f" label are {', '.join([*names, LABELS[0]])}",
            hint=f"numpy.savez(file, {names[0]}=inputs, {LABELS[0]}=labels)",
        )
    return arrays


def _numbers(example: Mapping[str, Any]) -> dict[str, Any]:
    """Return the example's inputs that are no tensors; every sample gets these."""
    import torch

    return {
        name: value
        for name, value in example.items()
        if not isinstance(value, torch.Tensor)
    }


class FileSamples:
    """A sample for each file, which is read only when the iteration reaches it."""

    def __init__(self, files: Sequence[Path], read: Callable[[Path], Any]) -> None:
        self.files = files
        self.read = read

    def __len__(self) -> int:
        return len(self.files)

    def __iter__(self) -> Iterator[Any]:
        return map(self.read, self.files)


def _read_folder(
    path: Path, signature: Signature, example: Mapping[str, Any]
) -> FileSamples:
    """Return a sample for each picture or ``.npz`` file below a folder.

    A ``.npz`` file has the arrays of one sample.
    """
    files: list[Path] = []
    for folder, _, names in os.walk(path, followlinks=True):
        files += [Path(folder, name) for name in names]
    files = [file for file in sorted(files) if not _is_hidden(file.relative_to(path))]
    arrays = [file for file in files if file.suffix == ".npz"]
    pictures = [file for file in files if file.suffix.lower() in PICTURES]
    if bool(arrays) == bool(pictures):  # both or neither
        has = "both" if arrays else "neither"
        raise InputError(
            "input-invalid",
            f"{path} must have .npz files or pictures ({', '.join(PICTURES)}); it has"
            f" {has}",
        )
    if arrays:
        numbers = _numbers(example)
        return FileSamples(arrays, lambda file: {**numbers, **_tensors(file, example)})
    shape = _picture_shape(path, signature, example)
    labels = _labels(path, pictures)
    return FileSamples(pictures, lambda file: (_picture(file, shape), labels[file]))


def _is_hidden(path: Path) -> bool:
    """Return whether a relative path is hidden, such as ``._1.png`` of macOS."""
    return any(name.startswith((".", "__MACOSX")) for name in path.parts)


def _labels(path: Path, pictures: Sequence[Path]) -> dict[Path, int | None]:
    """Return the label of each picture: the number of its subfolder of ``path``.

    Subfolders are in the order of their names; one without pictures counts too. Without
    subfolders, the labels are None. Raises InputError if only some pictures have one.
    """
    folders = {file: file.relative_to(path).parts[0] for file in pictures}
    outside = [file for file in pictures if file.parent == path]
    if len(outside) == len(pictures):
        return dict.fromkeys(pictures)
    if outside:
        text = f"{outside[0]} has no class, because it is in no subfolder of {path}"
        raise InputError("input-invalid", text)
    classes = sorted(
        folder.name
        for folder in path.iterdir()
        if folder.is_dir() and not _is_hidden(folder.relative_to(path))
    )
    numbers = {name: number for number, name in enumerate(classes)}
    return {file: numbers[folder] for file, folder in folders.items()}


def _picture_shape(
    path: Path, signature: Signature, example: Mapping[str, Any]
) -> tuple[int, ...]:
    """Return the shape [channels, height, width] of a model's only input."""
    shapes = [tuple(getattr(value, "shape", ())) for value in example.values()]
    if (
        len(shapes) == 1
        and len(shapes[0]) == 4
        and shapes[0][1] in (1, 3)
        and takes_one(signature.recorded[0])
    ):
        return shapes[0][1:]
    raise InputError(
        "input-invalid",
        f"the pictures of {path} fit one input of the shape [1, 3, height, width]; the"
        f" model has {', '.join(str(list(shape)) for shape in shapes)}",
        hint="--data path.py:NAME, an iterable of samples",
    )


def _picture(path: Path, shape: tuple[int, ...]) -> Any:
    """Return a picture as a tensor of ``shape`` with numbers from 0 to 1."""
    try:
        from PIL import Image
    except ModuleNotFoundError as e:
        raise PluginUnavailable(
            "plugin-unavailable",
            "pictures need pillow, which is not installed",
            hint="pip install pillow",
        ) from e
    import torch

    try:
        with Image.open(path) as opened:
            pixels = _pixels(opened, shape)
    except Exception as e:  # pillow raises many errors for damaged files
        text = f"{path} is not a readable picture: {e}"
        raise InputError("input-invalid", text) from e
    picture = torch.from_numpy(pixels).reshape(*shape[1:], -1).permute(2, 0, 1)
    return picture.expand(shape).contiguous()


def _pixels(picture: Image, shape: tuple[int, ...]) -> Any:
    """Return an array [height, width, channels] of numbers from 0 to 1.

    Grey pictures of 16 bits have one channel.
    """
    import numpy as np
    from PIL import Image

    channels, height, width = shape
    if picture.mode == "F":
        raise ValueError("its pixels are floats, which have no range")
    if not picture.mode.startswith("I"):
        picture = picture.convert("L" if channels == 1 else "RGB")
        return np.array(picture.resize((width, height)), dtype=np.float32) / 255
    # ``convert`` would clip 16 bits to the range of 8
    values = np.array(picture)
    if values.min() < 0 or values.max() > 65535:
        raise ValueError("its pixels have more than 16 bits")
    grey = Image.fromarray(values.astype(np.float32) / 65535)
    # unlike pixels of 8 bits, those of floats can leave the range when resized
    return np.array(grey.resize((width, height))).clip(0, 1)
