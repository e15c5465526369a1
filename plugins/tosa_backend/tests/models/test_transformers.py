"""Small random models of ``transformers`` become one delegate; only casts run on the host.

The tests need that package, which this project does not install, and run with -m slow.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ..support.whole_models import TARGETS, check_whole, check_with_reference_tools

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # of the package, and there are many
]
torch.set_num_threads(1)

BASE = {
    "vocab_size": 99,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
}
LONG = BASE | {"max_position_embeddings": 64}
GROUPED = LONG | {"num_key_value_heads": 2, "head_dim": 8}
DISTILLED = {
    "vocab_size": 99,
    "dim": 32,
    "n_layers": 2,
    "n_heads": 4,
    "hidden_dim": 64,
    "max_position_embeddings": 64,
}
GPT2 = {"vocab_size": 99, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
T5 = {
    "vocab_size": 99,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 64,
    "num_layers": 2,
    "num_heads": 4,
}
OPT = {
    "vocab_size": 99,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "ffn_dim": 64,
}
OPT |= {"max_position_embeddings": 64, "word_embed_proj_dim": 32}
DEBERTA = LONG | {
    "relative_attention": True,
    "pos_att_type": ["p2c", "c2p"],
    "position_buckets": 8,
}
CHOOSING = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}
MIXTRAL = GROUPED | {"num_local_experts": 4, "num_experts_per_tok": 2}
QWEN3_MOE = GROUPED | CHOOSING | {"num_experts": 4}
GPT_OSS = MIXTRAL | {"layer_types": ["sliding_attention", "full_attention"]}
DEEPSEEK = (
    LONG
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
QWEN3_NEXT = QWEN3_MOE | {
    "shared_expert_intermediate_size": 16,
    "layer_types": ["linear_attention", "full_attention"],
}
QWEN3_NEXT |= {f"linear_{kind}": 8 for kind in ("key_head_dim", "value_head_dim")}
QWEN3_NEXT |= {"linear_num_key_heads": 2, "linear_num_value_heads": 4}
VIT = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
}
SWIN = {
    "image_size": 32,
    "patch_size": 2,
    "embed_dim": 16,
    "depths": [2, 2],
    "num_heads": [2, 4],
    "window_size": 4,
}
WHISPER = {
    "vocab_size": 99,
    "num_mel_bins": 16,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "d_model": 32,
    "max_source_positions": 20,
    "max_target_positions": 30,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}

IDS = torch.randint(3, 99, (1, 12), generator=torch.Generator().manual_seed(0))
MASK = (torch.arange(12) < 9).long()[None]
TOKENS = {"input_ids": IDS}
MASKED = {"input_ids": IDS, "attention_mask": MASK}
TRUTHS = {"input_ids": IDS, "attention_mask": MASK.bool()}
"""A model that computes with its mask needs it as truth values: nothing proves an int64
to fit into 32 bits.
"""


class First(nn.Module):
    """A model that returns its first output only."""

    def __init__(self, model, **options):
        super().__init__()
        self.model = model
        self.options = options

    def forward(self, **inputs):
        return self.model(**inputs, **self.options)[0]


def whisper_encoder(library):
    return library.WhisperModel(library.WhisperConfig(**WHISPER)).encoder, {
        "input_features": torch.randn(1, 16, 40)
    }


def whisper_decoder(library):
    model = library.WhisperModel(library.WhisperConfig(**WHISPER)).decoder
    return First(model, use_cache=False), {
        "input_ids": IDS,
        "encoder_hidden_states": torch.randn(1, 20, 32),
    }


def static_cache(name):
    """One step of a decoder whose caches are buffers."""

    def make(library):
        from transformers.integrations.executorch import (
            TorchExportableModuleWithStaticCache,
        )

        model = getattr(library, f"{name}ForCausalLM")(
            getattr(library, f"{name}Config")(**GROUPED)
        )
        size = {"batch_size": 1, "max_cache_len": 16, "device": "cpu"}
        options = {
            "use_cache": True,
            "cache_implementation": "static",
            "max_length": 16,
            "cache_config": size,
        }
        model.generation_config = library.GenerationConfig(**options)
        step = {"input_ids": IDS[:, :1], "cache_position": torch.tensor([3])}
        return TorchExportableModuleWithStaticCache(model), step

    return make


def decoder_step(model):
    """One step of a decoder beside an encoder, with static caches of what was said."""
    from transformers.integrations.executorch import (
        Seq2SeqLMDecoderExportableModuleWithStaticCache,
    )

    module = Seq2SeqLMDecoderExportableModuleWithStaticCache(
        model, max_static_cache_length=16, batch_size=1
    )
    step = {"decoder_input_ids": IDS[:, :1], "cache_position": torch.tensor([3])}
    return module, step | {"encoder_hidden_states": torch.randn(1, 20, 32)}


def whisper_step(library):
    model = library.WhisperForConditionalGeneration(library.WhisperConfig(**WHISPER))
    model.lm_head = model.proj_out
    return decoder_step(model)


def t5_step(library):
    return decoder_step(
        library.T5ForConditionalGeneration(
            library.T5Config(**T5, decoder_start_token_id=0)
        )
    )


def plain(model, config, inputs, sizes, **options):
    def make(library):
        return (
            First(
                getattr(library, model)(getattr(library, config)(**sizes)), **options
            ),
            inputs,
        )

    return make


MODELS = {
    "BERT": plain("BertModel", "BertConfig", TOKENS, LONG),
    "BERT masked": plain("BertModel", "BertConfig", MASKED, LONG),
    "DistilBERT masked": plain(
        "DistilBertModel", "DistilBertConfig", MASKED, DISTILLED
    ),
    "RoBERTa": plain("RobertaModel", "RobertaConfig", TOKENS, LONG),
    "RoBERTa masked": plain("RobertaModel", "RobertaConfig", MASKED, LONG),
    "GPT-2": plain("GPT2LMHeadModel", "GPT2Config", TOKENS, GPT2, use_cache=False),
    "Llama": plain("LlamaForCausalLM", "LlamaConfig", TOKENS, GROUPED, use_cache=False),
    "Llama masked": plain(
        "LlamaForCausalLM", "LlamaConfig", MASKED, GROUPED, use_cache=False
    ),
    "Llama with a cache": static_cache("Llama"),
    "Qwen2": plain("Qwen2ForCausalLM", "Qwen2Config", TOKENS, GROUPED, use_cache=False),
    "Qwen3": plain("Qwen3ForCausalLM", "Qwen3Config", TOKENS, GROUPED, use_cache=False),
    "Qwen3 with a cache": static_cache("Qwen3"),
    "Mixtral": plain(
        "MixtralForCausalLM", "MixtralConfig", TOKENS, MIXTRAL, use_cache=False
    ),
    "Mixtral batched": plain(
        "MixtralForCausalLM",
        "MixtralConfig",
        TOKENS,
        MIXTRAL | {"experts_implementation": "batched_mm"},
        use_cache=False,
    ),
    "Qwen3-MoE": plain(
        "Qwen3MoeForCausalLM", "Qwen3MoeConfig", TOKENS, QWEN3_MOE, use_cache=False
    ),
    "GPT-OSS": plain(
        "GptOssForCausalLM", "GptOssConfig", TOKENS, GPT_OSS, use_cache=False
    ),
    "DeepSeek-V3": plain(
        "DeepseekV3ForCausalLM", "DeepseekV3Config", TOKENS, DEEPSEEK, use_cache=False
    ),
    "Qwen3-Next": plain(
        "Qwen3NextForCausalLM", "Qwen3NextConfig", TOKENS, QWEN3_NEXT, use_cache=False
    ),
    "OPT masked": plain("OPTModel", "OPTConfig", TRUTHS, OPT, use_cache=False),
    "DeBERTa masked": plain("DebertaV2Model", "DebertaV2Config", TRUTHS, DEBERTA),
    "T5 encoder": plain("T5EncoderModel", "T5Config", TOKENS, T5),
    "T5 encoder masked": plain("T5EncoderModel", "T5Config", MASKED, T5),
    "T5 decoder with a cache": t5_step,
    "Whisper encoder": whisper_encoder,
    "Whisper decoder": whisper_decoder,
    "Whisper decoder with a cache": whisper_step,
    "ViT": plain(
        "ViTModel",
        "ViTConfig",
        {"pixel_values": torch.randn(1, 3, 32, 32)},
        VIT | {"image_size": 32, "patch_size": 8},
    ),
    "Swin": plain(
        "SwinModel", "SwinConfig", {"pixel_values": torch.randn(1, 3, 32, 32)}, SWIN
    ),
}


EXPERTS = {"Mixtral", "Qwen3-MoE", "GPT-OSS", "DeepSeek-V3", "Qwen3-Next"}
"""PRO-FP alone does not move integers, and nothing proves that the counts of an
expert's tokens are exact as floats.
"""


def exported(name, library):
    """The program of a model, and its inputs by name."""
    torch.manual_seed(0)
    model, inputs = MODELS[name](library)
    cached = name.endswith("cache")
    module = model if cached or isinstance(model, First) else First(model)
    return torch.export.export(module.eval(), (), inputs), inputs


@pytest.mark.parametrize(
    ("name", "target"),
    [(n, t) for n in MODELS for t in TARGETS[: 1 if n in EXPERTS else None]],
)
def test_transformers_are_one_legal_delegate(name, target, monkeypatch):
    program, inputs = exported(name, pytest.importorskip("transformers"))
    lowered = check_whole(program, target=target, **inputs)
    check_with_reference_tools(monkeypatch, lowered, program, target=target, **inputs)
