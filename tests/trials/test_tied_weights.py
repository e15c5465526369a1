"""A weight that an embedding and a head share is in a file once, in whatever shapes."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import delegraph
import pytest
import torch
import torch.nn.functional as F
from delegraph_quantize import quantize
from delegraph_tosa.borders import integer_borders
from delegraph_tosa.quantizer import TOSAQuantizer
from delegraph_tosa.spec import TosaSpec
from torch import Tensor, nn

from plugins.tosa_backend.tests.support.reference_tools import (
    check_strictly_for_spec,
    run_reference_model,
)

ROWS = 96
WIDTH = 32
IDS = torch.tensor([[1, 2, 95]])

Head = Callable[[Tensor, Tensor], Tensor]

HEADS: dict[str, Head] = {
    "linear": lambda x, w: F.linear(x, w),
    "matmul t": lambda x, w: x @ w.t(),
    "matmul mT": lambda x, w: x @ w.mT,
    "permute": lambda x, w: x @ w.permute(1, 0),
    "reshape": lambda x, w: F.linear(x, w.reshape(2, ROWS // 2, WIDTH).flatten(0, 1)),
    "unsqueeze": lambda x, w: F.linear(x, w[None].squeeze(0)),
    "conv1d": lambda x, w: F.conv1d(x.transpose(1, 2), w[:, :, None]),
    "conv2d": lambda x, w: F.conv2d(
        x.transpose(1, 2)[..., None], w.view(ROWS, WIDTH, 1, 1)
    ),
    "itself": lambda x, w: F.linear(x, w) + F.linear(x, w.view(ROWS, WIDTH)),
}


class Tied(nn.Module):
    """An embedding and a head that share a weight."""

    def __init__(
        self, head: Head, dtype: torch.dtype = torch.float32, rows: int = ROWS
    ) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(rows, WIDTH).to(dtype)
        self.head = head

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.table(ids), self.table.weight)


def load_and_run(file: Path, x: Tensor) -> Tensor:
    """Load a file and return its result."""
    result = delegraph.load(file)(x)
    return result if isinstance(result, Tensor) else result[0]


def size_in_weights(model: nn.Module, file: Path) -> float:
    """Return the size of the file divided by the size of the model's weights."""
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    return file.stat().st_size / weights


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str
)
@pytest.mark.parametrize("name", HEADS)
def test_a_tied_weight_is_in_the_file_once(name, dtype, tmp_path):
    model = Tied(HEADS[name], dtype).eval()
    file = tmp_path / "tied.tosa"
    options: Any = (
        {"tosa": {"spec": "TOSA-1.0+FP+bf16"}} if dtype is torch.bfloat16 else {}
    )
    lowered = delegraph.lower(
        model, (IDS,), backends=["tosa"], options=options, require_full=True
    )
    lowered.save(file)
    # the structure of such a small file is as large as a fraction of its weights
    assert size_in_weights(model, file) < 1.6

    ids = IDS.to(torch.int32)
    torch.testing.assert_close(
        load_and_run(file, ids), model(IDS), atol=1e-2, rtol=1e-2
    )

    check_strictly_for_spec(
        file.read_bytes(),
        TosaSpec.parse(options["tosa"]["spec"] if options else "TOSA-1.0+FP"),
    )
    if dtype is torch.float32:
        (reference,) = run_reference_model(file.read_bytes(), [ids.numpy()])
        torch.testing.assert_close(
            torch.from_numpy(reference), model(IDS), atol=1e-4, rtol=1e-4
        )


def test_different_weights_of_equal_shape_give_eager_results(tmp_path):
    class Untied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(ROWS, WIDTH)
            self.head = nn.Linear(WIDTH, ROWS, bias=False)

        def forward(self, ids: Tensor) -> Tensor:
            return self.head(self.table(ids))

    model = Untied().eval()
    file = tmp_path / "untied.tosa"
    delegraph.lower(model, (IDS,), backends=["tosa"], require_full=True).save(file)

    torch.testing.assert_close(
        load_and_run(file, IDS.to(torch.int32)), model(IDS), atol=1e-4, rtol=1e-4
    )


def test_a_square_weight_and_its_transpose_give_eager_results(tmp_path):
    model = Tied(lambda x, w: x @ w, rows=WIDTH).eval()
    ids = torch.tensor([[1, 2, 31]])
    file = tmp_path / "square.tosa"
    delegraph.lower(model, (ids,), backends=["tosa"], require_full=True).save(file)
    torch.testing.assert_close(
        load_and_run(file, ids.to(torch.int32)), model(ids), atol=1e-4, rtol=1e-4
    )


def test_an_int8_file_of_a_tied_weight_loads_everywhere(tmp_path):
    """Embedding and head have different scales, so their integers differ and are stored
    twice.
    """
    model = Tied(HEADS["linear"]).eval()
    program = quantize(model, [(IDS,)], quantizer=TOSAQuantizer())
    options = {"tosa": {"spec": "TOSA-1.0+INT"}}
    lowered = delegraph.lower(
        program, backends=["tosa"], options=options, transforms=[integer_borders]
    )
    assert lowered.report.host_operators == 0

    file = tmp_path / "tied.tosa"
    lowered.save(file)
    check_strictly_for_spec(file.read_bytes(), TosaSpec.parse("TOSA-1.0+INT"))
    torch.testing.assert_close(load_and_run(file, IDS.to(torch.int32)), lowered(IDS))

    if vela := shutil.which("vela"):
        command = [
            vela,
            str(file),
            "--accelerator-config",
            "ethos-u85-256",
            "--output-dir",
            str(tmp_path),
        ]
        completed = subprocess.run(command, capture_output=True, text=True)
        assert completed.returncode == 0, completed.stdout + completed.stderr
