"""``compare_releases`` decides by releases whether an engine can run a blob."""

from __future__ import annotations

import pytest
from delegraph_engines import compare_releases

HERE = "acme 2.4.9"
"""The engine's release on this host."""


@pytest.mark.parametrize(
    ("compiled_by", "reads_older", "verdict"),
    [
        # equal in the first two numbers
        ("acme 2.4.1", True, "runs"),
        ("acme 2.4.1", False, "runs"),
        # older
        ("acme 2.3", True, "runs"),
        ("acme 2.3", False, "rebuild"),
        # newer
        ("acme 3.0", True, "rebuild"),
        ("acme 3.0", False, "rebuild"),
    ],
)
def test_blobs_run_or_need_a_rebuild_by_release(compiled_by, reads_older, verdict):
    compatibility = compare_releases(compiled_by, HERE, reads_older=reads_older)

    assert compatibility.verdict == verdict


@pytest.mark.parametrize("reads_older", [True, False])
@pytest.mark.parametrize("compiled_by", ["x 2.4", ""], ids=["other engine", "unknown"])
def test_blobs_of_unknown_compilers_get_no_verdict(compiled_by, reads_older):
    assert compare_releases(compiled_by, HERE, reads_older=reads_older) is None
