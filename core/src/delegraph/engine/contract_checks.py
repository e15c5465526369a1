"""Checks that ``preprocess`` of a backend keeps its contract.

Its result must have the right types. It must not change tensors and subgraphs that
belong to others, nor the inputs and outputs of its program.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from delegraph_programs import all_nodes, output_values, user_inputs
from delegraph_programs.exported_program import MUTATIONS, results
from delegraph_programs.program_snapshot import Snapshot
from torch.export import ExportedProgram
from torch.fx import Node

from ..backend import PreprocessResult
from ..delegates.lowered_module import Argument
from ..errors import ContractViolation
from ..io.blob_pieces import is_blob
from ..named_data import check_output


def allowed_handles(program: ExportedProgram) -> set[int]:
    """Return the debug handles that a debug map may name.

    These are the handles of the program's nodes. A backend that lowers its program
    through another backend adds calls of delegates, at most one for each node. The
    added calls get the next handles, so as many are allowed: {3, 5} allows 3, 5, 6, 7.
    """
    handles = {
        n.meta["debug_handle"]
        for n in all_nodes(program.graph_module)
        if "debug_handle" in n.meta
    }
    following = 1 + max(handles, default=0)
    return handles | set(range(following, following + len(handles)))


def flat_results(
    backend: str, programs: Mapping[str, Sequence[Any]], returned: Any
) -> list[Any]:
    """Return the results of ``preprocess_multimethod`` as one list, in the order of
    ``programs``.

    ``returned``: method -> its results, as the class ``backend`` returned them. Raises
    ContractViolation unless each method has as many results as programs.
    """
    wanted = {m: len(p) for m, p in programs.items()}
    if isinstance(returned, Mapping):
        # method -> number of its results; the name of the type if it is no list
        counts: Any = {
            m: len(r) if isinstance(r, (list, tuple)) else type(r).__name__
            for m, r in returned.items()
        }
    else:
        # text for the error; cut, because it may have all bytes of blobs
        counts = f"{returned!r:.80}"
    if counts != wanted:
        text = (
            f"{backend}.preprocess_multimethod returned {counts} results for each"
            f" method; it was given {wanted} programs"
        )
        raise ContractViolation("contract-violation", text)
    return [result for method in programs for result in returned[method]]


def check_result(backend: str, tag: str, handles: Collection[int], result: Any) -> None:
    """Raise ContractViolation unless ``result`` is a correct PreprocessResult.

    The debug handles of ``result`` must be among ``handles``. ``backend`` and ``tag``:
    the names of the backend and of the partition.
    """

    def wrong(returned: str, rule: str, hint: str | None = None) -> ContractViolation:
        """Return the error for a result, described by ``returned``, that violates
        ``rule``.
        """
        text = f"{backend}.preprocess returned {returned} for partition {tag}; {rule}"
        return ContractViolation("contract-violation", text, hint=hint)

    required = "a PreprocessResult with bytes or a Blob is required"
    if not isinstance(result, PreprocessResult):
        raise wrong(f"{result!r:.80}", required)
    if not isinstance(result.processed_bytes, bytes) and not is_blob(
        result.processed_bytes
    ):
        raise wrong(type(result.processed_bytes).__name__, required)
    if why := _fault_of_debug_map(result.debug_handle_map, handles):
        raise wrong(
            f"a debug_handle_map {why}",
            "it must map identifiers (int or str) to tuples of debug handles",
        )
    if why := _fault_of_report_fields(result):
        rule = (
            "output must be a str, facts must be a mapping, and figures must map"
            " identifiers of debug_handle_map to {name: number below 2**63}"
        )
        raise wrong(why, rule)
    if result.data_store_output is not None:
        try:
            check_output(result.data_store_output)
        except ContractViolation as e:
            raise wrong("unusable named data", e.message, e.hint) from e


def _fault_of_debug_map(debug_map: Any, handles: Collection[int]) -> str | None:
    """Return the first fault of a ``debug_handle_map`` in words, or None.

    A map that is None has no fault.
    """
    if debug_map is None:
        return None
    if not isinstance(debug_map, Mapping):
        return f"that is a {type(debug_map).__name__}"
    for identifier, handle_list in debug_map.items():
        if isinstance(identifier, bool) or not isinstance(identifier, (int, str)):
            return f"with the identifier {identifier!r:.80}"
        if not isinstance(handle_list, (tuple, list)):
            return f"with {handle_list!r:.80} as the handles of {identifier!r:.80}"
        unknown = [handle for handle in handle_list if handle not in handles]
        if unknown:
            return (
                f"with debug handle {unknown[0]!r:.80} for {identifier!r:.80}, which no"
                " node of the partition has"
            )
    return None


def _fault_of_report_fields(result: PreprocessResult) -> str | None:
    """Return the first fault of ``output``, ``facts`` or ``figures`` in words, or None.

    Report files contain all three, so their values must fit into such files.
    """
    if not isinstance(result.output, str):
        return f"an output that is a {type(result.output).__name__}"
    tables = {"facts": result.facts, "figures": result.figures}
    for name, table in tables.items():
        if not isinstance(table, Mapping):
            return f"{name} that are a {type(table).__name__}"
    for identifier, amounts in result.figures.items():
        if identifier not in (result.debug_handle_map or {}):
            return (
                f"figures for {identifier!r:.80}, which debug_handle_map does not have"
            )
        if not isinstance(amounts, Mapping):
            return f"{amounts!r:.80} as the figures of {identifier!r:.80}"
        for name, amount in amounts.items():
            is_number = isinstance(amount, (int, float)) and not isinstance(
                amount, bool
            )
            # ``not ... <``, and not ``>=``: NaN is a fault as well
            if not isinstance(name, str) or not is_number or not abs(amount) < 2**63:
                return f"the figure {name!r:.80} of {identifier!r:.80}"
    return None


def check_untouched(
    backend: str,
    tag: str,
    program: ExportedProgram,
    before: Snapshot,
    extract: Callable[[], ExportedProgram],
) -> None:
    """Raise ContractViolation if a backend made a change that is forbidden.

    A backend may rewrite the graph of its program. But it must not change tensors and
    subgraphs that it shares (``check_shared``), nor the inputs and outputs of its
    program. ``program``: the program of the partition ``tag`` after the call of
    ``preprocess``. ``before``: a snapshot from before the call. ``extract`` returns a
    copy of the program as it was before the call.
    """
    check_shared(backend, tag, before)
    if before.is_rewritten():
        _check_inputs_and_outputs(backend, tag, program, extract())


def check_shared(backend: str, tag: str, before: Snapshot) -> None:
    """Raise ContractViolation if a backend changed tensors or subgraphs that it shares.

    A backend shares the weights with the caller, and the subgraphs of branches and
    loops with the host's graph. ``before``: a snapshot of the partition ``tag`` from
    before the call.
    """
    written = before.written_tensors()
    edited = before.edited_subgraphs()
    if written:
        text = (
            f"{backend}.preprocess changed weights of partition {tag}, which belong to"
            f" the caller: {written[0]}"
        )
        raise ContractViolation(
            "contract-violation", text, hint="compute with copies: tensor.clone()"
        )
    if edited:
        text = (
            f"{backend}.preprocess changed the subgraph {edited[0]} in partition {tag},"
            " which the host shares"
        )
        hint = "rewrite a copy: copy.deepcopy(edge_program.graph_module)"
        raise ContractViolation("contract-violation", text, hint=hint)


def _check_inputs_and_outputs(
    backend: str, tag: str, program: ExportedProgram, fresh: ExportedProgram
) -> None:
    """Raise ContractViolation if a backend changed the inputs or outputs of its
    program.

    The host would then call the blob in a wrong way. ``program``: the program after the
    call. ``fresh``: the program as it was before. Inputs are compared by name, outputs
    by type.
    """
    inputs = [node.name for node in user_inputs(fresh)]
    inputs_now = [
        n.name
        for n in program.graph.nodes
        if n.op == "placeholder" and n.name in inputs
    ]
    outputs = [_type_of(value) for value in results(fresh)]
    # The new values of buffers are left out. ``zip`` is not strict, since the backend
    # may have changed the number of outputs.
    specs = program.graph_signature.output_specs
    pairs = zip(specs, output_values(program), strict=False)
    values = [value for spec, value in pairs if spec.kind not in MUTATIONS]
    outputs_now = []
    for position, value in enumerate(values):
        # A node that the backend inserted may have no recorded type. Its type then
        # counts as unchanged.
        old = outputs[position] if position < len(outputs) else "?"
        outputs_now.append(_type_of(value) or old)
    for kind, wanted, present in (
        ("inputs", inputs, inputs_now),
        ("outputs", outputs, outputs_now),
    ):
        if wanted != present:
            text = (
                f"{backend}.preprocess changed how partition {tag} is called: its"
                f" {kind} are {wanted}, and {present} in the program that it left"
            )
            hint = (
                "an input that the compiled part does not need is still passed; ignore"
                " it there"
            )
            raise ContractViolation("contract-violation", text, hint=hint)


def _type_of(value: Any) -> str | None:
    """Return the type of an output as text.

    ``value``: the output, a node or a Python number. Returns None for a node without a
    recorded value.
    """
    if isinstance(value, Node):
        if "val" not in value.meta:
            return None
        value = value.meta["val"]
    return Argument.of("", value).type  # "": the type does not depend on a name
