"""Programs for TOSA 1.1 use its new operators, and give the results of eager torch."""

from __future__ import annotations

import delegraph
import pytest
import torch
import torch.nn.functional as F
from delegraph_tosa.serialize import read
from torch.utils._pytree import tree_leaves

from ..support import reference_tools
from ..support.rule_cases import EDGES, Function, randn

TARGETS = {"TOSA-1.0+FP": "1.0", "TOSA-1.1+FP": "1.1.draft"}
CASES = {
    "attention": (
        F.scaled_dot_product_attention,
        (randn(2, 3, 4, 8), randn(2, 3, 5, 8), randn(2, 3, 5, 8)),
    ),
    "linear": (F.linear, (randn(2, 3, 8), randn(4, 8), randn(4))),
    "truth": (
        lambda x: (x.bool(), (x > 0).float(), torch.where(x.bool(), 1.0, x)),
        (EDGES,),
    ),
}
NEW = {"attention": {"MATMUL_T"}, "linear": {"MATMUL_T"}, "truth": {"CAST"}}
OLD = {"attention": {"TRANSPOSE"}, "linear": {"TRANSPOSE"}, "truth": {"LOGICAL_NOT"}}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", CASES)
def test_programs_equal_eager_in_both_versions(name, target):
    function, inputs = CASES[name]
    options = {"tosa": {"spec": target}}
    program = delegraph.lower(
        Function(function).eval(), inputs, backends=["tosa"], options=options
    )
    assert len(program.delegates) == 1
    assert program.report.host_operators == 0
    file = program.delegates[0].processed_bytes
    kinds = {op.name for op in read(file).operators}
    expected, unwanted = (NEW, OLD) if TARGETS[target] != "1.0" else (OLD, NEW)
    assert kinds >= expected[name]
    assert not kinds & unwanted[name]
    reference_tools.check_strictly(file, "pro_fp", version=TARGETS[target])
    theirs = reference_tools.run_reference_model(file, [x.numpy() for x in inputs])
    results = tree_leaves(function(*inputs))
    for mine, other, eager in zip(
        tree_leaves(program(*inputs)), theirs, results, strict=True
    ):
        torch.testing.assert_close(mine, eager, atol=1e-5, rtol=1e-5, equal_nan=True)
        found = torch.from_numpy(other).reshape(eager.shape)
        torch.testing.assert_close(found, eager, atol=1e-5, rtol=1e-5, equal_nan=True)
