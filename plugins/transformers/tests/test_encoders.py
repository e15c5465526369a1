"""Models with an encoder, and models of images and text: tokens equal eager's, also
from files.
"""

from __future__ import annotations

from functools import partial

import delegraph
import pytest
import torch
from delegraph.errors import InputError

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers

COUNT = 12
BLOCK = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
}
BOTH = {
    **{
        f"{side}_{what}": n
        for side in ("encoder", "decoder")
        for what, n in (("layers", 1), ("attention_heads", 2))
    },
    **{f"{side}_ffn_dim": 64 for side in ("encoder", "decoder")},
    "d_model": 32,
    "vocab_size": 50,
}
TEXT = {
    **BLOCK,
    "num_key_value_heads": 2,
    "vocab_size": 50,
    "max_position_embeddings": 64,
    "model_type": "llama",
}
IMAGE = 49
"""The token in whose place an image stands."""


def t5():
    sizes = {
        "d_model": 32,
        "d_kv": 16,
        "d_ff": 64,
        "num_layers": 1,
        "num_heads": 2,
        "vocab_size": 50,
        "tie_word_embeddings": False,
    }
    return transformers.T5ForConditionalGeneration(
        transformers.T5Config(**sizes, decoder_start_token_id=0)
    )


def bart():
    config = transformers.BartConfig(
        **BOTH, max_position_embeddings=64, tie_word_embeddings=False
    )
    return transformers.BartForConditionalGeneration(config)


def whisper():
    ids = {
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "decoder_start_token_id": 3,
    }
    config = transformers.WhisperConfig(
        **BOTH, **ids, num_mel_bins=16, max_source_positions=20, max_target_positions=40
    )
    return transformers.WhisperForConditionalGeneration(config)


SIDES = {
    "Pegasus": "ForConditionalGeneration",
    "Marian": "MTModel",
    "M2M100": "ForConditionalGeneration",
}
"""Other models of a text that is read, and the ends of their classes' names."""


def sides(kind):
    config = getattr(transformers, f"{kind}Config")
    return getattr(transformers, kind + SIDES[kind])(
        config(**BOTH, max_position_embeddings=64, pad_token_id=0)
    )


def llava():
    vision = {
        **BLOCK,
        "num_hidden_layers": 2,
        "image_size": 16,
        "patch_size": 8,
        "model_type": "clip_vision_model",
    }
    config = transformers.LlavaConfig(
        vision_config=vision, text_config=TEXT, image_token_index=IMAGE
    )
    return transformers.LlavaForConditionalGeneration(config)


def smolvlm():
    vision = {**BLOCK, "image_size": 32, "patch_size": 8}
    text = {**TEXT, "pad_token_id": 0}
    config = transformers.SmolVLMConfig(
        vision_config=vision, text_config=text, image_token_id=IMAGE, scale_factor=2
    )
    return transformers.SmolVLMForConditionalGeneration(config)


def draw(shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


PROMPT = [7, 3, *[IMAGE] * 4, 2, 40, 9]
"""An image of four places among tokens, which a piece of the prompt ends in the middle
of.
"""
MODELS = {
    "t5": (t5, [5, 9, 31, 8], [0]),
    "bart": (bart, [5, 9, 31, 8, 7, 2], [2, 0]),
    "whisper": (whisper, draw((1, 16, 40)), [3, 8]),
    "llava": (llava, draw((1, 3, 16, 16)), PROMPT),
    "smolvlm": (smolvlm, draw((1, 3, 32, 32)), PROMPT),
}
MORE = {
    **MODELS,
    **{
        kind.lower(): (partial(sides, kind), [5, 9, 31, 8, 7, 2], [2, 4])
        for kind in SIDES
    },
}


def build(name):
    make, given, prompt = MORE[name]
    torch.manual_seed(0)
    model = make().eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            # so that tokens differ from each other
            torch.nn.init.normal_(parameter, std=0.3)
    return model, given, prompt


def greedy_tokens(model, given, prompt, count=COUNT):
    """The best tokens of the whole model, which is called without any cache."""
    tokens = list(prompt)
    for _ in range(count):
        ids = torch.tensor([tokens])
        if model.config.is_encoder_decoder:
            options = {"decoder_input_ids": ids}
            given = torch.tensor([given]) if isinstance(given, list) else given
            options[model.main_input_name] = given
        else:
            image = (
                given[:, None]
                if isinstance(model, transformers.SmolVLMForConditionalGeneration)
                else given
            )
            options = {"input_ids": ids, "pixel_values": image}
        with torch.no_grad():
            tokens.append(int(model(**options).logits[0, -1].argmax()))
    return tokens[len(prompt) :]


@pytest.mark.parametrize(
    "name",
    [
        "t5",
        "whisper",
        "llava",
        *(pytest.param(n, marks=pytest.mark.slow) for n in ("bart", "smolvlm")),
    ],
)
def test_lowered_models_generate_the_tokens_of_eager(name, tmp_path):
    from delegraph_transformers import generate, generation_steps

    model, given, prompt = build(name)
    expected = greedy_tokens(model, given, prompt)
    steps = generation_steps(model, prompt_length=4, cache_length=30)
    lowered = delegraph.lower(**steps, backends=["tosa"], require_full=True)
    assert generate(lowered, prompt, COUNT, given=given).tokens == expected
    lowered.save(tmp_path / "m.pte")
    assert (
        generate(delegraph.load(tmp_path / "m.pte"), prompt, COUNT, given=given).tokens
        == expected
    )
    files = [tmp_path / f"{delegate.method}.tosa" for delegate in lowered.delegates]
    for file, delegate in zip(files, lowered.delegates, strict=True):
        delegate.save(file)
    loaded = [delegraph.load(file) for file in files]
    assert generate(loaded, prompt, COUNT, given=given).tokens == expected
    if model.main_input_name == "input_ids" and model.config.is_encoder_decoder:
        # such small models say one token again and again: the scores tell whether the
        # text was read
        ids = torch.nn.functional.pad(torch.tensor([given]), (0, 30 - len(given)))
        memory = lowered.method("encode")(ids, torch.arange(30)[None] < len(given))
        _, position, caches, *_ = steps["example_inputs"]["decode"]
        first = torch.tensor([prompt[:1]])
        scores, _ = lowered.method("decode")(
            first, position, caches, memory, torch.arange(30)[None] < len(given)
        )
        with torch.no_grad():
            eager = model(
                input_ids=torch.tensor([given]), decoder_input_ids=first
            ).logits[0]
        torch.testing.assert_close(scores, eager, rtol=1e-4, atol=1e-4)
    if name == "t5":
        with pytest.raises(
            InputError, match="encode takes 1 to 30 tokens; given has 31"
        ):
            generate(lowered, prompt, COUNT, given=[1] * 31)
        with pytest.raises(
            InputError, match="has a method encode; pass its input as given="
        ):
            generate(lowered, prompt, COUNT)


@pytest.mark.parametrize(
    ("name", "backends", "runtimes"),
    [
        pytest.param("t5", [], [None], marks=pytest.mark.slow),
        *(
            pytest.param(n, b, [None, "executorch"], marks=pytest.mark.slow)
            for n in MORE
            for b in ([], ["xnnpack"])
        ),
        *(pytest.param(n, ["tosa"], [None], marks=pytest.mark.slow) for n in MORE),
    ],
)
def test_files_that_keep_their_caches(name, backends, runtimes, tmp_path):
    from delegraph_transformers import generate, generation_steps

    model, given, prompt = build(name)
    other = [7, 11, 3] if isinstance(given, list) else -given
    expected = {
        key: greedy_tokens(model, read, prompt, 20)
        for key, read in {"first": given, "second": other}.items()
    }
    steps = generation_steps(model, prompt_length=4, cache_length=30, keep_caches=True)
    delegraph.lower(**steps, backends=backends).save(
        tmp_path / "m.pte", share_mutable_buffers=True
    )
    for runtime in runtimes:
        if runtime:
            pytest.importorskip("executorch.runtime")
        program = delegraph.load(tmp_path / "m.pte", runtime=runtime)
        inputs = {
            value.name
            for value in next(
                method for method in program.summary.methods if method.name == "decode"
            ).inputs
        }
        assert not any(i.startswith("caches") for i in inputs)
        for key, read in (
            ("first", given),
            ("second", other),
            ("first", given),
            ("first", given),
        ):
            assert generate(program, prompt, 20, given=read).tokens == expected[key]


def test_sound_lengths_missing_in_the_config_must_be_given():
    from delegraph_transformers import generation_steps

    sizes = {
        "encoder_num_hidden_layers": 1,
        "decoder_num_hidden_layers": 1,
        "hidden_size": 32,
        "intermediate_size": 64,
    }
    heads = {"encoder_num_attention_heads": 2, "decoder_num_attention_heads": 2}
    config = transformers.MoonshineConfig(
        **sizes, **heads, vocab_size=50, max_position_embeddings=40
    )
    model = transformers.MoonshineForConditionalGeneration(config).eval()
    with pytest.raises(
        InputError, match="does not declare the sizes of its input_values"
    ) as refused:
        generation_steps(model)
    assert "encoder_inputs=" in refused.value.hint
