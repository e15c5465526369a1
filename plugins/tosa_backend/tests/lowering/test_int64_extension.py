"""Targets with EXT-INT64 compute int64 values of any size without narrowing."""

from __future__ import annotations

import delegraph
import pytest
import torch
import torch.nn.functional as F
from delegraph_tosa.ir.types import DType
from delegraph_tosa.serialize import read
from torch._higher_order_ops.while_loop import while_loop
from torch.utils._pytree import tree_leaves

from ..support import reference_tools
from ..support.rule_cases import Function, randn

TARGET = "TOSA-1.1+FP+INT+int64+controlflow"
LARGE = 2**40
TABLE = randn(10, 4)
ids = torch.tensor([[1, 9, 0]])
large = torch.tensor([[LARGE + 3, -LARGE, 7]])


def count(n, x):
    """A loop whose counter may exceed 32 bits."""
    return while_loop(
        lambda i, x: i < n,
        lambda i, x: (i + 2, x + i),
        (torch.zeros((), dtype=torch.int64), x),
    )


CASES = {
    "embedding": (lambda i: F.embedding(i, TABLE), (ids,)),
    "arithmetic": (
        lambda i: (i + 5, i * 3 - LARGE, -i, i.abs(), i // 7, i % 5, i.cumsum(1)),
        (large,),
    ),
    "bits": (
        lambda i: (i & 3, i ^ 6, i | LARGE, i << 2, i >> 1, i >> 40, ~i),
        (large,),
    ),
    "comparisons": (
        lambda i: (
            i == 7,
            i > LARGE,
            torch.where(i > 3, i, -1),
            i.clamp(2, LARGE),
            i.bool(),
        ),
        (large,),
    ),
    "casts": (
        lambda i: (i.int(), i.to(torch.int8), (i > 0).long(), i.int().long()),
        (large,),
    ),
    "reductions": (
        lambda i: (i.sum(), i.amax(1), i.argmax(1), i.any(), i.prod(1)),
        (large,),
    ),
    "layout": (
        lambda i: (
            i.t(),
            torch.cat([i, i]),
            i.repeat(2, 2),
            F.pad(i, (1, 1)),
            i[:, 1:].flip(1),
        ),
        (large,),
    ),
    "indices": (
        lambda i, j: (i.gather(1, j), i[:, j[0]], i.scatter(1, j, 5)),
        (large, torch.tensor([[0, 2, 1]])),
    ),
    "places": (
        lambda x: (x.argmax(1), *x.max(1), *x.topk(2), F.one_hot(x.argmax(1), 4)),
        (randn(2, 4),),
    ),
    "loop": (count, (torch.tensor(7), large)),
}


def lower(function, *inputs, target=TARGET):
    module = Function(function).eval()
    return delegraph.lower(
        module, inputs, backends=["tosa"], options={"tosa": {"spec": target}}
    )


@pytest.fixture(scope="module")
def programs():
    return {
        name: lower(function, *inputs) for name, (function, inputs) in CASES.items()
    }


def inputs_in_file_order(delegate, inputs):
    """The inputs as the file takes them: in the order of their first use."""
    return [
        inputs[int(argument.name.rpartition("_")[2])] for argument in delegate.inputs
    ]


@pytest.fixture(scope="module")
def judged(programs):
    jobs = [
        (
            p.delegates[0].processed_bytes,
            [x.numpy() for x in inputs_in_file_order(p.delegates[0], CASES[name][1])],
        )
        for name, p in programs.items()
    ]
    return dict(
        zip(programs, reference_tools.run_reference_model_on_all(jobs), strict=True)
    )


@pytest.mark.parametrize("name", CASES)
def test_equals_eager_in_int64(name, programs, judged):
    function, inputs = CASES[name]
    program = programs[name]
    (delegate,) = program.delegates
    assert program.report.refusals == []
    assert program.report.host_operators == 0
    assert [str(value.dtype) for value in delegate.inputs] == [
        str(x.dtype) for x in inputs_in_file_order(delegate, inputs)
    ]
    expected = tree_leaves(function(*inputs))
    for mine, theirs, eager in zip(
        tree_leaves(program(*inputs)), judged[name], expected, strict=True
    ):
        torch.testing.assert_close(mine, eager, rtol=0, atol=0)
        torch.testing.assert_close(
            torch.from_numpy(theirs).reshape(eager.shape), eager, rtol=0, atol=0
        )


@pytest.mark.parametrize("name", ["arithmetic", "loop"])
def test_reference_validator_accepts_int64_files(name, programs):
    file = programs[name].delegates[0].processed_bytes
    reference_tools.check_strictly(
        file, "pro_fp,pro_int", "int64,controlflow", version="1.1.draft"
    )


def test_int64_arithmetic_stays_int64(programs):
    graph = read(programs["arithmetic"].delegates[0].processed_bytes)
    assert {v.dtype for op in graph.operators for v in op.outputs} <= {
        DType.INT64,
        DType.BOOL,
    }


def test_casts_from_unbounded_int64_to_float_are_refused():
    """TOSA has no CAST from int64 to fp32."""
    lowered = lower(lambda i: i.float(), large)

    (refusal,) = lowered.report.refusals
    assert "which does not fit into 32 bits" in refusal.reason


def test_casts_from_bounded_int64_to_float_are_lowered():
    """The use as an index bounds the values."""
    lowered = lower(lambda i: F.embedding(i, TABLE)[..., 0] * i.float(), ids)

    assert lowered.report.refusals == []
    torch.testing.assert_close(lowered(ids), TABLE[ids][..., 0] * ids)


def test_inputs_are_narrowed_without_the_extension():
    program = lower(lambda i: F.embedding(i, TABLE), ids, target="TOSA-1.1+FP+INT")
    assert [str(value.dtype) for value in program.delegates[0].inputs] == [
        "torch.int32"
    ]
