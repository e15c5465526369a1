"""A mixture of experts, as transformers exports it, is lowered to one delegate."""

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
    """Return a layer of Mixtral, and its program for TOSA.

    The layer gives each token to 2 of 4 experts.
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
    # the first four numbers of a token are the scores of the experts
    block.gate.weight.data = torch.eye(EXPERTS, WIDTH)
    program = torch.export.export(block, (torch.randn(1, 9, WIDTH),))
    targets = [str(node.target) for node in program.graph.nodes]
    assert "transformers.grouped_mm_fallback.default" in targets
    return block, delegraph.lower(program, backends=["tosa"], require_full=True)


SCORES = {
    "uneven": torch.tensor([[3.0, 2, 1, 0]] * 7 + [[0.0, 1, 2, 3], [1, 0, 3, 2]]),
    "an expert without a token": torch.tensor(
        [[3.0, 2, -9, 0], [2.0, 0, -9, 1], [0, 1, -9, 2]] * 3
    ),
    "all to one pair": torch.tensor([[-1.0, -2, 3, 3]] * 9),
    "ties of two pairs": torch.tensor([[1.0, 1, 0, 0], [0, 0, 1, 1], [0, 1, 1, 0]] * 3),
}
"""Name -> the scores of the four experts for each of nine tokens."""


def tokens_with_scores(scores):
    tokens = torch.randn(1, 9, WIDTH, generator=torch.Generator().manual_seed(1))
    tokens[0, :, :EXPERTS] = scores
    return tokens


@pytest.mark.parametrize("name", SCORES)
def test_experts_compute_as_eager_for_each_routing(block, name):
    model, lowered = block
    tokens = tokens_with_scores(SCORES[name])
    assert len(lowered.delegates) == 1

    with torch.no_grad():
        expected = model(tokens)

    torch.testing.assert_close(lowered(tokens), expected, rtol=1e-5, atol=1e-5)


def test_tied_experts_are_no_error(block):
    """If two experts have the same score, torch may take either of them."""
    _, lowered = block
    tokens = tokens_with_scores(
        torch.tensor([[2.0, 1, 1, 0], [1, 2, 0, 1], [1, 1, 1, 1]] * 3)
    )

    assert verify_ties(lowered, tokens).agrees()
