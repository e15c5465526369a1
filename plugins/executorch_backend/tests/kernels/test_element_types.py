"""Every kernel with every element type in ExecuTorch's runtime: what ``limits`` allows
is right.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import delegraph
import pytest
import torch
from delegraph.errors import DelegraphError
from delegraph_devkit import opinfo
from delegraph_devkit.lowering_attempt import is_random, quiet
from delegraph_executorch.emit import emit_program, kernel_calls
from delegraph_executorch.kernels import stock_kernels
from torch.utils import _pytree as pytree

from ..support import judge

TYPES = [
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64),
]
TOLERANCES = {torch.float16: 1e-2, torch.bfloat16: 6e-2}
COMPLEX = "it does not support complex numbers"
EXTREME = {"abs", "div_no_rounding_mode", "true_divide"}
"""Samples of complex numbers beyond 1e19, whose squares overflow in the kernel."""
UNDER_OTHER_NAMES = {
    *(
        "nn.functional.conv1d",
        "nn.functional.conv2d",
        "nn.functional.linear",
        "nn.functional.layer_norm",
    ),
    *(
        "nn.functional.group_norm",
        "nn.functional.batch_norm",
        "softmax",
        "log_softmax",
        "nn.functional.softmax",
    ),
    *(
        "nn.functional.pad",
        "nn.functional.interpolate",
        "nn.functional.max_pool2d",
        "nn.functional.adaptive_avg_pool2d",
    ),
    *(
        "nn.functional.grid_sample",
        "fft.rfft",
        "fft.irfft",
        "cdist",
        "nn.functional.pdist",
        "roll",
        "stack",
    ),
}


def rows() -> list[Any]:
    """The rows of OpInfo whose programs may call a kernel."""
    packets = {
        name.partition("::")[2].partition(".")[0].removesuffix("_copy")
        for name in stock_kernels().names
    }
    return [
        r
        for r in opinfo._table()
        if {r.name, r.aten_name} & packets or r.name in UNDER_OTHER_NAMES
    ]


def programs(
    dtype: torch.dtype,
) -> Iterator[tuple[Any, torch.nn.Module, tuple[torch.Tensor, ...]]]:
    for row in rows():
        samples = (
            opinfo._samples(row, dtype) if dtype in row.supported_dtypes("cpu") else []
        )
        for sample in samples[len(samples) // 2 :][:1]:
            leaves, spec = pytree.tree_flatten(
                ((sample.input, *sample.args), sample.kwargs)
            )
            inputs = tuple(v for v in leaves if isinstance(v, torch.Tensor))
            if all(t.layout is torch.strided and 0 < t.numel() < 2000 for t in inputs):
                yield row, opinfo.Call(row.op, spec, leaves).eval(), inputs


def is_right(
    content: bytes, module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]
) -> bool:
    with quiet():
        expected = pytree.tree_leaves(module(*(t.clone() for t in inputs)))
    try:
        method = judge.stock_runtime().load_program(content).load_method("forward")
        judge.assert_equal(method.execute([t.contiguous() for t in inputs]), expected)
    except (RuntimeError, AssertionError):
        return False
    return True


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_allowed_element_types_compute_correctly_in_the_runtime(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge.stock_runtime()
    said: list[str] = []
    why_not = kernel_calls.why_not

    def record(*args: Any) -> None:
        said.extend(filter(None, [why_not(*args)]))

    monkeypatch.setattr(kernel_calls, "why_not", record)
    monkeypatch.setattr(judge, "TOLERANCE", TOLERANCES.get(dtype, 1e-4))
    wrong = []
    needless = []
    tried = set()
    for row, module, inputs in programs(dtype):
        said.clear()
        try:
            with quiet():
                exported = torch.export.export(module, inputs)
                if is_random(exported):
                    continue
                emitted = emit_program(delegraph.lower(exported, backends=[]))
        except DelegraphError:  # no kernel has it
            continue
        except Exception:  # torch cannot export it, or the file cannot hold an argument
            continue
        kernels = {str(o) for plan in emitted.program.plans for o in plan.operators}
        tried |= kernels
        right = is_right(emitted.file.join(), module, inputs)
        if (
            not said
            and not right
            and not (dtype.is_complex and row.name in EXTREME | {"div"})
        ):
            wrong.append((row.formatted_name, sorted(kernels)))
        if said == [COMPLEX] and right and len(kernels) == 1:
            needless.append((row.formatted_name, sorted(kernels)))
    assert wrong == []
    assert needless == []
    assert len(tried) > 20
