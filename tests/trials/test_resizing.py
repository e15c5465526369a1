"""Interpolation by factors and sizes equals eager in each backend and file runtime."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import delegraph
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.export import Dim

pytestmark = pytest.mark.filterwarnings("ignore")  # of ExecuTorch, when it is imported
FACTORS = (0.3, 0.5, 0.9, 1.0, 1.05, 1.1, 1.2, 1.5, 1.9, 2.0, 2.05, 2.1, 3.0)
SWEPT = tuple(k / 20 for k in range(4, 64))


class Kind(NamedTuple):
    """A kind of interpolation: torch's ``mode``, other options, and the rank of the
    image.
    """

    mode: str
    rank: int
    options: Mapping[str, Any] = MappingProxyType({})

    def __str__(self) -> str:
        return "-".join((self.mode, f"{self.rank}d", *self.options))


KINDS = (
    Kind("nearest", 1),
    Kind("nearest-exact", 1),
    Kind("linear", 1),
    Kind("linear", 1, {"align_corners": True}),
    Kind("nearest", 2),
    Kind("nearest-exact", 2),
    Kind("bilinear", 2),
    Kind("bilinear", 2, {"align_corners": True}),
    Kind("bilinear", 2, {"antialias": True}),
    Kind("bicubic", 2),
    Kind("bicubic", 2, {"antialias": True}),
    Kind("nearest", 3),
    Kind("nearest-exact", 3),
    Kind("trilinear", 3),
)


class Resize(nn.Module):
    """Returns its input resized by each factor and each size."""

    def __init__(
        self, kind: Kind, factors: Any = (), sizes: Any = (), recompute: bool = False
    ) -> None:
        super().__init__()
        self.kind = kind
        self.factors = factors
        self.sizes = sizes
        self.recompute = recompute

    def forward(self, x: Tensor) -> list[Tensor]:
        resize = partial(F.interpolate, x, mode=self.kind.mode, **self.kind.options)
        by_factor = [
            resize(scale_factor=f, recompute_scale_factor=self.recompute)
            for f in self.factors
        ]
        return [*by_factor, *(resize(size=s) for s in self.sizes)]


def random_image(
    kind: Kind, size: int, dtype: torch.dtype = torch.float32, channels: int = 2
) -> Tensor:
    """Return an image of random whole numbers, which every dtype can hold."""
    generator = torch.Generator().manual_seed(size)
    shape = (1, channels, *[size] * kind.rank)
    return torch.randint(0, 100, shape, generator=generator).to(dtype)


def fitting_factors(size: int, factors: Any, largest: int = 12) -> list[float]:
    """Return the factors that give sizes from 1 to ``largest``."""
    return [f for f in factors if 1 <= int(size * f) <= largest]


def in_process(lowered: Any, x: Tensor, folder: Path) -> list[Tensor]:
    return lowered(x)


def our_runtime_and_stock(lowered: Any, x: Tensor, folder: Path) -> list[Tensor]:
    """Run the file in both runtimes, compare them, and return ExecuTorch's results."""
    from executorch.runtime import Runtime

    file = folder / "resize.pte"
    lowered.save(file)
    results = (
        Runtime.get()
        .load_program(file)
        .load_method("forward")
        .execute((x.contiguous(),))
    )
    for ours, stock in zip(delegraph.load(file)(x), results, strict=True):
        torch.testing.assert_close(ours.double(), stock.double(), atol=1e-2, rtol=1e-2)
    return results


class Way(NamedTuple):
    """A way to run a program: backends, a function that runs it, and a needed module."""

    backends: list[str]
    run: Callable[[Any, Tensor, Path], list[Tensor]]
    plugin: str

    def __str__(self) -> str:
        return "-".join((*(self.backends or ["host"]), self.run.__name__))


WAYS = (
    Way(["tosa"], in_process, "delegraph_tosa"),
    Way(["openvino"], in_process, "openvino"),
    Way(["xnnpack"], in_process, "executorch"),
    Way([], our_runtime_and_stock, "executorch"),
)
IREE = Way(["iree"], in_process, "iree.compiler")


def assert_resizing_equals_eager(
    way: Way,
    model: nn.Module,
    x: Tensor,
    folder: Path,
    tolerance: float = 1e-3,
    **options: Any,
) -> Any:
    """Compare with eager, and return the lowered program."""
    pytest.importorskip(way.plugin)
    lowered = delegraph.lower(model.eval(), (x,), backends=way.backends, **options)
    with torch.no_grad():
        expected = model(x)
    for actual, wanted in zip(way.run(lowered, x, folder), expected, strict=True):
        assert actual.shape == wanted.shape
        torch.testing.assert_close(
            actual.double(), wanted.double(), atol=tolerance, rtol=tolerance
        )
    return lowered


def has_kernels(way: Way, kind: Kind) -> bool:
    """Return whether the runtimes of program files have a kernel for this kind."""
    return way.run is in_process or kind != Kind("bicubic", 2, {"antialias": True})


FIRST = [kind for kind in KINDS if kind.rank < 3 or kind.mode != "nearest-exact"]


def is_slow(way, kind):
    """Return whether ExecuTorch needs 5 to 30 seconds to lower this case to XNNPACK.

    Other backends test the same rule faster.
    """
    slow_modes = ("linear", "bicubic", "trilinear")
    return way.backends == ["xnnpack"] and kind.mode in slow_modes


@pytest.mark.parametrize(
    ("way", "kind"),
    [
        pytest.param(
            way,
            kind,
            id=f"{way}-{kind}",
            marks=[pytest.mark.slow] if is_slow(way, kind) else [],
        )
        for way, kind in itertools.product(WAYS, FIRST)
    ],
)
def test_scale_factors_resize_as_in_eager(way, kind, tmp_path):
    if not has_kernels(way, kind):
        pytest.skip("no kernel")
    factors = fitting_factors(4, FACTORS)
    assert_resizing_equals_eager(
        way, Resize(kind, factors, [4, 8, 3, 1]), random_image(kind, 4), tmp_path
    )


@pytest.mark.parametrize(
    "kind", [Kind("nearest", 2), Kind("bilinear", 2), Kind("trilinear", 3)], ids=str
)
def test_iree_resizes_by_scale_factors_as_eager(kind, tmp_path):
    assert_resizing_equals_eager(
        IREE, Resize(kind, (1.1, 2.1)), random_image(kind, 4), tmp_path
    )


@pytest.mark.parametrize("kind", [Kind("nearest", 1), Kind("bilinear", 2)], ids=str)
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_recomputed_scale_factors_resize_as_in_eager(way, kind, tmp_path):
    assert_resizing_equals_eager(
        way,
        Resize(kind, (0.9, 1.1, 2.1), recompute=True),
        random_image(kind, 4),
        tmp_path,
    )


@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_each_axis_has_its_own_factor(way, mode, tmp_path):
    pairs = ((1.1, 2.0), (2.1, 1.5), (1.1, 0.5))
    assert_resizing_equals_eager(
        way, Resize(Kind(mode, 2), pairs), random_image(Kind(mode, 2), 4), tmp_path
    )


@pytest.mark.parametrize("channels", [1, 8])
@pytest.mark.parametrize(
    "layout", [torch.contiguous_format, torch.channels_last], ids=str
)
def test_large_images_step_by_the_factor(layout, channels, tmp_path):
    """Eager uses another kernel if height plus width exceeds 128, unless channels come
    last.
    """
    kind = Kind("nearest", 2)
    x = random_image(kind, 80, channels=channels).contiguous(memory_format=layout)
    for way in (WAYS[0], WAYS[1], WAYS[3]):
        assert_resizing_equals_eager(
            way, Resize(kind, (1.004, 1.01, 2.004)), x, tmp_path
        )


@pytest.mark.parametrize("channels", [1, pytest.param(8, marks=pytest.mark.slow)])
@pytest.mark.parametrize("mode", ["nearest", "trilinear"])
def test_volumes_with_channels_last_keep_their_size(mode, channels, tmp_path):
    kind = Kind(mode, 3)
    x = random_image(kind, 4, channels=channels).contiguous(
        memory_format=torch.channels_last_3d
    )
    for way in WAYS:
        assert_resizing_equals_eager(way, Resize(kind, (1.1, 2.05, 0.9)), x, tmp_path)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.uint8], ids=str)
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(Kind("nearest", 1), marks=pytest.mark.slow),
        Kind("nearest", 2),
        Kind("bilinear", 2),
        pytest.param(Kind("bicubic", 2), marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_short_floats_and_bytes_resize_as_in_eager(kind, dtype, tmp_path):
    tolerance = 2e-2 if dtype is torch.bfloat16 else 1e-2
    is_bilinear_bytes = dtype is torch.uint8 and kind.mode == "bilinear"
    for way in WAYS:
        if is_bilinear_bytes and way.run is our_runtime_and_stock:
            continue  # files are refused: see the next test
        assert_resizing_equals_eager(
            way,
            Resize(kind, (0.9, 1.1, 2.1)),
            random_image(kind, 4, dtype),
            tmp_path,
            tolerance,
        )


def test_bilinear_bytes_are_refused_in_pte_files(tmp_path):
    kind = Kind("bilinear", 2)
    image_of_bytes = random_image(kind, 4, torch.uint8)
    lowered = delegraph.lower(
        Resize(kind, (1.1,)).eval(), (image_of_bytes,), backends=[]
    )
    with pytest.raises(delegraph.errors.Unsupported, match="its input cannot be uint8"):
        lowered.save(tmp_path / "resize.pte")


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_quantized_images_resize_as_in_eager(kind, tmp_path):
    """Rounding may differ by at most one step of the scale."""
    pytest.importorskip("delegraph_quantize")
    from delegraph_quantize import quantize

    model = Resize(kind, (1.1, 2.05)).eval()
    x = random_image(kind, 4)
    quantized = quantize(model, [(x,)], backend="tosa")
    target = {"tosa": {"spec": "TOSA-1.0+INT+FP"}}
    lowered = delegraph.lower(quantized, backends=["tosa"], options=target)
    for actual, expected in zip(lowered(x), model(x), strict=True):
        torch.testing.assert_close(actual, expected, atol=1.0, rtol=0)


DYNAMIC = (
    pytest.param(Kind("nearest", 1), marks=pytest.mark.slow),
    Kind("nearest", 2),
    pytest.param(Kind("linear", 1), marks=pytest.mark.slow),
    Kind("bilinear", 2),
)


@pytest.mark.parametrize(
    "factors",
    [[1.1, 2.05], pytest.param([0.5, 1.5, 2.0], marks=pytest.mark.slow)],
    ids=str,
)
@pytest.mark.parametrize("kind", DYNAMIC, ids=str)
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_dynamic_sizes_resize_as_in_eager_or_are_refused(way, kind, factors, tmp_path):
    pytest.importorskip(way.plugin)
    model = Resize(kind, factors).eval()
    last = kind.rank + 1
    shapes = {"x": {last: Dim("n", min=4, max=32)}}
    lowered = delegraph.lower(
        model, (random_image(kind, 6),), backends=way.backends, dynamic_shapes=shapes
    )
    for size in (4, 5, 12, 32):
        x = torch.rand(1, 2, *[6] * (kind.rank - 1), size)
        try:
            results = way.run(lowered, x, tmp_path)
        except delegraph.DelegraphError as error:
            assert way.run is not in_process
            assert "sizes" in str(error)
            return
        for actual, expected in zip(results, model(x), strict=True):
            torch.testing.assert_close(actual, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("size", range(1, 10))
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_sweep_of_sizes_and_factors(way, kind, size, tmp_path):
    if not has_kernels(way, kind):
        pytest.skip("no kernel")
    factors = fitting_factors(size, SWEPT, 32 if kind.rank < 3 else 12)
    assert_resizing_equals_eager(
        way, Resize(kind, factors, range(1, 13)), random_image(kind, size), tmp_path
    )
