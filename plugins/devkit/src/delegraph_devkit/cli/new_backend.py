"""``delegraph new-backend``: a package for a backend of one's own.

Importing this module imports no torch.
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
            help="of the package and, unless given, of the backend: such as my-npu",
        )
        parser.add_argument(
            "folder",
            nargs="?",
            type=Path,
            metavar="DIR",
            help="the folder to make (default: ./NAME)",
        )
        parser.add_argument(
            "--backend",
            metavar="NAME",
            help="of the backend, if the package is called otherwise",
        )
        parser.add_argument(
            "--device",
            action="store_true",
            help="with a C++ half that runs in ExecuTorch's runtime",
        )
        parser.add_argument(
            "--tosa", action="store_true", help="for a device whose compiler reads TOSA"
        )

    @staticmethod
    def run(args: argparse.Namespace) -> Outcome:
        names = _names(args.name, args.backend)
        folder = args.folder or Path(names.distribution)
        files = scaffold.generate(names, folder, args.device, args.tosa)
        commands = _commands(names.backend, folder, args.device)
        content = {
            **{
                "name": names.backend,
                "distribution": names.distribution,
                "package": names.package,
            },
            **{
                "backend_id": names.backend_id,
                "folder": str(folder),
                "files": files,
                "next": commands,
            },
        }
        listed = [
            f"wrote {folder}, a package with the backend {names.backend}"
            f" ({names.backend_id}):"
        ]
        text = [
            *listed,
            *(f"  {path}" for path in files),
            "next:",
            *(f"  {command}" for command in commands),
        ]
        return Outcome("delegraph.new-backend/1", content, "\n".join(text))


def _names(text: str, backend: str | None) -> scaffold.Names:
    what = "backend" if backend is None else "package"
    reason = scaffold.why_not(text)
    if reason is not None:
        raise UsageError(
            "usage-invalid",
            f"no {what} can be called {text!r}: {reason}",
            hint="a name such as my-npu",
        )
    reason = scaffold.why_no_backend(backend) if backend is not None else None
    if reason is not None:
        text = f"no backend can be called {backend!r}: {reason}"
        raise UsageError("usage-invalid", text, hint="a name such as my-npu")
    names = scaffold.Names.of(text, backend)
    owner = scaffold.taken(names)
    if owner is not None:
        asked = (
            repr(text) if backend is None else f"{text!r} with the backend {backend!r}"
        )
        hint = (
            f"choose another, such as: delegraph new-backend delegraph-{names.backend}"
            f" --backend {names.backend}"
        )
        raise UsageError(
            "usage-invalid",
            f"the name {asked} is taken: {owner}",
            hint=hint if backend is None else None,
        )
    return names


def _commands(backend: str, folder: Path, device: bool) -> list[str]:
    """The commands that come next, from the folder of the user: install, lower, check,
    and run on the device.
    """
    place = os.fspath(folder)
    example = shlex.quote(os.fspath(folder / "example.py"))
    # without a slash, pip looks in its index
    editable = place if os.sep in place else f"./{place}"
    commands = [
        f"pip install -e {shlex.quote(editable + ('[device]' if device else ''))}",
        f"delegraph lower {example} --backend {backend} --verify",
        f"delegraph check {backend}",
    ]
    on_device = [
        f"delegraph lower {example} --backend {backend} -o model.pte",
        "delegraph run model.pte --runtime executorch",
    ]
    return commands + on_device if device else commands
