"""Reasons of refusals name operators and values of PyTorch."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable

import delegraph
import pytest
import torch
from torch import nn
from torch._higher_order_ops.map import map as map_rows
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

INTERNAL = re.compile(
    r"NoneType|Exception happened|graph_\d|<[\w. ]+ at 0x|<class|Node\(|FakeTensor"
    r"|SymFloat|SymBool|\.cpp|schema NONE|friendly_name|\n"
)
"""Parts of texts that name no operator and no value of a program."""
ROWS = torch.tensor([[1.0, 2.0], [3.0, -4.0]])
SORTED = torch.tensor([0.0, 1.0, 2.0])
ONE = torch.tensor(1.0)


class Program(nn.Module):
    def __init__(self, function: Callable) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


def branch(x):
    return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))


def loop(x):
    start = torch.tensor(0)
    return while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * 2), (start, x))[1]


def running_sum(x):
    return scan(lambda c, row: (c + row, c * row), x[0].clone(), x, dim=0)


PROGRAMS = {
    "cond": (branch, (ROWS,)),
    "while_loop": (loop, (ROWS,)),
    "map": (lambda x: map_rows(lambda row: row.sin(), x), (ROWS,)),
    "scan": (running_sum, (ROWS,)),
    "searchsorted": (lambda x, y: torch.searchsorted(x, y), (SORTED, SORTED)),
    "norm": (lambda x: torch.linalg.vector_norm(x), (SORTED,)),
    "frames": (lambda x: x.unfold(-1, 2, 1), (torch.ones(1, 5),)),
    "item": (lambda x: x * x.sum().item(), (SORTED,)),
    "item of bool": (lambda x: x + (x.sum() > 0).item(), (SORTED,)),
    "float64": (lambda x: x.double() * 2, (SORTED,)),
    "complex": (lambda x: torch.view_as_real(torch.fft.fft(x)), (SORTED,)),
    "random": (lambda x: x + torch.rand(3), (SORTED,)),
    "decomposition": (lambda x: torch.linalg.svd(x), (ROWS,)),
    "places of values": (lambda x: x.nonzero(), (SORTED,)),
    "left out indices": (lambda x, i: x[:, i.long()], (ROWS, torch.tensor([1]))),
    "sort": (lambda x: x.sort().values, (SORTED,)),
    "without elements": (lambda x: x.select(1, 0), (ROWS[:0],)),
}
"""Programs, many of which a backend refuses in part."""


def reasons_of(name: str, backend: str) -> dict[str, str]:
    """Return the reason of each refused operator."""
    function, inputs = PROGRAMS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lowered = delegraph.lower(Program(function), inputs, backends=[backend])
    assert not lowered.report.given_back
    return {refusal.operator: refusal.reason for refusal in lowered.report.refusals}


@pytest.mark.parametrize("backend", ["openvino", "xnnpack", "tosa"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_reasons_name_nothing_internal(name: str, backend: str) -> None:
    pytest.importorskip(
        {"openvino": "openvino", "xnnpack": "executorch"}.get(backend, "torch")
    )
    for operator, reason in reasons_of(name, backend).items():
        assert reason.strip(), operator
        assert not INTERNAL.search(reason), f"{operator}: {reason}"


SUBGRAPHS = "runs subgraphs of the program, and {} runs single operators only"
EXPECTED = {
    ("openvino", "cond", "cond"): "cond " + SUBGRAPHS.format("OpenVINO"),
    ("openvino", "while_loop", "while_loop"): (
        "while_loop " + SUBGRAPHS.format("OpenVINO")
    ),
    ("openvino", "map", "map_impl"): "map_impl " + SUBGRAPHS.format("OpenVINO"),
    ("openvino", "scan", "scan"): "scan " + SUBGRAPHS.format("OpenVINO"),
    (
        "openvino",
        "searchsorted",
        "aten.searchsorted.Tensor",
    ): "OpenVINO's frontend needs argument 2, which is None or left out",
    (
        "openvino",
        "item",
        "aten.item.default",
    ): "item is a float, and OpenVINO computes only tensors and sizes",
    (
        "openvino",
        "item of bool",
        "aten.item.default",
    ): "item is a bool, and OpenVINO computes only tensors and sizes",
    (
        "openvino",
        "decomposition",
        "aten.linalg_svd.default",
    ): "OpenVINO's frontend has no rule for this operator",
    ("xnnpack", "cond", "cond"): "cond " + SUBGRAPHS.format("XnnpackPartitioner"),
    ("xnnpack", "while_loop", "while_loop"): (
        "while_loop " + SUBGRAPHS.format("XnnpackPartitioner")
    ),
    ("xnnpack", "map", "map_impl"): (
        "map_impl " + SUBGRAPHS.format("XnnpackPartitioner")
    ),
    ("xnnpack", "scan", "scan"): "scan " + SUBGRAPHS.format("XnnpackPartitioner"),
    (
        "xnnpack",
        "float64",
        "aten.mul.Tensor",
    ): "XnnpackPartitioner does not take it with torch.float64",
    (
        "xnnpack",
        "sort",
        "aten.sort.default",
    ): "XnnpackPartitioner does not take it with torch.float32, torch.int64",
}


@pytest.mark.parametrize("backend, name, operator", EXPECTED)
def test_reasons_match_the_expected_texts(
    backend: str, name: str, operator: str
) -> None:
    pytest.importorskip({"openvino": "openvino", "xnnpack": "executorch"}[backend])
    assert reasons_of(name, backend)[operator] == EXPECTED[backend, name, operator]
