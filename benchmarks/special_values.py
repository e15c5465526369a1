"""What backends and files compute of NaN, infinities, zeros of both signs, subnormal
and extreme numbers, and nothing.

    python benchmarks/special_values.py [--backend tosa] [--json FILE] [OPERATOR ...]

Takes one or two samples of every operator of OpInfo and element type, puts special
values into their tensors and compares with eager PyTorch: in the process, and from a
file of each format. A result is

* *equal*: the same integers, NaN, infinities and numbers, or those of eager in float64;
  an error where eager raises,
* *host*: the backend takes nothing of the program, and gives a reason,
* *refused*: an error of delegraph, when the file is written or when the program is
  called,
* *different*: anything else. A process that ends is a difference, too.

``tests/trials/known_differences.json`` lists the differences;
``test_special_values_sweep.py`` beside it checks them.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import publishing
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

KNOWN = Path(__file__).parents[1] / "tests" / "trials" / "known_differences.json"
CPU_SECONDS = 60
"""How long one step may compute before its process is ended."""
DTYPES = {
    torch.float32: 2,
    torch.int64: 1,
    torch.int32: 1,
    torch.uint8: 1,
    torch.float16: 1,
}
"""Element type -> how many samples of each operator are tried."""
SHARES = {"openvino": 4, "xnnpack": 8, "iree": 16, "compiler-demo": 8}
"""Backend -> of how many operators and element types the sweep takes one, where
compiling is slow.
"""
OF_SLOW_COMPILERS = {torch.float32: 1, torch.int64: 1}
SLOW_COMPILERS = ("iree", "xnnpack")
"""Backends that take up to a second for each program; they get fewer samples."""
OF_ELEMENTS = ("UnaryUfuncInfo", "BinaryUfuncInfo")
"""Rows of OpInfo that get the largest numbers: whether a sum of these overflows depends
on its order.
"""
UNWRITTEN = ("nn.functional.multi_margin_loss",)
"""Operators that return memory that nothing has written where their input has no
elements.
"""
LARGEST = 2000
"""Elements of the largest tensor that is tried."""


class Route(NamedTuple):
    """One way in which a program of a backend runs: in the process, or from a file in
    one of its runtimes.
    """

    suffix: str = ""
    runtime: str | None = None

    def name(self, backend: str) -> str:
        """The name by which results and the list of differences call it."""
        if not self.suffix:
            return backend
        return f"{backend} {self.suffix}" + (
            f" in {self.runtime}" if self.runtime else ""
        )


IN_PROCESS = Route()
PTE = Route(".pte")
STOCK = Route(".pte", "executorch")
ROUTES: dict[str, tuple[Route, ...]] = {
    "host": (PTE, STOCK),
    "tosa": (IN_PROCESS, Route(".tosa")),
    "iree": (IN_PROCESS, Route(".vmfb")),
    "openvino": (IN_PROCESS, PTE),
    "xnnpack": (IN_PROCESS, PTE, STOCK),
    "compiler-demo": (IN_PROCESS,),
}
"""Backend -> how its programs run here. The host has no backend; its operators are
kernels of a ``.pte`` file.
"""


@dataclass(frozen=True)
class Result:
    """What came of one program, one route and one kind of values."""

    program: str
    route: str
    values: str
    kind: str
    why: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        """What a row of the list of differences is found by."""
        return self.route, self.values, self.program


# --- programs and values


class Case(NamedTuple):
    """A program with inputs, and the kinds of values to put into them."""

    name: str
    module: torch.nn.Module
    inputs: tuple[Any, ...]
    values: dict[str, tuple[Any, ...]]


def cases(
    backend: str, operators: Sequence[str] = ()
) -> Iterator[Callable[[], Iterator[Case]]]:
    """A function for each operator and element type, which makes its cases. The order
    is fixed.
    """
    from delegraph_devkit import opinfo

    for info in opinfo._table():
        if operators and not any(opinfo.named(info, name) for name in operators):
            continue
        for dtype, count in (
            OF_SLOW_COMPILERS if backend in SLOW_COMPILERS else DTYPES
        ).items():
            if dtype in info.supported_dtypes("cpu"):
                yield lambda info=info, dtype=dtype, count=count: _cases_of(
                    info, dtype, count
                )


def _cases_of(info: Any, dtype: torch.dtype, count: int) -> Iterator[Case]:
    from delegraph_devkit import opinfo

    samples = [s for s in opinfo._samples(info, dtype) if _is_fit(s)]
    chosen = (
        {int((k + 1) / (count + 1) * len(samples)) for k in range(count)}
        if samples
        else set()
    )
    name = f"{info.formatted_name} {str(dtype).removeprefix('torch.')}"
    for k, index in enumerate(sorted(chosen)):
        sample = samples[index]
        leaves, spec = pytree.tree_flatten(
            ((sample.input, *sample.args), sample.kwargs)
        )
        module = opinfo.Call(info.op, spec, leaves).eval()
        inputs = tuple(v for v in leaves if isinstance(v, Tensor))
        values = _special(inputs)
        if type(info).__name__ not in OF_ELEMENTS:
            values.pop("largest", None)
        yield Case(f"{name} {k + 1}", module, inputs, values)
        without = (
            _without_elements(module, inputs)
            if k == 0 and info.name not in UNWRITTEN
            else None
        )
        if without is not None:
            yield Case(f"{name} empty", module, without, {"none": without})


def _is_fit(sample: Any) -> bool:
    tensors = [
        v
        for v in pytree.tree_leaves((sample.input, sample.args, sample.kwargs))
        if isinstance(v, Tensor)
    ]
    dense = all(t.layout is torch.strided and t.numel() <= LARGEST for t in tensors)
    return bool(tensors) and dense and max(t.numel() for t in tensors) >= 4


def _special(inputs: tuple[Any, ...]) -> dict[str, tuple[Any, ...]]:
    """The inputs with each kind of special values that their element types have."""
    made = {"own": inputs}
    for name, patterns in PATTERNS.items():
        given = tuple(_filled(x, patterns) for x in inputs)
        if any(new is not old for new, old in zip(given, inputs, strict=True)):
            made[name] = given
    return made


PATTERNS: dict[str, Callable[[torch.dtype], Sequence[float | int | None]]] = {
    "nan": lambda t: [None, torch.nan, None, None, None] if t.is_floating_point else [],
    "infinities": lambda t: (
        [torch.inf, None, None, -torch.inf, None] if t.is_floating_point else []
    ),
    "zeros": lambda t: [-0.0, None, 0.0, -0.0] if t.is_floating_point else [],
    "subnormal": lambda t: (
        [_tiny(t) / 8, -_tiny(t) / 4, _tiny(t) / 64] if t.is_floating_point else []
    ),
    "largest": lambda t: (
        [torch.finfo(t).max, None, -torch.finfo(t).max] if t.is_floating_point else []
    ),
    "bounds": lambda t: (
        []
        if t.is_floating_point
        else [torch.iinfo(t).max, torch.iinfo(t).min, None, None]
    ),
    "out of range": lambda t: (
        []
        if t.is_floating_point or t == torch.uint8
        else [None, 1000, None, None, -1000, None]
    ),
}
"""Kind of values -> what is repeated over the elements of a tensor; None keeps an
element.
"""


def _tiny(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).tiny


def _filled(x: Any, patterns: Callable[[torch.dtype], Sequence[Any]]) -> Any:
    if not isinstance(x, Tensor) or x.dtype.is_complex or x.dtype == torch.bool:
        return x
    pattern = patterns(x.dtype)
    if not pattern or not x.numel():
        return x
    filled = x.detach().clone(memory_format=torch.contiguous_format).reshape(-1)
    for k, value in enumerate(
        itertools.islice(itertools.cycle(pattern), filled.numel())
    ):
        if value is not None:
            filled[k] = value
    return filled.reshape(x.shape)


def _without_elements(
    module: torch.nn.Module, inputs: tuple[Any, ...]
) -> tuple[Any, ...] | None:
    """The inputs with no rows: all of them, or the first one alone; None where eager
    takes neither.
    """
    rows = [x[:0].clone() if isinstance(x, Tensor) and x.dim() else x for x in inputs]
    for given in (tuple(rows), (rows[0], *inputs[1:])):
        if any(
            isinstance(x, Tensor) and not x.numel() for x in given
        ) and not isinstance(_eager(module, given), str):
            return given
    return None


# --- running them


def _eager(module: torch.nn.Module, inputs: tuple[Any, ...]) -> list[Any] | str:
    """What eager computes, or the error that it raises."""
    try:
        with torch.no_grad():
            return pytree.tree_leaves(
                module(*(x.clone() if isinstance(x, Tensor) else x for x in inputs))
            )
    except Exception as e:  # torch's own errors, of many kinds
        return f"{type(e).__name__}: {e}"


def _wider(module: torch.nn.Module, inputs: tuple[Any, ...]) -> list[Any] | str:
    doubled = (
        x.double() if isinstance(x, Tensor) and x.is_floating_point() else x
        for x in inputs
    )
    return _eager(module, tuple(doubled))


def _is_determined(module: torch.nn.Module, inputs: tuple[Any, ...]) -> bool:
    """Whether eager computes the same twice: it may read memory that nothing has
    written.
    """
    first = _eager(module, inputs)
    second = _eager(module, inputs)
    return (
        isinstance(first, str)
        or isinstance(second, str)
        or _difference(first, second, second) is None
    )


def classify(
    run: Callable[..., Any], module: torch.nn.Module, inputs: tuple[Any, ...]
) -> tuple[str, str]:
    """(kind, reason) of one call."""
    from delegraph.errors import DelegraphError

    wanted = _eager(module, inputs)
    try:
        with torch.no_grad():
            got = pytree.tree_leaves(
                run(*(x.clone() if isinstance(x, Tensor) else x for x in inputs))
            )
    except DelegraphError as e:
        return ("equal" if isinstance(wanted, str) else "refused"), e.message
    except Exception as e:  # what a runtime or the host raises
        return (
            "equal" if isinstance(wanted, str) else "different"
        ), f"it raises {type(e).__name__}: {e}"
    if isinstance(wanted, str):
        return "different", f"eager raises {wanted}; it computes {_shown(got)}"
    why = _difference(got, wanted, _wider(module, inputs))
    return ("different", why) if why else ("equal", "")


def _difference(got: list[Any], wanted: list[Any], wide: list[Any] | str) -> str | None:
    if len(got) != len(wanted):
        return f"{len(got)} results; eager has {len(wanted)}"
    wider = wide if not isinstance(wide, str) and len(wide) == len(wanted) else wanted
    for ours, theirs, exact in zip(got, wanted, wider, strict=True):
        if not isinstance(theirs, Tensor):
            if ours != theirs and ours == ours:
                return f"{ours}; eager {theirs}"
            continue
        if not isinstance(ours, Tensor) or (ours.dtype, ours.shape) != (
            theirs.dtype,
            theirs.shape,
        ):
            return f"{_kind_of(ours)}; eager {_kind_of(theirs)}"
        if not theirs.numel():
            continue
        near = _near(ours, theirs)
        if (
            isinstance(exact, Tensor)
            and exact.shape == theirs.shape
            and theirs.is_floating_point()
        ):
            near |= _near(ours, exact.to(theirs.dtype))
            near |= (ours.double() - exact.double()).abs() <= 2 * (
                theirs.double() - exact.double()
            ).abs()
        if not bool(near.all()):
            place = int((~near).flatten().nonzero()[0])
            pair = [t.flatten()[place].item() for t in (ours, theirs)]
            return f"{pair[0]} at element {place}; eager {pair[1]}"
    return None


def _near(ours: Tensor, theirs: Tensor) -> Tensor:
    if not (theirs.is_floating_point() or theirs.is_complex()):
        return ours == theirs
    relative = {torch.float16: 4e-3, torch.bfloat16: 3e-2}.get(theirs.dtype, 2e-4)
    finite = theirs.abs()[theirs.isfinite()].double()
    size = min(1.0, float(finite.max())) if finite.numel() else 0.0
    return torch.isclose(
        ours, theirs, rtol=relative, atol=relative * size / 20, equal_nan=True
    )


def _kind_of(value: Any) -> str:
    return (
        f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
        if isinstance(value, Tensor)
        else str(value)
    )


def _shown(values: list[Any]) -> str:
    return ", ".join(_kind_of(v) for v in values)


class Prepared(NamedTuple):
    """A lowered program that can be called, or why there is none."""

    run: Callable[..., Any] | None
    kind: str = ""
    why: str = ""


def lower(exported: Any, backend: str) -> Any:
    """The lowered program, or why there is none to call."""
    import delegraph
    from delegraph.errors import DelegraphError

    try:
        lowered = delegraph.lower(
            exported, backends=[] if backend == "host" else [backend]
        )
    except DelegraphError as e:
        return Prepared(None, "refused", e.message)
    except Exception as e:  # an error that is not delegraph's own is a fault
        return Prepared(None, "different", f"it raises {type(e).__name__}: {e}")
    if backend == "host" or lowered.delegates:
        return lowered
    if not lowered.host_operators:
        return Prepared(None, "host", "there is nothing to compute")
    reasons = [row.reason for row in lowered.report.refusals]
    return (
        Prepared(None, "host", reasons[0])
        if reasons
        else Prepared(None, "different", "host, no reason")
    )


def prepare(lowered: Any, exported: Any, route: Route, folder: Path) -> Prepared:
    """What a route calls: the lowered program, or a file of it that was loaded."""
    import delegraph
    from delegraph.errors import DelegraphError

    if isinstance(lowered, Prepared) or not route.suffix:
        return lowered if isinstance(lowered, Prepared) else Prepared(lowered)
    path = folder / f"program{route.suffix}"
    try:
        lowered.save(path)
        loaded = delegraph.load(path, runtime=route.runtime)
    except DelegraphError as e:
        return Prepared(None, "refused", e.message)
    except Exception as e:  # an error that is not delegraph's own is a fault
        return Prepared(None, "different", f"it raises {type(e).__name__}: {e}")
    return Prepared(
        _widened(loaded, exported) if route.suffix in (".tosa", ".vmfb") else loaded
    )


def _widened(run: Callable[..., Any], exported: Any) -> Callable[..., Any]:
    """A call whose int32 results become int64 where the program has int64: TOSA has no
    other integers.
    """
    from delegraph_programs import output_values

    types = [
        n.meta["val"].dtype if hasattr(n, "meta") else None
        for n in output_values(exported)
    ]

    def call(*inputs: Any) -> Any:
        results = pytree.tree_leaves(run(*inputs))
        pairs = itertools.zip_longest(results, types)
        return [
            (
                r.long()
                if t == torch.int64 and isinstance(r, Tensor) and r.dtype == torch.int32
                else r
            )
            for r, t in pairs
        ]

    return call


# --- in child processes


class Step(NamedTuple):
    """A place in the sweep: operator, case, route and kind of values, each by its
    number; -1 is before the first.
    """

    operator: int = -1
    case: int = -1
    route: int = -1
    values: int = -1

    def after(self) -> Step:
        """The step behind one that ended its process: the rest of what it was preparing
        is left out.
        """
        if self.values >= 0:
            return self
        if self.route >= 0:
            return self._replace(route=self.route + 1)
        return Step(self.operator + 1)


FIRST = Step()


def serve(
    backend: str, operators: Sequence[str], part: int, parts: int, start: Step
) -> None:
    """Try cases behind a step; each step is announced by a line, and its result is a
    line.
    """
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    lines = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # runtimes print what they like
    with tempfile.TemporaryDirectory() as folder:
        for number, made in enumerate(
            itertools.islice(cases(backend, operators), part, None, parts)
        ):
            if number >= start.operator:
                making = json.dumps([Step(number), "", "", ""])
                print(making, file=lines, flush=True)
                for k, case in enumerate(made()):
                    here = Step(number, k)
                    if here >= start[:2]:
                        for line in _serve_case(
                            case, here, backend, Path(folder), max(start, here)
                        ):
                            print(json.dumps(line), file=lines, flush=True)
                        print(making, file=lines, flush=True)


def _serve_case(
    case: Case, here: Step, backend: str, folder: Path, start: Step
) -> Iterator[Any]:
    from delegraph_devkit.lowering_attempt import is_random

    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
    try:
        exported = torch.export.export(case.module, case.inputs)
    except Exception:  # torch's own limits
        return
    if is_random(exported):
        return
    lowered = None
    for place, route in enumerate(ROUTES[backend]):
        name = route.name(backend)
        if place < start.route:
            continue
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
        yield [here._replace(route=place), case.name, name, "lowering"]
        lowered = lower(exported, backend) if lowered is None else lowered
        prepared = prepare(lowered, exported, route, folder)
        if prepared.run is None:
            yield asdict(
                Result(case.name, name, "lowering", prepared.kind, prepared.why)
            )
            if prepared.kind == "host":
                return
            continue
        for number, (values, inputs) in enumerate(case.values.items()):
            step = here._replace(route=place, values=number)
            if step <= start:
                continue
            yield [step, "", "", ""]  # eager itself may end the process
            if _is_determined(case.module, inputs):
                signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
                yield [step, case.name, name, values]
                yield asdict(
                    Result(
                        case.name,
                        name,
                        values,
                        *classify(prepared.run, case.module, inputs),
                    )
                )


def sweep(
    backend: str,
    operators: Sequence[str] = (),
    part: int = 0,
    parts: int = 1,
    start: Step = FIRST,
) -> Iterator[Result]:
    """The results of all cases, or of each ``parts``-th one, on a backend; a new
    process follows one that ended.
    """
    while True:
        told = [
            "--serve",
            json.dumps([part, parts, start]),
            "--backend",
            backend,
            *operators,
        ]
        command = [sys.executable, "-W", "ignore", __file__, *told]
        last = None
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as child:
            for text in child.stdout or ():
                line = json.loads(text)
                if isinstance(line, list):
                    last = line
                else:
                    yield Result(**line)
        if child.returncode == 0:
            return
        if last is None:
            raise RuntimeError(
                f"the process ended with {child.returncode} before its first step"
            )
        step, program, route, values = last
        if program:  # else torch itself ended the process, while a case was made
            yield Result(
                program,
                route,
                values,
                "different",
                f"it ends the process with {child.returncode}",
            )
        start = Step(*step).after()


def known_differences(backend: str) -> dict[tuple[str, str, str], str]:
    """The published list for a backend: a result's key -> why it differs."""
    names = [route.name(backend) for route in ROUTES[backend]]
    rows = json.loads(KNOWN.read_text("utf-8"))
    return {
        (route, values, program): row["why"]
        for row in rows
        for route in names
        for values, programs in row["cases"].get(route, {}).items()
        for program in programs
    }


def forget(results: Sequence[Result]) -> None:
    """Take rows out of the list whose cases were tried and no longer differ. New rows
    need a reason, by hand.
    """
    differ = {result.key for result in results if result.kind == "different"}
    tried = {(result.route, result.program) for result in results}
    kept = []
    for row in json.loads(KNOWN.read_text("utf-8")):
        for route, of_route in row["cases"].items():
            for values, programs in of_route.items():
                stay = [
                    p
                    for p in programs
                    if (route, values, p) in differ or (route, p) not in tried
                ]
                of_route[values] = stay
            row["cases"][route] = {
                values: programs for values, programs in of_route.items() if programs
            }
        row["cases"] = {
            route: of_route for route, of_route in row["cases"].items() if of_route
        }
        if row["cases"]:
            kept.append(row)
    KNOWN.write_text(json.dumps(kept, indent=1) + "\n", "utf-8")


def main() -> None:
    """Try all cases and print the counts; differences as they are found."""
    parser = publishing.parser(__doc__)
    parser.add_argument("operators", nargs="*", metavar="OPERATOR")
    parser.add_argument("--backend", action="append", choices=ROUTES)
    parser.add_argument(
        "--json", type=Path, help="write every result to this file, a line each"
    )
    parser.add_argument(
        "--part", help="K/N: every N-th operator from number K on; see SHARES"
    )
    parser.add_argument(
        "--forget",
        action="store_true",
        help="take rows out of the list that no longer differ",
    )
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        part, parts, start = json.loads(arguments.serve)
        serve(arguments.backend[0], arguments.operators, part, parts, Step(*start))
        return
    rows = []
    every = []
    for backend in arguments.backend or ROUTES:
        share = f"0/{SHARES.get(backend, 1) if not arguments.operators else 1}"
        part, parts = map(int, (arguments.part or share).split("/"))
        counts: dict[str, Counter[str]] = {
            route.name(backend): Counter() for route in ROUTES[backend]
        }
        for result in sweep(backend, arguments.operators, part, parts):
            counts[result.route][result.kind] += 1
            every.append(result)
            if result.kind == "different":
                print(": ".join([*result.key, result.why])[:300], flush=True)
            if arguments.json:
                with arguments.json.open("a") as file:
                    file.write(json.dumps(asdict(result)) + "\n")
        rows += [
            [name, *(f"{of[kind]:,}" for kind in KINDS)] for name, of in counts.items()
        ]
    if arguments.forget:
        forget(every)
    packages = ["torch", "executorch", "iree-base-compiler", "openvino"]
    publishing.report(
        arguments, "special_values", packages, publishing.Table(("where", *KINDS), rows)
    )


KINDS = ("equal", "host", "refused", "different")

if __name__ == "__main__":
    main()
