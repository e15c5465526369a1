"""TOSA pools in floats and integers load in every reader, and equal eager."""

from __future__ import annotations

import itertools
import shutil
import subprocess
from pathlib import Path
from typing import Any

import delegraph
import pytest
import torch
from delegraph_quantize import quantize
from delegraph_tosa.borders import integer_borders
from delegraph_tosa.quantizer import Precision, TOSAQuantizer
from delegraph_tosa.spec import TosaSpec
from torch import Tensor, nn

from plugins.tosa_backend.tests.support.reference_tools import (
    check_strictly_for_spec,
    run_reference_model,
)

POOLS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "ceil-and-padding": (
        nn.AvgPool2d((2, 3), 2, padding=1, ceil_mode=True),
        (1, 1, 14, 14),
    ),
    "padding": (nn.AvgPool2d(3, 2, padding=1), (1, 2, 9, 9)),
    "padding-not-counted": (
        nn.AvgPool2d(3, 2, padding=1, count_include_pad=False),
        (1, 2, 14, 14),
    ),
    "divisor": (nn.AvgPool2d((2, 3), 2, padding=1, divisor_override=5), (1, 1, 14, 14)),
    "ceil-and-divisor": (
        nn.AvgPool2d(3, 2, ceil_mode=True, divisor_override=7),
        (1, 1, 14, 14),
    ),
    "volume": (nn.AvgPool3d(2, 2, padding=1, ceil_mode=True), (1, 1, 5, 7, 7)),
    "adaptive": (nn.AdaptiveAvgPool2d(5), (1, 2, 14, 14)),
    "adaptive-volume": (nn.AdaptiveAvgPool3d((2, 3, 3)), (1, 1, 5, 7, 7)),
    "largest": (nn.MaxPool2d((2, 3), 2, padding=1, ceil_mode=True), (1, 1, 14, 14)),
    "largest-dilated": (nn.MaxPool2d(2, 1, dilation=3), (1, 1, 14, 14)),
    "largest-adaptive": (nn.AdaptiveMaxPool2d(5), (1, 2, 14, 14)),
}


def random_image(shape: tuple[int, ...]) -> Tensor:
    """Return the same random numbers in each run."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def load_and_run(file: Path, x: Tensor) -> Tensor:
    """Load a file and return its result."""
    result = delegraph.load(file)(x)
    return result if isinstance(result, Tensor) else result[0]


def integers_of(pool: nn.Module, x: Tensor, bits: int) -> tuple[Any, Any]:
    """Return two lowerings of the quantized program: with floats and with integers at
    its border.
    """
    precision = Precision(activations=torch.int8 if bits == 8 else torch.int16)
    program = quantize(pool.eval(), [(x,)], quantizer=TOSAQuantizer(precision))
    spec = "TOSA-1.0+INT" if bits == 8 else "TOSA-1.0+INT+int16"
    options = {"tosa": {"spec": spec}}
    whole = delegraph.lower(program, backends=["tosa"], options=options)
    bare = delegraph.lower(
        program, backends=["tosa"], options=options, transforms=[integer_borders]
    )
    return whole, bare


def check_integers(
    pool: nn.Module, shape: tuple[int, ...], folder: Any, bits: int = 8
) -> None:
    """Compare the integer results with eager, and load their file in each reader."""
    x = random_image(shape)
    whole, bare = integers_of(pool, x, bits)
    expected = pool(x)
    step = float(expected.abs().max()) / (100 if bits == 8 else 20000)
    torch.testing.assert_close(whole(x), expected, atol=3 * step + 0.02, rtol=0)
    file = folder / "pool.tosa"
    if bare.report.host_operators:
        return
    bare.save(file)
    dtype = torch.int8 if bits == 8 else torch.int16
    given = torch.randint(
        -100, 100, shape, generator=torch.Generator().manual_seed(1)
    ).to(dtype)
    ours = bare(given)
    torch.testing.assert_close(load_and_run(file, given), ours)
    spec = "TOSA-1.0+INT" if bits == 8 else "TOSA-1.0+INT+int16"
    check_strictly_for_spec(file.read_bytes(), TosaSpec.parse(spec))
    (reference,) = run_reference_model(file.read_bytes(), [given.numpy()])
    torch.testing.assert_close(torch.from_numpy(reference), ours, atol=0, rtol=0)


@pytest.mark.parametrize("name", POOLS)
def test_int8_pools_load_everywhere(name, tmp_path):
    pool, shape = POOLS[name]
    check_integers(pool, shape, tmp_path)


def test_vela_compiles_a_padded_average(tmp_path):
    vela = shutil.which("vela") or pytest.skip("ethos-u-vela is not installed")
    pool, shape = POOLS["ceil-and-padding"]
    _, bare = integers_of(pool, random_image(shape), 8)
    bare.save(tmp_path / "pool.tosa")
    command = [
        vela,
        str(tmp_path / "pool.tosa"),
        "--accelerator-config",
        "ethos-u85-256",
    ]
    completed = subprocess.run(
        [*command, "--output-dir", str(tmp_path)], capture_output=True, text=True
    )

    assert completed.returncode == 0, completed.stdout + completed.stderr


@pytest.mark.parametrize("name", ["ceil-and-padding", "adaptive", "largest"])
def test_float_pools_load_everywhere(name, tmp_path):
    pool, shape = POOLS[name]
    x = random_image(shape)
    lowered = delegraph.lower(pool.eval(), (x,), backends=["tosa"], require_full=True)
    file = tmp_path / "pool.tosa"
    lowered.save(file)
    check_strictly_for_spec(file.read_bytes(), TosaSpec.parse("TOSA-1.0+FP"))
    for actual in (
        lowered(x),
        load_and_run(file, x),
        torch.from_numpy(run_reference_model(file.read_bytes(), [x.numpy()])[0]),
    ):
        torch.testing.assert_close(actual, pool(x), atol=1e-5, rtol=1e-5)


SETTINGS = [
    {
        "kernel_size": kernel,
        "stride": stride,
        "padding": padding,
        "ceil_mode": ceil,
        **more,
    }
    for kernel, stride, padding, ceil, more in itertools.product(
        (2, 3, (2, 3)),
        (1, 2),
        (0, 1),
        (False, True),
        ({}, {"count_include_pad": False}, {"divisor_override": 5}),
    )
]


@pytest.mark.parametrize("name", ["ceil-and-padding", "adaptive", "largest"])
def test_int16_pools_load_everywhere(name, tmp_path):
    pool, shape = POOLS[name]
    check_integers(pool, shape, tmp_path, 16)


@pytest.mark.slow
@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("size", [3, 7, 14, 20])
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_average_pools_in_integers_are_close_to_eager(settings, size, bits, tmp_path):
    check_integers(nn.AvgPool2d(**settings), (1, 2, size, size), tmp_path, bits)
