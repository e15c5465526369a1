"""Sixty architectures of transformers through TOSA, small and with random weights:
whole, partly, and why.

    delegraph matrix benchmarks/architectures.toml --store STORE --exit-zero
    python benchmarks/architectures.py STORE [--publish]

The first command lowers them, compares with eager, and goes on where it was ended; the
second makes the table of the rows in STORE. The list was written before any of them was
tried. Text goes in as int64 tokens, for encoders with an int64 mask that hides the
last; DeBERTa computes with its mask, which is bool here. Two layers, a hidden size of
32 (other sizes where an architecture asks for them). An architecture is whole if it is
one delegate and what is left on the host is casts of its inputs and outputs. Needs
`transformers==5.23.0`.
"""

from __future__ import annotations

import re
import sys
import types
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

sys.path[:0] = [str(Path(__file__).parent)]

Inputs = dict[str, torch.Tensor]
Entry = tuple[str, str, dict[str, Any], Inputs, dict[str, Any]]

_RANDOM = torch.Generator().manual_seed(0)
IDS = torch.randint(3, 99, (1, 12), generator=_RANDOM)
MASK = (torch.arange(12) < 9).long()[None]
BOXES = torch.tensor([[[3, 5, 20, 25]] * 12])
IMAGE = torch.randn(1, 3, 32, 32, generator=_RANDOM)
LARGER_IMAGE = torch.randn(1, 3, 64, 64, generator=_RANDOM)
SOUND = torch.randn(1, 800, generator=_RANDOM)
TOKENS = {"input_ids": IDS}
MASKED = {"input_ids": IDS, "attention_mask": MASK}
TRUTHS = {"input_ids": IDS, "attention_mask": MASK.bool()}
BOTH_SIDES = MASKED | {"decoder_input_ids": IDS[:, :5]}
CASTS = {"aten.to.dtype", "aten.to.device", "aten._to_copy.default"}

VOCABULARY = {"vocab_size": 99, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
BLOCKS = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
}
TEXT = VOCABULARY | BLOCKS | {"max_position_embeddings": 64}
GROUPED = TEXT | {"num_key_value_heads": 2}
HEADS = GROUPED | {"head_dim": 8}
GPT = VOCABULARY | {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
SIDES = VOCABULARY | {
    "d_model": 32,
    "max_position_embeddings": 64,
    "decoder_start_token_id": 1,
}
SIDES |= {f"{side}_{name}": n for side in ("encoder", "decoder")
          for name, n in (("layers", 2), ("attention_heads", 4), ("ffn_dim", 64))}  # fmt: skip
VISION = BLOCKS | {"image_size": 32, "patch_size": 8}
HEARD = TEXT | {
    "conv_dim": [16, 16],
    "conv_stride": [5, 2],
    "conv_kernel": [10, 3],
    "num_conv_pos_embeddings": 16,
}
HEARD |= {"num_conv_pos_embedding_groups": 4, "feat_extract_norm": "layer"}
CHOOSING = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}
DEEPSEEK = (
    TEXT
    | CHOOSING
    | {
        "n_routed_experts": 4,
        "n_group": 2,
        "topk_group": 1,
        "first_k_dense_replace": 1,
    }
)
DEEPSEEK |= {"num_key_value_heads": 4, "q_lora_rank": 16, "kv_lora_rank": 16}
DEEPSEEK |= {"qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8}
BACKBONE = {
    "model_type": "resnet",
    "embedding_size": 8,
    "hidden_sizes": [8, 16],
    "depths": [1, 1],
}
BACKBONE |= {"layer_type": "basic", "out_features": ["stage2"]}


def _encoder(
    name: str, sizes: dict[str, Any], inputs: Inputs = MASKED, model: str = "Model"
) -> Entry:
    return f"{name}{model}", f"{name}Config", sizes, inputs, {}


def _decoder(name: str, sizes: dict[str, Any], config: str | None = None) -> Entry:
    return (
        f"{name}ForCausalLM",
        f"{config or name}Config",
        sizes,
        TOKENS,
        {"use_cache": False},
    )


def _sides(
    name: str, sizes: dict[str, Any], model: str = "ForConditionalGeneration"
) -> Entry:
    return f"{name}{model}", f"{name}Config", sizes, BOTH_SIDES, {"use_cache": False}


ARCHITECTURES: dict[str, Entry] = {
    "BERT": _encoder("Bert", TEXT),
    "RoBERTa": _encoder("Roberta", TEXT),
    "DistilBERT": _encoder("DistilBert", VOCABULARY | {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64}),
    "ALBERT": _encoder("Albert", TEXT | {"embedding_size": 16}),
    "ELECTRA": _encoder("Electra", TEXT | {"embedding_size": 16}),
    "DeBERTa": _encoder("DebertaV2", TEXT | {"relative_attention": True, "pos_att_type": ["p2c", "c2p"],
                                             "position_buckets": 8}, TRUTHS),
    "MobileBERT": _encoder("MobileBert", TEXT | {"embedding_size": 32, "intra_bottleneck_size": 16}),
    "ModernBERT": _encoder("ModernBert", TEXT | {"cls_token_id": 1, "sep_token_id": 2, "local_attention": 8}),
    "LayoutLM": _encoder("LayoutLM", TEXT | {"max_2d_position_embeddings": 64}, MASKED | {"bbox": BOXES}),
    "MPNet": _encoder("MPNet", TEXT),
    "T5": _sides("T5", VOCABULARY | {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4,
                                     "decoder_start_token_id": 0}),
    "BART": _sides("Bart", SIDES),
    "Pegasus": _sides("Pegasus", SIDES),
    "Marian": _sides("Marian", SIDES, "MTModel"),
    "M2M100": _sides("M2M100", SIDES),
    "Whisper": ("WhisperForConditionalGeneration", "WhisperConfig",
                SIDES | {"num_mel_bins": 16, "max_source_positions": 20, "max_target_positions": 30},
                {"input_features": torch.randn(1, 16, 40), "decoder_input_ids": IDS[:, :5]}, {"use_cache": False}),
    "GPT-2": ("GPT2LMHeadModel", "GPT2Config", GPT, TOKENS, {"use_cache": False}),
    "GPT-Neo": _decoder("GPTNeo", VOCABULARY | {"hidden_size": 32, "num_layers": 2, "num_heads": 4, "window_size": 4,
                                                "attention_types": [[["global", "local"], 1]]}),
    "GPT-NeoX": _decoder("GPTNeoX", TEXT),
    "GPT-J": _decoder("GPTJ", GPT | {"rotary_dim": 4}),
    "OPT": _decoder("OPT", TEXT | {"ffn_dim": 64, "word_embed_proj_dim": 32}),
    "BLOOM": _decoder("Bloom", VOCABULARY | {"hidden_size": 32, "n_layer": 2, "n_head": 4}),
    "Falcon": _decoder("Falcon", TEXT | {"new_decoder_architecture": True, "num_kv_heads": 2}),
    "Llama": _decoder("Llama", GROUPED),
    "Mistral": _decoder("Mistral", GROUPED | {"sliding_window": 4}),
    "Qwen2": _decoder("Qwen2", GROUPED),
    "Qwen3": _decoder("Qwen3", HEADS),
    "Gemma": _decoder("Gemma", HEADS),
    "Gemma2": _decoder("Gemma2", HEADS | {"sliding_window": 4}),
    "Gemma3": _decoder("Gemma3", HEADS | {"sliding_window": 4}, "Gemma3Text"),
    "Phi": _decoder("Phi", TEXT),
    "Phi-3": _decoder("Phi3", GROUPED),
    "StableLM": _decoder("StableLm", GROUPED),
    "OLMo2": _decoder("Olmo2", GROUPED),
    "SmolLM3": _decoder("SmolLM3", GROUPED),
    "Cohere": _decoder("Cohere", GROUPED),
    "Granite": _decoder("Granite", GROUPED),
    "Mamba": _decoder("Mamba", VOCABULARY | {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 8}),
    "Mamba2": _decoder("Mamba2", VOCABULARY | {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 8,
                                               "num_heads": 4, "head_dim": 16, "n_groups": 2, "chunk_size": 8}),
    "RecurrentGemma": _decoder("RecurrentGemma", VOCABULARY | BLOCKS | {"lru_width": 32, "num_hidden_layers": 3}),
    "RWKV": _decoder("Rwkv", VOCABULARY | {"hidden_size": 32, "num_hidden_layers": 2, "context_length": 64}),
    "Mixtral": _decoder("Mixtral", GROUPED | {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "Qwen3-MoE": _decoder("Qwen3Moe", HEADS | CHOOSING | {"num_experts": 4}),
    "GPT-OSS": _decoder("GptOss", HEADS | {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 4}),
    "DeepSeek-V3": _decoder("DeepseekV3", DEEPSEEK),
    "ViT": _encoder("ViT", VISION, {"pixel_values": IMAGE}),
    "DeiT": _encoder("DeiT", VISION, {"pixel_values": IMAGE}),
    "Swin": _encoder("Swin", {"image_size": 32, "patch_size": 2, "embed_dim": 16, "depths": [2, 2],
                              "num_heads": [2, 4], "window_size": 4}, {"pixel_values": IMAGE}),
    "ConvNeXt": _encoder("ConvNext", {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2},
                         {"pixel_values": IMAGE}),
    "BEiT": _encoder("Beit", VISION | {"use_relative_position_bias": True}, {"pixel_values": IMAGE}),
    "DINOv2": _encoder("Dinov2", VISION, {"pixel_values": IMAGE}),
    "SegFormer": _encoder("Segformer", {"depths": [1] * 4, "hidden_sizes": [8, 16, 24, 32], "decoder_hidden_size": 16,
                                        "num_attention_heads": [1, 2, 3, 4]},
                          {"pixel_values": LARGER_IMAGE}, "ForSemanticSegmentation"),
    "MobileViT": _encoder("MobileViT", {"image_size": 64, "hidden_sizes": [16, 24, 32],
                                        "neck_hidden_sizes": [8, 8, 16, 16, 24, 32, 64], "num_attention_heads": 2,
                                        "initializer_range": 0.3},
                          {"pixel_values": LARGER_IMAGE}),
    "DETR": _encoder("Detr", {**{k: v for k, v in SIDES.items() if k not in VOCABULARY}, "num_queries": 5,
                              "backbone_config": BACKBONE}, {"pixel_values": LARGER_IMAGE}, "ForObjectDetection"),
    "CLIP": _encoder("CLIP", {"text_config": TEXT, "vision_config": VISION, "projection_dim": 16},
                     MASKED | {"pixel_values": IMAGE}),
    "SigLIP": _encoder("Siglip", {"text_config": TEXT, "vision_config": VISION}, MASKED | {"pixel_values": IMAGE}),
    "LLaVA": ("LlavaForConditionalGeneration", "LlavaConfig",
              {"text_config": {"model_type": "llama", **GROUPED}, "image_token_index": 98, "image_seq_length": 16,
               "vision_config": {"model_type": "clip_vision_model", **VISION}},
              {"input_ids": torch.cat([torch.full((1, 16), 98), IDS.clamp(max=97)], 1), "pixel_values": IMAGE},
              {"use_cache": False}),
    "Wav2Vec2": _encoder("Wav2Vec2", HEARD, {"input_values": SOUND}),
    "HuBERT": _encoder("Hubert", HEARD, {"input_values": SOUND}),
    "AST": _encoder("AST", BLOCKS | {"patch_size": 8, "frequency_stride": 8, "time_stride": 8, "max_length": 32,
                                     "num_mel_bins": 16}, {"input_values": torch.randn(1, 32, 16)}),
}  # fmt: skip
"""Name -> class of the model, class of its configuration, sizes, inputs, and more
arguments of the call.
"""


class First(nn.Module):
    """A model that takes its inputs by position and returns its first output."""

    def __init__(
        self, model: nn.Module, names: tuple[str, ...], options: dict[str, Any]
    ) -> None:
        super().__init__()
        self.model = model
        self.names = names
        self.options = options

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.model(
            **dict(zip(self.names, inputs, strict=True)),
            **self.options,
            return_dict=False,
        )[0]


def built(name: str) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """An architecture with random weights, and its example inputs."""
    import transformers

    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    model, config, sizes, inputs, options = ARCHITECTURES[name]
    torch.manual_seed(0)
    made = getattr(transformers, model)(getattr(transformers, config)(**sizes))
    return First(made, tuple(inputs), options).eval(), tuple(inputs.values())


def function_of(name: str) -> str:
    """What the function of an architecture is called in this module."""
    return re.sub(r"\W+", "_", name)


def _define(name: str) -> None:
    def build() -> dict[str, Any]:
        model, args = built(name)
        return {"model": model, "args": args}

    globals()[function_of(name)] = types.FunctionType(
        build.__code__, globals(), function_of(name), None, build.__closure__
    )


for _name in ARCHITECTURES:
    _define(_name)


def main() -> None:
    """Read the store and print the table."""
    import publishing
    from delegraph_analysis.matrix import tables
    from delegraph_analysis.matrix.store import Store

    parser = publishing.parser(__doc__)
    parser.add_argument("store", type=Path, metavar="STORE")
    given = parser.parse_args()
    found = {row["name"]: row for row in Store(given.store).rows()}
    rows = [_row(name, found[name], tables) for name in ARCHITECTURES if name in found]
    whole = sum(row[2] == "whole" for row in rows)
    given.remark = given.remark or f"{whole} of {len(rows)} are whole"
    columns = (
        "architecture",
        "class",
        "in TOSA",
        "operators",
        "delegates",
        "on the host",
        "error",
        "why",
    )
    publishing.report(
        given,
        "architectures",
        ["torch", "transformers", "delegraph-tosa"],
        publishing.Table(columns, rows),
    )


def _row(name: str, row: dict[str, Any], tables: Any) -> list[str]:
    """The row of an architecture; ``row`` is what the matrix kept."""
    left = [cause for cause in row["causes"] if cause["operator"] not in CASTS]
    is_whole = row["delegates"] == 1 and not left
    state = (
        "failed"
        if row["error"] or row["not_run"]
        else "whole"
        if is_whole
        else "partly"
    )
    why = tables.why(row) or "; ".join(
        f"{cause['operator']}: {cause['reason']}" for cause in left[:2]
    )
    worst = tables.worst_error(row)
    host = str((row["operators"] or 0) - (row["delegated"] or 0))
    error = "" if worst is None else f"{worst:.0e}"
    return [
        name,
        ARCHITECTURES[name][0],
        state,
        str(row["operators"]),
        str(row["delegates"]),
        host,
        error,
        why[:160],
    ]


if __name__ == "__main__":
    main()
