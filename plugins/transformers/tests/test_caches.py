"""Caches and states of many architectures: steps over them make the tokens of eager's
own ``generate``.
"""

from __future__ import annotations

import delegraph
import pytest
import torch
from delegraph.errors import InputError

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers

PROMPT = [7, 3, 11, 2, 40, 9, 1]
IDS = {"vocab_size": 99, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
TEXT = {
    **IDS,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
}
TEXT |= {"max_position_embeddings": 64}
GROUPED = {**TEXT, "num_key_value_heads": 2}
HEADS = {**GROUPED, "head_dim": 8}
GPT = {**IDS, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
CHOOSING = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}
LATENT = {
    "n_routed_experts": 4,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "q_lora_rank": 16,
}
LATENT |= {
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
}
SCANNED = {
    "mamba_n_heads": 4,
    "mamba_d_head": 16,
    "mamba_d_state": 8,
    "mamba_chunk_size": 8,
}
LINEAR = {"num_experts": 4, "layer_types": ["linear_attention", "full_attention"]}
LINEAR |= {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
}
LINEAR |= {"linear_value_head_dim": 8, "shared_expert_intermediate_size": 16}
FALCON = {**TEXT, "new_decoder_architecture": False}

MODELS = {
    # one head of keys and values for all queries, which the config does not call so
    "Falcon": ("FalconForCausalLM", "FalconConfig", {**FALCON, "multi_query": True}),
    "Falcon, ALiBi": (
        "FalconForCausalLM",
        "FalconConfig",
        {**FALCON, "multi_query": True, "alibi": True},
    ),
    "Falcon, groups": (
        "FalconForCausalLM",
        "FalconConfig",
        {**TEXT, "new_decoder_architecture": True, "num_kv_heads": 2},
    ),
    "OPT": (
        "OPTForCausalLM",
        "OPTConfig",
        {**TEXT, "ffn_dim": 64, "word_embed_proj_dim": 32},
    ),
    "BioGPT": ("BioGptForCausalLM", "BioGptConfig", TEXT),
    "GPT-2": ("GPT2LMHeadModel", "GPT2Config", GPT),
    "GPT-NeoX": ("GPTNeoXForCausalLM", "GPTNeoXConfig", TEXT),
    "GPT-J": ("GPTJForCausalLM", "GPTJConfig", {**GPT, "rotary_dim": 4}),
    "BigCode": (
        "GPTBigCodeForCausalLM",
        "GPTBigCodeConfig",
        {**GPT, "multi_query": True},
    ),
    "BLOOM": (
        "BloomForCausalLM",
        "BloomConfig",
        {**IDS, "hidden_size": 32, "n_layer": 2, "n_head": 4},
    ),
    "Mistral": (
        "MistralForCausalLM",
        "MistralConfig",
        {**GROUPED, "sliding_window": 4},
    ),
    "Gemma2": ("Gemma2ForCausalLM", "Gemma2Config", {**HEADS, "sliding_window": 4}),
    "Phi": ("PhiForCausalLM", "PhiConfig", TEXT),
    "StableLM": ("StableLmForCausalLM", "StableLmConfig", GROUPED),
    "OLMo2": ("Olmo2ForCausalLM", "Olmo2Config", GROUPED),
    "SmolLM3": ("SmolLM3ForCausalLM", "SmolLM3Config", GROUPED),
    "Cohere": ("CohereForCausalLM", "CohereConfig", GROUPED),
    "Granite": ("GraniteForCausalLM", "GraniteConfig", GROUPED),
    "StarCoder2": ("Starcoder2ForCausalLM", "Starcoder2Config", GROUPED),
    # keeps what its keys and values are computed from, of different sizes
    "DeepSeek-V3": (
        "DeepseekV3ForCausalLM",
        "DeepseekV3Config",
        {**TEXT, **CHOOSING, **LATENT},
    ),
    # looks for a text that is longer than any before
    "Llama, dynamic": (
        "LlamaForCausalLM",
        "LlamaConfig",
        {
            **GROUPED,
            "rope_parameters": {
                "rope_type": "dynamic",
                "factor": 2.0,
                "rope_theta": 10000.0,
            },
        },
    ),
    "Mamba": (
        "MambaForCausalLM",
        "MambaConfig",
        {**IDS, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8},
    ),
    # states beside keys and values
    "LFM2": (
        "Lfm2ForCausalLM",
        "Lfm2Config",
        {**GROUPED, "layer_types": ["conv", "full_attention"]},
    ),
    "Bamba": (
        "BambaForCausalLM",
        "BambaConfig",
        {**GROUPED, **SCANNED, "attn_layer_indices": [1]},
    ),
    "Qwen3-Next": (
        "Qwen3NextForCausalLM",
        "Qwen3NextConfig",
        {**HEADS, **CHOOSING, **LINEAR},
    ),
    # states in attributes of its modules
    "RecurrentGemma": (
        "RecurrentGemmaForCausalLM",
        "RecurrentGemmaConfig",
        {**TEXT, "lru_width": 32, "num_hidden_layers": 3},
    ),
}


def build(kind, config, sizes):
    torch.manual_seed(0)
    model = getattr(transformers, kind)(getattr(transformers, config)(**sizes)).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            # so that tokens differ from each other
            torch.nn.init.normal_(parameter, std=0.3)
    return model


def greedy_tokens(model, count=20):
    with torch.no_grad():
        made = model.generate(
            torch.tensor([PROMPT]),
            max_new_tokens=count,
            do_sample=False,
            eos_token_id=None,
        )
    return made[0, len(PROMPT) :].tolist()


def made_by(step, length, count=20):
    """The tokens that ``step`` makes after the prompt, in pieces of ``length``."""
    caches = step.empty_caches
    scores = torch.empty(0)
    tokens = list(PROMPT)
    ends = [
        *range(length, len(PROMPT) + 1, length),
        len(PROMPT),
        *range(len(PROMPT) + 1, len(PROMPT) + count),
    ]
    begin = 0
    with torch.no_grad():
        for end in sorted(set(ends)):
            kept = [cache.clone() for cache in caches]
            scores, after = step(
                torch.tensor([tokens[begin:end]]), torch.tensor([begin]), caches
            )
            assert all(map(torch.equal, caches, kept)), (
                "what the caller passed stays as it is"
            )
            caches = after
            begin = end
            if end >= len(PROMPT):
                tokens.append(int(scores.argmax()))
    return tokens[len(PROMPT) :]


@pytest.mark.parametrize("name", MODELS)
def test_steps_make_the_tokens_of_eager(name):
    from delegraph_transformers import generation_steps

    model = build(*MODELS[name])
    expected = greedy_tokens(model)
    steps = generation_steps(model, prompt_length=3, cache_length=27)
    assert made_by(steps["program"]["decode"], 3) == expected
    assert greedy_tokens(model) == expected, "the model of the caller stays as it is"
    shapes = [tuple(cache.shape) for cache in steps["example_inputs"]["decode"][2]]
    rows = [
        shape
        for shape, grows in zip(shapes, steps["program"]["decode"].grows, strict=True)
        if grows
    ]
    assert all(shape[2] == 27 for shape in rows)
    assert bool(rows) == (name != "Mamba")
    if name == "Falcon":
        assert shapes == [(1, 1, 27, 8)] * 4
    if name == "DeepSeek-V3":
        assert shapes == [(1, 1, 27, 16), (1, 1, 27, 8)] * 2


@pytest.mark.parametrize("name", ["OPT", "BioGPT", "Llama, dynamic"])
def test_no_number_is_read_from_the_cache(name):
    from delegraph_transformers import generation_steps

    kind, config, sizes = MODELS[name]
    steps = generation_steps(
        build(kind, config, {**sizes, "num_hidden_layers": 1}), cache_length=27
    )
    program = delegraph.export(
        steps["program"]["decode"], steps["example_inputs"]["decode"]
    )["forward"]
    assert torch.ops.aten.item.default not in {
        node.target for node in program.graph.nodes
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_files_that_keep_their_caches_make_the_tokens_of_eager(name, tmp_path):
    from delegraph_transformers import generate, generation_steps

    model = build(*MODELS[name])
    expected = greedy_tokens(model)
    if hasattr(model.config, "num_experts_per_tok"):
        model.set_experts_implementation("batched_mm")
    steps = generation_steps(model, prompt_length=3, cache_length=27, keep_caches=True)
    delegraph.lower(**steps, backends=[]).save(
        tmp_path / "m.pte", share_mutable_buffers=True
    )
    for runtime in (None, "executorch"):
        if runtime:
            pytest.importorskip("executorch.runtime")
        program = delegraph.load(tmp_path / "m.pte", runtime=runtime)
        assert [generate(program, PROMPT, 20).tokens for _ in range(2)] == [
            expected,
            expected,
        ]


def test_several_sequences_at_once():
    from delegraph_transformers import generation_steps

    model = build(*MODELS["OPT"])
    step = generation_steps(model, cache_length=8, batch=2)["program"]["decode"]
    tokens = torch.tensor([PROMPT, PROMPT[::-1]])
    with torch.no_grad():
        scores, _ = step(tokens, torch.tensor([0]), step.empty_caches)
        torch.testing.assert_close(
            scores, model(tokens).logits[:, -1], rtol=1e-4, atol=1e-4
        )


def test_models_that_differ_with_static_caches_are_refused():
    from delegraph_transformers import generation_steps

    neo = {**IDS, "hidden_size": 32, "num_layers": 2, "num_heads": 4, "window_size": 4}
    neo["attention_types"] = [[["global", "local"], 1]]
    with pytest.raises(
        InputError,
        match=r"GPTNeoForCausalLM does not work with a cache .* from those without",
    ) as refused:
        generation_steps(
            build("GPTNeoForCausalLM", "GPTNeoConfig", neo), cache_length=27
        )
    assert "example_kwargs" in refused.value.hint
    mpt = {**IDS, "d_model": 32, "n_layers": 1, "n_heads": 4, "max_seq_len": 64}
    with pytest.raises(
        InputError, match="MptForCausalLM does not work with a cache of fixed size"
    ):
        generation_steps(build("MptForCausalLM", "MptConfig", mpt), cache_length=27)
    rwkv = {**IDS, "hidden_size": 32, "num_hidden_layers": 2, "context_length": 64}
    with pytest.raises(InputError, match="has no argument for a cache"):
        generation_steps(build("RwkvForCausalLM", "RwkvConfig", rwkv), cache_length=27)


def test_positions_that_grow_with_the_text():
    from delegraph_transformers import generation_steps

    kind, config, sizes = MODELS["Llama, dynamic"]
    model = build(
        kind, config, {**sizes, "max_position_embeddings": 27, "num_hidden_layers": 1}
    )
    with torch.no_grad():
        # after which the model has other frequencies until the next call
        model(torch.zeros(1, 40, dtype=torch.long))
    assert made_by(
        generation_steps(model, prompt_length=3, cache_length=27)["program"]["decode"],
        3,
    ) == greedy_tokens(model)
    assert model.model.rotary_emb.rope_type == "dynamic"
    with pytest.raises(
        InputError,
        match="recomputes its positions for texts of more than 27 tokens",
    ) as no:
        generation_steps(model, cache_length=28)
    assert no.value.hint == "generation_steps(model, cache_length=27)"


def test_models_without_weights_get_steps():
    from delegraph_transformers import generation_steps

    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(
            transformers.LlamaConfig(**GROUPED)
        ).eval()
    steps = generation_steps(model, cache_length=27)
    assert {tuple(cache.shape) for cache in steps["example_inputs"]["decode"][2]} == {
        (1, 2, 27, 8)
    }
    program = delegraph.export(
        steps["program"]["decode"], steps["example_inputs"]["decode"]
    )["forward"]
    assert {
        node.meta["val"].device.type
        for node in program.graph.nodes
        if node.op == "placeholder"
    } == {"meta"}


@pytest.mark.parametrize("keep_caches", [False, True])
def test_errors_have_the_name_of_the_model(keep_caches):
    from delegraph_transformers import generation_steps

    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**GROUPED)).train()
    with pytest.raises(
        InputError, match="^module LlamaForCausalLM is in training mode"
    ):
        delegraph.export(
            **generation_steps(model, cache_length=27, keep_caches=keep_caches)
        )
    assert model.training
