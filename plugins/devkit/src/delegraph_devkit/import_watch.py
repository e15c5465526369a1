"""Run as a script: read one distribution's declarations, and say what that imports and
how long it takes.

Arguments: backend, and a JSON list with the module path. The last line that it prints
is a JSON object: ``heavy``, a module -> "file:line" that imported it, and ``seconds``.
Lines before it were printed by the declarations.
"""

from __future__ import annotations

import json
import sys
import time
import traceback
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType

HEAVY = (
    *(
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
    ),
    *(
        "torchvision",
        "torchaudio",
        "torchao",
        "transformers",
        "executorch",
        "matplotlib",
        "numba",
        "sklearn",
    ),
)


class Watch(MetaPathFinder):
    """An import hook that finds no module, and remembers which line first asked for
    each heavy one.
    """

    def __init__(self) -> None:
        self.importers: dict[str, str] = {}

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> None:
        if name in HEAVY:
            frames = [
                f
                for f in traceback.extract_stack()[:-1]
                if "importlib" not in f.filename
            ]
            # it looks where a module is
            if frames and not frames[-1].filename.endswith("discovery/loading.py"):
                self.importers.setdefault(
                    name, f"{frames[-1].filename}:{frames[-1].lineno}"
                )


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
    heavy = [m for m in HEAVY if m in sys.modules and m not in before]
    found = {
        "heavy": {m: watch.importers.get(m, "unknown") for m in heavy},
        "seconds": seconds,
    }
    sys.stdout.write("\n" + json.dumps(found) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
