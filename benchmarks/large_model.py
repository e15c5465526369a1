"""A decoder of Llama's kind with 7 billion bfloat16 parameters, exported, lowered and
written in little memory.

    python benchmarks/large_model.py [--layers 32] [--weights int4] [--folder FOLDER]
        [--keep]

The weights lie in one file in the format of `safetensors`, which is sparse: it takes no
space, and all weights are zero. They are mapped as `safetensors` maps them, page by
page as they are read. The module is made without memory and gets the mapped tensors; it
is exported, lowered for TOSA-1.0+FP+INT+bf16 and written to a .tosa file, in a process
of its own. FOLDER (the working directory if none is given) needs as much space as the
file, which is removed afterwards.

Memory is read from /proc/self/status twenty times a second (Linux): "own" are anonymous
pages, "mapped" those of files, weights among them. Mapped pages are copies of what the
disk has, which Linux drops where memory is short. To show that nothing needs them
longer, the worker asks for that (MADV_PAGEOUT) whenever it holds more than 512 MB of
them. "weights read" is what is mapped at the end of a step: a step that reads the
weights would map them.

With --weights int4, all matrices are torchao's `IntxUnpackedToInt8Tensor` in groups of
128, whose integers take a byte in memory and half a byte in the file, and the rest is
float32; the target is TOSA-1.0+FP+INT. `lower` exports the model, since it takes the
tensors of torchao as they are. It needs torchao.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import struct
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import measuring
import publishing

SIZES = {"words": 32000, "width": 4096, "inner": 11008, "heads": 32, "groups": 32}
"""Of Llama 7B (https://arxiv.org/abs/2302.13971)."""
LENGTH = 128
TARGETS = {"bf16": "TOSA-1.0+FP+INT+bf16", "int4": "TOSA-1.0+FP+INT"}
GROUP = 128
"""How many weights of int4 have one scale."""
MAPPED_AT_MOST = 512 << 20
MADV_PAGEOUT = 21


def main() -> None:
    """Make the weights, run the worker and print its table."""
    parser = publishing.parser(__doc__)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--weights", default="bf16", choices=TARGETS)
    parser.add_argument("--folder", default=".")
    parser.add_argument(
        "--keep", action="store_true", help="leave the .tosa file in FOLDER"
    )
    given = measuring.parse(
        parser, lambda name, weights: lambda: _lower(name, Path(weights))
    )
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        weights = Path(folder, "weights.safetensors")
        parameters = _write_sparse(given.layers, given.weights, weights)
        found = measuring.once(
            __file__, f"{given.layers}:{given.weights}", str(weights)
        )
        if given.keep:
            os.replace(Path(folder, "model.tosa"), Path(given.folder, "model.tosa"))
    size = f"{found['operators']:.0f} operators, a file of {found['file'] / 1e9:.2f} GB"
    given.remark = given.remark or f"{parameters:,} parameters, {size}"
    rows = [
        [
            step,
            f"{found[f'{step} s']:.1f}",
            *(f"{found[f'{step} {what}'] / 1e6:,.0f}" for what in COLUMNS),
        ]
        for step in STEPS
        if f"{step} s" in found
    ]
    header = ("step", "CPU s", "own, MB", "mapped, MB", "both, MB", "weights read, MB")
    table = publishing.Table(header, rows, given.weights)
    publishing.report(given, "large_model", ["torch", "delegraph-tosa"], table)


STEPS = ("export", "lower", "write")
COLUMNS = ("own", "mapped", "both", "left")


def _model(layers: int, weights: str) -> Any:
    """The decoder, without memory."""
    import torch

    decoder = measuring.example("transformer.py").Decoder
    with torch.device("meta"):
        return (
            decoder(layers=layers, **SIZES)
            .to(torch.bfloat16 if weights == "bf16" else torch.float32)
            .eval()
        )


def _stored(parameter: Any, weights: str) -> list[tuple[str, str, list[int], int]]:
    """What is stored of a parameter: what it is, the type's name in the file, shape and
    bytes.
    """
    shape = list(parameter.shape)
    if weights == "bf16":
        return [("", "BF16", shape, 2 * parameter.numel())]
    if len(shape) < 2:
        return [("", "F32", shape, 4 * parameter.numel())]
    groups = [shape[0], shape[1] // GROUP]
    count = groups[0] * groups[1]
    return [
        (".q", "I8", shape, parameter.numel()),
        (".scale", "F32", groups, 4 * count),
        (".zero", "I8", groups, count),
    ]


def _write_sparse(layers: int, weights: str, path: Path) -> int:
    """A file of zeros in the format of safetensors; the number of parameters."""
    start = 0
    header = {}
    count = 0
    for name, parameter in _model(layers, weights).named_parameters():
        count += parameter.numel()
        for part, dtype, shape, size in _stored(parameter, weights):
            header[name + part] = {
                "dtype": dtype,
                "shape": shape,
                "data_offsets": [start, start + size],
            }
            start += -(-size // 4096) * 4096 if weights == "int4" else size
    text = json.dumps(header).encode()
    text += b" " * (-(len(text) + 8) % 4096)  # tensors begin at a page
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + start)
    return count


def _lower(name: str, weights: Path) -> dict[str, float]:
    import delegraph
    import torch

    layers, kind = name.split(":")
    memory = _Memory()
    model = _model(int(layers), kind)
    memory.mapping = _map(model, weights)
    ids = torch.zeros(1, LENGTH, dtype=torch.int64)
    out: dict[str, float] = {}
    model_and_inputs: tuple[Any, ...] = (model, (ids,))
    if kind == "bf16":
        with memory.measured("export", out):
            model_and_inputs = (torch.export.export(model, (ids,)),)
    options = {"tosa": {"spec": TARGETS[kind]}}
    with memory.measured("lower", out):
        lowered = delegraph.lower(
            *model_and_inputs, backends=["tosa"], options=options, require_full=True
        )
    file = weights.parent / "model.tosa"
    with memory.measured("write", out):
        lowered.save(file)
    operators = len(lowered.delegates[0].module.meta["debug_handle_map"])
    return {**out, "file": file.stat().st_size, "operators": operators}


def _map(model: Any, weights: Path) -> tuple[int, int]:
    """Let the parameters be views of the mapped file; where that is in memory, and its
    size.
    """
    import torch

    with open(weights, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
    size = weights.stat().st_size
    mapped = torch.from_file(str(weights), shared=False, size=size, dtype=torch.uint8)
    dtypes = {"BF16": torch.bfloat16, "F32": torch.float32, "I8": torch.int8}
    tensors = {}
    for name, entry in header.items():
        first, last = (8 + length + offset for offset in entry["data_offsets"])
        tensors[name] = (
            mapped[first:last].view(dtypes[entry["dtype"]]).view(entry["shape"])
        )
    for name in tensors:
        if name.endswith((".scale", ".zero")):
            continue
        tensor = tensors[name]
        name = name.removesuffix(".q")
        if f"{name}.scale" in tensors:
            tensor = _of_torchao(
                tensor, tensors[f"{name}.scale"], tensors[f"{name}.zero"]
            )
        owner, _, attribute = name.rpartition(".")
        setattr(
            model.get_submodule(owner),
            attribute,
            torch.nn.Parameter(tensor, requires_grad=False),
        )
    for name, buffer in list(model.named_buffers()):
        owner, _, attribute = name.rpartition(".")
        setattr(
            model.get_submodule(owner),
            attribute,
            torch.ones(buffer.shape, dtype=buffer.dtype),
        )
    return mapped.data_ptr(), size


def _of_torchao(integers: Any, scale: Any, zero: Any) -> Any:
    """A matrix as `quantize_` of torchao makes it of int4 weights."""
    import torch
    import torchao.quantization

    kind: Any = torchao.quantization.IntxUnpackedToInt8Tensor
    four: Any = getattr(torch, "int4")  # noqa: B009 - the stubs of torch lack it
    return kind(integers, scale, zero, four, (1, GROUP), torch.float32, None)


class _Memory:
    """Resident memory while a step runs."""

    def __init__(self) -> None:
        self.mapping = (0, 0)
        self._madvise = ctypes.CDLL(None, use_errno=True).madvise
        self._madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

    @contextmanager
    def measured(self, step: str, out: dict[str, float]) -> Iterator[None]:
        """Note CPU seconds of ``step`` in ``out``, the peaks of resident memory, and
        what it left of the mapping.
        """
        self._release()
        peaks = dict.fromkeys(("own", "mapped", "both"), 0.0)
        over = threading.Event()
        sampler = threading.Thread(target=self._sample, args=(peaks, over))
        sampler.start()
        start = time.process_time()
        yield
        out[f"{step} s"] = time.process_time() - start
        over.set()
        sampler.join()
        out.update({f"{step} {name}": peak for name, peak in peaks.items()})
        out[f"{step} left"] = _in_mapping(self.mapping[0])

    def _sample(self, peaks: dict[str, float], over: threading.Event) -> None:
        while not over.wait(0.05):
            own = _status("RssAnon")
            mapped = _status("RssFile")
            for name, value in (
                ("own", own),
                ("mapped", mapped),
                ("both", own + mapped),
            ):
                peaks[name] = max(peaks[name], value)
            if mapped > MAPPED_AT_MOST:
                self._release()

    def _release(self) -> None:
        place, size = self.mapping
        if size and self._madvise(place, size, MADV_PAGEOUT):
            raise OSError(ctypes.get_errno(), "madvise")


def _status(field: str) -> float:
    """A field of /proc/self/status, in bytes."""
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return 1024.0 * int(found[1])


def _in_mapping(place: int) -> float:
    """Bytes of the mapping at ``place`` that are resident."""
    entries = re.split(
        r"^(?=[0-9a-f]+-[0-9a-f]+ )",
        Path("/proc/self/smaps").read_text(),
        flags=re.MULTILINE,
    )
    entry = next(e for e in entries if e.startswith(f"{place:x}-"))
    found = re.search(r"Rss:\s+(\d+) kB", entry)
    assert found is not None
    return 1024.0 * int(found[1])


if __name__ == "__main__":
    main()
