"""What `delegraph inspect` needs for a large `.tosa` file of random weights, beside the
size of the file.

    python benchmarks/large_file.py [--layers 40] [--folder FOLDER]

40 linear layers of 4096 x 4096 are a file of 2.7 GB, and making it needs as much
memory; it lies in FOLDER (the working directory if none is given) and is removed
afterwards. Resident memory is read from /proc fifty times a second (Linux): of the
command itself, and of the largest of the tools that `--verify` asks, each of which is a
process of its own.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import publishing

WIDTH = 4096
COMMANDS = (["--summary"], [], ["--json"], ["--html", "large.html"], ["--verify"])


def main() -> None:
    """Make the file, run the commands and print the table."""
    parser = publishing.parser(__doc__)
    parser.add_argument("--layers", type=int, default=40)
    parser.add_argument("--folder", default=".")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        file = Path(folder, "large.tosa")
        subprocess.run([sys.executable, "-c", f"import large_file; large_file.make({given.layers}, {str(file)!r})"],
                       check=True, cwd=Path(__file__).parent)  # fmt: skip
        rows = [_row(words, file) for words in COMMANDS]
        size = file.stat().st_size
    given.remark = given.remark or f"a file of {size / 1e9:.2f} GB"
    table = publishing.Table(
        ("command", "wall s", "memory, MB", "of a tool, MB", "exit code"), rows
    )
    publishing.report(given, "large_file", ["delegraph-tosa", "tosa-tools"], table)


def make(layers: int, file: str) -> None:
    """Lower linear layers with random weights, and write the file."""
    import delegraph
    import torch

    torch.manual_seed(0)
    stack = torch.nn.Sequential(
        *(torch.nn.Linear(WIDTH, WIDTH) for _ in range(layers))
    ).eval()
    delegraph.lower(
        stack, (torch.randn(1, WIDTH),), backends=["tosa"], require_full=True
    ).save(file)


def _row(words: list[str], file: Path) -> list[str]:
    start = time.perf_counter()
    command = [sys.executable, "-m", "delegraph", "inspect", file.name, *words]
    process = subprocess.Popen(
        command, cwd=file.parent, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    own = tools = 0.0
    while process.poll() is None:
        own = max(own, _resident(process.pid))
        tools = max([tools, *map(_resident, _children(process.pid))])
        time.sleep(0.02)
    seconds = time.perf_counter() - start
    shown = f"`inspect FILE {' '.join(words)}".rstrip() + "`"
    return [
        shown,
        f"{seconds:.1f}",
        f"{own / 1e6:,.0f}",
        f"{tools / 1e6:,.0f}",
        str(process.returncode),
    ]


def _children(parent: int) -> list[int]:
    try:
        return [
            int(pid)
            for pid in (
                Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
            )
        ]
    except OSError:  # it has ended
        return []


def _resident(pid: int) -> float:
    """Resident memory of a process in bytes; 0 if it has ended."""
    try:
        found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return 0.0
    return 1024.0 * int(found[1]) if found else 0.0


if __name__ == "__main__":
    main()
