"""Program files that ExecuTorch wrote: read, shown, proven and run."""

from __future__ import annotations

import pytest
import torch
from delegraph_executorch.format import PteFormat
from delegraph_executorch.serialize.check import check_program
from delegraph_executorch.serialize.reader import open_bytes, read_program
from torch.utils import _pytree as pytree

from ..support.fixtures import FIXTURES, FOLDER
from ..support.judge import expect_equal, host_program


@pytest.mark.parametrize("name", FIXTURES)
def test_shown_and_proven(name: str) -> None:
    path = FOLDER / f"{name}.pte"
    check_program(read_program(open_bytes(path)))
    facts = PteFormat.inspect(path)
    assert facts.methods[0].name == "forward" and facts.methods[0].text in str(facts)
    assert "<svg" in PteFormat.page(path)
    assert PteFormat.verify(path)[0].accepted is True
    assert facts.backends == (("XnnpackBackend",) if name == "xnnpack" else ())
    assert len(facts.named_data) == (4 if name == "xnnpack" else 0)


@pytest.mark.parametrize("name", [n for n in FIXTURES if n != "xnnpack"])
def test_run(name: str) -> None:
    module, calls, _ = FIXTURES[name]
    program = host_program(read_program(open_bytes(FOLDER / f"{name}.pte")))
    for call in calls:
        with torch.no_grad():
            wanted = pytree.tree_leaves(module(*call))
        expect_equal(pytree.tree_leaves(program(*call)), wanted)
