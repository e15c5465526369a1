"""Encoders with int64 masks, positions and boxes are one delegate of TOSA."""

from __future__ import annotations

import delegraph
import pytest
import torch

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers

LAYERS = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
}
TEXT = LAYERS | {"vocab_size": 100, "max_position_embeddings": 64, "pad_token_id": 0}
MARKS = {"bos_token_id": 1, "eos_token_id": 2}
SEPARATORS = {"cls_token_id": 1, "sep_token_id": 2}
BUCKETS = {"position_buckets": 8, "share_att_key": True, "norm_rel_ebd": "layer_norm"}
DISTANCES = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]}
IMAGE = LAYERS | {"image_size": 32, "patch_size": 8}
T5 = {
    "d_model": 64,
    "d_kv": 16,
    "d_ff": 96,
    "num_layers": 2,
    "num_heads": 4,
    "vocab_size": 100,
}
MODELS = {
    "LayoutLMModel": TEXT | {"max_2d_position_embeddings": 64},
    "ModernBertModel": TEXT | MARKS | SEPARATORS | {"local_attention": 8},
    "DebertaModel": TEXT | DISTANCES,
    "DebertaV2Model": TEXT | DISTANCES | BUCKETS,
    "OwlViTForObjectDetection": {
        "text_config": TEXT | MARKS,
        "vision_config": IMAGE,
        "projection_dim": 64,
    },
    "T5EncoderModel": T5,
}
MULTIPLIED_MASKS = ("DebertaModel", "DebertaV2Model")
"""Models that multiply the mask with itself.

The user has to declare that the products fit int32.
"""


def inputs_of(name):
    """Return keyword arguments of a model; the last 4 of 16 tokens are masked."""
    mask = torch.ones(1, 16, dtype=torch.int64)
    mask[0, 12:] = 0
    inputs = {"input_ids": torch.randint(3, 99, (1, 16)), "attention_mask": mask}
    if name == "LayoutLMModel":
        inputs["bbox"] = torch.randint(0, 50, (1, 16, 4)).sort(-1).values
    if name.startswith("OwlViT"):
        inputs["pixel_values"] = torch.randn(1, 3, 32, 32)
    return inputs


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_masked_models_are_one_delegate(name):
    torch.manual_seed(0)
    model_class = getattr(transformers, name)
    config = model_class.config_class(**MODELS[name])
    model = model_class(config).eval()
    inputs = inputs_of(name)
    options = {}
    if name in MULTIPLIED_MASKS:
        options["tosa"] = {"int32_inputs": ["attention_mask=0..1"]}
    with torch.no_grad():
        program = torch.export.export(model, (), inputs)

    lowered = delegraph.lower(program, backends=["tosa"], options=options)

    assert len(lowered.delegates) == 1
    assert lowered.report.host_operators == 0
    assert lowered.verify(**inputs).agrees()
