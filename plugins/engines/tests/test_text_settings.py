"""``to_specs`` and ``from_specs``: settings of a backend as compile specs."""

from __future__ import annotations

import pytest
from delegraph.backend import CompileSpec
from delegraph.errors import OptionError
from delegraph_engines import from_specs, to_specs


def test_settings_go_into_compile_specs_and_back():
    specs = [*to_specs("acme_", {"flags": "-ä"}), CompileSpec("tosa_spec", b"x")]
    assert from_specs(specs, "acme_", {"flags": "", "cpu": "any"}) == (
        {"flags": "-ä", "cpu": "any"},
        specs[1:],
    )
    wrong = [
        [CompileSpec("acme_x", b"")],
        specs[:1] * 2,
        [CompileSpec("acme_cpu", b"\xff")],
    ]
    for given in wrong:
        with pytest.raises(OptionError):
            from_specs(given, "acme_", {"flags": "", "cpu": "any"})
    with pytest.raises(OptionError, match="tosa_spec"):
        from_specs(specs, "acme_", {"flags": ""}, only=True)
    for text in ("\0", "\udcff"):
        with pytest.raises(OptionError, match="'flags'"):
            to_specs("acme_", {"flags": text})
