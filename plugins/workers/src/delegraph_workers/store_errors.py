"""Words for errors of libraries that open addresses, whose texts may hold secrets."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping

__all__ = ["StoreError", "kind_and_status"]


class StoreError(Exception):
    """A store does not answer, or answers with an error.

    Reports show its text, which must hold no secret.
    """


def kind_and_status(error: BaseException) -> str:
    """The class of a foreign error, and its status or errno, for reports.

    Its text is left out: it may quote an address with a password or token, in any form.
    """
    shown = type(error).__name__
    response = getattr(error, "response", None)
    candidates = [
        getattr(holder, name, None)
        for holder in (error, response)
        for name in ("status", "status_code")
    ]
    if isinstance(response, Mapping):  # of botocore
        metadata = response.get("ResponseMetadata")
        candidates.append(
            metadata.get("HTTPStatusCode") if isinstance(metadata, Mapping) else None
        )
    status = next((c for c in candidates if type(c) is int), None)
    number = getattr(error, "errno", None)
    if status is not None:
        return f"{shown} (status {status})"
    if isinstance(error, OSError) and type(number) is int and number in errno.errorcode:
        return f"{shown} ({os.strerror(number)})"
    return shown
