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
from .ir.graph import Graph, Operator, Value
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
    """Writes TOSA flatbuffers.

    ``delegraph_tosa.options`` describes the compile specs.
    """

    thread_safe = True
    keeps_names = True
    filter_tosa_compile_specs = staticmethod(filter_tosa_compile_specs)

    @staticmethod
    def fingerprint(compile_specs: list[CompileSpec]) -> str | None:
        """Return "" if a file depends only on program and compile specs, else None.

        Source locations and debug files also depend on local paths.
        """
        options = Options.parse(compile_specs)
        if options.locations or options.debug_artifact_path is not None:
            return None
        return ""

    @staticmethod
    def preprocess(
        edge_program: ExportedProgram, compile_specs: list[CompileSpec]
    ) -> PreprocessResult:
        """Compile a partition to a ``.tosa`` file, which reads weights when written.

        Delegate debug identifiers are operator numbers in the file. They start at 0 and
        continue from region to region; CONST and CONST_SHAPE count too. Raises
        Unsupported, with the node, for calls that the target cannot express, and
        OptionError for wrong compile specs.
        """
        options = Options.parse(compile_specs)
        graph = _compiled(edge_program, options)
        quantization = quantization_of(edge_program)
        trailer = b""
        if options.metadata:
            trailer = quantization.trailer(graph)
            trailer += _ranges_of_indices(edge_program, graph)
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
    """Return the record of the ranges of index inputs, in the graph's order."""
    bounds = bounds_of(program.graph.nodes, indexes_of)
    by_name = {
        node.name: bounds[node] for node in user_inputs(program) if node in bounds
    }
    return ranges_record([by_name.get(value.name or "") for value in graph.inputs])


def compile_program(program: ExportedProgram, spec: TosaSpec) -> Graph:
    """Lower a functional program to a legal TOSA graph.

    The graph is optimized and validated, and each result has a name.
    """
    return _finished(lower_program(program, Tosa(spec)), Options(spec))


def _compiled(program: ExportedProgram, options: Options) -> Graph:
    """Compile as ``compile_program`` does, and write a debug file if requested.

    If lowering fails, the debug file has the operators that were built until then.
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
    """Return the graph in its final form.

    Orders its inputs, runs the passes, validates it and names its results.
    """
    graph.inputs = [
        graph.inputs[position] for position in options.ordered(graph.inputs)
    ]
    graph = run_passes(graph, options.spec)
    validate(graph, options.spec)
    _name_results(graph)
    return graph


def _name_results(graph: Graph) -> None:
    """Name each value that is neither input nor output by its operator and position.

    Tensors in the file have these names.
    """
    border = {*graph.inputs, *graph.outputs}
    taken = {value.name for value in border}
    for position, operator in enumerate(graph.operators):
        for value in operator.outputs:
            if value not in border:
                value.name = f"{operator.name.lower()}_{position}"
                while value.name in taken:
                    value.name += "_"
                taken.add(value.name)


def _needs(graph: Graph, spec: TosaSpec) -> str:
    """Return the profiles and extensions of the smallest target for the file."""
    if spec.version < (1, 0):
        target = TosaSpec(spec.version, *required(graph, spec.version))
        return "+".join(target.profile_names)
    _, requirement = required_target(graph)
    return str(requirement)


def _debug_handles(numbers: Mapping[Operator, int]) -> dict[Any, tuple[int, ...]]:
    """Map the number of each operator to the debug handles of its source nodes.

    An operator can come from several nodes.
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
    """Return a graph of the operators that were built before an error.

    Operands without a producer are its inputs, unused results its outputs.
    """
    used: dict[Value, None] = {}
    results: list[Value] = []
    for operator in operators:
        used.update(dict.fromkeys(operator.inputs))
        results += operator.outputs
    inputs = [
        value for value in used if value.producer is None and value.constant is None
    ]
    unused = [value for value in results if value not in used]
    return Graph(inputs, unused, operators)


def _dump(
    graph: Graph, program: ExportedProgram, options: Options, suffix: str = ""
) -> None:
    """Write the graph into the folder for debug files, if the options name one.

    The file is ``output_<partition>_<spec>.tosa`` and has source locations. The name
    of a method other than ``forward`` comes before the partition. If no method and
    partition are recorded, the name has only the spec.
    """
    folder = options.debug_artifact_path
    if folder is None:
        return
    meta = program.graph_module.meta
    labels = [
        meta[key]
        for key in ("method", "partition")
        if meta.get(key, "forward") != "forward"
    ]
    name = "_".join(["output", *labels, str(options.spec)]) + f"{suffix}.tosa"
    _write(TosaFile(graph, options.spec, locations=True), folder / name)


def _write(file: TosaFile, path: Path) -> None:
    """Write a file, and create its folder."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WriteError(
            "write-failed",
            f"cannot create the folder {path.parent}: {error.strerror}",
        ) from error
    write_whole(path, file)
