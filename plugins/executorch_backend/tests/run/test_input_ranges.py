"""What a file says of the integers of its inputs is checked in each call, and shown."""

from __future__ import annotations

import delegraph
import pytest
import torch
from delegraph.errors import InputError


class Masked(torch.nn.Module):
    def forward(self, x, given):
        return x * (1 - given["mask"] * given["mask"]).float()


X = torch.randn(4)
MASK = torch.tensor([1, 0, 1, 0])


@pytest.mark.parametrize("runtime", [None, "executorch"])
def test_integers_beyond_the_range_are_refused(runtime, tmp_path):
    backends = ["tosa"]
    options = {"tosa": {"int32_inputs": ["given['mask']=0..1"]}}
    lowered = delegraph.lower(
        Masked().eval(), (X, {"mask": MASK}), backends=backends, options=options
    )
    program = lowered.exported_program("forward")
    assert lowered.report.host_operators == 0
    if runtime:
        # that runtime has no TOSA: the same promise on a program of the host
        lowered = delegraph.lower(Masked().eval(), (X, {"mask": MASK}), backends=[])
        lowered.exported_program("forward").graph.find_nodes(op="placeholder")[1].meta[
            "within"
        ] = [0, 1]
    lowered.save(tmp_path / "m.pte")
    loaded = delegraph.load(tmp_path / "m.pte", runtime=runtime)
    assert torch.equal(loaded(X, {"mask": MASK}), Masked()(X, {"mask": MASK}))
    with pytest.raises(
        InputError,
        match=r"input given\['mask'\] has an element -3; it was lowered for 0 to 1",
    ):
        loaded(X, {"mask": MASK - 3})
    if runtime is None:
        assert (
            str(loaded.summary.methods[0].inputs[1])
            == "given['mask']: int64[4], from 0 to 1"
        )
    assert program.graph.find_nodes(op="placeholder")[1].meta["within"] == [0, 1]
