"""Every operator of torch's table, with a dynamic first axis, at the limits of its
range.
"""

import itertools
import warnings
import zlib

import delegraph
import pytest
import torch
from delegraph.errors import DelegraphError
from delegraph_devkit.opinfo import operator_programs
from torch.export import Dim
from torch.utils import _pytree as pytree

SPEC = "TOSA-1.1+FP+INT+shape"
OPTIONS = {
    "iree": {"spec": SPEC},
    "tosa": {"spec": SPEC},
    "openvino": {},
    "xnnpack": {},
}
LEAST = 1
MOST = 8
BORDERS = (LEAST, LEAST + 1, (LEAST + MOST) // 2, MOST)
PARTS = 40
"""The table is tried in so many tests for each backend."""
SKIPPED = (
    "empty",
    "rand",
    "bernoulli",
    "multinomial",
    "normal",
    "dropout",
    "rrelu",
    "uniform",
    "exponential",
)
"""Parts of names of operators whose results are random."""
KNOWN: dict[str, set[str]] = {
    "iree": set(),
    "tosa": set(),
    "openvino": set(),
    "xnnpack": set(),
}
"""Operators that differ or fail, each with the reason in a comment."""


def resized(tensor, count):
    """Return a tensor with ``count`` rows, repeated from the given tensor."""
    return tensor[torch.arange(count) % tensor.shape[0]]


def programs():
    """Yield (name, module, tensors) for one sample of floats of each operator."""
    for program in itertools.takewhile(
        lambda p: ", float32, sample 0" in p.name, operator_programs()
    ):
        if any(part in program.name for part in SKIPPED):
            continue
        module, tensors = program.make(0)
        size = tensors[0].shape[0] if tensors[0].dim() else 0
        if size > 1 and tensors[0].is_floating_point():
            yield program.name.partition(",")[0], module, tensors, size


def export(module, tensors, size):
    """Export with a dynamic first size. Return None if torch cannot."""
    varying = [tensor.dim() > 0 and tensor.shape[0] == size for tensor in tensors]
    n = Dim("n", min=LEAST, max=MOST)
    inputs = tuple(
        resized(t, 4) if varies else t
        for t, varies in zip(tensors, varying, strict=True)
    )
    sizes = (tuple({0: n} if varies else None for varies in varying),)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.export.export(module, inputs, dynamic_shapes=sizes), varying
    except Exception:  # torch's own limits, of many kinds
        return None, varying


def difference(backend, module, tensors, size):
    """Return a text if an operator differs from eager at a limit, or None."""
    exported, varying = export(module, tensors, size)
    if exported is None:
        return None
    try:
        lowered = delegraph.lower(
            exported, backends=[backend], options={backend: OPTIONS[backend]}
        )
    except DelegraphError as error:
        return f"lowering: {type(error).__name__}: {str(error)[:200]}"
    if not lowered.delegates:
        return None
    for count in BORDERS:
        inputs = [
            resized(t, count) if varies else t
            for t, varies in zip(tensors, varying, strict=True)
        ]
        try:
            expected = module(*inputs)
        except Exception:  # eager refuses this size
            continue
        try:
            found = lowered(*inputs)
        except DelegraphError as error:
            return f"n = {count}: {type(error).__name__}: {str(error)[:200]}"
        for ours, eager in zip(
            pytree.tree_leaves(found), pytree.tree_leaves(expected), strict=True
        ):
            try:
                torch.testing.assert_close(
                    ours, eager, rtol=1e-3, atol=1e-4, equal_nan=True
                )
            except AssertionError as error:
                return f"n = {count}: {str(error)[:200]}"
    return None


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("backend", OPTIONS)
def test_operators_with_dynamic_sizes_equal_eager(backend, part):
    differing = {}
    for name, module, tensors, size in programs():
        if zlib.crc32(name.encode()) % PARTS == part:
            why = difference(backend, module, tensors, size)
            if why is not None:
                differing[name] = why
    unknown = {
        name: why for name, why in differing.items() if name not in KNOWN[backend]
    }

    assert not unknown
