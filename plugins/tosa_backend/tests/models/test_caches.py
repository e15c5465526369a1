"""Caches of keys and values are inputs and outputs of a ``.tosa`` file."""

import delegraph
import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

WIDTH = 16
HEADS = 2
TOKENS = 11


class Attention(nn.Module):
    """One token x [1,1,C], at a ``position`` [1], over what a cache holds."""

    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = (
            nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3)
        )

    def attend(self, x, keys, values, position):
        query = self.query(x).view(1, 1, HEADS, -1).transpose(1, 2)
        seen = torch.arange(keys.shape[2]) <= position
        return scaled_dot_product_attention(
            query, keys, values, attn_mask=seen[None, None, None]
        )


class Rotating(Attention):
    """Keys and values [1,heads,rows,D] of the last tokens: the newest takes the place
    of the oldest.
    """

    state = (1, HEADS, 4, WIDTH // HEADS)
    table = ()

    def forward(self, x, position, keys, values):
        place = position % keys.shape[2]
        key, value = (
            layer(x).view(1, 1, HEADS, -1).transpose(1, 2)
            for layer in (self.key, self.value)
        )
        keys = keys.index_copy(2, place, key)
        values = values.index_copy(2, place, value)
        return self.attend(x, keys, values, position), keys, values


class Paged(Attention):
    """Keys and values in pages [pages,heads,rows,D] that texts share; ``table`` has
    those of this text in order.
    """

    state = (6, HEADS, 4, WIDTH // HEADS)
    table = (4, 1, 3)

    def forward(self, x, position, table, keys, values):
        place = (
            table[position // 4].expand(HEADS),
            torch.arange(HEADS),
            (position % 4).expand(HEADS),
        )
        keys = keys.index_put(place, self.key(x).view(HEADS, -1))
        values = values.index_put(place, self.value(x).view(HEADS, -1))
        read = (
            pages[table].transpose(0, 1).reshape(1, HEADS, 12, -1)
            for pages in (keys, values)
        )
        return self.attend(x, *read, position), keys, values


@pytest.mark.parametrize("make", [Rotating, Paged])
def test_a_cache_as_input_and_result(make, tmp_path):
    torch.manual_seed(0)
    module = make().eval()
    tokens = torch.randn(TOKENS, 1, 1, WIDTH)
    table = [torch.tensor(make.table)] if make.table else []
    state = torch.zeros(make.state), torch.zeros(make.state)
    program = torch.export.export(
        module, (tokens[0], torch.tensor([0]), *table, *state)
    )
    # a position grows with the text: the user says that it stays below 2 ** 31
    options = {"tosa": {"int32_inputs": ["position"]}}
    delegraph.lower(
        program, backends=["tosa"], options=options, require_full=True
    ).save(tmp_path / "step.tosa")
    step = delegraph.load(tmp_path / "step.tosa")
    inputs = step.summary.methods[0].inputs
    ours = theirs = state
    for number, x in enumerate(tokens):
        position = torch.tensor([number])
        expected, *theirs = module(x, position, *table, *theirs)
        given = {"x": x, "position": position, "keys": ours[0], "values": ours[1]}
        given |= dict(zip(["table"], table, strict=False))
        found, *ours = step.method("forward")(
            *[given[i.name].to(getattr(torch, i.dtype)) for i in inputs]
        )
        torch.testing.assert_close(found, expected)
    torch.testing.assert_close(ours, theirs)
    assert not torch.equal(theirs[0], state[0])
