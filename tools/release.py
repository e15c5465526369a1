"""What a release is made of. Run from the root of the repository, with Python and `pip
install build hatchling`:

    python tools/release.py version               # the version, if all distributions agree on it
    python tools/release.py version 0.2.0         # write it everywhere; the release workflow does so with the tag
    python tools/release.py build OUT             # wheels and sdists of all distributions
    python tools/release.py build OUT --twice     # built a second time from a copy, and compared byte for byte
    python tools/release.py rehearse OUT          # a stranger's machine: pip, an index of OUT, and nothing else

Building needs no git: an sdist, an archive and a clone give the same files. Times in
archives are SOURCE_DATE_EPOCH or, without it, a fixed day.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = (
    "programs",
    "core",
    *sorted(
        str(p.parent.relative_to(ROOT)) for p in ROOT.glob("plugins/*/pyproject.toml")
    ),
)
"""The distributions; each has a pyproject.toml."""
VERSIONS = (
    ("*/pyproject.toml", r'^(version = ")[^"]+(")$'),
    ("*/pyproject.toml", r'("delegraph(?:-\w+)?==)[^"]+(")'),
    ("programs/src/delegraph_programs/__init__.py", r'^(__version__ = ")[^"]+(")$'),
    ("core/src/delegraph/__init__.py", r'^(__version__ = ")[^"]+(")$'),
    ("CITATION.cff", r"^(version: )\S+()$"),
)
"""Files, and what in them is the version: the text between the two groups."""
_VERSION = re.compile(r"\d+\.\d+\.\d+((a|b|rc)\d+)?")


def main() -> int:
    """Carry out a command; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("version").add_argument("version", nargs="?")
    build = commands.add_parser("build")
    build.add_argument("out", type=Path)
    build.add_argument("--twice", action="store_true")
    rehearsal = commands.add_parser("rehearse")
    rehearsal.add_argument("out", type=Path)
    rehearsal.add_argument("--torch", default="torch==2.13.0")
    arguments = parser.parse_args()
    if arguments.command == "version":
        return _set(arguments.version) if arguments.version else _show()
    if arguments.command == "build":
        return (
            _build_and_compare(arguments.out.resolve())
            if arguments.twice
            else _build(ROOT, arguments.out.resolve())
        )
    return _rehearse(arguments.out.resolve(), arguments.torch)


# --- the version ----------------------------------------------------------------------


def _places() -> Iterable[tuple[Path, re.Pattern[str]]]:
    """Each file with a version, and the pattern around it."""
    for files, pattern in VERSIONS:
        found = (
            [ROOT / f / "pyproject.toml" for f in FOLDERS]
            if files.startswith("*")
            else [ROOT / files]
        )
        yield from ((file, re.compile(pattern, re.MULTILINE)) for file in found)


def versions() -> dict[str, set[str]]:
    """File -> the versions that it names."""
    found: dict[str, set[str]] = {}
    for file, pattern in _places():
        text = file.read_text("utf-8")
        named = {text[m.end(1) : m.start(2)] for m in pattern.finditer(text)}
        found.setdefault(str(file.relative_to(ROOT)), set()).update(named)
    return found


def _show() -> int:
    found = versions()
    if len(set().union(*found.values())) != 1:
        print(
            "the files do not agree:",
            *(f"  {file}: {sorted(v)}" for file, v in found.items()),
            sep="\n",
        )
        return 1
    print(*set().union(*found.values()))
    return 0


def _set(version: str) -> int:
    if not _VERSION.fullmatch(version):
        print(f"a version is 1.2.3 or 1.2.3rc1, not {version!r}")
        return 1
    for file, pattern in _places():
        text = file.read_text("utf-8")
        file.write_text(pattern.sub(rf"\g<1>{version}\g<2>", text), "utf-8")
    return _show()


# --- archives -------------------------------------------------------------------------


def _build(root: Path, out: Path) -> int:
    """Build the sdist of each distribution, and its wheel from that sdist."""
    out.mkdir(parents=True, exist_ok=True)
    for folder in FOLDERS:
        _python(
            "-m", "build", "--no-isolation", "--outdir", str(out), str(root / folder)
        )
    print(f"{len([*out.iterdir()])} archives in {out}")
    return 0


def _build_and_compare(out: Path) -> int:
    """Build from here and from a copy in another folder, with another umask, and
    compare.
    """
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "a copy")
        second = Path(folder, "second")
        ignored = shutil.ignore_patterns(
            ".*cache", ".git", ".venv", "__pycache__", "dist"
        )
        for part in FOLDERS:
            shutil.copytree(ROOT / part, copy / part, ignore=ignored)
        shutil.copy(ROOT / ".gitignore", copy)
        _build(ROOT, out)
        old = os.umask(0o077)
        try:
            _build(copy, second)
        finally:
            os.umask(old)
        return _compare(out, second)


def _compare(first: Path, second: Path) -> int:
    sums = [
        {
            p.name: hashlib.sha256(p.read_bytes()).hexdigest()
            for p in sorted(f.iterdir())
        }
        for f in (first, second)
    ]
    different = [
        name for name in sums[0] | sums[1] if sums[0].get(name) != sums[1].get(name)
    ]
    (
        print(*(f"differs: {name}" for name in different), sep="\n")
        if different
        else print("both builds are equal")
    )
    return 1 if different else 0


# --- a stranger's machine -------------------------------------------------------------

MODEL = """
import torch

def model():
    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(288, 4))
    return layers.eval(), (torch.randn(1, 3, 8, 8),)
"""


def _rehearse(out: Path, torch: str) -> int:
    """In an empty folder and environment: install from an index of ``out``, lower,
    verify, write a backend.

    torch and the like come from the index that pip is set up with, the distributions
    from ``out``.
    """
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "model.py").write_text(MODEL)
        index = _index(out, place / "index")
        python = _environment(place / "machine")
        pip = (
            python,
            "-m",
            "pip",
            "install",
            "-qq",
            "--extra-index-url",
            index.as_uri(),
        )
        binaries = Path(python).parent
        steps: list[Sequence[str]] = [
            (*pip, torch, "delegraph", "delegraph-tosa"),
            (
                str(binaries / "delegraph"),
                "lower",
                "model.py",
                "--backend",
                "tosa",
                "-o",
                "model.tosa",
                "--verify",
            ),
            (
                *pip,
                "delegraph-devkit",
                "delegraph-analysis",
                "pytest",
                "hatchling",
                "editables",
            ),
            (str(binaries / "delegraph"), "new-backend", "my-npu"),
            (*pip, "--no-build-isolation", "-e", "./my-npu"),
            (str(binaries / "delegraph"), "check", "my-npu", "--quick"),
            (python, "-m", "pytest", "-q", "my-npu"),
            (str(binaries / "delegraph"), "lower", "model.py", "--backend", "my-npu"),
        ]
        environment = {
            k: v
            for k, v in os.environ.items()
            if not k.startswith(("DELEGRAPH", "PYTHON"))
        }
        for step in steps:
            print(
                "$",
                " ".join(
                    Path(step[0]).name if k == 0 else part
                    for k, part in enumerate(step)
                ),
                flush=True,
            )
            code = subprocess.run(step, cwd=place, env=environment).returncode
            if code:
                print(f"ended with {code}")
                return 1
    return 0


def _environment(folder: Path) -> str:
    """Make an environment with pip; returns its Python."""
    venv.create(folder, with_pip=True)
    return str(folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python"))


def _index(archives: Path, folder: Path) -> Path:
    """A package index as files: a page for each distribution, with links to its
    archives.
    """
    for archive in sorted(archives.iterdir()):
        name = archive.name.partition("-")[0].replace("_", "-")
        page = folder / name / "index.html"
        page.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(archive, page.parent)
        with page.open("a") as lines:
            lines.write(f'<a href="{archive.name}">{archive.name}</a>\n')
    return folder


def _python(*arguments: str) -> None:
    """Run this Python quietly. Raises SystemExit with what it printed if it fails."""
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)


if __name__ == "__main__":
    sys.exit(main())
