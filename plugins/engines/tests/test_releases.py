"""``compare_releases``: verdicts on blobs by the release of their engine."""

from __future__ import annotations

import pytest
from delegraph_engines import compare_releases

VERDICTS = {
    "acme 2.4.1": ("runs", "runs"),
    "acme 2.3": ("runs", "rebuild"),
    "acme 3.0": ("rebuild", "rebuild"),
    "x 2.4": (None, None),
    "": (None, None),
}


@pytest.mark.parametrize("compiled_by", VERDICTS)
def test_a_verdict_by_release(compiled_by):
    verdicts = [
        compare_releases(compiled_by, "acme 2.4.9", reads_older=o)
        for o in (True, False)
    ]
    assert [v and v.verdict for v in verdicts] == [*VERDICTS[compiled_by]]
