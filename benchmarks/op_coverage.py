"""How much of core ATen a plugin takes whole, and whether it computes what eager
torch does.

    python benchmarks/op_coverage.py [--backend onnx] [--samples 2] [--all]
        [--dtype bfloat16] [--reference] [--json FILE] [NAME ...]

Takes the samples of OpInfo, torch's own table of operators with inputs, for every
operator that has an overload of core ATen (``--all``: for every operator), in float32,
in bool where that is natural, and in int32 where there are no floats (indices are int64
everywhere; an int64 that is computed with need not fit into TOSA's 32 bits).

A sample is *right* if one delegate computes all of it and agrees with eager: equal
integers and truth values, the same NaN and infinities, and floats at most twice as far
from float64 as eager's, or within 2e-6 of the largest; of float16 and bfloat16 within
the distance of two neighbouring numbers there.
*Refused* means that something was left to the host, *crashed* that lowering or running
raised. ``--reference`` compares what the official reference model computes from the
file as well, and has tosa-opt's strict validator look at the file.

Not counted are samples without a static shape in TOSA: see ``why_not_counted``.
Backends other than TOSA are published in tables of their own. There an operator is
*taken* if one delegate computes all of at least one sample.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import subprocess
import sys
import tempfile
import types
import unittest
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import publishing
import torch
from delegraph_devkit.opinfo import Call
from torch.utils import _pytree as pytree

BOUNDS = {torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7}
"""Largest error relative to the largest output, where eager itself is not further from
float64: an ulp of its type.
"""
BOUND = 2e-6
"""The same, of float32."""
MAX_RANK = 6
WHOLE = torch.ops.higher_order.executorch_call_delegate
UNSUPPORTED = (torch.float64, torch.complex32, torch.complex64, torch.complex128)
ALSO_BOOL = (
    *(
        "all",
        "any",
        "cat",
        "eq",
        "flip",
        "gather",
        "index_select",
        "isinf",
        "isnan",
        "logical_and",
        "logical_not",
    ),
    *(
        "logical_or",
        "logical_xor",
        "masked_fill",
        "ne",
        "permute",
        "repeat",
        "roll",
        "select",
        "stack",
        "where",
    ),
)
"""Rows of OpInfo for which truth values are natural operands beside floats."""
CORE_UNDER_ANOTHER_NAME = {
    **{
        "nn.functional." + name: "convolution"
        for name in ("conv1d", "conv2d", "conv3d")
    },
    **{
        "nn.functional." + name: "convolution"
        for name in ("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
    },
    "nn.functional.layer_norm": "native_layer_norm",
    "nn.functional.group_norm": "native_group_norm",
    "nn.functional.batch_norm": "_native_batch_norm_legit",
    "nn.functional.instance_norm": "_native_batch_norm_legit",
    "nn.functional.max_pool2d": "max_pool2d_with_indices",
    "nn.functional.max_pool3d": "max_pool3d_with_indices",
    "nn.functional.adaptive_avg_pool2d": "_adaptive_avg_pool2d",
    "nn.functional.adaptive_avg_pool3d": "_adaptive_avg_pool3d",
    "nn.functional.grid_sample": "grid_sampler_2d",
    "nn.functional.embedding_bag": "_embedding_bag",
    "nn.functional.linear": "addmm",
    "nn.functional.softmax": "_softmax",
    "softmax": "_softmax",
    "nn.functional.log_softmax": "_log_softmax",
    "log_softmax": "_log_softmax",
    "nn.functional.interpolate": "upsample_bilinear2d",
    "nn.functional.pad": "constant_pad_nd",
    "nn.functional.dropout": "native_dropout",
    "cdist": "_cdist_forward",
    "nn.functional.pdist": "_pdist_forward",
    "fft.rfft": "_fft_r2c",
}
"""Functions that torch.export writes as a call whose core operator has another name."""


class Target(NamedTuple):
    """A backend and its options."""

    backend: str
    options: dict[str, str]
    packages: tuple[str, ...]
    """Distributions whose versions matter."""


PACKAGES = {
    "tosa": ("delegraph-tosa",),
    "openvino": ("openvino",),
    "onnx": ("onnxscript", "onnxruntime"),
    "iree": ("iree-base-compiler",),
    "coreai": ("coreai-core",),
}


@dataclass
class Outcome:
    """What came of a sample; ``kind`` is right, wrong, refused, crashed, or excluded."""

    operator: str
    sample: str
    kind: str
    why: str = ""
    error: float = 0.0


def main() -> None:
    """Try every sample and print the table."""
    parser = publishing.parser(__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="rows of OpInfo, instead of all"
    )
    parser.add_argument(
        "--samples", type=int, default=2, help="of each operator and element type"
    )
    parser.add_argument(
        "--all", action="store_true", help="operators outside of core ATen as well"
    )
    parser.add_argument(
        "--reference",
        action="store_true",
        help="judge by the reference model and tosa-opt as well",
    )
    parser.add_argument(
        "--dtype",
        choices=("float16", "bfloat16", "int32"),
        help="samples of this type only",
    )
    parser.add_argument("--backend", choices=PACKAGES, default="tosa")
    parser.add_argument("--spec", default="TOSA-1.0+FP+INT", help="of TOSA")
    parser.add_argument("--json", type=Path, help="write every outcome to this file")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    options = {"spec": arguments.spec} if arguments.backend == "tosa" else {}
    target = Target(arguments.backend, options, PACKAGES[arguments.backend])
    judge = Judge(arguments.spec) if arguments.reference else None
    rows = [row for row in table() if _wanted(row, arguments)]
    only = getattr(torch, arguments.dtype) if arguments.dtype else None
    outcomes = [
        outcome
        for row in rows
        for outcome in tried(row, only, arguments.samples, target, judge)
    ]
    if judge is not None:
        judge.judge(outcomes)
    if arguments.json:
        arguments.json.write_text(json.dumps([vars(o) for o in outcomes], indent=0))
    print(report(outcomes))
    published = _published if target.backend == "tosa" else _published_engine
    publishing.report(
        arguments,
        "op_coverage",
        ["torch", *target.packages],
        *published(arguments, outcomes),
    )


def _wanted(row: Any, arguments: argparse.Namespace) -> bool:
    names = {row.name, row.formatted_name}
    return (
        bool(names & set(arguments.names))
        if arguments.names
        else arguments.all or is_core(row)
    )


def table() -> list[Any]:
    """OpInfo's rows. Its module imports torch's test base, of which ``expecttest`` need
    not be installed.
    """
    if "expecttest" not in sys.modules:
        try:
            __import__("expecttest")
        except ModuleNotFoundError:
            sys.modules["expecttest"] = types.ModuleType("expecttest")
            sys.modules["expecttest"].TestCase = unittest.TestCase  # type: ignore[attr-defined]
    from torch.testing._internal.common_methods_invocations import op_db

    return [row for row in op_db if not row.name.startswith(("jiterator", "_refs"))]


def is_core(row: Any) -> bool:
    """Whether an overload of the row's operator is in core ATen."""
    name = CORE_UNDER_ANOTHER_NAME.get(row.name) or row.aten_name or row.name
    packet = getattr(torch.ops.aten, name.removeprefix("nn.functional."), None)
    return packet is not None and any(
        torch.Tag.core in getattr(packet, o).tags for o in packet.overloads()
    )


def tried(
    row: Any, only: torch.dtype | None, count: int, target: Target, judge: Judge | None
) -> Iterator[Outcome]:
    """The outcomes of the first and evenly spread further ones of a row's samples that
    count.
    """
    for dtype in _dtypes(row, only):
        torch.manual_seed(0)
        try:
            samples = list(
                enumerate(row.sample_inputs("cpu", dtype, requires_grad=False))
            )
        except Exception:
            # OpInfo's own: a sample that this build of torch cannot make is no sample
            continue
        counted = [(k, s) for k, s in samples if _why_not_sample(s) is None] or samples
        places = sorted(
            {round(k * (len(counted) - 1) / max(count - 1, 1)) for k in range(count)}
            if counted
            else ()
        )
        for k, sample in [counted[place] for place in places]:
            yield _guarded(
                row, sample, f"{str(dtype).removeprefix('torch.')} {k}", target, judge
            )


def _dtypes(row: Any, only: torch.dtype | None) -> list[torch.dtype]:
    supported = row.supported_dtypes("cpu")
    if only is not None:
        return [only] if only in supported else []
    if torch.float32 in supported:
        return (
            [torch.float32, torch.bool]
            if row.name in ALSO_BOOL and torch.bool in supported
            else [torch.float32]
        )
    return [dtype for dtype in (torch.int32, torch.bool) if dtype in supported]


def _guarded(
    row: Any, sample: Any, name: str, target: Target, judge: Judge | None
) -> Outcome:
    label = row.formatted_name
    leaves, tree = pytree.tree_flatten(((sample.input, *sample.args), sample.kwargs))
    tensors = tuple(v for v in leaves if isinstance(v, torch.Tensor))
    why = _why_not_sample(sample) or _why_open(row.name, tensors[0])
    if why is not None:
        return Outcome(label, name, "excluded", why)
    call = Call(row.op, tree, leaves).eval()
    try:
        with torch.no_grad():
            wanted = call(*_copies(tensors))
            program = torch.export.export(call, _copies(tensors))
    except Exception as failed:
        # torch's own limits, of many kinds: nothing of ours was asked yet
        return Outcome(
            label, name, "excluded", f"torch cannot export it ({type(failed).__name__})"
        )
    why = why_not_counted(pytree.tree_leaves(wanted)) or _why_not_program(program)
    if why is not None:
        return Outcome(label, name, "excluded", why)
    try:
        return _outcome(label, name, call, program, tensors, wanted, target, judge)
    except Exception as failed:
        # a defect of ours: counted and named, while the sweep goes on
        return Outcome(
            label,
            name,
            "crashed",
            f"{type(failed).__name__}: {failed}".partition("\n")[0],
        )


def _why_not_sample(sample: Any) -> str | None:
    leaves = pytree.tree_leaves(((sample.input, *sample.args), sample.kwargs))
    return why_not_counted(leaves) or (
        None if any(isinstance(v, torch.Tensor) for v in leaves) else "no tensors"
    )


def _why_open(name: str, x: torch.Tensor) -> str | None:
    """Why eager's result is one of several that torch promises."""
    ties = name == "topk" and x.unique().numel() < x.numel()
    return "equal numbers, whose order torch leaves open" if ties else None


def why_not_counted(leaves: list[Any]) -> str | None:
    """Why operands or results are outside of what TOSA is about; None if they are not."""
    for leaf in leaves:
        if isinstance(leaf, complex) or (
            isinstance(leaf, torch.dtype) and leaf in UNSUPPORTED
        ):
            return "complex or float64"
        if isinstance(leaf, torch.Tensor):
            if leaf.layout is not torch.strided or leaf.is_quantized:
                return "quantized or sparse"
            if leaf.dtype in UNSUPPORTED:
                return "complex or float64"
            if leaf.dim() > MAX_RANK:
                return f"a rank above {MAX_RANK}"
            if leaf.numel() == 0:
                return "a tensor of size zero"
    return None


def _why_not_program(program: Any) -> str | None:
    for node in program.graph.nodes:
        tags = getattr(node.target, "tags", ())
        if torch.Tag.nondeterministic_seeded in tags and not _is_quiet(node):
            return "random"
        if (
            torch.Tag.dynamic_output_shape in tags
            or torch.Tag.data_dependent_output in tags
        ):
            return "a shape or a branch that depends on data"
        values = pytree.tree_leaves(node.meta.get("val"))
        if any(
            isinstance(v, (torch.SymInt, torch.SymFloat, torch.SymBool)) for v in values
        ):
            return "a shape or a branch that depends on data"
    return None


def _is_quiet(node: Any) -> bool:
    """Whether a node that may draw random numbers draws none."""
    arguments = {
        a.name: v
        for a, v in zip(node.target._schema.arguments, node.args, strict=False)
    } | dict(node.kwargs)
    return not arguments.get("train", arguments.get("training", True)) or 0.0 in (
        arguments.get("p"),
        arguments.get(
            "dropout_p", 0.0 if "dropout_p" in str(node.target._schema) else None
        ),
    )


def _outcome(
    label: str,
    name: str,
    call: Any,
    program: Any,
    tensors: Any,
    wanted: Any,
    target: Target,
    judge: Judge | None,
) -> Outcome:
    import delegraph

    lowered = delegraph.lower(
        program,
        backends=[target.backend],
        options={target.backend: target.options},
    )
    report = lowered.report
    if report.host_operators:
        reasons = [f"{r.operator}: {r.reason}" for r in report.refusals]
        return Outcome(
            label, name, "refused", "; ".join(reasons) or f"host: {report.host}"
        )
    if len(report.delegates) > 1:
        return Outcome(label, name, "refused", f"{len(report.delegates)} delegates")
    exact = _exactly(call, tensors)

    def error() -> float:
        return disagreement(lowered(*_copies(tensors)), wanted, exact)

    if judge is not None:
        judge.listen(f"{label} {name}", error)
    found = error()
    return Outcome(
        label,
        name,
        "right" if found <= 1 else "wrong",
        "" if found <= 1 else f"{found:.1e} bounds",
        found,
    )


def _copies(tensors: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return tuple(t.detach().clone() for t in tensors)


def _exactly(call: Any, tensors: tuple[torch.Tensor, ...]) -> Any:
    """What eager computes in float64; None where it does not take that."""
    try:
        with torch.no_grad():
            return call(
                *[t.double() if t.is_floating_point() else t.clone() for t in tensors]
            )
    except Exception:  # some operators take no float64
        return None


def disagreement(found: Any, wanted: Any, exact: Any) -> float:
    """How much further from the exact results than eager's the found ones are, in
    bounds of their type.
    """
    mine = pytree.tree_leaves(found)
    theirs = pytree.tree_leaves(wanted)
    truth = pytree.tree_leaves(exact) if exact is not None else theirs
    if len(mine) != len(theirs):
        return float("inf")
    return max(
        [_distance(a, b, c) for a, b, c in zip(mine, theirs, truth, strict=True)],
        default=0.0,
    )


def _distance(mine: Any, eager: Any, exact: Any) -> float:
    if not isinstance(eager, torch.Tensor):
        return 0.0 if mine == eager else float("inf")
    if mine.shape != eager.shape or mine.dtype != eager.dtype:
        return float("inf")
    if not eager.is_floating_point():
        return 0.0 if torch.equal(mine, eager) else float("inf")
    finite = eager.isfinite()
    if not torch.equal(mine.isfinite(), finite) or not torch.equal(
        mine.isnan(), eager.isnan()
    ):
        return float("inf")
    if not torch.equal(mine[eager.isinf()], eager[eager.isinf()]):
        return float("inf")
    if not finite.any():
        return 0.0
    true = exact.to(torch.float64)[finite]
    of_eager, of_mine = (
        (v[finite].double() - true).abs().nan_to_num().max().item()
        for v in (eager, mine)
    )
    scale = max(eager[finite].abs().max().item(), torch.finfo(torch.float32).tiny)
    return (
        0.0
        if of_mine <= 2 * of_eager
        else of_mine / scale / BOUNDS.get(eager.dtype, BOUND)
    )


class Judge:
    """Collects what delegates are called with, has the reference model compute it, and
    compares again.
    """

    def __init__(self, spec: str) -> None:
        from delegraph_tosa import runtime
        from delegraph_tosa.lowering.torch_values.tensor_types import array_of
        from delegraph_tosa.spec import TosaSpec

        self.spec = TosaSpec.parse(spec)
        self.name = ""
        self.error = _never
        self.calls = []
        self.results = None
        make = runtime.TOSARuntime.load
        judge = self

        def load(processed_bytes: bytes, compile_specs: Any, named_data: Any) -> Any:
            delegate = make(processed_bytes, compile_specs, named_data)
            blob = bytes(processed_bytes)

            def called(*args: torch.Tensor) -> Any:
                outputs = delegate(*args)
                if judge.results is not None:
                    pairs = zip(judge.results, outputs, strict=True)
                    return tuple([_tensor_like(mine, theirs) for mine, theirs in pairs])
                inputs = [array_of(a.contiguous()) for a in args]
                judge.calls.append((judge.name, judge.error, blob, inputs))
                return outputs

            return called

        runtime.TOSARuntime.load = staticmethod(load)  # type: ignore[method-assign]

    def listen(self, name: str, error: Callable[[], float]) -> None:
        """What comes next belongs to the sample ``name``; ``error`` compares it with
        eager once more.
        """
        self.name = name
        self.error = error

    def judge(self, outcomes: list[Outcome]) -> None:
        """Turn right outcomes that the model does not confirm into wrong ones."""
        verdicts = dict(self._verdicts())
        for outcome in outcomes:
            why = verdicts.get(f"{outcome.operator} {outcome.sample}")
            if outcome.kind == "right" and why:
                outcome.kind = "wrong"
                outcome.why = why

    def _verdicts(self) -> Iterator[tuple[str, str]]:
        with tempfile.TemporaryDirectory() as folder:
            work = Path(folder) / "work"
            done = Path(folder) / "done"
            with open(work, "wb") as file:
                pickle.dump([(blob, inputs) for _, _, blob, inputs in self.calls], file)
            # without gdb, which the model would attach to itself
            environment = {**os.environ, "PATH": ""}
            command = [sys.executable, "-c", _CHILD, str(work), str(done)]
            subprocess.run(command, env=environment, capture_output=True, check=False)
            with open(done, "rb") as file:
                for name, error, blob, _ in self.calls:
                    try:
                        valid, self.results = pickle.load(file)
                    except EOFError:
                        yield name, "the reference model ended here"
                        return
                    yield (
                        name,
                        self._illegal(blob, Path(folder) / "file.tosa")
                        or _verdict(valid, error),
                    )
        self.results = None

    def _illegal(self, blob: bytes, file: Path) -> str:
        """What tosa-opt has against a file; nothing if it is legal."""
        from delegraph_tosa.tools.external_validators import legality

        file.write_bytes(blob)
        verdict = legality(file, self.spec)
        return "" if verdict.accepted else f"tosa-opt: {verdict.detail}"


def _tensor_like(array: Any, theirs: torch.Tensor) -> torch.Tensor:
    """A result of the reference model, which gives bfloat16 as two bytes, in the type
    and shape of ours.
    """
    short = array.view("uint16") if theirs.dtype is torch.bfloat16 else array
    return torch.from_numpy(short.reshape(theirs.shape)).view(theirs.dtype)


def _never() -> float:
    return float("inf")


def _verdict(valid: bool, error: Callable[[], float]) -> str:
    if not valid:
        return "the reference model does not take the file or its inputs"
    found = error()
    return "" if found <= 1 else f"the reference model differs by {found:.1e} bounds"


_CHILD = """
import pickle, sys
import tosa_reference_model as model
with open(sys.argv[1], "rb") as work, open(sys.argv[2], "wb") as done:
    for blob, inputs in pickle.load(work):
        results, status = model.run(blob, inputs, tosa_level="EIGHTK")
        pickle.dump((status == model.GraphStatus.TOSA_VALID, [r.copy() for r in results]), done)
        done.flush()
"""


def report(outcomes: list[Outcome]) -> str:
    """The table an operator, and the total."""
    rows: dict[str, Counter[str]] = defaultdict(Counter)
    for outcome in outcomes:
        rows[outcome.operator][outcome.kind] += 1
    kinds = ("right", "wrong", "refused", "crashed", "excluded")
    body = [
        [name, *(str(c[k] or "") for k in kinds), _first(outcomes, name)]
        for name, c in sorted(rows.items())
    ]
    total = Counter(o.kind for o in outcomes)
    counted = sum(total[k] for k in kinds[:4])
    figures = ", ".join(f"{total[k]} {k}" for k in kinds)
    share = (
        f"{100 * total['right'] / max(counted, 1):.1f} % of {counted} samples of"
        f" {len(rows)} operators right"
    )
    return "\n".join(
        [
            publishing.markdown(("operator", *kinds, "the first reason"), body),
            "",
            f"{share}: {figures}",
        ]
    )


def _published(
    arguments: argparse.Namespace, outcomes: list[Outcome]
) -> Iterator[publishing.Table]:
    """A row of all samples, and one of each operator of which a sample is not right."""
    kinds = ("right", "wrong", "refused", "crashed")
    keys = [
        arguments.dtype or "float32, bool, int32",
        arguments.spec,
        str(arguments.samples),
    ]
    heads = ("samples", "target", "at most")
    counts = Counter(o.kind for o in outcomes)
    share = f"{100 * counts['right'] / max(sum(counts[k] for k in kinds), 1):.1f} %"
    row = [
        *keys,
        *(str(counts[k]) for k in (*kinds, "excluded")),
        share,
        "yes" if arguments.reference else "",
    ]
    columns = (
        *heads,
        *kinds,
        "excluded",
        "share",
        "also by the reference model and tosa-opt",
    )
    yield publishing.Table(columns, [row], "samples", keys=3)
    by_name: dict[str, Counter[str]] = defaultdict(Counter)
    for outcome in outcomes:
        by_name[outcome.operator][outcome.kind] += 1
    rows = [
        [*keys, name, *(str(c[k] or "") for k in kinds), _first(outcomes, name)]
        for name, c in sorted(by_name.items())
        if any(c[k] for k in kinds[1:])
    ]
    yield publishing.Table(
        (*heads, "operator", *kinds, "the first reason"), rows, "not right", keys=4
    )


def _published_engine(
    arguments: argparse.Namespace, outcomes: list[Outcome]
) -> Iterator[publishing.Table]:
    """A row of all samples, and one of each operator that is not taken."""
    kinds = ("right", "wrong", "refused", "crashed")
    keys = [
        arguments.backend,
        arguments.dtype or "float32, bool, int32",
        str(arguments.samples),
    ]
    heads = ("engine", "samples", "at most")
    by_name: dict[str, Counter[str]] = defaultdict(Counter)
    for outcome in outcomes:
        if outcome.kind != "excluded":
            by_name[outcome.operator][outcome.kind] += 1
    left = [name for name, c in by_name.items() if not c["right"] + c["wrong"]]
    counts = Counter(o.kind for o in outcomes)
    taken = len(by_name) - len(left)
    figures = [len(by_name), taken, *(counts[kind] for kind in kinds)]
    columns = (*heads, "operators", "taken", *kinds)
    yield publishing.Table(columns, [[*keys, *map(str, figures)]], "engines", keys=3)
    rows = [[*keys, name, _first(outcomes, name)] for name in sorted(left)]
    columns = (*heads, "operator", "the first reason")
    yield publishing.Table(columns, rows, "not taken", keys=4)


def _first(outcomes: list[Outcome], name: str) -> str:
    kinds = ("crashed", "wrong", "refused")
    whys = [
        f"{o.kind}: {o.why}"
        for k in kinds
        for o in outcomes
        if o.operator == name and o.kind == k
    ]
    return whys[0].replace("|", "\\|")[:200] if whys else ""


if __name__ == "__main__":
    main()
