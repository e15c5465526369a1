"""The way around: a program that cannot be made functional locally is retraced by torch, and not believed unseen.

torch's own functionalization has faults: it takes the source of a broadcast ``copy_`` for the tensor that it is copied
to, and zeroes what windows leave out. So what it makes is compared with the program, in its types and over two calls.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses import FakeTensor
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import Node
from torch.utils import _pytree as pytree

from ...errors import InputError
from ...exported_program import CONSTANT_KINDS, MUTATIONS, constant_tensor, output_values, placeholders, user_inputs
from ...program.call_spec import flat_arguments
from ...program.lowered_module import LoweredBackendModule
from ..subgraphs import all_nodes, subgraphs_of
from ..tracing import TRACING
from .aliases import families
from .effects import updates_statistics, writes
from .writes import Reason, written_arguments

_HINT = "write that line without in-place calls, or report it to PyTorch: run_decompositions({}) changes the results"


def retrace(program: ExportedProgram, why: Reason) -> ExportedProgram:
    """What torch makes of ``program``; ``why`` says what was in the way of making it functional here."""
    with TRACING, warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch's own, about its own code
        warnings.filterwarnings("ignore", "erase_node", UserWarning)  # as above: torch from 2.14 on erases a copy twice
        try:
            functional: ExportedProgram = program.run_decompositions({})
        except Exception as e:
            text = f"{_cannot(why)}; nor could torch: {_first_line(e)}"
            raise InputError("input-invalid", text, source=why.source) from e
        return functional


def check_retraced(program: ExportedProgram, made: ExportedProgram, why: Reason) -> str | None:
    """Raise InputError if ``made`` does not compute what ``program`` does; returns why that is not known, if so."""
    wrong = _wrong_type(program, made)
    doubt = None if wrong else _cannot_run(program)
    if not wrong and not doubt:
        with TRACING, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the user's operators, about values
            wrong, doubt = _compare(program, made)
    if wrong:
        text = f"{_cannot(why)}; what torch makes of it differs from eager: {wrong}"
        raise InputError("input-invalid", text, source=why.source, hint=_HINT)
    return doubt


def _cannot(why: Reason) -> str:
    return f"the program cannot be made functional: {why.text}"


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _wrong_type(program: ExportedProgram, made: ExportedProgram) -> str | None:
    """Results are as they were recorded, and what is written has the type of what it is written to."""
    known = {s.target or n.name: n for n, s in placeholders(made)}
    known |= {n.name: n for n in user_inputs(made)}
    results = [v for s, v in _outputs(program) if s.kind not in MUTATIONS]
    rest = iter(results)
    for spec, value in _outputs(made):
        wanted = known[str(spec.target)] if spec.kind in MUTATIONS else next(rest, None)
        if _type(wanted) != _type(value):
            what = f"what is written to {spec.target}" if spec.kind in MUTATIONS else "a result"
            return f"{what} is {_described(value)}, and was {_described(wanted)}"
    return None


def _outputs(program: ExportedProgram) -> Iterator[tuple[Any, Any]]:
    return zip(program.graph_signature.output_specs, output_values(program), strict=True)


def _type(value: Any) -> Any:
    """Symbolic sizes have other names in the other program."""
    val = value.meta.get("val") if isinstance(value, Node) else None
    return (val.dtype, [d if isinstance(d, int) else "?" for d in val.shape]) if isinstance(val, torch.Tensor) else None


def _described(value: Any) -> str:
    dtype, shape = _type(value) or ("no tensor", [])
    return f"{dtype} of shape {shape}"


def _cannot_run(program: ExportedProgram) -> str | None:
    tensors = [constant_tensor(program, s) for _, s in placeholders(program) if s.kind in CONSTANT_KINDS]
    given = [t for t in pytree.tree_leaves(program.example_inputs) if isinstance(t, torch.Tensor)]
    if any(isinstance(t, FakeTensor) or t.is_meta for t in (*tensors, *given)):
        return "its tensors have no values"
    if any(isinstance(m, LoweredBackendModule) and m.state for m in program.graph_module.modules()):
        return "it contains delegates that keep state"
    if any(s.kind not in (*CONSTANT_KINDS, InputKind.USER_INPUT) for s in program.graph_signature.input_specs):
        return "it takes objects that are no tensors"
    return None


def _compare(program: ExportedProgram, made: ExportedProgram) -> tuple[str | None, str | None]:
    """What differs, and why nothing can be said. The user's tensors are left as they are."""
    with _same_numbers(program):
        try:
            wanted = _Run.of(program, program)
        except Exception as e:
            return (
                None,
                f"eager does not run on {'its' if program.example_inputs else 'made-up'} inputs: {_first_line(e)}",
            )
    with _same_numbers(program):
        try:
            got = _Run.of(made, program)
        except Exception as e:
            return f"it does not run: {_first_line(e)}", None
    for k, (a, b) in enumerate(zip(got.results, wanted.results, strict=True)):
        if _differs(a, b):
            return f"result {k % wanted.count} of call {k // wanted.count + 1}", None
    if any(map(_differs, got.left, wanted.left)):
        return "what two calls leave in inputs and buffers", None
    return None, None


def _same_numbers(program: ExportedProgram) -> AbstractContextManager[Any]:
    """Both sides draw the same random numbers, if any, and nobody else's."""
    tags = (getattr(n.target, "tags", ()) for n in all_nodes(program.graph_module))
    return torch.random.fork_rng() if any(torch.Tag.nondeterministic_seeded in t for t in tags) else nullcontext()


@dataclass
class _Run:
    """Results of two calls, ``count`` a call, and what they left in the inputs, parameters and buffers."""

    results: list[Any]
    left: list[Any]
    count: int

    @classmethod
    def of(cls, program: ExportedProgram, original: ExportedProgram) -> _Run:
        """Run ``program`` on the example inputs and the tensors of ``original``, from which it was made."""
        held = dict(zip(_names(original), _private(original), strict=True))
        interpreter = torch.fx.Interpreter(program.graph_module)
        results: list[Any] = []
        left: list[Any] = []
        for _ in range(2):
            inputs = _copied(_inputs(original))
            values = {n.name: v for n, v in zip(user_inputs(program), inputs, strict=True)}
            values |= {n.name: held[s.target] for n, s in placeholders(program) if s.kind in CONSTANT_KINDS}
            with torch.no_grad():
                made = interpreter.run(*(values[n.name] for n, _ in placeholders(program)), enable_io_processing=False)
            targets = {str(s.target): values[n.name] for n, s in placeholders(program) if s.kind in CONSTANT_KINDS}
            pairs = list(zip(program.graph_signature.output_specs, made, strict=True))
            results += _copied([v for s, v in pairs if s.kind not in MUTATIONS])
            new = [(s, v.clone()) for s, v in pairs if s.kind in MUTATIONS]
            for spec, value in new:
                of_input = spec.kind is OutputKind.USER_INPUT_MUTATION
                (values if of_input else targets)[str(spec.target)].copy_(value)
            left += inputs
        return cls(results, [*left, *held.values()], len(results) // 2)


def _names(program: ExportedProgram) -> list[Any]:
    return [s.target for _, s in placeholders(program) if s.kind in CONSTANT_KINDS]


def _private(program: ExportedProgram) -> list[torch.Tensor]:
    """Parameters, buffers and constants, those that a call may write as copies."""
    written = _may_be_written(program)
    mine = [(n, constant_tensor(program, s)) for n, s in placeholders(program) if s.kind in CONSTANT_KINDS]
    copies = iter(_copied([t for n, t in mine if n in written]))
    return [next(copies) if n in written else t for n, t in mine]


def _may_be_written(program: ExportedProgram) -> set[Node]:
    found: list[Node] = []
    for node in program.graph.nodes:
        if writes(node) or updates_statistics(node):
            found += written_arguments(node)
        elif any(writes(n) or updates_statistics(n) for body in subgraphs_of(node) for n in all_nodes(body)):
            found += node.all_input_nodes
    return {n for family in families(program.graph.nodes, found) for n in family} if found else set()


def _copied(values: Sequence[Any]) -> list[Any]:
    """Copies of tensors; what shares memory shares it in the copies too."""
    return copy.deepcopy([v.detach() if isinstance(v, torch.Tensor) else v for v in values])


def _inputs(program: ExportedProgram) -> list[Any]:
    if program.example_inputs is not None:
        return flat_arguments(program.call_spec.in_spec, *program.example_inputs)
    numbers = torch.Generator().manual_seed(0)
    return [_made_up(n.meta.get("val"), numbers) for n in user_inputs(program)]


def _made_up(val: Any, numbers: torch.Generator) -> Any:
    """A value of the recorded type: small numbers, which are more often right for an index than large ones."""
    if not isinstance(val, torch.Tensor):
        return _size(val)
    shape = [_size(d) for d in val.shape]
    if val.is_floating_point() or val.is_complex():
        return torch.randn(shape, generator=numbers, dtype=torch.float32).to(val.device, val.dtype)
    return torch.randint(0, 2, shape, generator=numbers).to(val.device, val.dtype)


def _size(d: Any) -> Any:
    return d.node.hint if isinstance(d, (torch.SymInt, torch.SymFloat, torch.SymBool)) else d


def _differs(got: Any, wanted: Any) -> bool:
    """By more than the rounding of another order of the same operators."""
    if not isinstance(got, torch.Tensor) or not isinstance(wanted, torch.Tensor):
        return type(got) is not type(wanted) or bool(got != wanted)
    if got.dtype is not wanted.dtype or got.shape != wanted.shape:
        return True
    if not (wanted.is_floating_point() or wanted.is_complex()):
        return not torch.equal(got, wanted)
    finite = wanted[wanted.isfinite()].abs()
    scale = float(finite.max()) if finite.numel() else 0.0
    return not torch.allclose(got, wanted, rtol=0, atol=torch.finfo(wanted.dtype).eps ** 0.5 * scale, equal_nan=True)
