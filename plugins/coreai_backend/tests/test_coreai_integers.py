"""Integers of 64 bits: the ranges that are proved, and the types of the borders."""

import delegraph
import pytest
import torch
from torch import nn
from torch.fx import Interpreter

pytest.importorskip("coreai_torch")
from delegraph_coreai.integer_ranges import ranges_of


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


class Values(Interpreter):
    """Runs a graph, and keeps the integers of each node."""

    def __init__(self, module):
        super().__init__(module)
        self.found = {}

    def run_node(self, node):
        value = super().run_node(node)
        if isinstance(value, torch.Tensor) and value.dtype is torch.int64:
            self.found[node.name] = (int(value.min()), int(value.max()))
        return value


TABLE = torch.tensor([-7, 40, 3])
# function of x, which has elements from -5 to 9 -> the range that is proved
RANGES = {
    "negative": (lambda x: -x, (-9, 5)),
    "absolute": (lambda x: x.abs(), (0, 9)),
    "not": (lambda x: x.bitwise_not(), (-10, 4)),
    "sum": (lambda x: x + x * 2, (-15, 27)),
    "difference": (lambda x: x - TABLE[0], (-45, 16)),
    "reversed difference": (lambda x: 10 - x, (1, 15)),
    "product": (lambda x: x * -3, (-27, 15)),
    "greater": (lambda x: torch.maximum(x, -x), (-5, 9)),
    "lesser": (lambda x: torch.minimum(x, -x), (-9, 5)),
    "upper limit": (lambda x: x.clamp(max=4), (-5, 4)),
    "lower limit": (lambda x: x.clamp(min=2), (2, 9)),
    "sum of all": (lambda x: x.sum(), (-75, 135)),
    "sums": (lambda x: x.cumsum(0), (-75, 135)),
    "place": (lambda x: x.argmax(), (0, 2**31 - 1)),
    "count": (lambda x: torch.arange(3, 20) + x[0], (-2, 29)),
    "quotient": (lambda x: x // 2, (-5, 9)),
    "quotient of negatives": (lambda x: x // -2, (-10, 9)),
    "remainder": (lambda x: x % 7, (0, 7)),
    "remainder of negatives": (lambda x: x % -7, (-7, 7)),
    "and": (lambda x: x.abs().bitwise_and(12), (0, 15)),
    "or": (lambda x: x.bitwise_or(16), (-32, 31)),
    "lower triangle": (lambda x: (x.clamp(min=2)[None] * 1).tril(), (0, 9)),
    "zeros": (lambda x: torch.zeros_like(x), (0, 0)),
    "ones": (lambda x: torch.ones_like(x), (1, 1)),
    "joined": (lambda x: torch.cat([x, TABLE]), (-7, 40)),
    "chosen": (lambda x: torch.where(x > 0, x, TABLE[1]), (-7, 40)),
    "masked": (lambda x: x.masked_fill(x > 0, 77), (-5, 77)),
    "padded": (lambda x: torch.constant_pad_nd(x, (1, 1), -60), (-60, 9)),
    "sorted": (lambda x: x.sort().values, (-5, 9)),
    "places of sorted": (lambda x: x.sort().indices, (0, 2**31 - 1)),
    "rows": (lambda x: TABLE[x.clamp(0, 2)], None),
}


INT64 = torch.iinfo(torch.int64)
# 15 elements, with the extremes of the type
EXTREMES = torch.tensor([*range(-4, 9), INT64.min, INT64.max])


def prove_range(function):
    """Return the range that is proved for the result of ``function``.

    The values of all nodes are in the ranges proved for them, for several inputs.
    """
    program = torch.export.export(Function(function), (EXTREMES,))
    ranges = ranges_of(program)
    proved = {}
    for node in program.graph.nodes:
        val = node.meta.get("val")
        if isinstance(val, torch.Tensor) and val.dtype is torch.int64:
            proved[node.name] = ranges[node]
    for inputs in (
        EXTREMES,
        EXTREMES.flip(0),
        EXTREMES * 2**40,
        torch.full_like(EXTREMES, 9),
        torch.full_like(EXTREMES, -5),
        torch.full_like(EXTREMES, INT64.max),
        torch.full_like(EXTREMES, INT64.min),
    ):
        values = Values(program.module())
        values.run(inputs)
        checked = proved.keys() & values.found.keys()
        assert len(checked) > 1, "the input and at least one result"
        for name in checked:
            low, high = values.found[name]
            assert proved[name].low <= low and high <= proved[name].high, name
    (result,) = program.graph.output_node().args[0]
    return tuple(ranges[result])


@pytest.mark.parametrize("name", RANGES)
def test_ranges_contain_all_values(name):
    function, expected = RANGES[name]
    found = prove_range(lambda x: function(x.clamp(-5, 9)))
    assert expected is None or found == expected


@pytest.mark.parametrize("name", RANGES)
def test_ranges_contain_the_results_that_wrap(name):
    """Without a clamp, a result may wrap: the negative of the least int64 is itself."""
    function, _ = RANGES[name]
    prove_range(function)


WIDE = torch.tensor([[0, 1, 2, -1, 2**24, 2**24 + 1, 2**32, 2**40 + 1, -(2**63)]])
USES = {
    "is 0": lambda x: (x == 0, x != 0),
    "is 1": lambda x: (x == 1, x != 1),
    "logic": lambda x: (x.logical_not(), x.logical_and(x), x.logical_xor(x == 1)),
    "a truth value": lambda x: x[:, None].to(torch.bool),
    "a float": lambda x: x[:, None].to(torch.float32) * 2,
    "both": lambda x: (x.to(torch.bool), 1.0 - x.to(torch.float32)),
    "a float and all bits": lambda x: (x.to(torch.float32), x == 2**24 + 1),
    "half a float": lambda x: x.to(torch.float16),
    "a narrow integer": lambda x: x.to(torch.int32),
    "a sum": lambda x: (x + x).to(torch.bool),
    "by a number": lambda x: (x == 0) | (x == 2**40 + 1),
}


@pytest.mark.parametrize("name", USES)
def test_wide_integers_are_read_as_in_eager(name):
    model = Function(USES[name])
    lowered = delegraph.lower(model.eval(), (WIDE,), backends=["coreai"])
    results = lowered(WIDE)
    expected = model(WIDE)
    if isinstance(expected, torch.Tensor):
        results = (results,)
        expected = (expected,)
    for result, value in zip(results, expected, strict=True):
        torch.testing.assert_close(result, value)
