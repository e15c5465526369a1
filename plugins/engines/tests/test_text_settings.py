"""``to_specs`` and ``from_specs`` store settings of a backend as compile specs."""

from __future__ import annotations

import pytest
from delegraph.backend import CompileSpec
from delegraph.errors import OptionError
from delegraph_engines import from_specs, to_specs

DEFAULTS = {"flags": "", "cpu": "any"}


def test_settings_go_into_compile_specs_and_back():
    foreign_spec = CompileSpec("tosa_spec", b"x")
    specs = [*to_specs("acme_", {"flags": "-ä"}), foreign_spec]

    settings, other_specs = from_specs(specs, "acme_", DEFAULTS)

    assert settings == {"flags": "-ä", "cpu": "any"}
    assert other_specs == [foreign_spec]


@pytest.mark.parametrize(
    "specs",
    [
        [CompileSpec("acme_x", b"")],
        [CompileSpec("acme_flags", b"a"), CompileSpec("acme_flags", b"a")],
        [CompileSpec("acme_cpu", b"\xff")],
    ],
    ids=["unknown name", "given twice", "not UTF-8"],
)
def test_invalid_specs_are_refused(specs):
    with pytest.raises(OptionError):
        from_specs(specs, "acme_", DEFAULTS)


def test_specs_of_others_are_refused_if_none_are_allowed():
    specs = [CompileSpec("tosa_spec", b"x")]

    with pytest.raises(OptionError, match="tosa_spec"):
        from_specs(specs, "acme_", DEFAULTS, only=True)


@pytest.mark.parametrize("text", ["\0", "\udcff"], ids=["NUL", "lone surrogate"])
def test_texts_that_specs_cannot_store_are_refused(text):
    with pytest.raises(OptionError, match="'flags'"):
        to_specs("acme_", {"flags": text})
