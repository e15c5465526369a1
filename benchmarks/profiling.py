"""Where the time of a call goes: how much of it is on lines of the user's program, and whether the parts are the run.

    python benchmarks/profiling.py [MODEL ...] [--backend xnnpack] [--repeats 20]

The models are those of examples/, full-size. `lowered.profile` calls each in turns with a profile and without.
Milliseconds are medians: of calls without a profile, and of calls with one. Their quotient is what measuring costs, and
how far the parts, which add up to a call with a profile, are from a run. Then the shares of that call: on lines of the
program, and what is on none: the time that a delegate takes beside its operators (`rest`), operators whose node is not
known (`unknown`), and the host between its operators (`host`).
"""

from __future__ import annotations

import argparse
import logging
import sys
import warnings
from collections import Counter

import delegraph
import measuring
import torch

HEADER = ("model", "delegates", "on the host", "a run, ms", "profiled, ms", "ratio")
SHARES = ("on lines", "rest", "unknown", "host", "load")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL")
    parser.add_argument("--backend", default="xnnpack")
    parser.add_argument("--repeats", type=int, default=20)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    print(measuring.heading(" ".join(["python benchmarks/profiling.py", *sys.argv[1:]]), ["torch", "delegraph"]))
    print("| " + " | ".join(HEADER + SHARES) + " |\n|---|" + "---:|" * (len(HEADER + SHARES) - 1))
    for name in arguments.models or ["MobileNetV2", "BERT-base"]:
        print("| " + " | ".join([name, *row(name, arguments.backend, arguments.repeats)]) + " |", flush=True)


def row(name: str, backend: str, repeats: int) -> list[str]:
    """The cells of one model."""
    model, inputs = measuring.model(name)
    lowered = delegraph.lower(model, inputs, backends=[backend])
    found = lowered.profile(*inputs, repeats=repeats)
    off = Counter[str]()
    for part in found.parts:
        if not part.lines:
            kind = "host" if part.where == "host" else "rest" if part.what == "the rest of the delegate" else "unknown"
            off[kind] += part.seconds
    shares = [found.attributed, *(off[kind] / found.seconds for kind in ("rest", "unknown", "host"))]
    return [
        str(len(lowered.delegates)),
        str(lowered.report.host_operators),
        f"{1000 * found.plain_seconds:.2f}",
        f"{1000 * found.seconds:.2f}",
        f"{found.seconds / found.plain_seconds:.2f}",
        *(f"{share:.1%}" for share in shares),
        "-" if found.load is None else f"{found.load:.1f}",
    ]


if __name__ == "__main__":
    main()
