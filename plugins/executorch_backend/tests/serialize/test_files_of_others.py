"""Program files that ExecuTorch wrote, before or now: read, shown, proven and run."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import delegraph
import pytest
import torch
from delegraph_analysis import summary_text
from delegraph_executorch.format import PteFormat
from delegraph_executorch.serialize.check import check_program
from delegraph_executorch.serialize.reader import open_bytes, read_program
from torch.utils import _pytree as pytree

from ..support.cases import STATIC
from ..support.fixtures import FIXTURES, FOLDER
from ..support.judge import assert_equal, host_program, stock_runtime
from ..support.models import MODELS, Model


@pytest.mark.parametrize("name", FIXTURES)
def test_shown_and_proven(name: str) -> None:
    path = FOLDER / f"{name}.pte"
    check_program(read_program(open_bytes(path)))
    facts = PteFormat.inspect(path)
    assert facts.methods[0].name == "forward"
    assert facts.methods[0].text in str(facts)
    assert "<svg" in PteFormat.page(path)
    assert PteFormat.verify(path)[0].accepted is True
    assert facts.backends == (("XnnpackBackend",) if name == "xnnpack" else ())
    assert len(facts.named_data) == (4 if name == "xnnpack" else 0)


@pytest.mark.parametrize("name", [n for n in FIXTURES if n != "xnnpack"])
def test_files_of_executorch_compute_as_eager(name: str) -> None:
    module, calls, _ = FIXTURES[name]
    program = host_program(read_program(open_bytes(FOLDER / f"{name}.pte")))
    for call in calls:
        with torch.no_grad():
            expected = pytree.tree_leaves(module(*call))
        assert_equal(pytree.tree_leaves(program(*call)), expected)


STOCK_FAILS = {"channels last", "cropped", "rest of integers", "non-zero"}
"""What ExecuTorch's own runtime refuses, or computes wrongly, in ExecuTorch's own file:
compared with eager.
"""
REFUSED = {
    "shifted",
    "maxima and places",
    "several",
    "formulas",
    "loop",
    "exchanging loop",
    "branch in loop",
}
"""What ExecuTorch does not compile."""
FEW = {"indexed", "exchange", "tree", "types", "item", "rows"}


def _models() -> Iterator[Any]:
    for name, (module, calls) in (
        (n, m) for n, m in STATIC.items() if n not in REFUSED
    ):
        make = lambda module=module, calls=calls: Model(module, calls)
        yield pytest.param(
            name, make, id=name, marks=[] if name in FEW else pytest.mark.slow
        )
    for name, make in MODELS.items():
        yield pytest.param(name, make, id=f"model {name}", marks=pytest.mark.slow)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("partitioner", ["portable", "xnnpack"])
@pytest.mark.parametrize(("name", "make"), list(_models()))
def test_files_of_the_installed_executorch_are_read(
    name: str, make: Any, partitioner: str, tmp_path: Path
) -> None:
    """Our test models, lowered by ExecuTorch: each file is shown, proven, and computes
    what the stock runtime does.
    """
    runtime = stock_runtime()
    if (name, partitioner) == ("channels last", "xnnpack"):
        pytest.skip("ExecuTorch's XNNPACK does not compile it")
    torch.manual_seed(0)
    module, calls, shapes = make()
    (path := tmp_path / "net.pte").write_bytes(
        written_by_executorch(module, calls[0], shapes, partitioner == "xnnpack")
    )
    facts = PteFormat.inspect(path)
    assert facts.methods[0].text in str(facts)
    assert "<svg" in PteFormat.page(path)
    assert summary_text(PteFormat.summarize(path))
    assert [v for v in PteFormat.verify(path) if not v.accepted] == []
    loaded = delegraph.load(path)
    program = runtime.load_program(path.read_bytes())
    method = program.load_method("forward")
    eager = copy.deepcopy(module).eval()
    for call in calls:
        flat = [
            each.contiguous() if isinstance(each, torch.Tensor) else each
            for each in pytree.tree_leaves(call)
        ]
        with torch.no_grad():
            computed = pytree.tree_leaves(eager(*call))
        expected = computed if name in STOCK_FAILS else method.execute(flat)
        for ours, theirs in zip(loaded(*flat), expected, strict=True):
            torch.testing.assert_close(
                ours, theirs, rtol=1e-4, atol=1e-4, equal_nan=True
            )


def written_by_executorch(
    module: torch.nn.Module, call: tuple[Any, ...], shapes: Any, xnnpack: bool
) -> bytes:
    """The file, with the initial state of all buffers, which ExecuTorch writes where it
    is asked.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from executorch.backends.xnnpack.partition.xnnpack_partitioner import (
            XnnpackPartitioner,
        )
        from executorch.exir import ExecutorchBackendConfig, to_edge_transform_and_lower
        from executorch.exir.passes.init_mutable_pass import (
            InitializedMutableBufferPass,
        )

        module = copy.deepcopy(module).eval().requires_grad_(False)
        exported = torch.export.export(module, call, dynamic_shapes=shapes)
        edge = to_edge_transform_and_lower(
            exported, partitioner=[XnnpackPartitioner()] if xnnpack else []
        )
        config = ExecutorchBackendConfig(passes=[InitializedMutableBufferPass([""])])
        content: bytes = edge.to_executorch(config).buffer
        return content
