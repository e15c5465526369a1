"""Which operators a program file holds, over PyTorch's own samples, in ExecuTorch's
runtime.

    python benchmarks/kernel_coverage.py [--types float32,int64] [--samples 1] [--values
        own] [OPERATOR ...]

Run it with an interpreter that has delegraph's plugins, delegraph-devkit and
`executorch==1.5.1`. Each sample of OpInfo whose result its inputs determine is emitted,
loaded, run and compared with eager; results in half precision may instead be as near to
eager's in float64 as eager's own are. *refused* is an error when the file is written;
*failed* is a file that the runtime does not load or run, or that ends its process;
*wrong* is one that computes something else. The last two are listed with the reason,
and are what ``delegraph_executorch.kernels.limits`` is for. ``--refusals`` lists the
operators that are refused, each with its first reason.

``--values exact`` compares integers bit by bit and float64 to eleven digits, so that a
kernel shows that computes in float32; ``--values wide`` does so on values that float32
does not hold: floats times 1e200, int64 beyond 2**53, int32 beyond 2**24. What fails is
listed with the kernels of its file.
"""

from __future__ import annotations

import argparse
import json
import logging
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import publishing
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "plugins" / "executorch_backend"))
HALVES = (torch.float16, torch.bfloat16)
TOLERANCES = {"float16": 2e-3, "bfloat16": 2e-2}


KINDS = {
    "right": "right",
    "refused": "refused",
    "not determined": "not determined by the inputs",
    "not exported": "not exported",
    "failed": "failed in the runtime",
    "wrong": "wrong",
}
"""Kind of an outcome -> how the table calls it."""


def main() -> None:
    """Try all samples in child processes, a new one after each that was ended, and
    print the counts.
    """
    parser = publishing.parser(__doc__)
    parser.add_argument("operators", nargs="*", metavar="OPERATOR")
    parser.add_argument("--types", default="float32")
    parser.add_argument("--samples", type=int, default=1)
    parser.add_argument("--values", choices=["own", "exact", "wide"], default="own")
    parser.add_argument("--refusals", action="store_true")
    parser.add_argument("--from", dest="start", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.start is not None:
        serve(arguments)
        return
    outcomes = list(_collect(arguments))
    for outcome in outcomes:
        if outcome["kind"] in ("failed", "wrong"):
            print(
                f"{outcome['kind']}: {outcome['operator']}, {outcome['type']}:"
                f" {outcome['why']}"
            )
    if arguments.refusals:
        first = {
            o["operator"]: o["why"]
            for o in reversed(outcomes)
            if o["kind"] == "refused"
        }
        print(
            "\n".join(
                f"refused: {operator}: {why}" for operator, why in sorted(first.items())
            )
        )
    counts = Counter(o["kind"] for o in outcomes)
    row = [
        ", ".join(arguments.types.split(",")),
        str(len({o["operator"] for o in outcomes})),
    ]
    row += [f"{counts[kind]:,}" for kind in KINDS]
    table = publishing.Table(("types", "operators", *KINDS.values()), [row])
    publishing.report(arguments, "kernel_coverage", ["torch", "executorch"], table)


def _collect(arguments: argparse.Namespace) -> Any:
    start = 0
    done = False
    own = [
        "--types",
        arguments.types,
        "--samples",
        str(arguments.samples),
        "--values",
        arguments.values,
    ]
    own += arguments.operators
    while not done:
        command = [sys.executable, "-W", "ignore", __file__, "--from", str(start), *own]
        child = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        last: dict[str, Any] = {}
        for line in child.stdout or ():
            last = json.loads(line) if line.startswith("{") else {}
            if "kind" in last:
                yield last
        done = child.wait() == 0 or not last
        if not done:
            yield {
                **last,
                "kind": "failed",
                "why": f"it ended the process with {child.returncode}",
            }
            start = last["number"] + 1


def serve(arguments: argparse.Namespace) -> None:
    """Try the samples from a number on; a line before and after each."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    from delegraph_devkit import opinfo

    rows = [
        i
        for i in opinfo._table()
        if not arguments.operators or i.formatted_name in arguments.operators
    ]
    types = arguments.types.split(",")
    tasks = [(i, t, k) for i in rows for t in types for k in range(arguments.samples)]
    for number, (info, name, k) in enumerate(tasks):
        dtype = getattr(torch, name)
        if number < arguments.start or dtype not in info.supported_dtypes("cpu"):
            continue
        place = (
            k / arguments.samples
            if arguments.values == "own"
            else (k + 1) / (arguments.samples + 1)
        )
        # the first sample is often one without dimensions
        program = opinfo._program(info, dtype, place)
        if program is not None:
            head = {"number": number, "operator": info.formatted_name, "type": name}
            print(json.dumps(head), flush=True)
            module, inputs = program.make(1)
            if arguments.values == "wide":
                inputs = _widened(module, inputs, dtype)
            if inputs is not None:
                exact = arguments.values != "own"
                kind, why = judge(module, inputs, TOLERANCES.get(name, 1e-5), exact)
            else:
                kind = "not determined"
                why = "eager refuses it of such values"
            print(json.dumps({**head, "kind": kind, "why": why}), flush=True)


def _widened(
    module: torch.nn.Module, inputs: Sequence[torch.Tensor], dtype: torch.dtype
) -> Any:
    """The inputs of a type as values that float32 does not hold: all, or only the
    first; None if eager raises.
    """
    step = {torch.float64: 1e200, torch.int64: 2**53 + 1, torch.int32: 2**24 + 1}[dtype]
    of_type = [k for k, t in enumerate(inputs) if t.dtype == dtype]
    for chosen in (of_type, of_type[:1]):
        wide = [
            (t * step if dtype.is_floating_point else t + t.sign() * step)
            for t in inputs
        ]
        given = tuple(wide[k] if k in chosen else t for k, t in enumerate(inputs))
        try:
            with torch.no_grad():
                module(*(t.clone() for t in given))
        except (RuntimeError, IndexError, ValueError, TypeError):
            # they were indices, sizes, or out of its domain
            continue
        return given if chosen else None
    return None


def judge(
    module: torch.nn.Module,
    inputs: tuple[torch.Tensor, ...],
    tolerance: float,
    exact: bool = False,
) -> tuple[str, str]:
    """(kind, reason) for one sample."""
    import delegraph
    from delegraph.errors import DelegraphError
    from delegraph_devkit.lowering_attempt import is_random
    from delegraph_executorch.emit import emit_program
    from executorch.runtime import Runtime
    from torch.utils import _pytree as pytree

    from tests.support import judge as numbers

    try:
        with torch.no_grad():
            wanted = pytree.tree_leaves(module(*(t.clone() for t in inputs)))
        exported = torch.export.export(module, inputs)
        if is_random(exported):
            return "not determined", "random numbers, or memory that nobody has written"
    except Exception as e:
        # torch's own limits, of many kinds: nothing of ours was asked yet
        return "not exported", str(e)
    try:
        emitted = emit_program(delegraph.lower(exported, backends=[]))
        content = emitted.file.join()
    except DelegraphError as e:
        return "refused", e.message
    try:
        program = Runtime.get().load_program(content)
        got = program.load_method("forward").execute([t.contiguous() for t in inputs])
    except RuntimeError as e:
        return "failed", str(e)
    try:
        for ours, theirs in zip(got, wanted, strict=True):
            numbers.TOLERANCE = (
                _tolerance_of(theirs)
                if exact and isinstance(theirs, torch.Tensor)
                else tolerance
            )
            numbers.assert_equal([ours], [theirs])
    except AssertionError as e:
        if exact:
            kernels = sorted(
                {str(o) for plan in emitted.program.plans for o in plan.operators}
            )
            return "wrong", f"{' '.join(kernels)}: {' '.join(str(e).split())[:150]}"
        if not _is_near_in_float64(module, inputs, got, wanted):
            return "wrong", " ".join(str(e).split())[:200]
    return "right", ""


def _tolerance_of(wanted: torch.Tensor) -> float:
    return {torch.float64: 1e-11, torch.float32: 1e-5}.get(wanted.dtype, 0.0)


def _is_near_in_float64(
    module: torch.nn.Module, inputs: Any, got: Sequence[Any], wanted: Sequence[Any]
) -> bool:
    """Whether results in half precision are as near to those in float64 as eager's are."""
    if len(got) != len(wanted) or not any(t.dtype in HALVES for t in inputs):
        return False
    from torch.utils import _pytree as pytree

    wide = pytree.tree_leaves(
        module(*(t.double() if t.dtype in HALVES else t for t in inputs))
    )
    pairs = [
        [(o.double() - w).abs().max() for o, w in zip(side, wide, strict=True)]
        for side in (got, wanted)
    ]
    return all(bool(a <= b) for a, b in zip(*pairs, strict=True))


if __name__ == "__main__":
    main()
