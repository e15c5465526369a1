"""``generate``: files with shared caches, and wrong arguments."""

from __future__ import annotations

import delegraph
import numpy as np
import pytest
import torch
from delegraph.errors import InputError

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers

SIZES = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
}
SIZES |= {"vocab_size": 30, "max_position_embeddings": 32, "pad_token_id": 0}
PROMPT = [7, 3, 11, 2]


def lower(keep_caches, prompt_length=4):
    from delegraph_transformers import generation_steps

    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES)).eval()
    steps = generation_steps(
        model, prompt_length=prompt_length, cache_length=16, keep_caches=keep_caches
    )
    return delegraph.lower(**steps, backends=[])


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """Return one model with caches as inputs and with caches in the program, and files
    of both.
    """
    folder = tmp_path_factory.mktemp("models")
    taken = lower(keep_caches=False)
    kept = lower(keep_caches=True)
    taken.save(folder / "taken.pte")
    kept.save(folder / "apart.pte")
    kept.save(folder / "shared.pte", share_mutable_buffers=True)
    return {"taken": taken, "kept": kept, "folder": folder}


@pytest.mark.parametrize("warm_up", [True, False])
@pytest.mark.parametrize(
    "texts", [[PROMPT], [[5], PROMPT], [PROMPT[:2], [9, 9], PROMPT], [PROMPT[:1] * 9]]
)
def test_generation_refuses_files_with_separate_caches(programs, texts, warm_up):
    from delegraph_transformers import generate

    program = delegraph.load(programs["folder"] / "apart.pte")
    for text in texts[:-1]:  # decode alone makes these
        assert len(generate(program, text, 3, warm_up=warm_up).tokens) == 3
    for _ in range(3):
        with pytest.raises(InputError, match="the caches of this call are at position"):
            generate(program, texts[-1], 3, warm_up=warm_up)


@pytest.mark.parametrize("warm_up", [True, False])
@pytest.mark.parametrize("prompt", [[5], PROMPT, PROMPT * 2, [*PROMPT, 1]])
def test_files_with_shared_caches_generate_the_same_tokens(programs, prompt, warm_up):
    from delegraph_transformers import generate

    expected = generate(programs["taken"], prompt, 5).tokens
    program = delegraph.load(programs["folder"] / "shared.pte")
    for _ in range(2):
        assert generate(program, prompt, 5, warm_up=warm_up).tokens == expected


def test_the_command_refuses_a_file_without_common_memory(programs, capfd):
    from delegraph.cli import main

    command = [
        "generate",
        str(programs["folder"] / "apart.pte"),
        "--prompt-tokens",
        *map(str, PROMPT),
    ]
    assert main([*command, "--max-new-tokens", "3"]) == 1

    captured = capfd.readouterr()
    assert captured.out == ""
    assert "share_mutable_buffers=True" in captured.err


WRONG = {
    "no tokens": ({"prompt": []}, "at least 1 token each"),
    "text": (
        {"prompt": "hello"},
        "prompt must be a series of token numbers, not 'hello'",
    ),
    "bytes": ({"prompt": b"hello"}, "prompt must be a series of token numbers"),
    "a number": ({"prompt": 7}, "prompt must be a series of token numbers, not 7"),
    "None": ({"prompt": None}, "prompt must be a series of token numbers, not None"),
    "fractions": ({"prompt": [1.5, 2]}, "entry 0 is 1.5"),
    "words": ({"prompt": [1, "a"]}, "entry 1 is 'a'"),
    "booleans": ({"prompt": [True]}, "entry 0 is True"),
    "nested": ({"prompt": [[1, 2]]}, "entry 0 is of type list"),
    "a batch": (
        {"prompt": torch.ones(1, 3, dtype=torch.long)},
        r"not an array of shape \[1, 3\]",
    ),
    "scalar": (
        {"prompt": torch.tensor(3)},
        r"prompt must be a series of token numbers",
    ),
    "float tensor": (
        {"prompt": torch.ones(2)},
        "prompt must be a series of token numbers",
    ),
    "negative": ({"prompt": [1, -1]}, "no token -1"),
    "beyond the vocabulary": (
        {"prompt": [1, 30]},
        "no token 30; its tokens are 0 to 29",
    ),
    "huge": ({"prompt": [2**70]}, "no token 1180591620717411303424"),
    "stop is a number": ({"stop": 3}, "stop must be a series of token numbers, not 3"),
    "stop is text": ({"stop": "3"}, "stop must be a series of token numbers, not '3'"),
    "stop is None": (
        {"stop": None},
        "stop must be a series of token numbers, not None",
    ),
    "stop has text": ({"stop": ["3"]}, "entry 0 is '3'"),
    "stop beyond the vocabulary": ({"stop": [50256]}, "no token 50256"),
    "stop negative": ({"stop": [-1]}, "no token -1"),
    "count of text": (
        {"max_new_tokens": "3"},
        "max_new_tokens must be an integer; got '3'",
    ),
    "count is None": (
        {"max_new_tokens": None},
        "max_new_tokens must be an integer; got None",
    ),
    "count is a fraction": (
        {"max_new_tokens": 2.0},
        "max_new_tokens must be an integer; got 2.0",
    ),
    "count is a boolean": (
        {"max_new_tokens": True},
        "max_new_tokens must be an integer; got True",
    ),
    "count of 0": ({"max_new_tokens": 0}, "at least 1 token each"),
    "count below 0": ({"max_new_tokens": -2}, "at least 1 token each"),
    "something for encode": ({"given": [1]}, "the program has no method encode"),
}


@pytest.mark.parametrize("form", ["lowered", "file", "kept"])
@pytest.mark.parametrize(("arguments", "message"), WRONG.values(), ids=WRONG)
def test_wrong_arguments_are_input_errors(programs, form, arguments, message):
    from delegraph_transformers import generate

    program = programs["taken"]
    if form != "lowered":
        program = delegraph.load(
            programs["folder"] / ("taken.pte" if form == "file" else "shared.pte")
        )

    with pytest.raises(InputError, match=message):
        generate(program, **{"prompt": PROMPT, "max_new_tokens": 2, **arguments})


@pytest.mark.parametrize(
    "prompt", [PROMPT, tuple(PROMPT), range(3), torch.tensor(PROMPT), np.array(PROMPT)]
)
def test_prompts_are_series_of_any_kind(programs, prompt):
    from delegraph_transformers import generate

    expected = generate(programs["taken"], [int(token) for token in prompt], 3).tokens
    assert generate(programs["taken"], prompt, 3, stop={29}).tokens[:3] == expected


@pytest.mark.parametrize("program", [None, torch.nn.Linear(1, 1), [1, 2], "model.pte"])
def test_generation_refuses_objects_that_are_no_programs(program):
    from delegraph_transformers import generate

    with pytest.raises(InputError, match="program"):
        generate(program, PROMPT, 3)


@pytest.mark.parametrize("given", [[], "text", [1.5], [-1], [0] * 17, None, 3])
def test_wrong_texts_for_encode_are_input_errors(t5, given):
    from delegraph_transformers import generate

    with pytest.raises(InputError, match=r"given|tokens|no token"):
        generate(t5, [0], 3, given=given)


@pytest.fixture(scope="module")
def t5():
    from delegraph_transformers import generation_steps

    sizes = {
        "d_model": 16,
        "d_kv": 8,
        "d_ff": 16,
        "num_layers": 1,
        "num_heads": 2,
        "vocab_size": 30,
    }
    model = transformers.T5ForConditionalGeneration(
        transformers.T5Config(**sizes, decoder_start_token_id=0)
    ).eval()
    return delegraph.lower(**generation_steps(model, cache_length=16), backends=[])


@pytest.mark.parametrize("name", ["prompt_length", "cache_length", "batch"])
@pytest.mark.parametrize("value", [0, -1, 2.5, "3", True])
def test_wrong_sizes_of_steps_are_input_errors(name, value):
    from delegraph_transformers import generation_steps

    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES)).eval()
    with pytest.raises(InputError, match=f"{name} must be a positive integer"):
        generation_steps(model, **{name: value})


FLAGS = {
    "no new tokens": ["--max-new-tokens", "0"],
    "fewer than none": ["--max-new-tokens", "-1"],
    "words": ["--max-new-tokens", "many"],
    "a stop beyond the vocabulary": ["--stop", "99"],
    "a negative stop": ["--stop", "-1"],
    "an unknown runtime": ["--runtime", "none"],
    "something for encode": ["--given-tokens", "1"],
}


@pytest.mark.parametrize("flags", FLAGS.values(), ids=FLAGS)
def test_wrong_flags_give_one_error(programs, flags, capfd):
    from delegraph.cli import main

    command = [
        "generate",
        str(programs["folder"] / "taken.pte"),
        "--prompt-tokens",
        "7",
        *flags,
    ]
    try:
        code = main(command)
    except SystemExit as end:  # argparse
        code = end.code
    captured = capfd.readouterr()

    assert code in (1, 2)
    assert captured.out == ""
    assert captured.err.count("error") == 1
    assert "Traceback" not in captured.err


def test_an_empty_prompt_of_text_is_an_error(programs, tmp_path, capfd):
    from delegraph.cli import main

    tokenizers = pytest.importorskip("tokenizers")
    words = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({"a": 1, "b": 2}, unk_token="a")
    )
    words.save(str(tmp_path / "tokenizer.json"))
    command = [
        "generate",
        str(programs["folder"] / "taken.pte"),
        "--tokenizer",
        str(tmp_path / "tokenizer.json"),
    ]

    assert main([*command, "--prompt", ""]) == 1
    assert "at least 1 token each" in capfd.readouterr().err
