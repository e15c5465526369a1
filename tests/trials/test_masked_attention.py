"""Attention and softmax of rows whose keys are all hidden by a mask."""

import delegraph
import pytest
import torch
import torch.nn.functional as F

MASK = torch.tensor([[True, True, False], [False, False, False], [True, True, True]])
ADDED = torch.zeros(3, 3).masked_fill(~MASK, float("-inf"))


class Program(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


def attention(q, mask):
    return F.scaled_dot_product_attention(q, q + 1, q * 2, mask)


def masked(scores, mask):
    return scores.masked_fill(~mask, float("-inf"))


QUERY = torch.randn(1, 2, 3, 4, generator=torch.Generator().manual_seed(0))
SCORES = QUERY[0, 0, :, :3]
PROGRAMS = {
    "mask of bool": (attention, (QUERY, MASK)),
    "mask of float": (attention, (QUERY, ADDED)),
    "mask for each head": (attention, (QUERY, MASK.expand(1, 2, 3, 3).contiguous())),
    "constant mask of bool": (lambda q: attention(q, MASK), (QUERY,)),
    "constant mask of float": (lambda q: attention(q, ADDED), (QUERY,)),
    "three axes": (attention, (QUERY[0], MASK)),
    "softmax": (lambda s: torch.softmax(s, -1), (ADDED,)),
    "softmax over the first axis": (
        lambda s: torch.softmax(s, 0),
        (ADDED.T.contiguous(),),
    ),
    "log_softmax": (lambda s: torch.log_softmax(s, -1), (ADDED,)),
    "masked_fill and softmax": (
        lambda s, m: torch.softmax(masked(s, m), -1),
        (SCORES, MASK),
    ),
    "masked_fill, softmax and nan_to_num": (
        lambda s, m: torch.softmax(masked(s, m), -1).nan_to_num(0),
        (SCORES, MASK),
    ),
    "logsumexp": (lambda s: torch.logsumexp(s, -1), (ADDED,)),
    "largest element": (lambda s: s.amax(-1), (ADDED,)),
    "smallest element": (lambda s: (-s).amin(-1), (ADDED,)),
    "largest element and its place": (lambda s: s.max(-1), (ADDED,)),
    "largest element of an axis inside": (
        lambda s: s.amax(1, keepdim=True),
        (ADDED.reshape(3, 3, 1),),
    ),
    "pooling": (lambda s: F.max_pool2d(s[None, None], 2, 1, 1), (ADDED,)),
    "pooling with unequal padding": (
        lambda s: F.max_pool2d(s[None, None], 2, 2, 1, ceil_mode=True),
        (ADDED,),
    ),
    "pooling of one axis": (lambda s: F.max_pool1d(s[None], 2, 1), (ADDED,)),
    "adaptive pooling": (
        lambda s: F.adaptive_max_pool2d(s[None, None], 1),
        (torch.full((4, 4), float("-inf")),),
    ),
}


ATTENTION = [
    "mask of bool",
    "mask of float",
    "constant mask of bool",
    "masked_fill and softmax",
]
ROWS = [(name, "iree") for name in PROGRAMS]
ROWS += [
    (name, backend) for name in ATTENTION for backend in ("tosa", "openvino", "xnnpack")
]


@pytest.mark.parametrize("name, backend", ROWS)
def test_rows_without_keys_equal_eager(name, backend):
    function, inputs = PROGRAMS[name]
    program = Program(function)
    lowered = delegraph.lower(program, inputs, backends=[backend])
    torch.testing.assert_close(lowered(*inputs), program(*inputs), equal_nan=True)


@pytest.mark.parametrize("least", [torch.finfo(torch.float32).min, -1e30])
def test_masks_of_finite_numbers_give_equal_weights(least):
    scores = torch.full((2, 3), least)
    lowered = delegraph.lower(
        Program(lambda s: torch.softmax(s, -1)),
        (scores,),
        backends=["iree"],
        require_full=True,
    )

    torch.testing.assert_close(lowered(scores), torch.full((2, 3), 1 / 3))
