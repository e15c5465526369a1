"""The versions of transformers that the tests ran with, for errors with other versions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version

from delegraph.errors import DelegraphError, InputError

OLDEST = "5.23.0"
NEWEST = "5.24.0"
"""The oldest and the newest version of transformers that the tests ran with."""


def untried_version() -> str:
    """Return a sentence about the installed transformers if its version was not tested.

    Otherwise return an empty string.
    """
    try:
        installed = version("transformers")
    except PackageNotFoundError:
        return ""
    # patch releases of a tested version count as tested
    if _numbers(OLDEST) <= _numbers(installed) <= _numbers(NEWEST):
        return ""
    if _numbers(installed) > _numbers(NEWEST):
        relation = f"newer than {NEWEST}, the newest"
    else:
        relation = f"older than {OLDEST}, the oldest"
    return f"transformers {installed} is {relation} version that was tested"


@contextmanager
def naming_untried_versions() -> Iterator[None]:
    """Name an untested version of transformers in errors of the block.

    An InputError gets it in its hint. Any other exception becomes an InputError, since
    another version may lack the classes and arguments that this distribution uses.
    """
    try:
        yield
    except InputError as error:
        untried = untried_version()
        if untried:
            error.hint = "; ".join(filter(None, [error.hint, _advice(untried)]))
        raise
    except DelegraphError:
        raise
    except Exception as error:
        untried = untried_version()
        if not untried:
            raise
        text = f"transformers failed: {type(error).__name__}: {error}"
        raise InputError("input-invalid", text, hint=_advice(untried)) from error


def _advice(untried: str) -> str:
    return f'{untried}: pip install "transformers>={OLDEST},<={NEWEST}"'


def _numbers(text: str) -> tuple[int, ...]:
    """Return the major and the minor number of a version."""
    return tuple(int(part) for part in text.split(".")[:2])
