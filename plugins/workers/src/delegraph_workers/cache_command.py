"""List, measure and clear a cache of compiled partitions: ``delegraph cache``."""

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
            "list the entries (default), print their size, remove all of them, or"
            " remove damaged ones"
        )
        choices = ("list", "size", "clear", "verify")
        parser.add_argument(
            "action", nargs="?", default="list", choices=choices, help=actions
        )
        place = "the folder (default: $DELEGRAPH_CACHE, or the user's folder)"
        parser.add_argument("--cache", type=Path, metavar="DIR", help=place)
        parser.add_argument(
            "--shared",
            action="store_true",
            help="allow a folder that other users own or can write to",
        )

    @staticmethod
    def run(args: argparse.Namespace) -> Outcome:
        from .cache import Cache

        folder = args.cache or os.environ.get("DELEGRAPH_CACHE") or None
        if folder is not None and not os.path.isdir(folder):
            raise UsageError(
                "usage-invalid",
                f"there is no folder {folder}",
                hint="create a cache with delegraph lower --cache DIR",
            )
        cache = Cache(folder, shared=args.shared)
        entries = sorted(cache.entries(), key=lambda entry: -entry.used)
        rows: list[dict[str, Any]] = []
        removed: set[str] = set()
        if args.action == "clear":
            removed = _remove(cache, [entry.key for entry in entries])
        else:
            rows = [_row(entry) for entry in entries]
        if args.action == "verify":
            removed = _remove(cache, [row["key"] for row in rows if row["damaged"]])
        rows = [row for row in rows if row["key"] not in removed]
        size = sum(row["bytes"] for row in rows)
        content = {
            "folder": str(cache.folder),
            "bytes": size,
            "entries": rows,
            "removed": sorted(removed),
        }
        lines = []
        if args.action == "list":
            lines = [_line(row) for row in rows]
        elif args.action in ("clear", "verify"):
            lines = [f"removed: {pluralize(len(removed), 'file')}"]
        lines.append(
            f"{pluralize(len(rows), 'file')}, {format_size(size)}, in {cache.folder}"
        )
        return Outcome("delegraph.cache/1", content, "\n".join(lines))


def _remove(cache: Cache, keys: Sequence[str]) -> set[str]:
    """Remove entries; return their keys.

    Raises WriteError if some cannot be removed, such as entries of other users.
    """
    errors: list[OSError] = []
    for key in keys:
        try:
            cache.remove([key])
        except OSError as e:
            errors.append(e)
    if errors:
        raise WriteError(
            "write-failed",
            f"{len(errors)} of {pluralize(len(keys), 'file')} in {cache.folder} could"
            f" not be removed: {errors[0].strerror or errors[0]}",
        )
    return set(keys)


def _row(entry: Any) -> dict[str, Any]:
    """Return the facts of an entry. Reading it does not count as use."""
    facts = dict[str, str]()
    damaged = False
    try:
        header, _ = unpacked(entry.key, entry.path.read_bytes())
        facts = {str(name): str(value) for name, value in dict(header[0]).items()}
    except OSError as e:  # another process removed it, or another user owns it
        facts = {"cannot be read:": e.strerror or str(e)}
    except (FormatError, TypeError, ValueError, LookupError):
        damaged = True
    return {
        "key": entry.key,
        "bytes": entry.bytes,
        "used": entry.used,
        "damaged": damaged,
        "facts": facts,
    }


def _line(row: dict[str, Any]) -> str:
    used = datetime.fromtimestamp(row["used"]).strftime("%Y-%m-%d %H:%M")
    about = ", ".join(f"{name} {value}" for name, value in row["facts"].items())
    if row["damaged"]:
        about = "damaged"
    return f"{row['key'][:12]}  {used}  {format_size(row['bytes'])}  {about}"
