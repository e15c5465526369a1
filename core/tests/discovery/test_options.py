"""Options have the declared types, or an error names the option."""

from pathlib import Path

import pytest
from delegraph.discovery.options import complete_options, from_text, split_assignments
from delegraph.errors import OptionError
from delegraph.plugin import OptionSpec

SPECS = (
    OptionSpec("mode", str, "fast", choices=("fast", "small")),
    OptionSpec("level", int),
    OptionSpec("scale", float, 0.5),
    OptionSpec("debug", bool, False),
    OptionSpec("folder", str),
)


def test_missing_options_get_their_defaults():
    assert complete_options(SPECS, {}, "backend 'x'") == {
        "mode": "fast",
        "scale": 0.5,
        "debug": False,
    }
    assert complete_options(SPECS, {"level": 3, "mode": None}, "x") == {
        "mode": "fast",
        "level": 3,
        "scale": 0.5,
        "debug": False,
    }


def test_list_options_are_lists_of_texts():
    specs = (OptionSpec("names", list),)
    assert complete_options(specs, {"names": ("a", "b")}, "x") == {"names": ["a", "b"]}
    assert from_text(specs, {"names": "a, b=0..1"}, "x") == {"names": ["a", "b=0..1"]}
    for wrong in ("a", ["a", 1]):
        with pytest.raises(
            OptionError, match="option 'names' of x is a list of texts, not"
        ):
            complete_options(specs, {"names": wrong}, "x")


def test_values_keep_their_types():
    values = complete_options(
        SPECS, {"scale": 2, "folder": Path("a") / "b", "debug": True, "level": 0}, "x"
    )

    assert values == {
        "mode": "fast",
        "level": 0,
        "scale": 2.0,
        "debug": True,
        "folder": "a/b",
    }
    assert isinstance(values["scale"], float)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            {"levle": 1},
            (
                "backend 'x' has no option 'levle'; did you mean 'level'? (it takes"
                " mode, level"
            ),
        ),
        (
            {"mode": "slow"},
            "option 'mode' of backend 'x' is one of 'fast', 'small', not 'slow'",
        ),
        ({"level": "3"}, "option 'level' of backend 'x' is int, not '3'"),
        ({"level": True}, "is int, not True"),
        ({"level": 1.0}, "is int, not 1.0"),
        ({"debug": 1}, "is bool, not 1"),
        ({"scale": "a"}, "is float, not 'a'"),
    ],
)
def test_wrong_values_are_named(given, words):
    with pytest.raises(OptionError) as caught:
        complete_options(SPECS, given, "backend 'x'")
    assert words in str(caught.value)
    assert caught.value.code == "option-invalid"


def test_a_backend_without_options_refuses_any():
    with pytest.raises(OptionError, match="it takes none"):
        complete_options((), {"level": 1}, "backend 'x'")


def test_texts_are_converted_to_the_declared_types():
    texts = {"mode": "small", "level": "0x10", "scale": "1e-3", "debug": "On"}
    assert from_text(SPECS, texts, "x") == {
        "mode": "small",
        "level": 16,
        "scale": 1e-3,
        "debug": True,
    }
    assert from_text(SPECS, {"debug": "no"}, "x") == {"debug": False}


@pytest.mark.parametrize(
    "texts",
    [{"level": "1.5"}, {"debug": "maybe"}, {"scale": ""}, {"mode": "slow"}, {"x": ""}],
)
def test_texts_of_the_wrong_type_are_refused(texts):
    with pytest.raises(OptionError):
        from_text(SPECS, texts, "x")


def test_assignments_are_split_by_backend():
    given = ["tosa.spec=TOSA-1.0+FP=x", "vendor/npu.level=3", "tosa.debug="]
    assert split_assignments(given, ["tosa", "vendor/npu"]) == {
        "tosa": {"spec": "TOSA-1.0+FP=x", "debug": ""},
        "vendor/npu": {"level": "3"},
    }


def test_the_only_backend_needs_no_name_in_assignments():
    assert split_assignments(["spec=a.b"], ["tosa"]) == {"tosa": {"spec": "a.b"}}


@pytest.mark.parametrize(
    "text", ["spec", "tosa.spec", "=x", "tosa.=x", "spec=x", "other.spec=x"]
)
def test_wrong_assignments_are_refused(text):
    with pytest.raises(OptionError):
        split_assignments([text], ["tosa", "demo"])
