"""``delegraph cache``: what is in a cache of compiled partitions, and how to be rid of
it.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from delegraph.command import Outcome
from delegraph.errors import FormatError, UsageError, WriteError
from delegraph.report import format_size, pluralize

from .entry_bytes import unpacked

if TYPE_CHECKING:
    from .cache import Cache


class CacheCommand:
    """``delegraph cache``."""

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        actions = (
            "list the entries (default), say how large they are, remove all, or remove"
            " those that are damaged"
        )
        choices = ("list", "size", "clear", "verify")
        parser.add_argument(
            "action", nargs="?", default="list", choices=choices, help=actions
        )
        place = "the folder (default: $DELEGRAPH_CACHE, else the user's)"
        parser.add_argument("--cache", type=Path, metavar="DIR", help=place)
        parser.add_argument(
            "--shared",
            action="store_true",
            help="others may own the folder or write to it",
        )

    @staticmethod
    def run(args: argparse.Namespace) -> Outcome:
        from .cache import Cache

        folder = args.cache or os.environ.get("DELEGRAPH_CACHE") or None
        if folder is not None and not os.path.isdir(folder):
            raise UsageError(
                "usage-invalid",
                f"there is no folder {folder}",
                hint="delegraph lower --cache makes one",
            )
        cache = Cache(folder, shared=args.shared)
        entries = sorted(cache.entries(), key=lambda entry: -entry.used)
        # which reads all of it
        rows = [] if args.action == "clear" else [_row(entry) for entry in entries]
        doomed = {
            "clear": [entry.key for entry in entries],
            "verify": [row["key"] for row in rows if row["damaged"]],
        }
        removed = _remove(cache, doomed.get(args.action, []))
        rows = [row for row in rows if row["key"] not in removed]
        size = sum(row["bytes"] for row in rows)
        content = {
            "folder": str(cache.folder),
            "bytes": size,
            "entries": rows,
            "removed": sorted(removed),
        }
        lines = [_line(row) for row in rows] if args.action == "list" else []
        lines += (
            [f"removed: {pluralize(len(removed), 'file')}"]
            if args.action in ("clear", "verify")
            else []
        )
        lines.append(
            f"{pluralize(len(rows), 'file')}, {format_size(size)}, in {cache.folder}"
        )
        return Outcome("delegraph.cache/1", content, "\n".join(lines))


def _remove(cache: Cache, keys: Sequence[str]) -> set[str]:
    """Remove entries; returns their keys.

    Raises WriteError if some are left, such as those of others in a folder.
    """
    errors: list[OSError] = []
    for key in keys:
        try:
            cache.remove([key])
        except OSError as e:
            errors.append(e)
    if errors:
        text = (
            f"{len(errors)} of {pluralize(len(keys), 'file')} in {cache.folder} could"
            " not be removed"
        )
        raise WriteError("write-failed", f"{text}: {errors[0].strerror or errors[0]}")
    return set(keys)


def _row(entry: Any) -> dict[str, Any]:
    """What there is to tell of an entry; of one that is damaged, that it is.

    Looking at it does not count as use.
    """
    told = dict[str, str]()
    damaged = False
    try:
        facts = dict(unpacked(entry.key, entry.path.read_bytes())[0][0])
        told = {str(name): str(value) for name, value in facts.items()}
    except OSError as e:  # it may be gone by now, or be somebody's who can read it
        told = {"cannot be read:": e.strerror or str(e)}
    except (FormatError, TypeError, ValueError, LookupError):
        # a header of another kind has no facts in it
        damaged = True
    return {
        "key": entry.key,
        "bytes": entry.bytes,
        "used": entry.used,
        "damaged": damaged,
        "told": told,
    }


def _line(row: dict[str, Any]) -> str:
    used = datetime.fromtimestamp(row["used"]).strftime("%Y-%m-%d %H:%M")
    told = (
        "damaged"
        if row["damaged"]
        else ", ".join(f"{name} {value}" for name, value in row["told"].items())
    )
    return f"{row['key'][:12]}  {used}  {format_size(row['bytes'])}  {told}"
