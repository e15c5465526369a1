"""Describe errors of libraries for remote stores: their texts may contain secrets."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping

__all__ = ["StoreError", "kind_and_status"]


class StoreError(Exception):
    """A store does not answer, or answers with an error.

    Reports show its text, which must contain no secret.
    """


def kind_and_status(error: BaseException) -> str:
    """Return the class of a foreign error, and its status or errno, for reports.

    Its text is left out: it may quote an address with a password or token.
    """
    name = type(error).__name__
    status = _status(error)
    if status is not None:
        return f"{name} (status {status})"
    number = getattr(error, "errno", None)
    if isinstance(error, OSError) and type(number) is int and number in errno.errorcode:
        return f"{name} ({os.strerror(number)})"
    return name


def _status(error: BaseException) -> int | None:
    """Return the HTTP status of an error; None if it has none."""
    response = getattr(error, "response", None)
    for owner in (error, response):
        for attribute in ("status", "status_code"):
            status = getattr(owner, attribute, None)
            if type(status) is int:
                return status
    if isinstance(response, Mapping):  # of botocore
        metadata = response.get("ResponseMetadata")
        if isinstance(metadata, Mapping):
            status = metadata.get("HTTPStatusCode")
            return status if type(status) is int else None
    return None
