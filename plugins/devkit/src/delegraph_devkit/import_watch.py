"""Find the heavy modules that the declarations of a distribution import.

As a script, it reads the declarations of one distribution. Its arguments are the
backend, and a JSON list with the module path. The last line of its output is a JSON
object with ``heavy`` and ``seconds``. ``heavy`` maps a module to the lines that led to
its import, as "file:line -> file:line". Earlier lines are output of the declarations.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType

HEAVY = (
    "torch",
    "numpy",
    "scipy",
    "pandas",
    "tensorflow",
    "jax",
    "jaxlib",
    "onnx",
    "onnxruntime",
    "tvm",
    "iree",
    "torchvision",
    "torchaudio",
    "torchao",
    "transformers",
    "executorch",
    "matplotlib",
    "numba",
    "sklearn",
)


class Watch(MetaPathFinder):
    """An import hook that finds no module, and records the first import of each heavy
    one.
    """

    def __init__(self) -> None:
        self.importers: dict[str, str] = {}

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> None:
        """Record the lines that lead to the first import of a heavy module.

        Returns None, so that Python calls the next finder. A call by
        ``discovery/import_by_name.py`` is no import: it tests whether a module is installed.
        """
        if name not in HEAVY or name in self.importers:
            return
        frames = [
            frame
            for frame in traceback.extract_stack()[:-1]
            if "importlib" not in frame.filename
        ]
        if frames and frames[-1].filename.endswith("discovery/import_by_name.py"):
            return
        lines = [
            f"{frame.filename}:{frame.lineno}"
            for frame in frames
            if not frame.filename.startswith(("<", *_callers()))
        ]
        self.importers[name] = " -> ".join(lines)

    def first(self) -> str | None:
        """Return the first heavy module that was imported; None if none was."""
        return next((name for name in self.importers if name in sys.modules), None)


def _callers() -> list[str]:
    """Return the folders of the modules that import light modules."""
    modules = (sys.modules.get(name) for name in ("delegraph", "pluggy"))
    files = [getattr(module, "__file__", None) for module in modules]
    return [os.path.dirname(file) + os.sep for file in (*files, __file__) if file]


def main(backend: str, path: list[str]) -> None:
    """Watch the imports while delegraph reads the declarations."""
    sys.path[:] = path
    from delegraph import Registry

    before = set(sys.modules)
    watch = Watch()
    sys.meta_path.insert(0, watch)
    start = time.perf_counter()
    Registry().spec(backend)
    seconds = time.perf_counter() - start
    heavy = {
        name: watch.importers.get(name, "unknown")
        for name in HEAVY
        if name in sys.modules and name not in before
    }
    found = {"heavy": heavy, "seconds": seconds}
    sys.stdout.write("\n" + json.dumps(found) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
