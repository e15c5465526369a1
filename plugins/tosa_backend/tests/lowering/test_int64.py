"""int64: what provably fits runs as int32 and is cast at the border, nowhere else; the
rest is refused.
"""

from __future__ import annotations

import delegraph
import pytest
import torch
import torch.nn.functional as F
from delegraph_tosa.partitioner import TOSAPartitioner
from torch import nn

torch.set_num_threads(1)
aten = torch.ops.aten
LARGE = 2**40


class Program(nn.Module):
    def __init__(self, function, **buffers):
        super().__init__()
        self.function = function
        for name, tensor in buffers.items():
            self.register_buffer(name, tensor)

    def forward(self, *args):
        return self.function(self, *args)


def lower(function, *inputs, spec="TOSA-1.0+FP+INT", **buffers):
    module = Program(function, **buffers).eval()
    return module, delegraph.lower(
        module, inputs, backends=["tosa"], options={"tosa": {"spec": spec}}
    )


def refusal_reasons(lowered):
    return {refusal.operator: refusal.reason for refusal in lowered.report.refusals}


TABLE = torch.randn(10, 4, generator=torch.Generator().manual_seed(0))
IDS = torch.tensor([[1, 9, 0]])

WHOLE = {
    "token ids": lambda m, ids: F.embedding(ids, m.table),
    "ids in another shape": lambda m, ids: (
        F.embedding(ids.view(3, 1).expand(3, 2), m.table) + ids.numel()
    ),
    "ids beside their use": lambda m, ids: (
        F.embedding(ids, m.table) * (ids != 1)[..., None]
    ),
    "ids are numbers": lambda m, ids: F.embedding(ids, m.table) + ids[..., None] * 2,
    "ids that are shifted": lambda m, ids: F.embedding(ids - 1 + 1, m.table),
    "ids as a result": lambda m, ids: (F.embedding(ids, m.table), ids * 3),
    "positions": lambda m, ids: (
        F.embedding(ids, m.table) + F.embedding(torch.arange(3) * 2, m.table)
    ),
    "positions of a buffer": lambda m, ids: (
        F.embedding(ids, m.table) + F.embedding(m.positions[:, 1:4], m.table)
    ),
    "bits": lambda m, ids: (
        F.embedding(ids, m.table),
        ids & 3,
        (ids - 5) ^ 6,
        ids << 2,
        ids >> 1,
        (ids - 9) >> ids * 9,
    ),
    "comparisons": lambda m, ids: (
        F.embedding(ids, m.table),
        torch.where(ids > 3, ids, -1),
        ids.clamp(2, 5),
    ),
}


@pytest.mark.parametrize(
    ("name", "spec"),
    [(name, "TOSA-1.0+FP+INT") for name in WHOLE]
    + [(n, "TOSA-1.0+FP") for n in WHOLE if n != "bits"],
)
def test_int64_programs_are_one_delegate(name, spec):
    """PRO-FP alone neither moves nor compares integers: what fp32 holds exactly runs as
    such.
    """
    module, lowered = lower(
        WHOLE[name], IDS, spec=spec, table=TABLE, positions=torch.arange(8)[None]
    )
    assert lowered.report.host_operators == 0, lowered.report
    (row,) = lowered.report.delegates
    assert [str(value) for value in row.inputs] == ["args_0: int32[1, 3]"]
    assert all("int64" not in str(output) for output in row.outputs)
    found = lowered(IDS)
    expected = module(IDS)
    for mine, theirs in zip(
        *(r if isinstance(r, tuple) else (r,) for r in (found, expected)), strict=True
    ):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0)


def test_int64_values_that_may_not_fit_are_refused():
    def forward(m, x):
        return x + 1, x.relu(), x > 0

    module, lowered = lower(forward, torch.tensor([LARGE, -LARGE]))
    assert not lowered.delegates
    assert set(refusal_reasons(lowered).values()) == {
        "the input args_0: an int64 that is not known to fit into 32 bits"
    }
    for found, expected in zip(
        lowered(torch.tensor([LARGE, 1])), module(torch.tensor([LARGE, 1])), strict=True
    ):
        torch.testing.assert_close(found, expected)


def test_a_result_that_may_not_fit_is_left_out():
    module, lowered = lower(
        lambda m, ids: (F.embedding(ids, m.table), ids * 2**30), IDS, table=TABLE
    )
    why = "TOSA MUL: its int64 result may be from 0 to 9663676416, which does not fit into 32 bits"
    assert refusal_reasons(lowered) == {"aten.mul.Tensor": why}
    torch.testing.assert_close(lowered(IDS)[1], module(IDS)[1])


@pytest.mark.parametrize(
    ("factor", "left"), [(2**20, []), (2**21, ["aten.flip.default"])]
)
def test_without_pro_int_24_bits_are_the_limit(factor, left):
    forward = lambda m, ids: (
        F.embedding(ids, m.table),
        (ids * factor).flip(1),
    )
    module, lowered = lower(forward, IDS, spec="TOSA-1.0+FP", table=TABLE)
    assert list(refusal_reasons(lowered)) == left
    torch.testing.assert_close(lowered(IDS)[1], module(IDS)[1])


def test_large_constants_fold_and_are_refused_otherwise():
    both = lambda m, ids: (
        F.embedding(ids, m.table) + (m.large >> 38).float(),
        ids + m.large,
    )
    module, lowered = lower(both, IDS, table=TABLE, large=torch.tensor(LARGE))
    assert "aten.add.Tensor" in refusal_reasons(lowered)
    for found, expected in zip(lowered(IDS), module(IDS), strict=True):
        torch.testing.assert_close(found, expected)


def test_operators_that_read_only_the_type_are_supported():
    """No element of the int64 is read, so none has to fit."""
    module, lowered = lower(
        lambda m, x: torch.zeros_like(x, dtype=torch.float32) + 1, IDS
    )
    assert lowered.report.host_operators == 0
    torch.testing.assert_close(lowered(IDS + LARGE), module(IDS + LARGE))


def test_bounds_are_those_of_sums_with_rows_of_numbers():
    """x + 0 .. 2 is an index below 10, so x is between -2 (for the last number) and 7
    (for the first one).
    """
    forward = lambda m, x: (
        F.embedding(x + torch.arange(3), m.table),
        x * 2**28,
    )
    module, lowered = lower(forward, IDS[:, :1], table=TABLE)
    assert lowered.report.host_operators == 0
    module, lowered = lower(forward, IDS[:, :1], table=torch.cat([TABLE, TABLE]))
    assert list(refusal_reasons(lowered)) == ["aten.mul.Tensor"]
    torch.testing.assert_close(lowered(IDS[:, :1]), module(IDS[:, :1]))


@pytest.mark.parametrize(("factor", "proven"), [(1, True), (2**62, False)])
def test_bounds_are_those_of_sums_with_products_of_truth_values(factor, proven):
    """x + 0 or 4 is an index below 10. A product that wraps around says nothing: x +
    2^64 is x.
    """
    forward = lambda m, x, y: (
        F.embedding(x + (y > 0) * factor * 4, m.table),
        x * 2,
    )
    _, lowered = lower(forward, IDS, IDS.float(), table=TABLE)
    assert ("aten.mul.Tensor" not in refusal_reasons(lowered)) == proven, lowered.report


def test_wrapping_casts_prove_no_range():
    """2^32 + 1 is 1 in 32 bits: the table says nothing of the int64."""
    module, lowered = lower(
        lambda m, x: (F.embedding(x.int(), m.table), x + 1), IDS, table=TABLE
    )
    large = IDS + 2**32
    assert refusal_reasons(lowered)["aten.add.Tensor"].endswith(
        "is not known to fit into 32 bits"
    )
    for found, expected in zip(lowered(large), module(large), strict=True):
        torch.testing.assert_close(found, expected)


def distances(m, x):
    """Distances in T5: exact up to 4, then by their logarithms, of which that of 0 is
    hidden by the condition.
    """
    far = 4 + (torch.log(x / 4) / 3 * 6).to(torch.long)
    far = torch.min(far, torch.full_like(far, 9))
    return F.embedding(torch.where(x < 4, x.long(), far), m.table)


def buckets(m, x):
    """T5's of both directions: those of positive distances come after the others."""
    size = x.abs()
    far = (3 + (torch.log(size / 3) / 3 * 2).long()).clamp_max(4)
    return F.embedding(
        (x > 0).long() * 5 + torch.where(size < 3, size.long(), far), m.table
    )


SATURATED = {
    "an index": (lambda m, x: F.embedding(x.long(), m.table), [0.5, 9.9, 3.0]),
    "an index that is shifted": (
        lambda m, x: F.embedding((x.long() + 3).view(3, 1) - 4, m.table),
        [1.5, 10.9, 3.0],
    ),
    "the smaller one": (
        lambda m, x: F.embedding(x.long().minimum(m.last), m.table),
        [1e18, 2.0, 9.5],
    ),
    "between numbers": (
        lambda m, x: F.embedding(x.long().clamp(2, 9), m.table),
        [-1e18, 3e12, 4.5],
    ),
    "not a number": (
        lambda m, x: F.embedding(x.long().clamp(1, 9), m.table),
        [float("nan"), -float("inf"), 8.0],
    ),
    "distances": (distances, [0.0, 100.0, 5.0]),
    "buckets": (buckets, [0.0, 100.0, -5.0, 2.0, -1e30]),
}


@pytest.mark.parametrize("name", SATURATED)
def test_casts_of_floats_saturate_where_uses_allow(name):
    function, numbers = SATURATED[name]
    x = torch.tensor(numbers)
    module, lowered = lower(function, x, table=TABLE, last=torch.tensor(9))
    assert len(lowered.delegates) == 1, lowered.report
    assert lowered.report.host_operators == 0, lowered.report
    torch.testing.assert_close(lowered(x), module(x), rtol=0, atol=0)


SEEN = {
    "by the caller": lambda m, x: (
        F.embedding(y := x.long().clamp(2, 9), m.table),
        x.long() + 1,
        y,
    ),
    "by a comparison": lambda m, x: (
        lambda y: (F.embedding(y.clamp(2, 9), m.table), y > 100)
    )(x.long()),
    "by the condition": lambda m, x: (
        lambda y: F.embedding(torch.where(y > 50, y.clamp(2, 9), 0), m.table)
    )(x.long()),
}


@pytest.mark.parametrize("name", SEEN)
def test_casts_do_not_saturate_where_visible(name):
    x = torch.tensor([3e12, 200.0, 4.5])
    module, lowered = lower(SEEN[name], x, table=TABLE, last=torch.tensor(9))
    assert "aten.to.dtype" in refusal_reasons(lowered)
    torch.testing.assert_close(lowered(x), module(x))


def test_casts_on_the_host_do_not_saturate():
    """The rest is refused then, since a large number would be cut to 32 bits on its way
    in.
    """
    partitioner = TOSAPartitioner()
    ask = partitioner.support.why_not
    partitioner.support.why_not = lambda n: (
        ask(n) or ("kept apart" if n.target is aten.to.dtype else None)
    )
    module = Program(
        lambda m, x: F.embedding(x.long().minimum(m.last), m.table),
        table=TABLE,
        last=torch.tensor(9),
    )
    x = torch.tensor([3e12, 2.0])
    lowered = delegraph.lower(module.eval(), (x,), backends=[partitioner])
    assert set(refusal_reasons(lowered)) == {"aten.to.dtype", "aten.minimum.default"}
    torch.testing.assert_close(lowered(x), module(x))


def test_a_part_proves_nothing_of_the_whole():
    module, lowered = lower(
        lambda m, x: (F.embedding(x[:, :1], m.table), x + 1), IDS, table=TABLE
    )
    large = torch.tensor([[1, LARGE, 2]])
    for found, expected in zip(lowered(large), module(large), strict=True):
        torch.testing.assert_close(found, expected)


TOGETHER = {
    "one by one": lambda x: [x[:, 0], x[:, -2], x[:, 2]],
    "unbound": lambda x: x.unbind(1),
    "cut": lambda x: [*x.split([1, 2], 1), x[:, 1:]],
    "in two steps": lambda x: [x[:, ::2], x.narrow(1, 1, 1)],
}


@pytest.mark.parametrize("name", TOGETHER)
def test_all_parts_prove_the_whole(name):
    """The tokens that a decoder takes one by one; each of them is an index."""
    module, lowered = lower(
        lambda m, x: torch.cat(
            [F.embedding(part, m.table).sum(0) for part in TOGETHER[name](x)]
        ),
        IDS,
        table=TABLE,
    )
    assert lowered.report.host_operators == 0, lowered.report
    torch.testing.assert_close(lowered(IDS), module(IDS))


@pytest.mark.parametrize(
    "parts",
    [
        (lambda x: (x[:, 0], x[:, 2]), [[1, LARGE, 0], [0, 2, 2]]),
        (lambda x: (x[:, :2], x[0, :], x[1, :2]), [[1, 5, 0], [0, 2, LARGE]]),
        (lambda x: x.unbind(1)[:2], [[1, 5, LARGE], [0, 2, 2]]),
    ],
)
def test_some_parts_prove_nothing(parts):
    """One element is no index of the table."""
    taken = parts[0]
    large = torch.tensor(parts[1])
    forward = lambda m, x: (
        [F.embedding(part, m.table) for part in taken(x)],
        x + 1,
    )
    module, lowered = lower(forward, large % 10, table=TABLE)
    assert "aten.add.Tensor" in refusal_reasons(lowered)
    torch.testing.assert_close(lowered(large), module(large))


def test_empty_indices_prove_no_range():
    """An index tensor of which no element is used says nothing."""
    module, lowered = lower(
        lambda m, x: (F.embedding(x.expand(0, 3), m.table), x == 1), IDS, table=TABLE
    )
    torch.testing.assert_close(lowered(IDS + LARGE)[1], module(IDS + LARGE)[1])


def test_float_numbers_as_int64_stay_on_the_host():
    module, lowered = lower(lambda m, x: (x * 2).long(), torch.tensor([1e15, -2.5]))
    assert list(refusal_reasons(lowered)) == ["aten.to.dtype"]
    torch.testing.assert_close(
        lowered(torch.tensor([1e15, -2.5])), module(torch.tensor([1e15, -2.5]))
    )
