"""``TOSABackend``: one partition becomes one TOSA file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from delegraph.backend import (
    BackendDetails,
    CompileSpec,
    DelegateMappingBuilder,
    PreprocessResult,
)
from delegraph.errors import DelegraphError, WriteError
from delegraph.formats import write_whole
from delegraph_programs import user_inputs
from torch.export import ExportedProgram

from .borders import quantization_of
from .ir.graph import Graph, Operator
from .lowering import Origin, Tosa, lower_program
from .lowering.ranges.bounds import bounds_of
from .lowering.registry import indexes_of
from .options import Options, filter_tosa_compile_specs
from .passes import run_passes, sources_of
from .serialize import TosaFile, ranges_record, split_constants
from .spec import TosaSpec, required, required_target
from .validate import validate

__all__ = ["TOSABackend", "compile_program", "filter_tosa_compile_specs"]


class TOSABackend(BackendDetails):
    """Writes TOSA 1.0 flatbuffers; the compile specs are those of
    ``delegraph_tosa.options``.
    """

    thread_safe = True
    keeps_names = True
    filter_tosa_compile_specs = staticmethod(filter_tosa_compile_specs)

    @staticmethod
    def fingerprint(compile_specs: list[CompileSpec]) -> str | None:
        """A file depends on the program and the compile specs alone; with source lines,
        or debug files, on more.
        """
        options = Options.parse(compile_specs)
        return (
            None if options.locations or options.debug_artifact_path is not None else ""
        )

    @staticmethod
    def preprocess(
        edge_program: ExportedProgram, compile_specs: list[CompileSpec]
    ) -> PreprocessResult:
        """The partition as a ``.tosa`` file whose weights are read when it is written.

        Delegate debug identifiers are the numbers of operators in the file, from 0, one
        region after the other; its CONST and CONST_SHAPE count as well. Raises
        Unsupported with the node for what the target cannot express, OptionError for
        wrong compile specs.
        """
        options = Options.parse(compile_specs)
        graph = _compiled(edge_program, options)
        quantization = quantization_of(edge_program)
        trailer = b""
        if options.metadata:
            trailer = quantization.trailer(graph) + _ranges_of_indices(
                edge_program, graph
            )
        file = TosaFile(
            graph, options.spec, locations=options.locations, trailer=trailer
        )
        facts = {
            "needs": _needs(graph, options.spec),
            "target": str(options.spec),
        } | quantization.facts()
        blob, data = split_constants(file) if options.named_constants else (file, None)
        return PreprocessResult(blob, _debug_handles(file.numbers), data, facts=facts)


def _ranges_of_indices(program: ExportedProgram, graph: Graph) -> bytes:
    """Return the record of the ranges of the inputs that have indices, in the order of
    the graph's inputs.
    """
    bounds = bounds_of(program.graph.nodes, indexes_of)
    by_name = {
        node.name: bounds[node] for node in user_inputs(program) if node in bounds
    }
    return ranges_record([by_name.get(value.name or "") for value in graph.inputs])


def compile_program(program: ExportedProgram, spec: TosaSpec) -> Graph:
    """The legal TOSA graph of a functional program: lowered, optimized, validated,
    every result named.
    """
    return _finished(lower_program(program, Tosa(spec)), Options(spec))


def _compiled(program: ExportedProgram, options: Options) -> Graph:
    """As ``compile_program``, with the debug file that was asked for; of what there is,
    if it fails.
    """
    t = Tosa(options.spec)
    try:
        graph = _finished(lower_program(program, t), options)
    except DelegraphError:
        _dump(_partial(t.operators), program, options, "_failed")
        raise
    _dump(graph, program, options)
    return graph


def _finished(graph: Graph, options: Options) -> Graph:
    """Order the inputs of a lowered graph, run the passes, validate the graph and name
    its results.
    """
    graph.inputs = [
        graph.inputs[position] for position in options.ordered(graph.inputs)
    ]
    graph = run_passes(graph, options.spec)
    validate(graph, options.spec)
    _name_results(graph)
    return graph


def _name_results(graph: Graph) -> None:
    """Name what is neither input nor output by its operator and position: what a file's
    tensors are called.
    """
    kept = {*graph.inputs, *graph.outputs}
    taken = {value.name for value in kept}
    for position, operator in enumerate(graph.operators):
        for value in operator.outputs:
            if value not in kept:
                value.name = f"{operator.name.lower()}_{position}"
                while value.name in taken:
                    value.name += "_"
                taken.add(value.name)


def _needs(graph: Graph, spec: TosaSpec) -> str:
    """The least profiles and extensions that the file needs, as its version calls them."""
    if spec.version < (1, 0):
        return "+".join(
            TosaSpec(spec.version, *required(graph, spec.version)).profile_names
        )
    return str(required_target(graph)[1])


def _debug_handles(numbers: Mapping[Operator, int]) -> dict[Any, tuple[int, ...]]:
    """Number of an operator -> debug handles of the nodes that it comes from; it can
    stand for several.
    """
    mapping = DelegateMappingBuilder()
    for operator, number in numbers.items():
        origins = [
            origin
            for origin in sources_of(operator.source)
            if isinstance(origin, Origin)
        ]
        handles = [origin.handle for origin in origins if origin.handle is not None]
        if handles:
            mapping.insert_delegate_mapping_entry(handles=handles, identifier=number)
    return mapping.get_delegate_mapping()


def _partial(operators: list[Operator]) -> Graph:
    """The operators that were built before something failed; what they lack are inputs,
    what nobody uses outputs.
    """
    made = [value for operator in operators for value in operator.outputs]
    used = list(
        dict.fromkeys(value for operator in operators for value in operator.inputs)
    )
    inputs = [
        value for value in used if value.producer is None and value.constant is None
    ]
    unused = [value for value in made if value not in set(used)]
    return Graph(inputs, unused, operators)


def _dump(
    graph: Graph, program: ExportedProgram, options: Options, suffix: str = ""
) -> None:
    """Write ``output_<partition>_<spec>.tosa``, with the user's lines, into the folder
    for debug files if there is one.

    The name of a method other than ``forward`` stands before the partition's, which a
    program by itself does not have.
    """
    folder = options.debug_artifact_path
    if folder is None:
        return
    meta = program.graph_module.meta
    named = [
        meta[key]
        for key in ("method", "partition")
        if meta.get(key, "forward") != "forward"
    ]
    name = "_".join(["output", *named, str(options.spec)]) + f"{suffix}.tosa"
    _write(TosaFile(graph, options.spec, locations=True), folder / name)


def _write(file: TosaFile, path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WriteError(
            "write-failed",
            f"the folder {path.parent} could not be made: {error.strerror}",
        ) from error
    write_whole(path, file)
