"""Models of an encoder and a decoder, and of images and text, generate eager's tokens."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import delegraph
import pytest
import torch
from delegraph.errors import InputError

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers

COUNT = 12
"""The number of generated tokens."""
BLOCK = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
}
ENCODER_AND_DECODER = {
    "d_model": 32,
    "vocab_size": 50,
    "encoder_layers": 1,
    "encoder_attention_heads": 2,
    "encoder_ffn_dim": 64,
    "decoder_layers": 1,
    "decoder_attention_heads": 2,
    "decoder_ffn_dim": 64,
}
TEXT = {
    **BLOCK,
    "num_key_value_heads": 2,
    "vocab_size": 50,
    "max_position_embeddings": 64,
    "model_type": "llama",
}
IMAGE = 49
"""The token that a part of an image replaces."""


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
        **ENCODER_AND_DECODER, max_position_embeddings=64, tie_word_embeddings=False
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
        **ENCODER_AND_DECODER,
        **ids,
        num_mel_bins=16,
        max_source_positions=20,
        max_target_positions=40,
    )
    return transformers.WhisperForConditionalGeneration(config)


CLASSES = {
    "Pegasus": "PegasusForConditionalGeneration",
    "Marian": "MarianMTModel",
    "M2M100": "M2M100ForConditionalGeneration",
}
"""Further models that read a text: the name of the config -> the model's class."""


def encoder_and_decoder(kind):
    config = getattr(transformers, f"{kind}Config")
    model = getattr(transformers, CLASSES[kind])
    return model(
        config(**ENCODER_AND_DECODER, max_position_embeddings=64, pad_token_id=0)
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


class Example(NamedTuple):
    """A model, the input of its encoder, and the first tokens of the output."""

    model: torch.nn.Module
    given: list | torch.Tensor
    prompt: list


IMAGE_PROMPT = [7, 3, *[IMAGE] * 4, 2, 40, 9]
"""Tokens with an image of four parts.

Steps of four tokens end in the middle of the image.
"""
FIRST_MODELS = {
    "t5": (t5, [5, 9, 31, 8], [0]),
    "bart": (bart, [5, 9, 31, 8, 7, 2], [2, 0]),
    "whisper": (whisper, draw((1, 16, 40)), [3, 8]),
    "llava": (llava, draw((1, 3, 16, 16)), IMAGE_PROMPT),
    "smolvlm": (smolvlm, draw((1, 3, 32, 32)), IMAGE_PROMPT),
}
"""Name -> a function that makes the model, and the other fields of its example."""
FURTHER_MODELS = {
    kind.lower(): (partial(encoder_and_decoder, kind), [5, 9, 31, 8, 7, 2], [2, 4])
    for kind in CLASSES
}
MODELS = {**FIRST_MODELS, **FURTHER_MODELS}


def make_example(name):
    make_model, given, prompt = MODELS[name]
    torch.manual_seed(0)
    model = make_model().eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            # so that tokens differ from each other
            torch.nn.init.normal_(parameter, std=0.3)
    return Example(model, given, prompt)


def inputs_of_eager(model, given, tokens):
    """Return the keyword arguments of the whole model."""
    ids = torch.tensor([tokens])
    if model.config.is_encoder_decoder:
        if isinstance(given, list):
            given = torch.tensor([given])
        return {"decoder_input_ids": ids, model.main_input_name: given}
    if isinstance(model, transformers.SmolVLMForConditionalGeneration):
        given = given[:, None]  # it takes several images
    return {"input_ids": ids, "pixel_values": given}


def greedy_tokens(example, count=COUNT):
    """Return the tokens of the best scores of the whole model, without a cache."""
    model, given, prompt = example
    tokens = list(prompt)
    for _ in range(count):
        with torch.no_grad():
            scores = model(**inputs_of_eager(model, given, tokens)).logits
        tokens.append(int(scores[0, -1].argmax()))
    return tokens[len(prompt) :]


class Lowered(NamedTuple):
    """An example, its program for TOSA, and the tokens that it should generate."""

    example: Example
    program: delegraph.LoweredProgram
    tokens: list


@pytest.fixture(
    scope="module",
    params=[
        "t5",
        "whisper",
        "llava",
        pytest.param("bart", marks=pytest.mark.slow),
        pytest.param("smolvlm", marks=pytest.mark.slow),
    ],
)
def lowered(request):
    from delegraph_transformers import generation_steps

    example = make_example(request.param)
    tokens = greedy_tokens(example)
    steps = generation_steps(example.model, prompt_length=4, cache_length=30)
    program = delegraph.lower(**steps, backends=["tosa"], require_full=True)
    return Lowered(example, program, tokens)


def tokens_of(program, example, count=COUNT):
    """Return the tokens that a program, or the files of its methods, generate."""
    from delegraph_transformers import generate

    return generate(program, example.prompt, count, given=example.given).tokens


def test_lowered_models_generate_the_tokens_of_eager(lowered):
    assert tokens_of(lowered.program, lowered.example) == lowered.tokens


def test_saved_programs_generate_the_tokens_of_eager(lowered, tmp_path):
    lowered.program.save(tmp_path / "m.pte")

    loaded = delegraph.load(tmp_path / "m.pte")

    assert tokens_of(loaded, lowered.example) == lowered.tokens


def test_delegate_files_generate_the_tokens_of_eager(lowered, tmp_path):
    files = []
    for delegate in lowered.program.delegates:
        file = tmp_path / f"{delegate.method}.tosa"
        delegate.save(file)
        files.append(delegraph.load(file))

    assert tokens_of(files, lowered.example) == lowered.tokens


@pytest.mark.parametrize("lowered", ["t5"], indirect=True)
def test_scores_of_the_first_token_are_those_of_eager(lowered):
    """Such a small model repeats a token: only scores show that it read the text."""
    from delegraph_transformers import generation_steps

    model, given, prompt = lowered.example
    ids = torch.nn.functional.pad(torch.tensor([given]), (0, 30 - len(given)))
    mask = torch.arange(30)[None] < len(given)
    steps = generation_steps(model, prompt_length=4, cache_length=30)
    _, position, caches, *_ = steps["example_inputs"]["decode"]
    first_token = torch.tensor([prompt[:1]])

    memory = lowered.program.method("encode")(ids, mask)
    scores, _ = lowered.program.method("decode")(
        first_token, position, caches, memory, mask
    )

    with torch.no_grad():
        eager = model(input_ids=torch.tensor([given]), decoder_input_ids=first_token)
    torch.testing.assert_close(scores, eager.logits[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("lowered", ["t5"], indirect=True)
def test_texts_longer_than_the_encoder_are_refused(lowered):
    too_long = lowered.example._replace(given=[1] * 31)

    with pytest.raises(InputError, match="encode takes 1 to 30 tokens; given has 31"):
        tokens_of(lowered.program, too_long)


@pytest.mark.parametrize("lowered", ["t5"], indirect=True)
def test_models_with_an_encoder_need_its_input(lowered):
    from delegraph_transformers import generate

    with pytest.raises(
        InputError, match="has a method encode; pass its input as given="
    ):
        generate(lowered.program, lowered.example.prompt, COUNT)


@pytest.mark.slow
@pytest.mark.parametrize("backends", [[], ["xnnpack"], ["tosa"]], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_files_that_keep_their_caches_generate_eagers_tokens(name, backends, tmp_path):
    """The file is used for several texts, and each begins with empty caches."""
    from delegraph_transformers import generation_steps

    first = make_example(name)
    other_input = [7, 11, 3] if isinstance(first.given, list) else -first.given
    second = first._replace(given=other_input)
    first_tokens = greedy_tokens(first, 20)
    second_tokens = greedy_tokens(second, 20)
    steps = generation_steps(
        first.model, prompt_length=4, cache_length=30, keep_caches=True
    )
    delegraph.lower(**steps, backends=backends).save(
        tmp_path / "m.pte", share_mutable_buffers=True
    )
    runtimes = [None] if backends == ["tosa"] else [None, "executorch"]

    for runtime in runtimes:
        if runtime:
            pytest.importorskip("executorch.runtime")
        program = delegraph.load(tmp_path / "m.pte", runtime=runtime)

        assert tokens_of(program, first, 20) == first_tokens
        assert tokens_of(program, second, 20) == second_tokens
        assert tokens_of(program, first, 20) == first_tokens
        assert tokens_of(program, first, 20) == first_tokens


def test_kept_caches_are_no_inputs_of_the_file(tmp_path):
    from delegraph_transformers import generation_steps

    model = make_example("t5").model
    steps = generation_steps(model, prompt_length=4, cache_length=30, keep_caches=True)
    delegraph.lower(**steps, backends=[]).save(
        tmp_path / "m.pte", share_mutable_buffers=True
    )

    methods = delegraph.load(tmp_path / "m.pte").summary.methods

    [decode] = [method for method in methods if method.name == "decode"]
    assert not any(value.name.startswith("caches") for value in decode.inputs)


def test_sizes_of_sounds_missing_in_the_config_must_be_given():
    from delegraph_transformers import generation_steps

    config = transformers.MoonshineConfig(
        hidden_size=32,
        intermediate_size=64,
        encoder_num_hidden_layers=1,
        encoder_num_attention_heads=2,
        decoder_num_hidden_layers=1,
        decoder_num_attention_heads=2,
        vocab_size=50,
        max_position_embeddings=40,
    )
    model = transformers.MoonshineForConditionalGeneration(config).eval()

    with pytest.raises(
        InputError, match="does not declare the sizes of its input_values"
    ) as refused:
        generation_steps(model)

    assert "encoder_inputs=" in refused.value.hint
