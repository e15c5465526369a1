"""Mixtures of experts as transformers exports them are one delegate; the judge is the
model in eager PyTorch.
"""

from __future__ import annotations

import delegraph
import pytest
import torch
from delegraph_analysis import verify_ties

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers and torchao

EXPERTS = 4
WIDTH = 16


@pytest.fixture(scope="module")
def block():
    """A layer of Mixtral that gives each token to 2 of 4 experts, and its program for
    TOSA.
    """
    from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock

    sizes = {
        "hidden_size": WIDTH,
        "intermediate_size": 24,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
    }
    config = transformers.MixtralConfig(
        **sizes, num_local_experts=EXPERTS, num_experts_per_tok=2
    )
    config._experts_implementation = "grouped_mm"
    torch.manual_seed(0)
    block = MixtralSparseMoeBlock(config).eval()
    for parameter in block.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    # the router reads its choice off the first numbers of a token
    block.gate.weight.data = torch.eye(EXPERTS, WIDTH)
    program = torch.export.export(block, (torch.randn(1, 9, WIDTH),))
    assert "transformers.grouped_mm_fallback.default" in map(
        str, (node.target for node in program.graph.nodes)
    )
    return block, delegraph.lower(program, backends=["tosa"], require_full=True)


ROUTINGS = {
    "uneven": torch.tensor([[3.0, 2, 1, 0]] * 7 + [[0.0, 1, 2, 3], [1, 0, 3, 2]]),
    "an expert without a token": torch.tensor(
        [[3.0, 2, -9, 0], [2.0, 0, -9, 1], [0, 1, -9, 2]] * 3
    ),
    "all to one pair": torch.tensor([[-1.0, -2, 3, 3]] * 9),
    "ties of both": torch.tensor([[1.0, 1, 0, 0], [0, 0, 1, 1], [0, 1, 1, 0]] * 3),
}


@pytest.mark.parametrize("name", ROUTINGS)
def test_experts_compute_as_eager_for_each_routing(block, name):
    model, lowered = block
    assert len(lowered.delegates) == 1
    tokens = torch.randn(1, 9, WIDTH, generator=torch.Generator().manual_seed(1))
    tokens[0, :, :EXPERTS] = ROUTINGS[name]
    with torch.no_grad():
        torch.testing.assert_close(lowered(tokens), model(tokens), rtol=1e-5, atol=1e-5)


def test_tied_experts_are_no_error(block):
    """torch takes any of two equal experts: ``verify_ties`` accepts both."""
    _, lowered = block
    tokens = torch.randn(1, 9, WIDTH, generator=torch.Generator().manual_seed(1))
    tokens[0, :, :EXPERTS] = torch.tensor(
        [[2.0, 1, 1, 0], [1, 2, 0, 1], [1, 1, 1, 1]] * 3
    )
    assert verify_ties(lowered, tokens).agrees()
