"""Kernels by operator schema, and what they are known to refuse."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import delegraph
import pytest
import torch
from delegraph.errors import OptionError, Unsupported
from delegraph_executorch.format import PteFormat
from delegraph_executorch.kernels import find_kernel, kernel_set, stock_kernels
from torch.nn import functional

from ..support.judge import emit, lower
from ..support.programs import Function

aten = torch.ops.aten


@pytest.mark.parametrize(
    ("operator", "kernel"),
    [
        (aten.add.Tensor, "aten::add.out"),
        (aten.add.Scalar, "aten::add.Scalar_out"),
        (aten.view.default, "aten::view_copy.out"),
        (aten.split_with_sizes.default, "aten::split_with_sizes_copy.out"),
        (aten.max.dim, "aten::max.dim_max"),
        (aten.mean.default, "aten::mean.dtype_out"),
        (aten.full.default, "aten::full.out"),
        (aten.sort.default, None),
        (aten.add_.Tensor, None),
    ],
)
def test_the_kernel_of_an_operator(
    operator: torch._ops.OpOverload, kernel: str | None
) -> None:
    found = find_kernel(operator, stock_kernels())
    assert (found and str(found)) == kernel


@pytest.mark.parametrize("wrong", [3, [3]])
def test_invalid_kernel_sets_are_refused(wrong: Any) -> None:
    with pytest.raises(OptionError, match="is not a list of kernels"):
        kernel_set(wrong)


def test_every_name_of_a_kernel_set_counts() -> None:
    few = kernel_set(["aten::add.out"])
    assert find_kernel(aten.add.Tensor, few) is not None
    assert find_kernel(aten.add.Scalar, few) is None


@pytest.mark.parametrize(
    ("function", "inputs", "said"),
    [
        (
            lambda x: x.kthvalue(2)[0],
            (torch.ones(3),),
            "no kernel that computes aten.kthvalue.default",
        ),
        (
            lambda x: x.to(torch.complex64).exp().abs(),
            (torch.ones(3),),
            "does not support complex numbers",
        ),
        (
            functional.conv3d,
            (torch.ones(1, 1, 3, 3, 3), torch.ones(1, 1, 2, 2, 2)),
            "supports 1 or 2 axes",
        ),
        (
            lambda x, i: x * i.item(),
            (torch.ones(3), torch.tensor(2.0).half()),
            "its self cannot be float16",
        ),
        (
            torch.masked_select,
            (torch.ones(4, 1, 4), torch.ones(4, 4) > 0),
            "its result may exceed",
        ),
    ],
    ids=["kthvalue", "complex", "three axes", "half", "masked"],
)
def test_calls_that_a_device_would_refuse_are_refused(
    function: Callable[..., torch.Tensor], inputs: tuple[torch.Tensor, ...], said: str
) -> None:
    with pytest.raises(Unsupported, match=said) as raised:
        emit(lower(Function(function), inputs))
    assert raised.value.source is not None


@pytest.mark.filterwarnings("ignore")
def test_quantized_programs_call_the_kernels_of_the_quantized_library(
    tmp_path: Path,
) -> None:
    """Names, arguments and results are those that ExecuTorch's own runtime takes, once
    that library is loaded.
    """
    x = torch.tensor([[-3.0, -0.26, 0.0, 0.24, 0.26, 9.0]])
    program = delegraph.quantize(Function(lambda x: x.abs()), [(x,)])
    path = tmp_path / "program.pte"
    delegraph.lower(
        program, backends=["tosa"], options={"tosa": {"spec": "TOSA-1.0+INT"}}
    ).save(path)
    # borders alone: the middle is the delegate's
    stays = delegraph.lower(program, backends=[])
    stays.save(path)
    text = "\n".join(PteFormat.inspect(path).lines())
    assert (
        "link ExecuTorch's kernels/quantized for"
        " quantized_decomposed::dequantize_per_tensor.out" in text
    )
    expected = program.module(check_guards=False)(x)
    assert torch.equal(delegraph.load(path)(x), expected)
    import executorch.kernels.quantized  # noqa: F401  # registers the library with the runtime of the wheel
    from executorch.runtime import Runtime

    (found,) = Runtime.get().load_program(path).load_method("forward").execute([x])
    assert torch.equal(found, expected)
