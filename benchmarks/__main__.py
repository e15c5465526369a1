"""The short ones: what a call, a listing and a call through torch.compile cost. ``python -m benchmarks``; minutes.

The others take longer, or need tools of others: each says at its beginning how it is run.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SHORT = ("calling.py", "torch_compile.py", "partitioning.py")


def main() -> int:
    """Run each, and print its tables under its name; returns 1 if one fails."""
    failed = 0
    for name in SHORT:
        script = Path(__file__).with_name(name)
        print(f"## {script.read_text('utf-8').splitlines()[0].strip(chr(34))} ({name})\n", flush=True)
        failed |= subprocess.run([sys.executable, str(script)]).returncode != 0
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
