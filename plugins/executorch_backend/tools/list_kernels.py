"""Write the kernels of the installed ExecuTorch runtime to the plugin's data,
``kernels/stock.json``.
"""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path

from executorch.runtime import Runtime

TARGET = (
    Path(__file__).parents[1]
    / "src"
    / "delegraph_executorch"
    / "kernels"
    / "stock.json"
)


def main() -> None:
    kernels = sorted(Runtime.get().operator_registry.operator_names)
    content = {"runtime": f"executorch {version('executorch')}", "kernels": kernels}
    TARGET.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
