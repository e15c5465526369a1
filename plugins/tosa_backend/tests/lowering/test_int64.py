"""int64 values that provably fit run as int32 in a delegate; the others stay on the host."""

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
    """A module that calls a function of itself, for its buffers, and of its inputs."""

    def __init__(self, function, **buffers):
        super().__init__()
        self.function = function
        for name, tensor in buffers.items():
            self.register_buffer(name, tensor)

    def forward(self, *args):
        return self.function(self, *args)


def lower(function, *inputs, spec="TOSA-1.0+FP+INT", **buffers):
    """Return the module of a function, and the module lowered."""
    module = Program(function, **buffers).eval()
    return module, delegraph.lower(
        module, inputs, backends=["tosa"], options={"tosa": {"spec": spec}}
    )


def refusal_reasons(lowered):
    """Operator -> reason of the refusals in the report."""
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
def test_programs_on_token_ids_become_one_delegate(name, spec):
    """PRO-FP neither moves nor compares integers; they run as fp32 if that is exact."""
    module, lowered = lower(
        WHOLE[name], IDS, spec=spec, table=TABLE, positions=torch.arange(8)[None]
    )

    assert lowered.report.host_operators == 0
    (delegate,) = lowered.report.delegates
    assert [str(value) for value in delegate.inputs] == ["args_0: int32[1, 3]"]
    assert all("int64" not in str(output) for output in delegate.outputs)
    torch.testing.assert_close(lowered(IDS), module(IDS), rtol=0, atol=0)


def test_int64_values_that_may_not_fit_are_refused():
    def forward(m, x):
        return x + 1, x.relu(), x > 0

    x = torch.tensor([LARGE, -LARGE])

    module, lowered = lower(forward, x)

    assert not lowered.delegates
    assert set(refusal_reasons(lowered).values()) == {
        "the input args_0: an int64 that is not known to fit into 32 bits"
    }
    torch.testing.assert_close(lowered(x), module(x))


def test_operators_whose_result_may_not_fit_run_on_the_host():
    module, lowered = lower(
        lambda m, ids: (F.embedding(ids, m.table), ids * 2**30), IDS, table=TABLE
    )
    why = "TOSA MUL: its int64 result may be from 0 to 9663676416, which does not fit into 32 bits"
    assert refusal_reasons(lowered) == {"aten.mul.Tensor": why}
    torch.testing.assert_close(lowered(IDS)[1], module(IDS)[1])


@pytest.mark.parametrize(
    ("factor", "host_operators"),
    [
        (2**20, []),  # 9 * 2**20 is below 2**24
        (2**21, ["aten.flip.default"]),  # 9 * 2**21 is above
    ],
)
def test_float_profile_limits_integers_to_24_bits(factor, host_operators):
    forward = lambda m, ids: (
        F.embedding(ids, m.table),
        (ids * factor).flip(1),
    )

    module, lowered = lower(forward, IDS, spec="TOSA-1.0+FP", table=TABLE)

    assert list(refusal_reasons(lowered)) == host_operators
    torch.testing.assert_close(lowered(IDS)[1], module(IDS)[1])


def test_large_constants_are_refused_unless_they_fold():
    both = lambda m, ids: (
        F.embedding(ids, m.table) + (m.large >> 38).float(),
        ids + m.large,
    )

    module, lowered = lower(both, IDS, table=TABLE, large=torch.tensor(LARGE))

    assert "aten.add.Tensor" in refusal_reasons(lowered)
    torch.testing.assert_close(lowered(IDS), module(IDS))


def test_operators_that_read_no_elements_accept_any_int64():
    module, lowered = lower(
        lambda m, x: torch.zeros_like(x, dtype=torch.float32) + 1, IDS
    )
    assert lowered.report.host_operators == 0
    torch.testing.assert_close(lowered(IDS + LARGE), module(IDS + LARGE))


def looked_up_at_offsets_and_scaled(m, x):
    """x + 2 is an index of the table, so x is less than the number of rows."""
    return F.embedding(x + torch.arange(3), m.table), x * 2**28


def test_use_of_a_sum_as_index_bounds_its_operand():
    """x is at most 7 for a table of 10 rows, and 7 * 2**28 fits int32."""
    _, lowered = lower(looked_up_at_offsets_and_scaled, IDS[:, :1], table=TABLE)

    assert lowered.report.host_operators == 0


def test_a_larger_table_bounds_the_operand_less():
    """x is at most 17 for a table of 20 rows, and 17 * 2**28 does not fit int32."""
    x = IDS[:, :1]

    module, lowered = lower(
        looked_up_at_offsets_and_scaled, x, table=torch.cat([TABLE, TABLE])
    )

    assert list(refusal_reasons(lowered)) == ["aten.mul.Tensor"]
    torch.testing.assert_close(lowered(x), module(x))


def test_use_of_a_sum_with_a_masked_number_as_index_bounds_its_operand():
    """x + 0 and x + 4 are indices below 10."""
    forward = lambda m, x, y: (F.embedding(x + (y > 0) * 4, m.table), x * 2)

    _, lowered = lower(forward, IDS, IDS.float(), table=TABLE)

    assert "aten.mul.Tensor" not in refusal_reasons(lowered)


def test_sums_with_numbers_that_wrap_around_bound_nothing():
    """2**62 * 4 wraps around to zero."""
    forward = lambda m, x, y: (F.embedding(x + (y > 0) * 2**62 * 4, m.table), x * 2)

    _, lowered = lower(forward, IDS, IDS.float(), table=TABLE)

    assert "aten.mul.Tensor" in refusal_reasons(lowered)


def test_indices_that_were_cast_to_int32_do_not_bound_the_int64():
    """2**32 + 1 becomes the valid index 1 in 32 bits."""
    module, lowered = lower(
        lambda m, x: (F.embedding(x.int(), m.table), x + 1), IDS, table=TABLE
    )

    reason = refusal_reasons(lowered)["aten.add.Tensor"]
    assert reason.endswith("is not known to fit into 32 bits")
    large = IDS + 2**32
    torch.testing.assert_close(lowered(large), module(large))


def distances(m, x):
    """The buckets of T5's distances in one direction: exact below 4, then logarithmic. The
    condition hides the logarithm of 0.
    """
    far = 4 + (torch.log(x / 4) / 3 * 6).to(torch.long)
    far = torch.min(far, torch.full_like(far, 9))
    return F.embedding(torch.where(x < 4, x.long(), far), m.table)


def buckets(m, x):
    """The buckets of T5's distances in both directions; those of positive distances follow
    the others.
    """
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
def test_casts_to_int64_run_as_int32_if_no_use_sees_saturation(name):
    function, numbers = SATURATED[name]
    x = torch.tensor(numbers)
    module, lowered = lower(function, x, table=TABLE, last=torch.tensor(9))
    assert len(lowered.delegates) == 1, lowered.report
    assert lowered.report.host_operators == 0, lowered.report
    torch.testing.assert_close(lowered(x), module(x), rtol=0, atol=0)


VISIBLE_SATURATION = {
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


@pytest.mark.parametrize("name", VISIBLE_SATURATION)
def test_casts_to_int64_stay_on_the_host_if_a_use_would_see_saturation(name):
    x = torch.tensor([3e12, 200.0, 4.5])

    module, lowered = lower(
        VISIBLE_SATURATION[name], x, table=TABLE, last=torch.tensor(9)
    )
    assert "aten.to.dtype" in refusal_reasons(lowered)
    torch.testing.assert_close(lowered(x), module(x))


def test_uses_of_a_cast_on_the_host_stay_on_the_host():
    """The delegate would cut a large number to 32 bits at its input."""
    partitioner = TOSAPartitioner()
    why_not = partitioner.support.why_not

    def refuse_cast(node):
        if node.target is aten.to.dtype:
            return "refused by the test"
        return why_not(node)

    partitioner.support.why_not = refuse_cast
    module = Program(
        lambda m, x: F.embedding(x.long().minimum(m.last), m.table),
        table=TABLE,
        last=torch.tensor(9),
    )
    x = torch.tensor([3e12, 2.0])

    lowered = delegraph.lower(module.eval(), (x,), backends=[partitioner])

    assert set(refusal_reasons(lowered)) == {"aten.to.dtype", "aten.minimum.default"}
    torch.testing.assert_close(lowered(x), module(x))


def test_use_of_a_part_as_index_does_not_bound_the_whole():
    module, lowered = lower(
        lambda m, x: (F.embedding(x[:, :1], m.table), x + 1), IDS, table=TABLE
    )
    large = torch.tensor([[1, LARGE, 2]])
    torch.testing.assert_close(lowered(large), module(large))


# Functions that return all elements of x in several parts.
ALL_PARTS = {
    "one by one": lambda x: [x[:, 0], x[:, -2], x[:, 2]],
    "unbound": lambda x: x.unbind(1),
    "cut": lambda x: [*x.split([1, 2], 1), x[:, 1:]],
    "in two steps": lambda x: [x[:, ::2], x.narrow(1, 1, 1)],
}


@pytest.mark.parametrize("name", ALL_PARTS)
def test_use_of_all_parts_as_indices_bounds_the_whole(name):
    """A decoder takes its tokens one by one."""
    module, lowered = lower(
        lambda m, x: torch.cat(
            [F.embedding(part, m.table).sum(0) for part in ALL_PARTS[name](x)]
        ),
        IDS,
        table=TABLE,
    )
    assert lowered.report.host_operators == 0, lowered.report
    torch.testing.assert_close(lowered(IDS), module(IDS))


@pytest.mark.parametrize(
    ("some_parts", "numbers"),
    [
        (lambda x: (x[:, 0], x[:, 2]), [[1, LARGE, 0], [0, 2, 2]]),
        (lambda x: (x[:, :2], x[0, :], x[1, :2]), [[1, 5, 0], [0, 2, LARGE]]),
        (lambda x: x.unbind(1)[:2], [[1, 5, LARGE], [0, 2, 2]]),
    ],
)
def test_use_of_some_parts_as_indices_bounds_nothing(some_parts, numbers):
    """The one large number is in no part."""
    large = torch.tensor(numbers)
    forward = lambda m, x: (
        [F.embedding(part, m.table) for part in some_parts(x)],
        x + 1,
    )

    module, lowered = lower(forward, large % 10, table=TABLE)
    assert "aten.add.Tensor" in refusal_reasons(lowered)
    torch.testing.assert_close(lowered(large), module(large))


def test_empty_indices_bound_nothing():
    module, lowered = lower(
        lambda m, x: (F.embedding(x.expand(0, 3), m.table), x == 1), IDS, table=TABLE
    )
    torch.testing.assert_close(lowered(IDS + LARGE)[1], module(IDS + LARGE)[1])


def test_unbounded_floats_cast_to_int64_on_the_host():
    module, lowered = lower(lambda m, x: (x * 2).long(), torch.tensor([1e15, -2.5]))
    assert list(refusal_reasons(lowered)) == ["aten.to.dtype"]
    torch.testing.assert_close(
        lowered(torch.tensor([1e15, -2.5])), module(torch.tensor([1e15, -2.5]))
    )
