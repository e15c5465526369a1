"""The short ones: what a call, a listing and a call through torch.compile cost; and the
page of all figures.

    python -m benchmarks [--publish]      run the short ones; with --publish keep their figures, and write the pages
    python -m benchmarks page [--check]   write RESULTS.md and what pages quote, or say which are stale

The other scripts take longer, or need tools of others: each says at its beginning how
it is run.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # where scripts find each other
import page

SHORT = ("calling.py", "torch_compile.py", "partitioning.py", "listing.py")


def main() -> int:
    """Run what is asked for; returns 1 if a script fails or a page is stale."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="?", choices=["page"])
    parser.add_argument("--publish", action="store_true")
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args()
    if given.what is None:
        failed = [name for name in SHORT if not _ran(name, given.publish)]
        if failed or not given.publish:
            return bool(failed)
    if given.check:
        stale = page.stale()
        for path in stale:
            print(
                f"{path.relative_to(page.HERE.parent)} is stale: run python -m"
                " benchmarks page"
            )
        return bool(stale)
    page.write()
    return 0


def _ran(name: str, publish: bool) -> bool:
    """Whether a script ran, with its tables printed under its name."""
    script = Path(__file__).with_name(name)
    print(
        f"## {script.read_text('utf-8').splitlines()[0].strip(chr(34))} ({name})\n",
        flush=True,
    )
    return (
        subprocess.run(
            [sys.executable, str(script), *(["--publish"] if publish else [])]
        ).returncode
        == 0
    )


if __name__ == "__main__":
    sys.exit(main())
