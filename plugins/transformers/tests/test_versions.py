"""Errors with an untested version of transformers name that version."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from delegraph.errors import InputError
from delegraph_transformers import models, versions

transformers = pytest.importorskip("transformers")
ROOT = Path(__file__).parents[3]
SIZES = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "vocab_size": 30,
}


def build():
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES)).eval()


def pretend_version(monkeypatch, number):
    """Let this version of transformers be installed."""
    monkeypatch.setattr(versions, "version", lambda name: number)


@pytest.mark.parametrize(
    "number", ["5.23.0", "5.23.4", "5.24.0", "5.24.9", "5.24.0.dev0"]
)
def test_tested_versions_are_not_named(monkeypatch, number):
    pretend_version(monkeypatch, number)
    assert versions.untried_version() == ""


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (
            "5.25.0",
            (
                "transformers 5.25.0 is newer than 5.24.0, the newest version that was"
                " tested"
            ),
        ),
        ("6.0.0rc1", "transformers 6.0.0rc1 is newer than 5.24.0"),
        (
            "5.9.1",
            (
                "transformers 5.9.1 is older than 5.23.0, the oldest version that was"
                " tested"
            ),
        ),
    ],
)
@pytest.mark.parametrize(
    "broken", [TypeError("no argument cache"), ImportError("no StaticCache")]
)
def test_errors_name_an_untested_version(monkeypatch, number, said, broken):
    from delegraph_transformers import generation_steps

    def fail(*args, **kwargs):
        raise broken

    pretend_version(monkeypatch, number)
    monkeypatch.setattr(models, "HeldCache", fail)
    with pytest.raises(InputError, match=str(broken)) as caught:
        generation_steps(build(), cache_length=8)
    assert said in caught.value.hint
    assert ">=5.23.0,<=5.24.0" in caught.value.hint


def test_an_untested_version_is_not_refused(monkeypatch):
    from delegraph_transformers import generation_steps

    pretend_version(monkeypatch, "5.99.0")
    assert generation_steps(build(), cache_length=8)["program"]


def test_errors_with_a_tested_version_are_raised_unchanged(monkeypatch):
    from delegraph_transformers import generation_steps

    def fail(*args, **kwargs):
        raise ImportError("no StaticCache")

    pretend_version(monkeypatch, versions.NEWEST)
    monkeypatch.setattr(models, "HeldCache", fail)
    with pytest.raises(ImportError, match="no StaticCache"):
        generation_steps(build(), cache_length=8)


RANGE = f"transformers>={versions.OLDEST.removesuffix('.0')},<6"
"""The versions that pip may install."""


def test_the_distribution_declares_the_oldest_tested_version():
    declared = (ROOT / "plugins/transformers/pyproject.toml").read_text()

    assert f'models = ["{RANGE}"]' in declared


def test_the_page_about_compatibility_has_the_tested_versions():
    page = (ROOT / "docs/compatibility.md").read_text()

    assert f"`{RANGE}`" in page
    assert versions.OLDEST in page
    assert versions.NEWEST in page


def test_the_nightly_tests_install_the_oldest_version():
    nightly = (ROOT / ".github/workflows/nightly.yml").read_text()

    assert f'"transformers=={versions.OLDEST}"' in nightly


def test_a_model_without_an_argument_for_a_cache_is_refused():
    from delegraph_transformers.caches import cache_argument

    with pytest.raises(InputError, match="Linear has no argument for a cache"):
        cache_argument(torch.nn.Linear(1, 1))
