"""Read the samples of ``--data``: a folder, a ``.npz`` file, or a Python object."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from delegraph.command import expect_file, read_object
from delegraph.errors import InputError, PluginUnavailable, UsageError

from .samples import LABEL

PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".webp")


def check_data(text: str) -> Iterable[Any] | None:
    """Return the samples of ``path.py:NAME``; None for files, which are read later.

    Raises UsageError for data that no function here can read.
    """
    if text.rpartition(":")[0].endswith(".py"):
        return _of_python(text)
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
    path: Path, names: Sequence[str], example: Sequence[Any]
) -> Iterable[Any]:
    """Return the samples of a folder or a ``.npz`` file.

    ``names`` and ``example``: the names and the example values of the model's inputs.
    Raises InputError.
    """
    if path.is_dir():
        return _of_folder(path, names, example)
    return _rows(path, names, example)


def _of_python(text: str) -> Iterable[Any]:
    """Return the iterable ``path.py:NAME``, or the result of the function there."""
    found = read_object(text)
    if callable(found) and not isinstance(found, Iterable):
        found = _guard(found, text)
    if not isinstance(found, Iterable):
        raise InputError(
            "input-invalid",
            f"{text} is a {type(found).__name__}, but samples must be an iterable",
        )
    return GuardedSamples(found, text)


class GuardedSamples:
    """Samples of the user's code; an exception in it becomes an InputError."""

    def __init__(self, samples: Iterable[Any], name: str) -> None:
        self.samples = samples
        self.name = name

    def __iter__(self) -> Iterator[Any]:
        iterator = _guard(lambda: iter(self.samples), self.name)
        end = object()
        while True:
            sample = _guard(lambda: next(iterator, end), self.name)
            if sample is end:
                return
            yield sample


def _guard(call: Callable[[], Any], name: str) -> Any:
    try:
        return call()
    except Exception as e:  # code of the user may raise anything
        text = f"{name} failed: {type(e).__name__}: {e}"
        raise InputError("input-invalid", text) from e


def _rows(path: Path, names: Sequence[str], example: Sequence[Any]) -> list[Any]:
    """Return the rows of the arrays in a ``.npz`` file as samples."""
    arrays = _arrays(path, names)
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
        samples.append(_with_batch(row, names, example))
    return samples


def _arrays(path: Path, names: Sequence[str]) -> dict[str, Any]:
    """Return name -> tensor of the inputs, and maybe of the label."""
    import numpy as np
    import torch

    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: torch.from_numpy(file[name]) for name in file.files}
    except Exception as e:  # zip, numpy and torch raise many errors
        raise InputError(
            "input-invalid", f"{path} is not an .npz file with numbers: {e}"
        ) from e
    for number, name in enumerate(names):
        if f"arr_{number}" in arrays and name not in arrays:
            arrays[name] = arrays.pop(f"arr_{number}")
    missing = [name for name in names if name not in arrays]
    unknown = [key for key in arrays if key not in (*names, LABEL)]
    if missing or unknown:
        wanted = ", ".join([*names, LABEL])
        raise InputError(
            "input-invalid",
            f"{path} has the arrays {', '.join(arrays)}; the inputs and the optional"
            f" label are {wanted}",
            hint=f"numpy.savez(file, {names[0]}=inputs, {LABEL}=labels)",
        )
    return arrays


def _with_batch(
    row: dict[str, Any], names: Sequence[str], example: Sequence[Any]
) -> dict[str, Any]:
    """Add a first size of 1 to inputs that lack the size of the batch."""
    for name, value in zip(names, example, strict=True):
        has_batch = getattr(value, "shape", ())[:1] == (1,)
        if has_batch and row[name].dim() == value.dim() - 1:
            row[name] = row[name].unsqueeze(0)
    return row


class FileSamples:
    """A sample for each file, read when it is its turn."""

    def __init__(self, files: Sequence[Path], read: Callable[[Path], Any]) -> None:
        self.files = files
        self.read = read

    def __len__(self) -> int:
        return len(self.files)

    def __iter__(self) -> Iterator[Any]:
        return map(self.read, self.files)


def _of_folder(path: Path, names: Sequence[str], example: Sequence[Any]) -> FileSamples:
    """Return a sample for each picture or ``.npz`` file below a folder.

    A ``.npz`` file has the arrays of one sample. The label of a picture is the number
    of its subfolder in the order of names; pictures without a subfolder have no label.
    """
    files = sorted(file for file in path.rglob("*") if file.is_file())
    arrays = [file for file in files if file.suffix == ".npz"]
    pictures = [file for file in files if file.suffix.lower() in PICTURES]
    if bool(arrays) == bool(pictures):
        has = "both" if arrays else "neither"
        raise InputError(
            "input-invalid",
            f"{path} must have .npz files or pictures ({', '.join(PICTURES)}); it has"
            f" {has}",
        )
    if arrays:
        return FileSamples(
            arrays, lambda file: _with_batch(_arrays(file, names), names, example)
        )
    classes = sorted({file.parent.name for file in pictures if file.parent != path})
    labels = {name: number for number, name in enumerate(classes)}
    shape = _picture_shape(path, example)
    return FileSamples(
        pictures, lambda file: (_picture(file, shape), labels.get(file.parent.name))
    )


def _picture_shape(path: Path, example: Sequence[Any]) -> tuple[int, ...]:
    """Return the shape [1, channels, height, width] of a model's only input."""
    shapes = [tuple(getattr(value, "shape", ())) for value in example]
    if len(shapes) == 1 and len(shapes[0]) == 4 and shapes[0][:2] in ((1, 1), (1, 3)):
        return shapes[0]
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
    import numpy as np
    import torch

    _, channels, height, width = shape
    try:
        with Image.open(path) as opened:
            mode = opened.convert("L" if channels == 1 else "RGB")
            pixels = np.array(mode.resize((width, height)), dtype=np.float32)
    except (OSError, ValueError) as e:
        text = f"{path} is not a readable picture: {e}"
        raise InputError("input-invalid", text) from e
    picture = torch.from_numpy(pixels / 255).reshape(height, width, channels)
    return picture.permute(2, 0, 1).unsqueeze(0).contiguous()
