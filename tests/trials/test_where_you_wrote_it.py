"""Refusals name the module and line of the user, also for calls made by torch's code."""

import json

import delegraph
import pytest
import torch
from delegraph_programs import line_of, source_of
from torch import nn


def fractional_pool(size):
    return nn.FractionalMaxPool2d(
        2, output_size=size, _random_samples=torch.zeros(1, 3, 2)
    )


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.frac = fractional_pool(4)
        self.conv = nn.Conv2d(3, 3, 1)

    def forward(self, x):
        return self.conv(self.frac(x))


class Direct(nn.Module):
    def forward(self, x):
        return nn.functional.fractional_max_pool2d(
            x, 2, output_size=4, _random_samples=torch.zeros(1, 3, 2)
        )


def lower(model):
    return delegraph.lower(model.eval(), (torch.randn(1, 3, 9, 9),), backends=["tosa"])


def first_place(model):
    text = str(lower(model).report)
    return next(line.strip() for line in text.splitlines() if "first at" in line)


SEQUENTIAL = nn.Sequential(nn.ReLU(), fractional_pool(4))
NESTED = nn.Sequential(nn.Sequential(nn.ReLU(), fractional_pool(4)))
BLOCKS = nn.Sequential(nn.ReLU(), Block())


@pytest.mark.parametrize(
    ("model", "start", "end"),
    [
        (
            SEQUENTIAL,
            "first at module 1 (FractionalMaxPool2d)",
            "(FractionalMaxPool2d)",
        ),
        (NESTED, "first at module 0.1 (FractionalMaxPool2d)", "(FractionalMaxPool2d)"),
        (
            BLOCKS,
            "first at ",
            "in 1.frac (FractionalMaxPool2d): return self.conv(self.frac(x))",
        ),
        (
            Block(),
            "first at ",
            "in frac (FractionalMaxPool2d): return self.conv(self.frac(x))",
        ),
    ],
)
def test_text_names_the_module_of_a_refusal(model, start, end):
    place = first_place(model)
    assert place.startswith(start)
    assert place.endswith(end)
    assert "site-packages" not in place


def test_a_call_of_the_model_itself_names_its_function():
    assert ", in forward: return nn.functional.fractional_max_pool2d(" in first_place(
        Direct()
    )


def test_json_names_the_module():
    report = lower(SEQUENTIAL).report.to_json()
    (cause,) = report["causes"]
    assert cause["source"]["module"] == "1 (FractionalMaxPool2d)"
    assert json.dumps(report)


def test_page_names_the_module(tmp_path):
    lower(SEQUENTIAL).report.save(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "module 1 (FractionalMaxPool2d)" in page


def test_an_error_names_the_module():
    with pytest.raises(
        delegraph.errors.NotFullyDelegated, match=r"1 \(FractionalMaxPool2d\)"
    ):
        delegraph.lower(
            SEQUENTIAL.eval(),
            (torch.randn(1, 3, 9, 9),),
            backends=["tosa"],
            require_full=True,
        )


def test_modules_share_the_line_of_a_repeated_block():
    model = nn.Sequential(Block(), nn.Upsample(9), Block()).eval()
    program = torch.export.export(model, (torch.randn(1, 3, 9, 9),))
    first, second = (
        node for node in program.graph.nodes if "fractional" in str(node.target)
    )
    assert source_of(first) != source_of(second)
    assert line_of(first) == line_of(second)
