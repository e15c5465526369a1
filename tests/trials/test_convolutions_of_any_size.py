"""Convolutions with symbolic sizes run on XNNPACK, and on the host in .pte files."""

import delegraph
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

from plugins.executorch_backend.tests.support.both_runtimes import save_and_expect_right

pytest.importorskip("executorch")


class Network(nn.Module):
    """Convolutions with a pool between them, whose result is one pixel at the smallest
    size.
    """

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(1, 8, 3)
        self.second = nn.Conv2d(8, 8, 3)
        self.third = nn.Conv2d(8, 2, 3)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.first(x)), 2)
        return self.third(F.relu(self.second(x)))


class Strided(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.second = nn.Conv2d(8, 8, 3, stride=2, padding=1)

    def forward(self, x):
        return F.relu(self.second(F.relu(self.first(x))))


def even_sizes(least, most):
    """Return dynamic heights and widths that are even."""
    height = 2 * Dim("height", min=least, max=most)
    width = 2 * Dim("width", min=least, max=most)
    return {2: height, 3: width}


def any_length(least, axis=2):
    return {axis: Dim("length", min=least, max=40)}


ROWS = {
    "network of one pixel at least": (
        Network,
        (1, 1, 24, 24),
        even_sizes(6, 64),
        [(1, 1, 14, 20), (1, 1, 12, 12)],
    ),
    "network of two pixels at least": (
        Network,
        (1, 1, 24, 24),
        even_sizes(7, 64),
        [(1, 1, 14, 20), (1, 1, 14, 14)],
    ),
    "strided": (
        Strided,
        (1, 3, 96, 96),
        even_sizes(32, 80),
        [(1, 3, 64, 64), (1, 3, 70, 80)],
    ),
    "one dimension": (
        lambda: nn.Conv1d(3, 4, 3),
        (1, 3, 12),
        any_length(3),
        [(1, 3, 3), (1, 3, 40)],
    ),
    "groups": (
        lambda: nn.Conv2d(4, 8, 3, groups=2),
        (1, 4, 9, 9),
        {2: Dim("h", min=3, max=20)},
        [(1, 4, 3, 9)],
    ),
    "depthwise": (
        lambda: nn.Conv2d(4, 4, 3, groups=4),
        (1, 4, 9, 9),
        {3: Dim("w", min=3, max=20)},
        [(1, 4, 9, 3)],
    ),
    "transposed": (
        lambda: nn.ConvTranspose2d(3, 4, 3, stride=2, output_padding=1),
        (1, 3, 5, 5),
        {2: Dim("h", min=1, max=20)},
        [(1, 3, 1, 5), (1, 3, 20, 5)],
    ),
    "transposed in one dimension": (
        lambda: nn.ConvTranspose1d(3, 4, 3),
        (1, 3, 5),
        any_length(1),
        [(1, 3, 1), (1, 3, 40)],
    ),
    "padding the same": (
        lambda: nn.Conv2d(3, 4, 3, padding="same"),
        (1, 3, 8, 8),
        even_sizes(2, 20),
        [(1, 3, 4, 40)],
    ),
    "padding an odd number": (
        lambda: nn.Conv1d(3, 4, 4, padding="same"),
        (1, 3, 8),
        any_length(2),
        [(1, 3, 2), (1, 3, 9)],
    ),
    "padding nothing": (
        lambda: nn.Conv1d(3, 4, 3, padding="valid"),
        (1, 3, 8),
        any_length(3),
        [(1, 3, 3), (1, 3, 9)],
    ),
    "dilated": (
        lambda: nn.Conv1d(3, 4, 3, dilation=2, padding=1),
        (1, 3, 8),
        any_length(3),
        [(1, 3, 3), (1, 3, 9)],
    ),
    "without a bias": (
        lambda: nn.Conv1d(3, 4, 3, bias=False),
        (1, 3, 8),
        any_length(3),
        [(1, 3, 3), (1, 3, 9)],
    ),
    "without a batch": (
        lambda: nn.Conv1d(3, 4, 3),
        (3, 8),
        any_length(3, axis=1),
        [(3, 3), (3, 9)],
    ),
    "batches": (
        lambda: nn.Conv2d(3, 4, 3),
        (2, 3, 8, 8),
        {0: Dim("batch", min=1, max=8)},
        [(1, 3, 8, 8), (8, 3, 8, 8)],
    ),
}
ON_THE_HOST = {"without a batch"}
"""Rows that XNNPACK does not take: ExecuTorch does not either."""


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@pytest.mark.parametrize("backends", [["xnnpack"], []], ids=["xnnpack", "host"])
@pytest.mark.parametrize("name", ROWS)
def test_convolutions_of_any_size_equal_eager(name, backends, tmp_path):
    torch.manual_seed(0)
    make, shape, sizes, others = ROWS[name]
    module = make().eval()
    # as torch.export does it by itself, some results could not have one pixel
    exported = torch.export.export(
        module,
        (torch.randn(shape),),
        dynamic_shapes=(sizes,),
        prefer_deferred_runtime_asserts_over_guards=True,
    )
    program = delegraph.lower(exported, backends=backends)
    if backends and name not in ON_THE_HOST:
        assert len(program.delegates) == 1
        assert program.report.host_operators == 0
    calls = [(torch.randn(one),) for one in (shape, *others)]
    save_and_expect_right(
        program, module, *calls, folder=tmp_path, rtol=1e-4, atol=1e-4
    )


def test_a_network_that_delegraph_exports_is_delegated_whole(tmp_path):
    torch.manual_seed(0)
    module = Network().eval()
    x = torch.randn(1, 1, 24, 24)
    program = delegraph.lower(
        module, (x,), backends=["xnnpack"], dynamic_shapes=(even_sizes(6, 64),)
    )

    assert len(program.delegates) == 1
    assert program.report.host_operators == 0
    small = torch.randn(1, 1, 12, 12)
    save_and_expect_right(
        program, module, (small,), folder=tmp_path, rtol=1e-4, atol=1e-4
    )
