"""Write a package for a new backend: ``delegraph new-backend``.

This module does not import torch.
"""

from __future__ import annotations

import argparse
import os
import shlex
from pathlib import Path

from delegraph.command import Outcome
from delegraph.errors import UsageError

from .. import scaffold


class NewBackend:
    """``delegraph new-backend``."""

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "name",
            metavar="NAME",
            help="name of the package, and of the backend by default, such as my-npu",
        )
        parser.add_argument(
            "folder",
            nargs="?",
            type=Path,
            metavar="DIR",
            help="folder of the package (default: ./NAME)",
        )
        parser.add_argument(
            "--backend",
            metavar="NAME",
            help="name of the backend, if the package has another name",
        )
        parser.add_argument(
            "--device",
            action="store_true",
            help="add a C++ half that runs in ExecuTorch's runtime",
        )
        parser.add_argument(
            "--tosa", action="store_true", help="write a compiler that reads TOSA"
        )

    @staticmethod
    def run(args: argparse.Namespace) -> Outcome:
        names = _names(args.name, args.backend)
        folder = args.folder or Path(names.distribution)
        files = scaffold.generate(names, folder, args.device, args.tosa)
        commands = _commands(names.backend, folder, args.device)
        content = {
            "name": names.backend,
            "distribution": names.distribution,
            "package": names.package,
            "backend_id": names.backend_id,
            "folder": str(folder),
            "files": files,
            "next": commands,
        }
        lines = [
            f"wrote {folder}, a package with the backend {names.backend}"
            f" ({names.backend_id}):"
        ]
        lines += [f"  {path}" for path in files]
        lines.append("next:")
        lines += [f"  {command}" for command in commands]
        return Outcome("delegraph.new-backend/1", content, "\n".join(lines))


def _names(text: str, backend: str | None) -> scaffold.Names:
    """Return the names of the package; raise UsageError if one is invalid or taken."""
    kind = "backend" if backend is None else "package"
    _require_valid(kind, text, scaffold.why_not(text))
    if backend is not None:
        _require_valid("backend", backend, scaffold.why_no_backend(backend))
    names = scaffold.Names.of(text, backend)
    owner = scaffold.taken(names)
    if owner is None:
        return names
    if backend is not None:
        raise UsageError(
            "usage-invalid",
            f"the name {text!r} with the backend {backend!r} is taken: {owner}",
        )
    raise UsageError(
        "usage-invalid",
        f"the name {text!r} is taken: {owner}",
        hint="choose another name, such as: delegraph new-backend"
        f" delegraph-{names.backend} --backend {names.backend}",
    )


def _require_valid(kind: str, name: str, reason: str | None) -> None:
    if reason is not None:
        raise UsageError(
            "usage-invalid",
            f"no {kind} can be called {name!r}: {reason}",
            hint="choose a name such as my-npu",
        )


def _commands(backend: str, folder: Path, device: bool) -> list[str]:
    """Return the next commands: install, lower, check, and run on the device."""
    place = os.fspath(folder)
    example = shlex.quote(os.fspath(folder / "example.py"))
    # without a slash, pip looks in its index
    editable = place if os.sep in place else f"./{place}"
    if device:
        editable += "[device]"
    commands = [
        f"pip install -e {shlex.quote(editable)}",
        f"delegraph lower {example} --backend {backend} --verify",
        f"delegraph check {backend}",
    ]
    if device:
        commands += [
            f"delegraph lower {example} --backend {backend} -o model.pte",
            "delegraph run model.pte --runtime executorch",
        ]
    return commands
