"""Language models of transformers from ``lower`` to tokens; the judge is transformers'
own greedy search.
"""

from __future__ import annotations

import argparse
import json
import re
from concurrent.futures import ThreadPoolExecutor

import delegraph
import pytest
import torch
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


def small_model(kind="Llama", **more):
    sizes = {
        **SIZES,
        "num_key_value_heads": 1,
        "vocab_size": 50,
        "max_position_embeddings": 64,
        "pad_token_id": 0,
    }
    config = getattr(
        transformers, f"{kind}Config" if kind != "Gemma3" else "Gemma3TextConfig"
    )
    torch.manual_seed(0)
    model = getattr(transformers, f"{kind}ForCausalLM")(config(**sizes, **more)).eval()
    model.generation_config.cache_config = {"batch_size": 1, "max_cache_len": 30}
    return model


def mamba():
    sizes = {
        "num_heads": 4,
        "head_dim": 16,
        "state_size": 8,
        "n_groups": 2,
        "chunk_size": 8,
    }
    config = transformers.Mamba2Config(
        hidden_size=32, num_hidden_layers=1, vocab_size=50, pad_token_id=0, **sizes
    )
    torch.manual_seed(0)
    return transformers.Mamba2ForCausalLM(config).eval()


def greedy_tokens(model, count):
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


def test_lowered_programs_and_files_generate_the_tokens_of_eager(llama, tmp_path):
    from delegraph_transformers import generate

    model, lowered = llama
    expected = greedy_tokens(model, 20)
    done = generate(lowered, PROMPT, 20)
    assert done.tokens == expected
    assert all(rate > 0 for rate in done.rates)
    files = [tmp_path / "prefill.tosa", tmp_path / "decode.tosa"]
    for file, delegate in zip(files, lowered.delegates, strict=True):
        delegate.save(file)
    assert (
        generate([delegraph.load(file) for file in files], PROMPT, 20).tokens
        == expected
    )
    stopped = generate(lowered, PROMPT, 20, stop=expected[2:3])
    assert stopped.tokens == expected[: expected.index(expected[2]) + 1]


def test_the_command_generates_from_a_pte_file(llama, tmp_path):
    from delegraph_transformers.command import Generate

    model, lowered = llama
    lowered.save(tmp_path / "m.pte")
    parser = argparse.ArgumentParser()
    Generate.add_arguments(parser)
    prompt = ["--prompt-tokens", *map(str, PROMPT), "--max-new-tokens", "20"]
    told = Generate.run(parser.parse_args([str(tmp_path / "m.pte"), *prompt]))
    expected = greedy_tokens(model, 20)
    assert told.content["tokens"] == expected
    assert told.content["peak_memory"] > 0
    assert told.text.startswith(
        " ".join(map(str, expected)) + "\n7 tokens of the prompt in "
    )
    with pytest.raises(UsageError, match="either --prompt-tokens or --prompt"):
        Generate.run(parser.parse_args([str(tmp_path / "m.pte")]))


def test_lower_keeps_the_generation_config_of_the_model():
    model = small_model()
    settings = model.generation_config.to_dict()
    lowered = delegraph.lower(model, backends=[])
    assert lowered.methods == ["prefill", "decode"]
    assert model.generation_config.to_dict() == settings
    caches = [
        node
        for node in lowered.exported_program("decode").graph.nodes
        if node.name.startswith("caches")
    ]
    assert {tuple(n.meta["val"].shape) for n in caches} == {(1, 1, 30, 16)}


def test_models_with_states_continue_from_given_states():
    from delegraph_transformers import generation_steps

    model = mamba()
    step = generation_steps(model)["program"]["decode"]
    tokens = [*PROMPT, *greedy_tokens(model, 20)]
    scores = torch.empty(0)
    states = step.empty_caches
    made = []
    with torch.no_grad():
        # pieces of 3, 3 and 1 tokens, and then each token that eager made
        for begin, end in [
            (0, 3),
            (3, 6),
            *((k, k + 1) for k in range(6, len(tokens) - 1)),
        ]:
            kept = [state.clone() for state in states]
            scores, after = step(
                torch.tensor([tokens[begin:end]]), torch.tensor([begin]), states
            )
            assert all(map(torch.equal, states, kept)), (
                "what the caller passed stays as it is"
            )
            states = after
            made += [int(scores.argmax())] if end >= len(PROMPT) else []
    assert made == tokens[len(PROMPT) :]
    assert not any(state.any() for state in step.empty_caches)


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A model whose methods share its caches in a file, the lowered program, and the
    file.
    """
    from delegraph_transformers import generation_steps

    model = small_model()
    path = tmp_path_factory.mktemp("kept") / "m.pte"
    lowered = delegraph.lower(
        **generation_steps(model, prompt_length=3, keep_caches=True), backends=[]
    )
    lowered.save(path, share_mutable_buffers=True)
    return model, lowered, path


@pytest.mark.parametrize("runtime", [None, "executorch"])
def test_methods_share_caches_that_the_file_keeps(kept, runtime):
    from delegraph_transformers import generate

    if runtime:
        pytest.importorskip("executorch.runtime")
    model, _, path = kept
    program = delegraph.load(path, runtime=runtime)
    expected = greedy_tokens(model, 20)
    for _ in range(2):  # the second text begins where the first one left its rows
        assert generate(program, PROMPT, 20).tokens == expected
    assert generate(program, PROMPT[:2], 5).tokens != expected[:5]
    assert generate(program, PROMPT, 20).tokens == expected


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    """A tokenizer.json whose tokens are w0 to w49."""
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({f"w{k}": k for k in range(50)}, unk_token="w0")
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    path = tmp_path_factory.mktemp("words") / "tokenizer.json"
    tokenizer.save(str(path))
    return path


@pytest.mark.parametrize("more", [[], ["--no-warm-up"], ["--runtime", "executorch"]])
def test_the_command_generates_from_a_file_that_keeps_its_caches(
    kept, words, more, capfd
):
    from delegraph.cli import main

    if "executorch" in more:
        pytest.importorskip("executorch.runtime")
    model, _, path = kept
    expected = greedy_tokens(model, 20)
    command = ["generate", str(path), *more]
    assert main([*command, "--prompt-tokens", *map(str, PROMPT)]) == 0
    shown = capfd.readouterr().out.splitlines()
    assert shown[0] == " ".join(map(str, expected))
    assert [
        re.sub(r"\d[\d.e+]*", "_", line).replace("ms", "s") for line in shown[1:]
    ] == [
        "_ tokens of the prompt in _ s: _ tokens/s",
        "_ tokens after the first in _ s: _ tokens/s",
        "loaded in _ s; peak memory _ MB, _ MB before the file was loaded",
    ]
    assert shown[1].startswith("7 tokens")
    assert shown[2].startswith("19 tokens")
    text = [
        "--prompt",
        " ".join(f"w{k}" for k in PROMPT),
        "--tokenizer",
        str(words),
        "--json",
    ]
    assert main([*command, *text]) == 0
    told = json.loads(capfd.readouterr().out)
    assert told["prompt"] == PROMPT
    assert told["tokens"] == expected
    assert told["text"] == " ".join(f"w{k}" for k in expected)
    assert 0 < told["memory_before"] <= told["peak_memory"]
    for count, seconds, rate in (
        (7, "prompt_seconds", "prompt_tokens_per_second"),
        (19, "seconds", "tokens_per_second"),
    ):
        assert told[rate] == pytest.approx(count / told[seconds])


@pytest.mark.parametrize(
    ("arguments", "said"),
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
    kept, arguments, said, tmp_path, monkeypatch, capfd
):
    from delegraph.cli import main

    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.json").write_bytes(b"\xff{}")
    assert main(["generate", str(kept[2]), *arguments]) in (1, 2)
    assert said in capfd.readouterr().err


def test_threads_share_kept_caches_one_text_at_a_time(kept):
    from delegraph_transformers import generate

    program = delegraph.load(kept[2])
    prompts = [PROMPT, PROMPT[:2], PROMPT[1:]]
    expected = [generate(program, prompt, 8).tokens for prompt in prompts]
    with ThreadPoolExecutor(len(prompts)) as threads:
        assert [
            made.tokens
            for made in threads.map(lambda p: generate(program, p, 8), prompts)
        ] == expected


def test_programs_with_kept_caches_take_tokens_and_position(kept):
    from delegraph_transformers import generate

    _, lowered, path = kept
    program = delegraph.load(path)
    assert [value.name for value in program.summary.methods[0].inputs] == [
        "input_ids",
        "position",
    ]
    scores, seen = program.method("decode")(torch.tensor([[7]]), torch.tensor([0]))
    assert scores.shape == (1, 50)
    assert seen.tolist() == [-1, 30]
    assert program.method("prefill")(torch.tensor([[7, 3, 11]]), torch.tensor([1]))[
        1
    ].tolist() == [0, 30]
    with pytest.raises(
        InputError,
        match=r"7 tokens and 25 more do not fit into the cache of 30 tokens",
    ):
        generate(program, PROMPT, 25)
    with pytest.raises(
        InputError,
        match="was at position 3, but the caches of this call are at position 0",
    ):
        generate(lowered, PROMPT, 5)


def test_files_with_separate_caches_of_methods_are_refused(kept, tmp_path):
    from delegraph_transformers import generate

    _, lowered, _ = kept
    lowered.save(tmp_path / "apart.pte")
    with pytest.raises(InputError, match="the caches of this call are at position 0"):
        generate(delegraph.load(tmp_path / "apart.pte"), PROMPT, 5)


def test_two_files_that_keep_their_caches_are_refused(kept, tmp_path):
    from delegraph_transformers import generate, generation_steps

    steps = generation_steps(kept[0], prompt_length=3, keep_caches=True)
    for name in ("prefill", "decode"):
        one = {
            key: {name: value[name]} for key, value in steps.items() if name in value
        }
        delegraph.lower(**one, backends=[]).save(tmp_path / f"{name}.pte")
    with pytest.raises(InputError, match="the caches of this call are at position 0"):
        generate(
            [
                delegraph.load(tmp_path / f"{name}.pte")
                for name in ("prefill", "decode")
            ],
            PROMPT,
            5,
        )


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
    step = generation_steps(model, prompt_length=3, keep_caches=True)["program"][
        "decode"
    ]
    expected = greedy_tokens(model, 4)
    with torch.no_grad():
        for text in range(2):
            made = []
            for position, token in enumerate([*PROMPT, *expected[:-1]]):
                scores, seen = step(torch.tensor([[token]]), torch.tensor([position]))
                assert seen.tolist() == [
                    position - 1 if position else (-1, len(PROMPT) + 2)[text],
                    0,
                ]
                made.append(int(scores.argmax()))
            assert made[len(PROMPT) - 1 :] == expected


def test_prompts_and_models_that_do_not_fit_are_refused(llama):
    from delegraph_transformers import generate, generation_steps
    from delegraph_transformers.sources import read

    _, lowered = llama
    with pytest.raises(
        InputError,
        match=r"7 tokens and 25 more do not fit into the cache of 30 tokens",
    ):
        generate(lowered, PROMPT, 25)
    with pytest.raises(InputError, match="at least 1 token each"):
        generate(lowered, [], 3)
    linear = delegraph.lower(
        torch.nn.Linear(2, 2).eval(), (torch.ones(1, 2),), backends=[]
    )
    with pytest.raises(InputError, match="has no method decode"):
        generate(linear, PROMPT, 3)
    with pytest.raises(InputError, match="BertModel does not generate"):
        generation_steps(transformers.BertModel(transformers.BertConfig(**SIZES)))
    with pytest.raises(InputError, match="there is no folder 'nowhere'"):
        read("nowhere")


def quantized(model, weights):
    """``model`` with weights of torchao, or as it is for "float"."""
    from torchao.quantization import Int8DynamicActivationIntxWeightConfig as Dynamic
    from torchao.quantization import (
        Int8WeightOnlyConfig,
        IntxWeightOnlyConfig,
        PerGroup,
        quantize_,
    )

    configs = {
        "int8": Int8WeightOnlyConfig(),
        "int4": IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(16)),
        # what XNNPACK takes
        "8da4w": Dynamic(weight_dtype=torch.int4, weight_granularity=PerGroup(32)),
    }
    if weights in configs:
        quantize_(model, configs[weights])
    return model


@pytest.mark.parametrize(
    "weights",
    ["8da4w", *(pytest.param(w, marks=pytest.mark.slow) for w in ("int8", "int4"))],
)
@pytest.mark.parametrize(
    "backend",
    [None, *(pytest.param(b, marks=pytest.mark.slow) for b in ("xnnpack", "tosa"))],
)
def test_quantized_weights_work_with_kept_caches(weights, backend, tmp_path):
    from delegraph_transformers import generate, generation_steps

    model = quantized(small_model(), weights)
    expected = greedy_tokens(model, 20)
    backends = [backend] if backend else []
    if (weights, backend) == ("8da4w", "xnnpack"):
        # which rounds activations otherwise than eager: the same file with its caches
        # as arguments is the judge
        steps = generation_steps(model, prompt_length=3)
        delegraph.lower(**steps, backends=backends).save(tmp_path / "taken.pte")
        expected = generate(delegraph.load(tmp_path / "taken.pte"), PROMPT, 20).tokens
    steps = generation_steps(model, prompt_length=3, keep_caches=True)
    delegraph.lower(**steps, backends=backends).save(
        tmp_path / "kept.pte", share_mutable_buffers=True
    )
    for runtime in (None, "executorch") if backend != "tosa" else (None,):
        if runtime:
            pytest.importorskip("executorch.runtime")
        program = delegraph.load(tmp_path / "kept.pte", runtime=runtime)
        assert [generate(program, PROMPT, 20).tokens for _ in range(2)] == [
            expected,
            expected,
        ]


@pytest.mark.slow
@pytest.mark.parametrize("weights", ["float", "int8", "int4"])
@pytest.mark.parametrize("backend", ["tosa", "xnnpack"])
@pytest.mark.parametrize(
    "kind", ["Llama", "Qwen3", "Gemma3", "Phi3", "Mixtral", "Mamba2"]
)
def test_each_family_generates_the_tokens_of_eager(kind, backend, weights, tmp_path):
    from delegraph_transformers import generate, generation_steps

    more = {
        "Qwen3": {"head_dim": 16},
        "Gemma3": {"head_dim": 16, "sliding_window": 8},
        "Mixtral": {"num_local_experts": 4},
    }
    model = quantized(
        mamba() if kind == "Mamba2" else small_model(kind, **more.get(kind, {})),
        weights,
    )
    if kind == "Mixtral":
        model.set_experts_implementation("batched_mm")
    lowered = delegraph.lower(
        **generation_steps(model, prompt_length=3), backends=[backend]
    )
    lowered.save(tmp_path / "m.pte")
    expected = greedy_tokens(model, 20)
    assert generate(lowered, PROMPT, 20).tokens == expected
    assert generate(delegraph.load(tmp_path / "m.pte"), PROMPT, 20).tokens == expected
    steps = generation_steps(model, prompt_length=3, keep_caches=True)
    delegraph.lower(**steps, backends=[backend]).save(
        tmp_path / "kept.pte", share_mutable_buffers=True
    )
    for runtime in (None, "executorch") if backend == "xnnpack" else (None,):
        program = delegraph.load(tmp_path / "kept.pte", runtime=runtime)
        assert [generate(program, PROMPT, 20).tokens for _ in range(2)] == [
            expected,
            expected,
        ]
    if backend == "tosa" and len(lowered.delegates) == 2:
        files = [tmp_path / "prefill.tosa", tmp_path / "decode.tosa"]
        for file, delegate in zip(files, lowered.delegates, strict=True):
            delegate.save(file)
        assert (
            generate([delegraph.load(file) for file in files], PROMPT, 20).tokens
            == expected
        )
