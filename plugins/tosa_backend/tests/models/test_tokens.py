"""Small models on int64 tokens become one delegate; only casts run on the host."""

from __future__ import annotations

import pytest
import torch

from ..support.whole_models import check_whole, check_with_reference_tools
from .tokens import MODELS, Decoder

torch.set_num_threads(1)


@pytest.mark.parametrize("name", MODELS)
def test_token_models_are_one_delegate_without_int64(name, monkeypatch):
    torch.manual_seed(0)
    model, inputs = MODELS[name]
    program = torch.export.export(model().eval(), inputs)
    lowered = check_whole(program, *inputs)
    assert not any(
        "int64" in str(a)
        for a in (*lowered.delegates[0].inputs, *lowered.delegates[0].outputs)
    )
    check_with_reference_tools(monkeypatch, lowered, program, *inputs)


def test_the_cache_is_kept_between_steps():
    torch.manual_seed(0)
    ids, position = MODELS["decoder"][1]
    model = Decoder().eval()
    lowered = check_whole(torch.export.export(model, (ids, position)), ids, position)
    for step in range(4):
        found, following = lowered(ids + step, position)
        expected, position = model(ids + step, position)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
        assert torch.equal(following, position)
