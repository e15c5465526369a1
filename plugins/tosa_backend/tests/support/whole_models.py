"""A whole program with int64 tokens in one delegate: what is left to the host, and what
the reference tools say.
"""

from __future__ import annotations

import delegraph
import numpy as np
import torch
from delegraph_tosa.options import Options
from delegraph_tosa.runtime import TOSARuntime
from delegraph_tosa.serialize import read
from delegraph_tosa.spec import TosaSpec
from torch.export import ExportedProgram
from torch.utils._pytree import tree_leaves

from . import reference_tools

TARGETS = ("TOSA-1.0+FP+INT", "TOSA-1.0+FP")
BOUND = 1e-5
"""Largest error relative to the largest output."""
CASTS = {"aten.to.dtype", "aten.to.device", "aten._to_copy.default"}


def check_whole(program: ExportedProgram, *args, target=TARGETS[0], **kwargs):
    """One delegate; only casts at its border on the host; equal to eager in
    ``evaluate``; no operator lost its node.
    """
    lowered = _lower(program, target)
    assert len(lowered.delegates) == 1, lowered.report
    (delegate,) = lowered.delegates
    assert len(delegate.debug_handle_map) == len(
        read(delegate.processed_bytes).operators
    )
    assert {refusal.operator for refusal in lowered.report.refusals} <= CASTS, (
        lowered.report
    )
    assert lowered.verify(*args, **kwargs).relative_error < BOUND
    return lowered


def check_with_reference_tools(
    monkeypatch, lowered, program: ExportedProgram, *args, target=TARGETS[0], **kwargs
) -> None:
    """tosa-opt accepts the file, and the reference model, in place of our runtime,
    computes what eager does.
    """
    reference_tools.check_strictly_for_spec(
        lowered.delegates[0].processed_bytes, TosaSpec.parse(target)
    )
    monkeypatch.setattr(TOSARuntime, "load", staticmethod(_load_reference_model))
    found = tree_leaves(_lower(program, target)(*args, **kwargs))
    for mine, theirs in zip(
        found,
        tree_leaves(program.module(check_guards=False)(*args, **kwargs)),
        strict=True,
    ):
        assert mine.dtype is theirs.dtype
        error = (
            mine.double() - theirs.double()
        ).abs().max() / theirs.double().abs().max()
        assert error < BOUND


def _lower(program, target):
    return delegraph.lower(
        program, backends=["tosa"], options={"tosa": {"spec": target}}
    )


def _load_reference_model(processed_bytes, compile_specs, named_data):
    assert Options.parse(compile_specs).input_order is None

    def call(*tensors):
        arrays = [np.ascontiguousarray(tensor.detach().numpy()) for tensor in tensors]
        return tuple(
            map(
                torch.from_numpy,
                reference_tools.run_reference_model(processed_bytes, arrays),
            )
        )

    return call
