"""What is refused although there is a formula; the numbers of formulas are the case
"formulas" of test_numbers.py.
"""

from __future__ import annotations

import pytest
import torch
from delegraph.errors import Unsupported

from ..support import programs as p
from ..support.judge import emit, lower


def test_sorting_of_long_tensors_is_refused() -> None:
    lowered = lower(p.Function(lambda x: x.sort(0)[0]), (torch.randn(3000),))
    with pytest.raises(
        Unsupported, match="compares all pairs of elements, at most 4194304"
    ) as raised:
        emit(lowered)
    assert raised.value.source is not None


def test_images_of_integers_are_rounded_otherwise() -> None:
    image = torch.zeros(1, 1, 4, 4, dtype=torch.uint8)
    lowered = lower(
        p.Function(
            lambda x: torch.nn.functional.interpolate(x, (8, 8), mode="bilinear")
        ),
        (image,),
    )
    with pytest.raises(Unsupported, match="it rounds integers differently than eager"):
        emit(lowered)


def test_a_type_that_no_kernel_takes_is_the_reason() -> None:
    lowered = lower(
        p.Function(lambda x: x.exp().abs()), (torch.ones(2, dtype=torch.complex64),)
    )
    with pytest.raises(
        Unsupported,
        match="the kernel aten::exp.out .* does not compute this aten.exp.default",
    ):
        emit(lowered)


def test_checks_of_values_are_not_written() -> None:
    def bounded(x: torch.Tensor) -> torch.Tensor:
        torch._assert_async(x.sum() > 0)
        return x * 2

    assert emit(lower(p.Function(bounded), (torch.ones(2),))).file
