"""The tests that need nothing but torch, in a fresh environment of this Python: for
other systems and other Pythons.

    python tools/portable.py --torch torch==2.13.0                 # makes the environment, with a network
    python tools/portable.py --python .venv/bin/python             # in an environment that is there
    python tools/portable.py --without-torch                       # compiles and reads all modules that need no torch;
                                # pip install pluggy packaging argcomplete

The whole suite also needs the reference tools of TOSA, ExecuTorch and the engines,
which have wheels for few systems: it is run by .ci/run, on Linux.
"""

from __future__ import annotations

import argparse
import compileall
import os
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
INSTALLED = (
    "programs",
    "core",
    "plugins/tosa_backend",
    "plugins/demo_backend",
    "plugins/devkit",
    "plugins/analysis",
)
INSTALLED += (
    "plugins/engines",
    "plugins/dynamo",
    "plugins/vision",
    "plugins/executorch_backend",
    "plugins/workers",
    "plugins/transformers",
)
NEEDED = (
    "pytest==9.2.0",
    "pytest-xdist==3.8.0",
    "hypothesis==6.168.5",
    "jsonschema==4.24.0",
)
TESTS = (
    "programs/tests",
    "core/tests",
    "plugins/dynamo/tests",
    "plugins/vision/tests",
    "tests/test_portability.py",
)
FORKS = ("core/tests/cli", "core/tests/acceptance")
"""Left out where there are no forks: they start commands from a warm Python."""


def main() -> int:
    """Make the environment, and run; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--torch", default="torch==2.13.0")
    parser.add_argument("--python")
    parser.add_argument("--without-torch", action="store_true")
    arguments = parser.parse_args()
    failed = _compile()
    if arguments.without_torch:
        return failed or _import_light_modules()
    with tempfile.TemporaryDirectory() as folder:
        python = arguments.python or _environment(Path(folder), arguments.torch)
        left_out = (
            () if hasattr(os, "fork") else tuple(f"--ignore={path}" for path in FORKS)
        )
        command = [python, "-m", "pytest", "-q", *left_out, *TESTS]
        return failed or subprocess.run(command, cwd=ROOT).returncode


def _compile() -> int:
    """Whether a module is no Python of this version."""
    folders = (
        ROOT / "programs/src",
        ROOT / "core/src",
        *ROOT.glob("plugins/*/src"),
        ROOT / "tests",
        ROOT / "examples",
        ROOT / "tools",
    )
    # texts with names to fill in
    template = re.compile(r"[\\/](device_)?template[\\/]")
    with tempfile.TemporaryDirectory() as cache:
        sys.pycache_prefix = cache
        done = [
            compileall.compile_dir(f, quiet=1, force=True, rx=template) for f in folders
        ]
    print(
        f"Python {sys.version.split()[0]}: {len(done)} folders compiled,"
        f" {done.count(False)} with errors"
    )
    return int(not all(done))


def _import_light_modules() -> int:
    """Whether a module that promises to import no torch cannot be imported."""
    sys.path[:0] = [
        str(ROOT / "programs/src"),
        str(ROOT / "core/src"),
        *map(str, ROOT.glob("plugins/*/src")),
    ]
    names = [
        "delegraph_programs",
        "delegraph",
        "delegraph.errors",
        "delegraph.plugin",
        "delegraph.cli",
        "delegraph.io.atomic_write",
    ]
    names += [
        f"{p.parent.name}.plugin"
        for p in sorted(ROOT.glob("plugins/*/src/*/plugin.py"))
    ]
    for name in names:
        __import__(name)
    print(
        f"{len(names)} light modules imported; torch is"
        f" {'there' if 'torch' in sys.modules else 'not'} among them"
    )
    return int("torch" in sys.modules)


def _environment(folder: Path, torch: str) -> str:
    """An environment with torch, the distributions and what the tests need; returns its
    Python.
    """
    venv.create(folder, with_pip=True)
    python = str(folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python"))
    paths = [part for d in INSTALLED for part in ("-e", str(ROOT / d))]
    subprocess.run(
        [python, "-m", "pip", "install", "-q", torch, *NEEDED, *paths], check=True
    )
    return python


if __name__ == "__main__":
    sys.exit(main())
