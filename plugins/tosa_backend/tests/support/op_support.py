"""Which calls each target takes: rows of the rules' tests, and samples of torch's
tables of functions and modules.

``python -m plugins.tosa_backend.tests.support.op_support [GROUP ...]`` asks about these
groups (families of rules, each in seconds; ``functions`` and ``modules``, which take
far longer than all families) and writes verdicts/support.json, of which
docs/generate.py makes docs/op-support.md. After a change of a rule its family is
enough.
"""

from __future__ import annotations

import json
import re
import sys
import types
import unittest
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import delegraph
import delegraph_tosa.lowering.integer  # noqa: F401 - registers the rules for quantize, too
import torch
from delegraph.errors import DelegraphError
from delegraph_tosa.ir.graph import Value
from delegraph_tosa.lowering import FAMILIES, RULES
from torch.export import ExportedProgram
from torch.utils._pytree import tree_leaves

TARGETS = ("TOSA-1.0+FP", "TOSA-1.0+INT", "TOSA-1.0+FP+INT", "TOSA-1.1+FP+INT")
RECORD = Path(__file__).parent / "verdicts/support.json"
SAMPLES = 2
"""Of each row of torch's tables."""

Verdicts = dict[str, dict[str, Any]]
"""Operator -> target -> why a call was refused, "" for those that were taken -> number
of calls.

And operator -> ``RULE`` -> whether it had a rule of its own: verdicts from before it
got one say nothing of it now.
"""
RULE = "rule"


def family(name: str) -> Iterator[ExportedProgram]:
    """The rows of a family's tests, as a user's program has them."""
    rows = import_module(f"..lowering.aten.test_{name}", __package__).FAMILY.rows
    for module, inputs, *_ in rows.values():
        yield torch.export.export(module, inputs)


def functions() -> Iterator[ExportedProgram]:
    """Samples of every function of OpInfo that takes float32."""
    _expect_expecttest()
    from torch.testing._internal.common_methods_invocations import op_db

    for row in op_db:
        if torch.float32 in row.supported_dtypes("cpu") and not row.name.startswith(
            "jiterator"
        ):
            samples = row.sample_inputs("cpu", torch.float32, requires_grad=False)
            full = (s for s in samples if _have_elements((s.input, s.args, s.kwargs)))
            yield from _exported(
                lambda s, op=row.op: (_Call(op, s.args, s.kwargs), (s.input,), {}), full
            )


def modules() -> Iterator[ExportedProgram]:
    """Samples of every module of torch's table, outside of training."""
    _expect_expecttest()
    from torch.testing._internal.common_modules import module_db

    def built(
        sample: Any, cls: Any
    ) -> tuple[torch.nn.Module, tuple[Any, ...], dict[str, Any]]:
        given = sample.constructor_input
        call = sample.forward_input
        return cls(*given.args, **given.kwargs).eval(), call.args, call.kwargs

    for row in module_db:
        samples = row.module_inputs_func(row, "cpu", torch.float32, False, False)
        full = (
            s
            for s in samples
            if _have_elements((s.forward_input.args, s.forward_input.kwargs))
        )
        yield from _exported(lambda s, cls=row.module_cls: built(s, cls), full)


def _expect_expecttest() -> None:
    """torch's test base, which its tables import, wants this package; they do not."""
    if "expecttest" not in sys.modules and find_spec("expecttest") is None:
        sys.modules["expecttest"] = types.ModuleType("expecttest")
        sys.modules["expecttest"].TestCase = unittest.TestCase  # type: ignore[attr-defined]


class _Call(torch.nn.Module):
    """A function with the operands of a sample; only the first one is an input."""

    def __init__(
        self, op: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        super().__init__()
        self.op = op
        self.args = args
        self.kwargs = kwargs

    def forward(self, given: Any) -> Any:
        return self.op(given, *self.args, **self.kwargs)


def _exported(build: Callable[[Any], Any], samples: Any) -> Iterator[ExportedProgram]:
    try:
        for sample in islice(samples, SAMPLES):
            module, args, kwargs = build(sample)
            with torch.no_grad():
                yield torch.export.export(module, args, kwargs)
    except Exception:
        # torch's own limits, of many kinds: nothing of ours was asked yet
        return


def _have_elements(operands: Any) -> bool:
    return all(
        leaf.numel() > 0
        for leaf in tree_leaves(operands)
        if isinstance(leaf, torch.Tensor)
    )


RECORDED = ("aten.", "quantized_decomposed.")
"""The record has torch's own operators; transformers, which has another with a rule,
need not be installed.
"""
NO_TYPE = {
    f"the input: a tensor of {t.lower()} needs EXT-{t}" for t in ("BF16", "FP8E4M3")
}
GROUPS: dict[str, Callable[[], Iterator[ExportedProgram]]] = {
    **{name: lambda name=name: family(name) for name in FAMILIES},
    "functions": functions,
    "modules": modules,
}


def verdicts(programs: Iterator[ExportedProgram]) -> Verdicts:
    """What every target says of the calls of the programs; one for each operator of a
    program.
    """
    found: dict[str, dict[str, Counter[str]]] = defaultdict(
        lambda: {target: Counter() for target in TARGETS}
    )
    for program in programs:
        for target in TARGETS:
            for operator, why in _asked(program, target).items():
                found[operator][target][why] += 1
    ruled = {str(overload) for overload, _ in RULES}
    return {
        op: (
            {RULE: op in ruled}
            | {t: dict(sorted(c.items())) for t, c in found[op].items()}
        )
        for op in sorted(found)
    }


def stale_rules(record: dict[str, Verdicts]) -> dict[str, str]:
    """Operator with a rule -> its family, where ``record`` has no call of it that was
    taken by that rule.

    An operator that torch has for bfloat16 or fp8 alone need not be taken: no target of
    the record has these.
    """
    families = {
        str(op): rule.function.__module__.rpartition(".")[2]
        for (op, kind), rule in RULES.items()
        if kind is Value and str(op).startswith(RECORDED)
    }
    asked = {op: record.get(name, {}).get(op, {}) for op, name in families.items()}
    return {
        op: families[op]
        for op, found in asked.items()
        if not found.get(RULE)
        or not any(found[target].keys() & {"", *NO_TYPE} for target in TARGETS)
    }


def _asked(program: ExportedProgram, target: str) -> dict[str, str]:
    """Operator of the program -> why the target refuses a call of it or a piece of one,
    "" if it takes them all.
    """
    try:
        lowered = delegraph.lower(
            program, backends=["tosa"], options={"tosa": {"spec": target}}
        )
    except DelegraphError:
        return {}  # a program that the core refuses says nothing about a target
    taken = [
        node.meta.get("decomposed_from", [str(node.target)])[0]
        for d in lowered.delegates
        for node in d.nodes
    ]
    if not lowered.report.refusals:  # then what is not there any more needs no operator
        taken += [str(node.target) for node in program.graph.nodes]
    found = dict.fromkeys(taken, "")
    for row in lowered.report.refusals:
        reason, _, whole = row.reason.rstrip(")").partition(" (part of ")
        found[whole or row.operator] = _general(reason)
    return {op: why for op, why in found.items() if op.startswith(RECORDED)}


def _general(reason: str) -> str:
    """Without what is particular to the sample: names of its values, and the target
    that was asked.
    """
    reason = re.sub(r"; the target is .*", "", reason)
    reason = re.sub(
        r"\bTOSA (\w+) (on|from) .* needs (PRO-\w+)",
        r"TOSA \1 on these types needs \3",
        reason,
    )
    reason = re.sub(r"\bresult (\d+) of aten\.\w+\.\w+", r"its result \1", reason)
    reason = re.sub(r"\bthe (input|constant) (?!of|has|is)[\w.]+", r"the \1", reason)
    return re.sub(
        r" of shape \[.*?\]",
        "",
        re.sub(r"the dynamic shape \[.*?\]", "a dynamic shape", reason),
    )


def main(names: list[str]) -> None:
    """Ask anew about these groups and keep what the record has of the others."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    record |= {name: verdicts(GROUPS[name]()) for name in names or GROUPS}
    RECORD.write_text(_text(record))


def _text(record: dict[str, Verdicts]) -> str:
    """JSON with one line an operator, which two changes of the record can share."""
    groups = [
        f'"{name}": {{\n'
        + ",\n".join(
            f'"{op}": {json.dumps(found)}' for op, found in sorted(group.items())
        )
        + "\n}"
        for name, group in sorted(record.items())
    ]
    return "{\n" + ",\n".join(groups) + "\n}\n"


if __name__ == "__main__":
    main(sys.argv[1:])
