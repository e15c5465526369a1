"""Compatibility of stored blobs, by the release of their engine."""

from __future__ import annotations

import re

from delegraph.runtime import Compatibility

_RELEASE = re.compile(r"(.{1,80}) (\d{1,6})\.(\d{1,6})")


def compare_releases(
    compiled_by: str, here: str, reads_older: bool
) -> Compatibility | None:
    """Return the verdict on a blob by two releases, such as ``openvino 2026.4.1``.

    Only the first two numbers of a release count. ``compiled_by``: the fingerprint of
    the blob. ``here``: the release on this host. ``reads_older``: the engine promises
    to read files of older releases; without it, only an equal release "runs". Returns
    None if a text is not a release, or if the texts name different compilers.
    """
    theirs = _RELEASE.match(compiled_by)
    ours = _RELEASE.match(here)
    if theirs is None or ours is None or theirs[1] != ours[1]:
        return None
    their_numbers = (int(theirs[2]), int(theirs[3]))
    our_numbers = (int(ours[2]), int(ours[3]))
    runs = their_numbers == our_numbers or (reads_older and their_numbers < our_numbers)
    return Compatibility(
        "runs" if runs else "rebuild",
        f"compiled by {theirs.group()}, and {ours.group()} is here",
    )
