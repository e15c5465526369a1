"""Steps with caches of fixed size generate eager's tokens for many architectures."""

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
    "max_position_embeddings": 64,
}
GROUPED = {**TEXT, "num_key_value_heads": 2}
HEADS = {**GROUPED, "head_dim": 8}
GPT = {**IDS, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}
LATENT = {
    "n_routed_experts": 4,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "q_lora_rank": 16,
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
LINEAR = {
    "num_experts": 4,
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "shared_expert_intermediate_size": 16,
}
FALCON = {**TEXT, "new_decoder_architecture": False}

MODELS = {
    # one head of keys and values for all queries; the config does not name it so
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
    # caches latent vectors of two sizes in place of keys and values
    "DeepSeek-V3": (
        "DeepseekV3ForCausalLM",
        "DeepseekV3Config",
        {**TEXT, **EXPERTS, **LATENT},
    ),
    # its positions change when a text is longer than all before it
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
    # states in addition to keys and values
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
        {**HEADS, **EXPERTS, **LINEAR},
    ),
    # states in attributes of its modules
    "RecurrentGemma": (
        "RecurrentGemmaForCausalLM",
        "RecurrentGemmaConfig",
        {**TEXT, "lru_width": 32, "num_hidden_layers": 3},
    ),
}


def build(kind, config, sizes):
    """Return a small model, whose weights are large enough for different tokens."""
    torch.manual_seed(0)
    model = getattr(transformers, kind)(getattr(transformers, config)(**sizes)).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    return model


COUNT = 20
"""The number of generated tokens."""
CACHE_LENGTH = len(PROMPT) + COUNT


def greedy_tokens(model, count=COUNT):
    """Return the tokens that transformers generates after ``PROMPT``."""
    with torch.no_grad():
        made = model.generate(
            torch.tensor([PROMPT]),
            max_new_tokens=count,
            do_sample=False,
            eos_token_id=None,
        )
    return made[0, len(PROMPT) :].tolist()


def pieces_of_prompt(length):
    """Return pieces of the prompt, of which the last may be shorter than ``length``."""
    return [PROMPT[begin : begin + length] for begin in range(0, len(PROMPT), length)]


def tokens_of_step(step, prompt_length):
    """Return the tokens that ``step`` generates after pieces of the prompt."""
    caches = step.empty_caches
    position = 0
    tokens = []
    pieces = pieces_of_prompt(prompt_length)
    with torch.no_grad():
        while len(tokens) < COUNT:
            piece = pieces.pop(0)
            copies = [cache.clone() for cache in caches]
            scores, new_caches = step(
                torch.tensor([piece]), torch.tensor([position]), caches
            )
            unchanged = all(map(torch.equal, caches, copies))
            assert unchanged, "the step wrote to caches of the caller"
            caches = new_caches
            position += len(piece)
            if not pieces:
                token = int(scores.argmax())
                tokens.append(token)
                pieces.append([token])
    return tokens


@pytest.mark.parametrize("name", MODELS)
def test_steps_generate_the_tokens_of_eager(name):
    from delegraph_transformers import generation_steps

    model = build(*MODELS[name])
    expected = greedy_tokens(model)

    steps = generation_steps(model, prompt_length=3, cache_length=CACHE_LENGTH)

    assert tokens_of_step(steps["program"]["decode"], prompt_length=3) == expected
    assert greedy_tokens(model) == expected, "the steps changed the caller's model"


def shapes_of_caches(steps):
    _, _, caches = steps["example_inputs"]["decode"]
    return [tuple(cache.shape) for cache in caches]


@pytest.mark.parametrize("name", MODELS)
def test_growing_caches_have_a_row_for_each_token(name):
    from delegraph_transformers import generation_steps

    model = build(*MODELS[name])

    steps = generation_steps(model, prompt_length=3, cache_length=CACHE_LENGTH)

    grows = steps["program"]["decode"].grows
    lengths = [
        shape[2]
        for shape, cache_grows in zip(shapes_of_caches(steps), grows, strict=True)
        if cache_grows
    ]
    assert all(length == CACHE_LENGTH for length in lengths)
    # Mamba has only states of fixed size
    assert bool(lengths) == (name != "Mamba")


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        # keys and values of one head, in two layers
        ("Falcon", [(1, 1, CACHE_LENGTH, 8)] * 4),
        # kv_lora_rank and qk_rope_head_dim, in two layers
        ("DeepSeek-V3", [(1, 1, CACHE_LENGTH, 16), (1, 1, CACHE_LENGTH, 8)] * 2),
    ],
)
def test_caches_are_no_larger_than_the_model_needs(name, shapes):
    from delegraph_transformers import generation_steps

    steps = generation_steps(build(*MODELS[name]), cache_length=CACHE_LENGTH)

    assert shapes_of_caches(steps) == shapes


def export_decode(steps):
    decode = delegraph.export(
        steps["program"]["decode"], steps["example_inputs"]["decode"]
    )
    return decode["forward"]


@pytest.mark.parametrize("name", ["OPT", "BioGPT", "Llama, dynamic"])
def test_no_number_is_read_from_the_cache(name):
    """These models read the length of the text from a cache, if they can."""
    from delegraph_transformers import generation_steps

    kind, config, sizes = MODELS[name]
    model = build(kind, config, {**sizes, "num_hidden_layers": 1})

    program = export_decode(generation_steps(model, cache_length=CACHE_LENGTH))

    targets = {node.target for node in program.graph.nodes}
    assert torch.ops.aten.item.default not in targets


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_files_that_keep_their_caches_generate_eagers_tokens(name, tmp_path):
    from delegraph_transformers import generate, generation_steps

    model = build(*MODELS[name])
    expected = greedy_tokens(model)
    if hasattr(model.config, "num_experts_per_tok"):
        model.set_experts_implementation("batched_mm")
    steps = generation_steps(
        model, prompt_length=3, cache_length=CACHE_LENGTH, keep_caches=True
    )
    delegraph.lower(**steps, backends=[]).save(
        tmp_path / "m.pte", share_mutable_buffers=True
    )

    for runtime in (None, "executorch"):
        if runtime:
            pytest.importorskip("executorch.runtime")
        program = delegraph.load(tmp_path / "m.pte", runtime=runtime)
        assert generate(program, PROMPT, COUNT).tokens == expected
        assert generate(program, PROMPT, COUNT).tokens == expected


def test_a_batch_of_sequences_gets_the_scores_of_eager():
    from delegraph_transformers import generation_steps

    model = build(*MODELS["OPT"])
    step = generation_steps(model, cache_length=8, batch=2)["program"]["decode"]
    tokens = torch.tensor([PROMPT, PROMPT[::-1]])

    with torch.no_grad():
        scores, _ = step(tokens, torch.tensor([0]), step.empty_caches)
        expected = model(tokens).logits[:, -1]

    torch.testing.assert_close(scores, expected, rtol=1e-4, atol=1e-4)


def test_models_that_compute_otherwise_with_a_cache_are_refused():
    from delegraph_transformers import generation_steps

    sizes = {
        **IDS,
        "hidden_size": 32,
        "num_layers": 2,
        "num_heads": 4,
        "window_size": 4,
        "attention_types": [[["global", "local"], 1]],
    }
    model = build("GPTNeoForCausalLM", "GPTNeoConfig", sizes)

    with pytest.raises(
        InputError,
        match=r"GPTNeoForCausalLM does not work with a cache .* from those without",
    ) as refused:
        generation_steps(model, cache_length=CACHE_LENGTH)

    assert "example_kwargs" in refused.value.hint


def test_models_that_fail_with_a_cache_of_fixed_size_are_refused():
    from delegraph_transformers import generation_steps

    sizes = {**IDS, "d_model": 32, "n_layers": 1, "n_heads": 4, "max_seq_len": 64}
    model = build("MptForCausalLM", "MptConfig", sizes)

    with pytest.raises(
        InputError, match="MptForCausalLM does not work with a cache of fixed size"
    ):
        generation_steps(model, cache_length=CACHE_LENGTH)


def test_models_without_an_argument_for_a_cache_are_refused():
    from delegraph_transformers import generation_steps

    sizes = {**IDS, "hidden_size": 32, "num_hidden_layers": 2, "context_length": 64}
    model = build("RwkvForCausalLM", "RwkvConfig", sizes)

    with pytest.raises(InputError, match="has no argument for a cache"):
        generation_steps(model, cache_length=CACHE_LENGTH)


@pytest.fixture
def dynamic_llama():
    """Return a model that changes its positions for texts of over ``CACHE_LENGTH``."""
    kind, config, sizes = MODELS["Llama, dynamic"]
    return build(
        kind,
        config,
        {**sizes, "max_position_embeddings": CACHE_LENGTH, "num_hidden_layers": 1},
    )


def test_steps_use_the_positions_of_short_texts(dynamic_llama):
    from delegraph_transformers import generation_steps

    with torch.no_grad():
        # after a long text, the model keeps other frequencies until the next call
        dynamic_llama(torch.zeros(1, CACHE_LENGTH + 13, dtype=torch.long))

    steps = generation_steps(dynamic_llama, prompt_length=3, cache_length=CACHE_LENGTH)

    tokens = tokens_of_step(steps["program"]["decode"], prompt_length=3)
    assert tokens == greedy_tokens(dynamic_llama)
    assert dynamic_llama.model.rotary_emb.rope_type == "dynamic"


def test_caches_longer_than_the_first_positions_are_refused(dynamic_llama):
    from delegraph_transformers import generation_steps

    with pytest.raises(
        InputError,
        match="recomputes its positions for texts of more than 27 tokens",
    ) as refused:
        generation_steps(dynamic_llama, cache_length=CACHE_LENGTH + 1)

    assert refused.value.hint == "generation_steps(model, cache_length=27)"


def test_models_without_weights_get_steps():
    from delegraph_transformers import generation_steps

    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(
            transformers.LlamaConfig(**GROUPED)
        ).eval()

    steps = generation_steps(model, cache_length=CACHE_LENGTH)

    assert set(shapes_of_caches(steps)) == {(1, 2, CACHE_LENGTH, 8)}
    devices = {
        node.meta["val"].device.type
        for node in export_decode(steps).graph.nodes
        if node.op == "placeholder"
    }
    assert devices == {"meta"}


@pytest.mark.parametrize("keep_caches", [False, True])
def test_errors_name_the_users_model(keep_caches):
    """The exported module is a step around the model."""
    from delegraph_transformers import generation_steps

    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**GROUPED)).train()
    steps = generation_steps(model, cache_length=CACHE_LENGTH, keep_caches=keep_caches)

    with pytest.raises(
        InputError, match="^module LlamaForCausalLM is in training mode"
    ):
        delegraph.export(**steps)

    assert model.training
