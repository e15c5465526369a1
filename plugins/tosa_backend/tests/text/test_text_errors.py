"""Unusual and damaged texts give the right graph or a FormatError."""

from __future__ import annotations

import random

import numpy as np
import pytest
from delegraph.errors import FormatError
from delegraph.formats import Quantization
from delegraph_tosa.format import TosaInspection
from delegraph_tosa.ir.graph import Graph
from delegraph_tosa.text import parse, render

from ..support.samples import samples
from ..support.structured import structured


def parse_constant(text: str) -> Graph:
    return parse(f"graph @main() {{\n  %c: {text}\n  return %c\n}}\n")


def parse_elements(text: str) -> np.ndarray:
    return parse_constant(text).outputs[0].constant.materialize()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[2]fp16 = const [1e9, 1.0]", "line 2: an element is too large for fp16"),
        ("[1]fp32 = const [1e39]", "line 2: an element is too large for fp32"),
        ("[1]bf16 = const [3.4e38]", "line 2: an element is too large for bf16"),
        (f"[1]fp32 = const [1{'0' * 400}]", "line 2: an element is too large for fp32"),
        ("[2]bool = const [2, true]", "line 2: an element is no bool"),
        ("[1]bool = const [0.5]", "line 2: an element is no bool"),
        ('[1]fp32 = const base64 "é"', "line 2: the elements are not base64"),
        (
            f"[{'x'.join(['9999999999'] * 3)}]fp32 = const splat 1.0",
            "line 2: .* is larger than any memory",
        ),
    ],
)
def test_elements_that_a_constant_cannot_have(text, words):
    with pytest.raises(FormatError, match=words):
        parse_constant(text)


def test_floats_are_the_nearest_and_ties_go_to_even():
    assert parse_elements("[3]bf16 = const [1.00390625, 1.01171875, 0.1]").tolist() == [
        0x3F80,
        0x3F82,
        0x3DCD,
    ]
    assert parse_elements("[2]bf16 = const [inf, nan]").tolist() == [0x7F80, 0x7FC0]
    assert parse_elements("[3]fp16 = const [65519, -inf, 0.1]").tolist() == [
        65504,
        -np.inf,
        np.float16(0.1),
    ]


def test_a_short_text_does_not_take_much_memory():
    assert parse_elements("[1000000x1000000]fp32 = const splat 2.0").shape == (
        10**6,
        10**6,
    )
    assert parse_elements("[]fp32 = const splat 2.0") == 2


@pytest.mark.parametrize("dtype", ["int4", "int48", "fp4e2m1", "fp32", "bool"])
def test_empty_base64_is_an_empty_constant(dtype):
    assert parse_elements(f'[0]{dtype} = const base64 ""').shape == (0,)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            "REDUCE_SUM(%x) {axis=0, axis=0}",
            "line 3: REDUCE_SUM has an attribute twice",
        ),
        ("REDUCE_SUM(%x) {axis=true}", "line 3: expected number, found 'true'"),
        (
            "CLAMP(%x) {min_val=false, max_val=1.0, nan_mode=IGNORE}",
            "line 3: expected number, found 'false'",
        ),
    ],
)
def test_wrong_attributes_are_refused(line, words):
    with pytest.raises(FormatError, match=words):
        parse(
            "// lines count from 1\ngraph @main(%x: [1]fp32) {\n  %y: [1]fp32 ="
            f" {line}\n  return %y\n}}\n"
        )


def test_comments_may_stand_between_statements():
    text = (
        "// head\n\ngraph @main(%x: [2]fp32) {\n  // inside\n  return %x\n}\n//"
        " behind\n"
    )
    assert render(parse(text)) == "graph @main(%x: [2]fp32) {\n  return %x\n}\n"


def test_text_of_inspect_can_be_parsed():
    graph = next(s.graph for s in samples() if s.label == "RESCALE(int8, int32)")
    text = render(graph)
    unquantized = Quantization({}, {})
    shown = TosaInspection(
        "a.tosa",
        1,
        (),
        (),
        unquantized,
        {},
        0,
        0,
        0,
        0,
        {},
        {},
        0,
        "1.0",
        ("FP",),
        (),
        text,
    )
    assert render(parse(str(shown))) == text


GRAPHS = [
    sample.graph for sample in (*list(samples(version=(1, 1)))[::40], *structured())
]


def change_text(text: str, rng: random.Random) -> str:
    """One character, one token or one line is lost, doubled or replaced by another one
    of the text.
    """
    cut = rng.choice([list, str.split, str.splitlines])
    parts = cut(text)
    glue = {list: "", str.split: " "}.get(cut, "\n")
    at = rng.randrange(len(parts))
    parts[at : at + 1] = rng.choice([[], [parts[at]] * 2, [rng.choice(parts)]])
    return glue.join(parts)


@pytest.mark.parametrize("number", range(len(GRAPHS)))
def test_changed_texts_are_graphs_or_refused(number):
    rng = random.Random(number)
    text = render(GRAPHS[number])
    for _ in range(20):
        try:
            graph = parse(change_text(text, rng))
        except FormatError as problem:
            assert "TOSA text, line" in str(problem)
        else:
            assert render(parse(render(graph))) == render(graph)
