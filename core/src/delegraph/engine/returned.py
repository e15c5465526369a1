"""What a backend returned and what it left of its program, checked."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from torch.export import ExportedProgram
from torch.fx import Node

from ..backend import PreprocessResult
from ..delegates.lowered_module import Argument
from ..errors import ContractViolation
from ..exported.subgraphs import all_nodes
from ..exported_program import MUTATIONS, output_values, user_inputs
from ..io.blob import is_blob
from ..named_data import check_output
from .extract import extract
from .partition import Work
from .snapshot import Snapshot


def handles_of(program: ExportedProgram) -> set[int]:
    """The debug handles that a backend may name: those of the program's calls.

    A backend that lowers its program through another one meets calls of delegates as well; their handles follow.
    """
    own = {n.meta["debug_handle"] for n in all_nodes(program.graph_module) if "debug_handle" in n.meta}
    following = 1 + max(own, default=0)
    return own | set(range(following, following + len(own)))


def flat_results(backend: str, programs: Mapping[str, Sequence[Any]], returned: Any) -> list[Any]:
    """What ``preprocess_multimethod`` returned, as one list in the order of ``programs``.

    Raises ContractViolation unless there are as many results for each method as there are programs.
    """
    wanted = {m: len(p) for m, p in programs.items()}
    given: Any = f"{returned!r:.80}"
    if isinstance(returned, Mapping):
        given = {m: len(r) if isinstance(r, (list, tuple)) else type(r).__name__ for m, r in returned.items()}
    if given != wanted:
        text = f"{backend}.preprocess_multimethod returned {given} results a method; it was given {wanted} programs"
        raise ContractViolation("contract-violation", text)
    return [result for method in programs for result in returned[method]]


def check_result(backend: str, tag: str, handles: Collection[int], result: Any) -> None:
    """Raise ContractViolation unless ``result`` is a PreprocessResult with fields of the right types.

    Debug handles in it have to be among ``handles``.
    """
    data = getattr(result, "processed_bytes", None)
    what, wanted, hint = "", "a PreprocessResult with bytes (or a Blob) is wanted", None
    if not isinstance(result, PreprocessResult):
        what = f"{result!r:.80}"
    elif not isinstance(data, bytes) and not is_blob(data):
        what = type(data).__name__
    elif why := _why_not_debug_map(result.debug_handle_map, handles):
        what, wanted = f"a debug_handle_map {why}", "it maps identifiers, int or str, to tuples of handles"
    elif why := _why_not_told(result):
        what, wanted = (
            why,
            "facts have names; figures are numbers below 2**63 by name, for identifiers of debug_handle_map",
        )
    elif result.data_store_output is not None:
        try:
            check_output(result.data_store_output)
        except ContractViolation as e:
            what, wanted, hint = "unusable named data", e.message, e.hint
    if what:
        text = f"{backend}.preprocess returned {what} for partition {tag}; {wanted}"
        raise ContractViolation("contract-violation", text, hint=hint)


def _why_not_debug_map(given: Any, handles: Collection[int]) -> str | None:
    """What is wrong with a ``debug_handle_map``; None if nothing is."""
    if given is None:
        return None
    if not isinstance(given, Mapping):
        return f"that is a {type(given).__name__}"
    for identifier, listed in given.items():
        if isinstance(identifier, bool) or not isinstance(identifier, (int, str)):
            return f"with the identifier {identifier!r:.80}"
        if not isinstance(listed, (tuple, list)):
            return f"with {listed!r:.80} for {identifier!r:.80}"
        unknown = [handle for handle in listed if handle not in handles]
        if unknown:
            return f"with debug handle {unknown[0]!r:.80} for {identifier!r:.80}, which no node of the partition has"
    return None


def _why_not_told(result: PreprocessResult) -> str | None:
    """What is wrong with facts and figures, which end up in files that are read by others."""
    tables = {"facts": result.facts, "figures": result.figures}
    for name, table in tables.items():
        if not isinstance(table, Mapping):
            return f"{name} that are a {type(table).__name__}"
    for identifier, amounts in result.figures.items():
        if identifier not in (result.debug_handle_map or {}):
            return f"figures for {identifier!r:.80}, which debug_handle_map does not have"
        if not isinstance(amounts, Mapping):
            return f"the figures {amounts!r:.80} for {identifier!r:.80}"
        for name, amount in amounts.items():
            is_number = isinstance(amount, (int, float)) and not isinstance(amount, bool)
            if not isinstance(name, str) or not is_number or not abs(amount) < 2**63:  # nan is not less
                return f"the figure {name!r:.80} of {identifier!r:.80}"
    return None


def check_untouched(backend: str, item: Work, before: Snapshot) -> None:
    """Raise ContractViolation if a backend changed what is not its own, compared with ``before``.

    It may rewrite the graph that it was given; the module then gets a fresh one for the host. It may not change what
    others use (`check_others`), nor the inputs and outputs with which the delegate is called.
    """
    check_others(backend, item, before)
    if before.is_rewritten():
        own = extract(item.method, item.plan, item.partition)
        check_convention(backend, item, [n.name for n in user_inputs(own)])
        item.module.restore(own)


def check_others(backend: str, item: Work, before: Snapshot) -> None:
    """Raise ContractViolation if a backend changed what it shares with others.

    That is the caller's weights, and the subgraphs of branches and loops, which the host's graph contains too.
    """
    written, edited, tag = before.written_tensors(), before.edited_subgraphs(), item.partition.tag
    if written:
        text = f"{backend}.preprocess changed weights of partition {tag}, which are the caller's: {written[0]}"
        raise ContractViolation("contract-violation", text, hint="compute with copies: tensor.clone()")
    if edited:
        text = f"{backend}.preprocess changed the subgraph {edited[0]} in partition {tag}, which the host shares"
        hint = "rewrite a copy: copy.deepcopy(edge_program.graph_module)"
        raise ContractViolation("contract-violation", text, hint=hint)


def check_convention(backend: str, item: Work, inputs: Sequence[str]) -> None:
    """Raise ContractViolation if a backend removed, reordered or added inputs or outputs of its program.

    What it compiled would then be called differently than the host calls it.
    """
    inputs_left = [n.name for n in item.program.graph.nodes if n.op == "placeholder" and n.name in inputs]
    outputs = [a.type for a in item.module.outputs]
    specs = zip(item.program.graph_signature.output_specs, output_values(item.program), strict=False)
    values = [value for spec, value in specs if spec.kind not in MUTATIONS]
    known = [*outputs, *["?"] * len(values)]  # a node of a backend's pass may have no recorded type: it is not compared
    outputs_left = [_type_of(v) or was for v, was in zip(values, known, strict=False)]
    for what, wanted, left in (("inputs", inputs, inputs_left), ("outputs", outputs, outputs_left)):
        if wanted != left:
            text = f"{backend}.preprocess changed how partition {item.partition.tag} is called: its {what} are {wanted}"
            hint = "an input that the compiled part does not need is still passed; ignore it there"
            text += f", and {left} in the program that it left"
            raise ContractViolation("contract-violation", text, hint=hint)


def _type_of(value: Any) -> str | None:
    """The type of an output, as ``Argument`` writes it; None for a node without a recorded value."""
    val = value.meta.get("val", value) if isinstance(value, Node) else value
    return None if isinstance(val, Node) else Argument.of("", val).type
