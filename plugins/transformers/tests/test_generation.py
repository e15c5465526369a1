"""Lowered language models generate the tokens of transformers' own greedy search."""

from __future__ import annotations

import argparse
import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import delegraph
import pytest
import torch
from delegraph.cli import main
from delegraph.errors import InputError, UsageError

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers and torchao

PROMPT = [7, 3, 11, 2, 40, 9, 1]
SIZES = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
}


MORE_SIZES = {
    "Qwen3": {"head_dim": 16},
    "Gemma3": {"head_dim": 16, "sliding_window": 8},
    "Mixtral": {"num_local_experts": 4},
}
"""Sizes that only some kinds of models have."""
CONFIGS = {"Gemma3": "Gemma3TextConfig"}
"""Names of configs that differ from the name of the model."""


def small_model(kind="Llama"):
    """Return a model of one layer with a vocabulary of 50 and a cache of 30 tokens."""
    config = getattr(transformers, CONFIGS.get(kind, f"{kind}Config"))(
        **SIZES,
        **MORE_SIZES.get(kind, {}),
        num_key_value_heads=1,
        vocab_size=50,
        max_position_embeddings=64,
        pad_token_id=0,
    )
    torch.manual_seed(0)
    model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    model.generation_config.cache_config = {"batch_size": 1, "max_cache_len": 30}
    return model


def mamba():
    """Return a model whose state does not grow with the text."""
    config = transformers.Mamba2Config(
        hidden_size=32,
        num_hidden_layers=1,
        vocab_size=50,
        pad_token_id=0,
        num_heads=4,
        head_dim=16,
        state_size=8,
        n_groups=2,
        chunk_size=8,
    )
    torch.manual_seed(0)
    return transformers.Mamba2ForCausalLM(config).eval()


def greedy_tokens(model, count):
    """Return the tokens that transformers generates after ``PROMPT``."""
    with torch.no_grad():
        made = model.generate(
            torch.tensor([PROMPT]),
            max_new_tokens=count,
            do_sample=False,
            eos_token_id=None,
        )
    return made[0, len(PROMPT) :].tolist()


@pytest.fixture(scope="module")
def llama():
    """A model, and its program for TOSA, whose prefill takes 3 tokens."""
    from delegraph_transformers import generation_steps

    model = small_model()
    return model, delegraph.lower(
        **generation_steps(model, prompt_length=3), backends=["tosa"], require_full=True
    )


def test_lowered_programs_generate_the_tokens_of_eager(llama):
    from delegraph_transformers import generate

    model, lowered = llama

    generated = generate(lowered, PROMPT, 20)

    assert generated.tokens == greedy_tokens(model, 20)
    assert all(rate > 0 for rate in generated.rates)


def test_generation_ends_with_a_stop_token(llama):
    from delegraph_transformers import generate

    model, lowered = llama
    expected = greedy_tokens(model, 20)
    stop = expected[2]

    generated = generate(lowered, PROMPT, 20, stop=[stop])

    assert generated.tokens == expected[: expected.index(stop) + 1]


def load_delegate_files(lowered, folder):
    """Save the delegates of prefill and decode as files, and load them."""
    files = [folder / "prefill.tosa", folder / "decode.tosa"]
    for file, delegate in zip(files, lowered.delegates, strict=True):
        delegate.save(file)
    return [delegraph.load(file) for file in files]


def test_delegate_files_generate_the_tokens_of_eager(llama, tmp_path):
    from delegraph_transformers import generate

    model, lowered = llama
    files = load_delegate_files(lowered, tmp_path)

    assert generate(files, PROMPT, 20).tokens == greedy_tokens(model, 20)


@pytest.fixture
def run_generate(llama, tmp_path):
    """Return a function that runs the command for a file, and returns its result."""
    from delegraph_transformers.command import Generate

    _, lowered = llama
    lowered.save(tmp_path / "m.pte")
    parser = argparse.ArgumentParser()
    Generate.add_arguments(parser)

    def run(*words):
        return Generate.run(parser.parse_args([str(tmp_path / "m.pte"), *words]))

    return run


def test_the_command_generates_from_a_pte_file(llama, run_generate):
    model, _ = llama
    expected = greedy_tokens(model, 20)

    result = run_generate(
        "--prompt-tokens", *map(str, PROMPT), "--max-new-tokens", "20"
    )

    assert result.content["tokens"] == expected
    assert result.content["peak_memory"] > 0
    first_line, second_line, *_ = result.text.splitlines()
    assert first_line == " ".join(map(str, expected))
    assert second_line.startswith("7 tokens of the prompt in ")


def test_the_command_needs_a_prompt(run_generate):
    with pytest.raises(UsageError, match="either --prompt-tokens or --prompt"):
        run_generate()


def test_models_are_lowered_with_a_cache_of_their_config():
    lowered = delegraph.lower(small_model(), backends=[])

    assert lowered.methods == ["prefill", "decode"]
    shapes = {
        tuple(node.meta["val"].shape)
        for node in lowered.exported_program("decode").graph.nodes
        if node.name.startswith("caches")
    }
    # batch, heads, tokens, numbers of a head
    assert shapes == {(1, 1, 30, 16)}


def test_lower_keeps_the_generation_config_of_the_model():
    model = small_model()
    settings = model.generation_config.to_dict()

    delegraph.lower(model, backends=[])

    assert model.generation_config.to_dict() == settings


def test_models_with_states_continue_from_given_states():
    from delegraph_transformers import generation_steps

    model = mamba()
    step = generation_steps(model)["program"]["decode"]
    expected = greedy_tokens(model, 20)
    tokens = [*PROMPT, *expected]
    # the prompt has 7 tokens; eager generated the others
    pieces = [tokens[0:3], tokens[3:6], *([token] for token in tokens[6:-1])]

    states = step.empty_caches
    position = 0
    best_tokens = []
    with torch.no_grad():
        for piece in pieces:
            scores, states = step(
                torch.tensor([piece]), torch.tensor([position]), states
            )
            position += len(piece)
            best_tokens.append(int(scores.argmax()))

    assert best_tokens[2:] == expected


def test_steps_do_not_write_to_the_states_of_the_caller():
    from delegraph_transformers import generation_steps

    step = generation_steps(mamba())["program"]["decode"]
    with torch.no_grad():
        _, states = step(torch.tensor([[7]]), torch.tensor([0]), step.empty_caches)
        copies = [state.clone() for state in states]

        step(torch.tensor([[3]]), torch.tensor([1]), states)

    assert all(map(torch.equal, states, copies))
    assert not any(state.any() for state in step.empty_caches)


class Kept(NamedTuple):
    """A model, its lowered program whose methods share caches, and the saved file."""

    model: torch.nn.Module
    lowered: delegraph.LoweredProgram
    path: Path


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    from delegraph_transformers import generation_steps

    model = small_model()
    path = tmp_path_factory.mktemp("kept") / "m.pte"
    steps = generation_steps(model, prompt_length=3, keep_caches=True)
    lowered = delegraph.lower(**steps, backends=[])
    lowered.save(path, share_mutable_buffers=True)
    return Kept(model, lowered, path)


@pytest.mark.parametrize("runtime", [None, "executorch"])
def test_methods_share_caches_that_the_file_keeps(kept, runtime):
    """Each text begins with the caches that the text before it left."""
    from delegraph_transformers import generate

    if runtime:
        pytest.importorskip("executorch.runtime")
    program = delegraph.load(kept.path, runtime=runtime)
    expected = greedy_tokens(kept.model, 20)

    assert generate(program, PROMPT, 20).tokens == expected
    assert generate(program, PROMPT, 20).tokens == expected
    assert generate(program, PROMPT[:2], 5).tokens != expected[:5]
    assert generate(program, PROMPT, 20).tokens == expected


def words_of(tokens):
    """Return a text of these tokens for the tokenizer of the tests."""
    return " ".join(f"w{token}" for token in tokens)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """Return the path of a tokenizer.json whose tokens are the words w0 to w49."""
    tokenizers = pytest.importorskip("tokenizers")
    vocabulary = {f"w{token}": token for token in range(50)}
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.WordLevel(vocabulary, unk_token="w0")
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    tokenizer.save(str(path))
    return path


@pytest.fixture(
    params=[[], ["--no-warm-up"], ["--runtime", "executorch"]],
    ids=["default", "no warm-up", "executorch"],
)
def command(request, kept):
    """Return the words of a command that generates 20 tokens from the file."""
    if "executorch" in request.param:
        pytest.importorskip("executorch.runtime")
    return ["generate", str(kept.path), *request.param]


def test_the_command_prints_tokens_and_rates(command, kept, capfd):
    expected = greedy_tokens(kept.model, 20)

    assert main([*command, "--prompt-tokens", *map(str, PROMPT)]) == 0

    tokens, prompt, rest, memory = capfd.readouterr().out.splitlines()
    assert tokens == " ".join(map(str, expected))
    number = r"\d[\d.e+-]*"
    speed = f"{number} m?s: {number} tokens/s"
    assert re.fullmatch(f"7 tokens of the prompt in {speed}", prompt)
    assert re.fullmatch(f"19 tokens after the first in {speed}", rest)
    assert re.fullmatch(
        f"loaded in {number} m?s; peak memory {number} MB,"
        f" {number} MB before the file was loaded",
        memory,
    )


def test_the_command_takes_and_returns_text(command, kept, tokenizer, capfd):
    expected = greedy_tokens(kept.model, 20)
    prompt = ["--prompt", words_of(PROMPT), "--tokenizer", str(tokenizer)]

    assert main([*command, *prompt, "--json"]) == 0

    content = json.loads(capfd.readouterr().out)
    assert content["prompt"] == PROMPT
    assert content["tokens"] == expected
    assert content["text"] == words_of(expected)


def test_json_of_the_command_has_memory_and_rates(command, capfd):
    prompt = ["--prompt-tokens", *map(str, PROMPT)]

    assert main([*command, *prompt, "--json"]) == 0

    content = json.loads(capfd.readouterr().out)
    assert 0 < content["memory_before"] <= content["peak_memory"]
    assert content["prompt_tokens_per_second"] == pytest.approx(
        7 / content["prompt_seconds"]
    )
    # the prompt gave the first of 20 tokens
    assert content["tokens_per_second"] == pytest.approx(19 / content["seconds"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--prompt-tokens", "7", "50"],
            "the model has no token 50; its tokens are 0 to 49",
        ),
        (
            ["--prompt-tokens", "7", "--max-new-tokens", "31"],
            "1 tokens and 31 more do not fit into the cache of",
        ),
        (
            ["--prompt", "w1", "--tokenizer", "broken.json"],
            "broken.json is not a valid tokenizer.json",
        ),
        (["--prompt", "w1"], "--prompt needs --tokenizer"),
    ],
)
def test_wrong_arguments_of_the_command_are_explained(
    kept, arguments, message, tmp_path, monkeypatch, capfd
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.json").write_bytes(b"\xff{}")

    assert main(["generate", str(kept.path), *arguments]) in (1, 2)

    assert message in capfd.readouterr().err


def test_threads_take_turns_with_kept_caches(kept):
    from delegraph_transformers import generate

    program = delegraph.load(kept.path)
    prompts = [PROMPT, PROMPT[:2], PROMPT[1:]]

    def generate_tokens(prompt):
        return generate(program, prompt, 8).tokens

    expected = [generate_tokens(prompt) for prompt in prompts]
    with ThreadPoolExecutor(len(prompts)) as threads:
        assert list(threads.map(generate_tokens, prompts)) == expected


def test_programs_with_kept_caches_take_tokens_and_position(kept):
    prefill = delegraph.load(kept.path).summary.methods[0]

    assert [value.name for value in prefill.inputs] == ["input_ids", "position"]


def test_steps_return_the_position_before_and_the_cache_length(kept):
    """``generate`` checks by them that the methods share their caches."""
    program = delegraph.load(kept.path)

    scores, seen = program.method("decode")(torch.tensor([[7]]), torch.tensor([0]))
    assert scores.shape == (1, 50)
    assert seen.tolist() == [-1, 30]  # -1: there was no call

    _, seen = program.method("prefill")(torch.tensor([[7, 3, 11]]), torch.tensor([1]))
    assert seen.tolist() == [0, 30]


def test_texts_longer_than_kept_caches_are_refused(kept):
    from delegraph_transformers import generate

    with pytest.raises(
        InputError,
        match=r"7 tokens and 25 more do not fit into the cache of 30 tokens",
    ):
        generate(delegraph.load(kept.path), PROMPT, 25)


def test_lowered_programs_whose_methods_share_no_caches_are_refused(kept):
    """Only the file shares them."""
    from delegraph_transformers import generate

    with pytest.raises(
        InputError,
        match="was at position 3, but the caches of this call are at position 0",
    ):
        generate(kept.lowered, PROMPT, 5)


def test_files_with_separate_caches_of_methods_are_refused(kept, tmp_path):
    from delegraph_transformers import generate

    kept.lowered.save(tmp_path / "apart.pte")  # without share_mutable_buffers

    with pytest.raises(InputError, match="the caches of this call are at position 0"):
        generate(delegraph.load(tmp_path / "apart.pte"), PROMPT, 5)


def test_two_files_that_keep_their_caches_are_refused(kept, tmp_path):
    from delegraph_transformers import generate, generation_steps

    steps = generation_steps(kept.model, prompt_length=3, keep_caches=True)
    files = []
    for method in ("prefill", "decode"):
        arguments = {
            key: {method: values[method]}
            for key, values in steps.items()
            if method in values
        }
        path = tmp_path / f"{method}.pte"
        delegraph.lower(**arguments, backends=[]).save(path)
        files.append(delegraph.load(path))

    with pytest.raises(InputError, match="the caches of this call are at position 0"):
        generate(files, PROMPT, 5)


@pytest.mark.parametrize("results", [1, 2])
def test_programs_with_wrong_results_are_no_generation_step(results, tmp_path):
    from delegraph_transformers import generate

    class Scores(torch.nn.Module):
        def forward(self, input_ids, position):
            return (input_ids[..., None] * torch.ones(50) + position,) * results

    inputs = {
        "input_ids": torch.ones(1, 1, dtype=torch.long),
        "position": torch.tensor([0]),
    }
    lowered = delegraph.lower(
        {"prefill": Scores(), "decode": Scores()},
        example_kwargs={"prefill": inputs, "decode": inputs},
        backends=[],
    )
    lowered.save(tmp_path / "m.pte")
    with pytest.raises(InputError, match="must return scores and two numbers"):
        generate(delegraph.load(tmp_path / "m.pte"), [1, 2], 3)


def test_kept_states_are_zeroed_when_a_text_begins():
    from delegraph_transformers import generation_steps

    model = mamba()
    steps = generation_steps(model, prompt_length=3, keep_caches=True)
    step = steps["program"]["decode"]
    expected = greedy_tokens(model, 4)
    tokens = [*PROMPT, *expected[:-1]]

    with torch.no_grad():
        for text in ("first", "second"):
            best_tokens = []
            positions_before = []
            for position, token in enumerate(tokens):
                scores, seen = step(torch.tensor([[token]]), torch.tensor([position]))
                position_before, cache_length = seen.tolist()
                assert cache_length == 0  # a state has no length
                positions_before.append(position_before)
                best_tokens.append(int(scores.argmax()))

            assert best_tokens[len(PROMPT) - 1 :] == expected
            last = len(tokens) - 1
            at_begin = -1 if text == "first" else last
            assert positions_before == [at_begin, *range(last)]


def test_texts_longer_than_the_cache_are_refused(llama):
    from delegraph_transformers import generate

    _, lowered = llama

    with pytest.raises(
        InputError,
        match=r"7 tokens and 25 more do not fit into the cache of 30 tokens",
    ):
        generate(lowered, PROMPT, 25)


def test_empty_prompts_are_refused(llama):
    from delegraph_transformers import generate

    _, lowered = llama

    with pytest.raises(InputError, match="at least 1 token each"):
        generate(lowered, [], 3)


def test_programs_without_a_method_decode_do_not_generate():
    from delegraph_transformers import generate

    linear = delegraph.lower(
        torch.nn.Linear(2, 2).eval(), (torch.ones(1, 2),), backends=[]
    )

    with pytest.raises(InputError, match="has no method decode"):
        generate(linear, PROMPT, 3)


def test_models_that_do_not_generate_have_no_steps():
    from delegraph_transformers import generation_steps

    with pytest.raises(InputError, match="BertModel does not generate"):
        generation_steps(transformers.BertModel(transformers.BertConfig(**SIZES)))


def test_missing_folders_of_models_are_named():
    from delegraph_transformers.sources import read

    with pytest.raises(InputError, match="there is no folder 'nowhere'"):
        read("nowhere")


def quantize_weights(model, weights):
    """Quantize the model's weights with torchao, unless ``weights`` is "float"."""
    from torchao.quantization import (
        Int8DynamicActivationIntxWeightConfig,
        Int8WeightOnlyConfig,
        IntxWeightOnlyConfig,
        PerGroup,
        quantize_,
    )

    configs = {
        "int8": Int8WeightOnlyConfig(),
        "int4": IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(16)),
        # the only one that XNNPACK supports; activations have 8 bits
        "8da4w": Int8DynamicActivationIntxWeightConfig(
            weight_dtype=torch.int4, weight_granularity=PerGroup(32)
        ),
    }
    if weights != "float":
        quantize_(model, configs[weights])


def save_with_kept_caches(model, backends, path):
    from delegraph_transformers import generation_steps

    steps = generation_steps(model, prompt_length=3, keep_caches=True)
    lowered = delegraph.lower(**steps, backends=backends)
    lowered.save(path, share_mutable_buffers=True)


def slow(value):
    return pytest.param(value, marks=pytest.mark.slow)


@pytest.mark.parametrize("weights", ["8da4w", slow("int8"), slow("int4")])
@pytest.mark.parametrize("backend", [None, slow("xnnpack"), slow("tosa")])
def test_quantized_weights_work_with_kept_caches(weights, backend, tmp_path):
    from delegraph_transformers import generate, generation_steps

    model = small_model()
    quantize_weights(model, weights)
    backends = [backend] if backend else []
    if (weights, backend) == ("8da4w", "xnnpack"):
        # XNNPACK rounds activations in another way than eager: compare with the same
        # program, which takes its caches as arguments
        steps = generation_steps(model, prompt_length=3)
        delegraph.lower(**steps, backends=backends).save(tmp_path / "taken.pte")
        expected = generate(delegraph.load(tmp_path / "taken.pte"), PROMPT, 20).tokens
    else:
        expected = greedy_tokens(model, 20)

    save_with_kept_caches(model, backends, tmp_path / "kept.pte")

    runtimes = [None] if backend == "tosa" else [None, "executorch"]
    for runtime in runtimes:
        if runtime:
            pytest.importorskip("executorch.runtime")
        program = delegraph.load(tmp_path / "kept.pte", runtime=runtime)
        assert generate(program, PROMPT, 20).tokens == expected
        assert generate(program, PROMPT, 20).tokens == expected


EACH_FAMILY = [
    pytest.mark.slow,
    pytest.mark.parametrize("weights", ["float", "int8", "int4"]),
    pytest.mark.parametrize("backend", ["tosa", "xnnpack"]),
    pytest.mark.parametrize(
        "kind", ["Llama", "Qwen3", "Gemma3", "Phi3", "Mixtral", "Mamba2"]
    ),
]


def each_family(test):
    """Run a test for each kind of model, backend and kind of weights."""
    for mark in EACH_FAMILY:
        test = mark(test)
    return test


def model_of_family(kind, weights):
    model = mamba() if kind == "Mamba2" else small_model(kind)
    quantize_weights(model, weights)
    if kind == "Mixtral":
        model.set_experts_implementation("batched_mm")
    return model


@each_family
def test_each_family_generates_the_tokens_of_eager(kind, backend, weights, tmp_path):
    from delegraph_transformers import generate, generation_steps

    model = model_of_family(kind, weights)
    expected = greedy_tokens(model, 20)
    steps = generation_steps(model, prompt_length=3)

    lowered = delegraph.lower(**steps, backends=[backend])
    lowered.save(tmp_path / "m.pte")
    loaded = delegraph.load(tmp_path / "m.pte")

    assert generate(lowered, PROMPT, 20).tokens == expected
    assert generate(loaded, PROMPT, 20).tokens == expected
    if backend == "tosa" and len(lowered.delegates) == 2:
        files = load_delegate_files(lowered, tmp_path)
        assert generate(files, PROMPT, 20).tokens == expected


@each_family
def test_each_family_can_keep_its_caches(kind, backend, weights, tmp_path):
    from delegraph_transformers import generate

    model = model_of_family(kind, weights)
    expected = greedy_tokens(model, 20)

    save_with_kept_caches(model, [backend], tmp_path / "kept.pte")

    runtimes = [None, "executorch"] if backend == "xnnpack" else [None]
    for runtime in runtimes:
        program = delegraph.load(tmp_path / "kept.pte", runtime=runtime)
        assert generate(program, PROMPT, 20).tokens == expected
        assert generate(program, PROMPT, 20).tokens == expected
