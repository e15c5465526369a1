"""Whole programs with shared values, aliases and constants give the results of eager torch."""

from __future__ import annotations

import delegraph
import pytest
import torch
import torch.nn.functional as F
from delegraph_tosa.serialize import read
from torch import nn

torch.set_num_threads(1)


class Program(nn.Module):
    def __init__(self, function, **parts):
        super().__init__()
        self.function = function
        for name, part in parts.items():
            (
                self.register_buffer(name, part)
                if isinstance(part, torch.Tensor)
                else setattr(self, name, part)
            )

    def forward(self, *args):
        return self.function(self, *args)


def batch_norm_with_statistics(channels):
    """A batch norm whose statistics are not the ones that make it the identity."""
    norm = nn.BatchNorm2d(channels)
    torch.manual_seed(channels)
    with torch.no_grad():
        for part in (norm.running_mean, norm.running_var, norm.weight, norm.bias):
            part.uniform_(0.5, 2)
    return norm


def conv(*args, seed=0, **kwargs):
    torch.manual_seed(seed)
    return nn.Conv2d(*args, **kwargs)


def bottleneck(m, x):
    y = m.norm(m.first(x))
    return F.relu_(m.second(F.relu(y)) + y)


def twice(m, x):
    y = m.first(x)
    return m.norm(y) + y, m.norm(y)


def without_gradient(m, x):
    with torch.no_grad():
        y = x * m.scale
    return y + torch.tensor(3.0)


def attention(m, x):
    q, k, v = m.project(x).chunk(3, -1)
    q, k, v = (part.unflatten(-1, (2, 4)).transpose(1, 2) for part in (q, k, v))
    scores = (q @ k.transpose(-2, -1)) / 2 + m.mask[: x.shape[1], : x.shape[1]]
    return (scores.softmax(-1) @ v).transpose(1, 2).reshape(x.shape)


def pyramid(m, x):
    small = F.max_pool2d(m.first(x), 3, 2, 1)
    large = F.interpolate(small, scale_factor=2, mode="bilinear", align_corners=False)
    return torch.cat([large, x[..., :8, :8]], 1).mean((2, 3)).squeeze()


def across_layouts(m, x):
    return m.first(x).reshape(2, 2, 2, -1).transpose(1, 3).flatten(1).contiguous()


def positions(m, x):
    return x + (m.ids[:, 1:5] - 1).float()


IMAGE = torch.randn(2, 4, 8, 8)
ROWS = torch.randn(2, 5, 8)
PROGRAMS = {
    "bottleneck": (
        Program(
            bottleneck,
            first=conv(4, 4, 3, padding=1),
            second=conv(4, 4, 1),
            norm=batch_norm_with_statistics(4),
        ),
        [IMAGE],
    ),
    "a shared convolution is not folded away": (
        Program(twice, first=conv(4, 4, 3), norm=batch_norm_with_statistics(4)),
        [IMAGE],
    ),
    "in-place activations": (
        Program(
            lambda m, x: F.hardtanh_(F.relu6(m.first(x), inplace=True).mul_(2).add_(1)),
            first=conv(4, 6, 3),
        ),
        [IMAGE],
    ),
    "no_grad and tensor literals": (
        Program(without_gradient, scale=torch.randn(8)),
        [ROWS],
    ),
    "attention": (
        Program(
            attention,
            project=nn.Linear(8, 24),
            mask=torch.triu(torch.full((9, 9), -1e30), 1),
        ),
        [ROWS],
    ),
    "pyramid": (Program(pyramid, first=conv(4, 3, 3, padding=1)), [IMAGE]),
    "across layouts": (Program(across_layouts, first=conv(4, 4, 3, 2)), [IMAGE]),
    "int64 positions that fold": (
        Program(positions, ids=torch.arange(9)[None]),
        [torch.randn(2, 4)],
    ),
    "an empty cache": (
        Program(
            lambda m, x: torch.cat([m.cache, torch.cat([x[:, :0], x], 1)], 1).relu(),
            cache=torch.empty(0),
        ),
        [ROWS],
    ),
    "rank 0": (
        Program(lambda m, x, s: (x * s).mean() - s * 2),
        [ROWS, torch.tensor(0.5)],
    ),
    "the same result three times": (Program(lambda m, x: (x + 1,) * 3), [ROWS]),
    "an input as a result": (Program(lambda m, x, y: (y, x + y, x)), [ROWS, ROWS * 2]),
    "an unused input": (Program(lambda m, x, y: y.relu()), [ROWS, torch.randn(3)]),
    "a view of a view of a weight": (
        Program(
            lambda m, x: x @ m.w.view(4, 2, 8).transpose(0, 1).reshape(8, 8)[:, :3],
            w=torch.randn(8, 8),
        ),
        [ROWS],
    ),
    "numbers that torch makes tensors of": (
        Program(lambda m, x: torch.vmap(lambda row: row * 2 + 1)(x)),
        [ROWS],
    ),
    "weights that are not contiguous": (
        Program(lambda m, x: F.linear(x, m.w), w=torch.randn(8, 5).t()),
        [ROWS],
    ),
    "a channels-last convolution": (
        Program(
            lambda m, x: m.first(x),
            first=conv(4, 6, 3).to(memory_format=torch.channels_last),
        ),
        [IMAGE.to(memory_format=torch.channels_last)],
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_become_one_delegate_that_equals_eager(name):
    module, inputs = PROGRAMS[name]
    lowered = delegraph.lower(
        module.eval(), tuple(inputs), backends=["tosa"], require_full=True
    )
    assert len(lowered.delegates) == 1
    found = lowered(*inputs)
    expected = module(*inputs)
    for mine, theirs in zip(
        *(r if isinstance(r, tuple) else (r,) for r in (found, expected)), strict=True
    ):
        torch.testing.assert_close(
            mine, theirs, rtol=0, atol=1e-5 * theirs.abs().max().item()
        )


def test_batch_norms_fold_into_convolutions():
    module = nn.Sequential(
        conv(4, 6, 3),
        batch_norm_with_statistics(6),
        nn.ReLU(),
        conv(6, 6, 3, groups=6),
        batch_norm_with_statistics(6),
        nn.ReLU6(inplace=True),
    )
    lowered = delegraph.lower(module.eval(), (IMAGE,), backends=["tosa"])
    operators = [op.name for op in read(lowered.delegates[0].processed_bytes).operators]
    assert operators == [
        "TRANSPOSE",
        "CONV2D",
        "CLAMP",
        "DEPTHWISE_CONV2D",
        "CLAMP",
        "TRANSPOSE",
    ]


def test_expanded_constants_are_stored_once_in_the_file():
    module = Program(lambda m, x: x + m.row.expand(512, 512), row=torch.randn(512))
    lowered = delegraph.lower(
        module.eval(), (torch.randn(512, 512),), backends=["tosa"]
    )

    # The row takes 512 * 4 bytes, all rows would take 1 MB.
    assert len(lowered.delegates[0].processed_bytes) < 8192


def test_empty_inputs_keep_their_uses_on_the_host():
    """For example, the cache of a decoder is empty at the first step."""
    module = Program(lambda m, x, cache: torch.cat([cache, x], 1).exp()).eval()
    inputs = (ROWS, ROWS[:, :0])
    lowered = delegraph.lower(module, inputs, backends=["tosa"])
    (refusal,) = lowered.report.refusals
    assert refusal.operator == "aten.cat.default"
    assert refusal.reason == "the input args_1 is empty; TOSA has no empty tensors"
    torch.testing.assert_close(lowered(*inputs), module(*inputs))
