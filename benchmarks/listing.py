"""What ``delegraph backends`` costs with 150 installed distributions, beside what
starting Python costs anyway.

    python benchmarks/listing.py

The distributions are folders of metadata, made for this: 150 plain ones, and 150
plugins with a backend each. They are on PYTHONPATH, in addition to what is installed
here. Each figure is a fresh process, the commands take turns; wall seconds as the
caller sees them, CPU seconds of the child as the system counted them.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import publishing

PLUGIN = """
from delegraph.plugin import BackendSpec, OptionSpec, PartitionerSpec, RuntimeSpec, hookimpl

@hookimpl
def delegraph_backends():
    return [BackendSpec("chip-{k}", "plugin_{k}_target:Chip{k}", "Chip{k}", 1, options=(OptionSpec("level", int, 1),))]

@hookimpl
def delegraph_partitioners():
    return [PartitionerSpec("chip-{k}", "chip-{k}", "plugin_{k}_target:P", default=True)]

@hookimpl
def delegraph_runtimes():
    return [RuntimeSpec("chip-{k}", "plugin_{k}_target:R")]
"""
SCRIPTS = "[console_scripts]\ndist-{k} = dist_{k}:main\n"


def main() -> None:
    """Print a table."""
    arguments = publishing.parser(__doc__)
    arguments.add_argument("--count", type=int, default=150)
    arguments.add_argument("--repeats", type=int, default=9)
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        sites = make_sites(Path(folder), given.count)
        figures = measure(commands(sites, given.count), given.repeats)
    header = ("command", "wall, s", "least wall", "CPU, s", "least CPU")
    table = publishing.Table(
        header, [[name, *map("{:.3f}".format, row)] for name, row in figures.items()]
    )
    publishing.report(
        given, "listing", ["delegraph", "importlib-metadata", "pluggy"], table
    )


def make_sites(folder: Path, count: int) -> dict[str, Path]:
    """Installation folders: one of plain distributions, one of plugins."""
    plain = folder / "plain"
    plugins = folder / "plugins"
    for k in range(count):
        add_distribution(
            plain, f"dist-{k}", SCRIPTS.format(k=k) if k % 3 == 0 else None
        )
        add_distribution(
            plugins, f"plugin-{k}", f"[delegraph]\nchip-{k} = plugin_{k}\n"
        )
        (plugins / f"plugin_{k}.py").write_text(PLUGIN.format(k=k))
    return {"plain": plain, "plugins": plugins}


def add_distribution(site: Path, name: str, entry_points: str | None) -> None:
    """Its metadata, as pip writes it; every third has commands of its own, as in the
    wild.
    """
    info = site / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    described = "\n".join(["A description, as metadata carries it."] * 100)
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n\n{described}\n"
    )
    if entry_points is not None:
        (info / "entry_points.txt").write_text(entry_points)


def commands(
    sites: Mapping[str, Path], count: int
) -> dict[str, tuple[list[str], Path | None]]:
    """What is timed: name -> (command, what is on PYTHONPATH)."""
    listing = [sys.executable, "-m", "delegraph", "backends"]
    return {
        "`python -c pass`": ([sys.executable, "-c", "pass"], None),
        '`python -c "import importlib_metadata"`': (
            [sys.executable, "-c", "import importlib_metadata"],
            None,
        ),
        "`delegraph backends`, what is installed here": (listing, None),
        f"`delegraph backends`, and {count} distributions": (listing, sites["plain"]),
        f"`delegraph backends`, and {count} plugins": (listing, sites["plugins"]),
    }


def measure(
    timed: Mapping[str, tuple[list[str], Path | None]], repeats: int
) -> dict[str, tuple[float, float, float, float]]:
    """Name -> (median wall, least wall, median CPU, least CPU), in seconds, after a
    first run that is not counted.
    """
    runs: dict[str, list[tuple[float, float]]] = {name: [] for name in timed}
    for k in range(repeats + 1):
        for name, (command, path) in timed.items():
            figures = run_once(command, path)
            if k:
                runs[name].append(figures)
    walls, cpus = (
        {n: [r[i] for r in rows] for n, rows in runs.items()} for i in (0, 1)
    )
    return {
        n: (
            statistics.median(walls[n]),
            min(walls[n]),
            statistics.median(cpus[n]),
            min(cpus[n]),
        )
        for n in timed
    }


def run_once(command: Sequence[str], path: Path | None) -> tuple[float, float]:
    """Wall and CPU seconds of one process. The run that is not counted leaves compiled
    modules behind, as pip does.
    """
    environment = {
        k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "DELEGRAPH"))
    }
    environment |= {"PYTHONPATH": str(path)} if path is not None else {}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)
    wall = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main()
