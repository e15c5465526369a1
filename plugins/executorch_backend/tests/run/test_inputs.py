"""Calls of loaded files with other inputs than the program was exported for: named as
the caller names them.
"""

import json
from collections import OrderedDict, defaultdict
from typing import NamedTuple

import delegraph
import numpy as np
import pytest
import torch
from delegraph.errors import FormatError, InputError
from delegraph_executorch.containers import decode_structure
from delegraph_executorch.program.calling import input_names as names_of_inputs
from delegraph_executorch.program.input_sizes import input_sizes
from delegraph_executorch.program.pte_tables import ContainerMetadata
from torch import nn
from torch.export import Dim, export

from ..support.judge import stock_runtime

B = Dim("B", min=3, max=6)
HALF = Dim("HALF", min=3, max=6)
randn = torch.randn


class Nested(nn.Module):
    def forward(self, x, pair, *, scale):
        return x + pair["a"], torch.cat([pair["a"], pair["b"]]) * scale


class Single(nn.Module):
    def forward(self, pair):
        return pair["a"] + 1


def call_arguments(x=(4, 8), a=(4, 8), b=(4, 8)):
    return (randn(x), {"a": randn(a), "b": randn(b)}), {"scale": randn(1)}


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    args, kwargs = call_arguments()
    shapes = {"x": {0: B}, "pair": {"a": {0: B}, "b": {0: B}}, "scale": None}
    path = tmp_path_factory.mktemp("inputs") / "nested.pte"
    delegraph.lower(
        export(Nested(), args, kwargs, dynamic_shapes=shapes), backends=[]
    ).save(path)
    return delegraph.load(path)


A = r"^input pair\['a'\] must be torch.float32 of sizes at most \[6, 8\]; it is "
PAIR = {"a": randn(4, 8), "b": randn(4, 8)}
SCALE = {"scale": randn(1)}
OTHERS = {
    "above": (call_arguments((4, 8), (7, 8)), A + r"torch.float32 of sizes \[7, 8\]\n"),
    "type": (
        ((randn(4, 8), {**PAIR, "a": randn(4, 8).half()}), SCALE),
        A + "torch.float16 of sizes",
    ),
    "device": (
        ((randn(4, 8), {**PAIR, "a": randn(4, 8, device="meta")}), SCALE),
        A + ".* on meta\n",
    ),
    "sparse": (
        ((randn(4, 8), {**PAIR, "a": randn(4, 8).to_sparse()}), SCALE),
        A + "sparse_coo torch.float32",
    ),
    "array": (
        ((randn(4, 8), {**PAIR, "a": randn(4, 8).numpy()}), SCALE),
        A + "of type ndarray\n",
    ),
    "few": (
        ((randn(4, 8),), SCALE),
        r"it was given \(Tensor, scale=Tensor\): pair not given\n",
    ),
    "keys": (
        ((randn(4, 8), {"a": randn(4, 8)}), SCALE),
        r"^input pair must be a dict .*; it is a dict with the keys",
    ),
    "unequal": (
        call_arguments(a=(5, 8)),
        (
            r"^input pair\['a'\] has size 5 .* for size 4 there, as input x has size 4"
            r" in dim"
        ),
    ),
    "unequal, computable": (
        call_arguments(b=(5, 8)),
        r"^input pair\['b'\] has size 5 .* for size 4 there, as input x has",
    ),
    "fixed": (
        call_arguments((4, 7), (4, 7), (4, 7)),
        "^input x has size 7 in dimension 1; .* was exported for size 8 there\n",
    ),
    "below": (
        call_arguments((2, 8), (2, 8), (2, 8)),
        "^input x has size 2 in dimension 0; .* for sizes from 3 to 6 there",
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_inputs_of_another_kind(loaded, name):
    (args, kwargs), message = OTHERS[name]
    with pytest.raises(InputError, match=message):
        loaded(*args, **kwargs)


class Doubled(nn.Module):
    def forward(self, x, y):
        return x[1:].reshape(-1, 2, 8).sum(1) + y


def test_sizes_that_follow_from_another(tmp_path):
    """The file of another tool, or a damaged one, says nothing of them; then kernels
    see what does not fit.
    """
    lowered = delegraph.lower(
        Doubled().eval(),
        (randn(9, 8), randn(4, 8)),
        dynamic_shapes=({0: 2 * HALF + 1}, {0: HALF}),
        backends=[],
    )
    lowered.save(tmp_path / "doubled.pte")
    loaded = delegraph.load(tmp_path / "doubled.pte")
    x = randn(7, 8)
    y = randn(3, 8)
    torch.testing.assert_close(loaded(x, y), Doubled()(x, y))
    for other, message in (
        (
            (randn(8, 8), y),
            "^input x has size 8 in dimension 0; .* for multiples of 2 plus 1 there\n",
        ),
        (
            (randn(9, 8), y),
            (
                "^input x has size 9 in dimension 0; .* for size 7 there, as input y"
                " has size 3"
            ),
        ),
        (
            (x, randn(2, 8)),
            "^input y has size 2 in dimension 0; .* for sizes from 3 to 6 there\n",
        ),
    ):
        with pytest.raises(InputError, match=message):
            loaded(*other)


PLACE = [0, 0, 0, 1, 0]
BOUND = [3, 6]
DAMAGED = {
    "input": ([[1, *PLACE[1:]]], [BOUND]),
    "dimension": ([[0, 2, 0, 1, 0]], [BOUND]),
    "symbol": ([[0, 0, 1, 1, 0]], [BOUND]),
    "factor": ([[0, 0, 0, 0, 0]], [BOUND]),
    "kind": ([[0, 0, 0, 1, 0.5]], [BOUND]),
    "short": ([[0, 0]], [BOUND]),
    "bounds": ([PLACE], [[None, 6]]),
    "no list": (3, [BOUND]),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_input_sizes_are_ignored(name):
    def stated(places, bounds):
        sizes = {"places": places, "bounds": bounds}
        return input_sizes(
            ContainerMetadata(json.dumps({"structure": "*", "sizes": sizes}), ""), [2]
        )

    assert stated(*DAMAGED[name]) is None
    assert stated([PLACE], [BOUND]).sizes == [tuple(PLACE)]


HOSTILE = ['{"named": ["x"]}', '{"tuple": [5]}', '{"list": 5}', "{}"]


@pytest.mark.parametrize("structure", HOSTILE)
def test_damaged_structures_name_nothing(structure):
    text = (
        f'{{"structure": {{"tuple": [{{"tuple": [{structure}]}}, {{"dict": []}}]}},'
        ' "names": ["a"]}'
    )
    assert names_of_inputs(ContainerMetadata(text, ""), 1) == [""]
    with pytest.raises(
        FormatError, match="^the structure of inputs or outputs cannot be read"
    ):
        decode_structure(text)


def test_names_of_a_file_do_not_steer_a_terminal():
    text = (
        r'{"structure": {"tuple": [{"tuple": ["*"]}, {"dict": []}]}, "names":'
        r' ["\u001b[31m"]}'
    )
    assert names_of_inputs(ContainerMetadata(text, ""), 1) == [r"\x1b[31m"]


def test_a_container_is_no_flat_input(tmp_path):
    program = export(Single(), ({"a": randn(3)},))
    delegraph.lower(program, backends=[]).save(tmp_path / "single.pte")
    loaded = delegraph.load(tmp_path / "single.pte")
    torch.testing.assert_close(loaded(torch.ones(3)), loaded({"a": torch.ones(3)}))
    with pytest.raises(
        InputError,
        match=(
            r"^input pair must be a dict with the keys \['a'\]; it is a dict with the"
        ),
    ):
        loaded({"b": torch.ones(3)})


def test_inputs_within_the_export(loaded):
    args, kwargs = call_arguments((6, 8), (6, 8), (6, 8))
    torch.testing.assert_close(loaded(*args, **kwargs), Nested()(*args, **kwargs))


class Pair(NamedTuple):
    low: torch.Tensor
    high: torch.Tensor


class Containers(nn.Module):
    """Containers of every kind that is kept, and a number that the program is exported
    for.
    """

    def forward(self, given, factor):
        low, high = given["pair"]
        return OrderedDict(sum=low + high, pair=Pair(high * factor, given["others"][0]))


@pytest.mark.parametrize("runtime", [None, "executorch"])
def test_containers_and_numbers_of_a_call(tmp_path, runtime):
    if runtime:
        stock_runtime()
    pair = Pair(randn(2), randn(2))
    other = defaultdict(list, {0: randn(2)})
    lowered = delegraph.lower(
        Containers().eval(), ({"pair": pair, "others": other}, 2), backends=[]
    )
    lowered.save(tmp_path / "containers.pte")
    loaded = delegraph.load(tmp_path / "containers.pte", runtime=runtime)
    actual = loaded({"others": other, "pair": pair}, 2)
    assert list(actual) == ["sum", "pair"]
    assert actual["pair"]._fields == ("low", "high")
    assert torch.equal(actual["pair"].low, pair.high * 2)
    assert torch.equal(actual["pair"].high, other[0])
    with pytest.raises(InputError, match="^input factor was exported as 2; it is 3"):
        loaded({"others": other, "pair": pair}, 3)
    with pytest.raises(
        InputError,
        match=r"^input given\['pair'\] must be a namedtuple of 2; it is a list of 2",
    ):
        loaded({"others": other, "pair": [*pair]}, 2)
    with pytest.raises(
        InputError, match="^input factor was exported as 2; it is array"
    ):
        loaded({"others": other, "pair": pair}, np.array([2, 2]))


class Filling(nn.Module):
    def forward(self, x, value: float):
        return torch.where(x > 0, x, value)


def test_a_number_that_is_nan(tmp_path):
    delegraph.lower(Filling().eval(), (randn(3), float("nan")), backends=[]).save(
        tmp_path / "filling.pte"
    )
    loaded = delegraph.load(tmp_path / "filling.pte")
    x = torch.tensor([1.0, -1.0, 2.0])
    assert torch.equal(loaded(x, float("nan")).isnan(), x < 0)
    with pytest.raises(InputError, match="^input value was exported as nan; it is 1.0"):
        loaded(x, 1.0)
