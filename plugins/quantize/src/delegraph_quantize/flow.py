"""``delegraph.quantize``: torchao's PT2E flow in one call.

It exports, prepares, calibrates, converts and exports again.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from itertools import chain
from typing import Any, NamedTuple

import torch
from delegraph import Registry, default_registry, export
from delegraph.errors import (
    ContractViolation,
    DelegraphWarning,
    InputError,
    OptionError,
    PluginUnavailable,
)
from delegraph_engines import quietly
from delegraph_programs import TRACING, to_core, user_inputs, written_targets
from delegraph_programs.decompose.decomposition_tables import RECURRENT
from delegraph_programs.separate_inputs import distinct_inputs
from delegraph_programs.type_aliases import Program
from torch._ops import OpOverload
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from .batch_norms import fold_grouped_transposed, keep_batch_norms, unshare_weights
from .borders import unify_quantization
from .calibration import (
    Batch,
    FailsWithObservers,
    Progress,
    calibrate,
    checked,
    names_of,
)
from .cells import CELLS
from .coarse_values import SampleOfBatches, coarse_calls
from .float_calls import (
    LAYER,
    call_places,
    calls_in_floats,
    is_any_quantized,
    leave_calls_in_floats,
    select,
)
from .integers import NumbersOfIntegers, leave_integers
from .recurrent_layers import coarse_layers
from .unscaled import Unscaled, bodies
from .varied import CalibrationInputs


class Calibrated(NamedTuple):
    """A program with observers that saw all batches.

    ``exported``: the program without observers. ``module``: the program with observers.
    ``first``: the first batch. ``sample``: some batches, if the program has calls for
    which integers may be too coarse. ``unscaled``: values that stay in floats.
    ``notes``: warnings about the batches.
    """

    exported: ExportedProgram
    module: GraphModule
    first: Batch
    sample: list[Batch]
    unscaled: list[Unscaled]
    notes: list[str]


def quantize(
    program: Program,
    calibration_batches: Iterable[Any],
    *,
    backend: str | None = None,
    quantizer: Any = None,
    floats: Any = None,
    dynamic_shapes: Any = None,
    progress: Progress | None = None,
    registry: Registry | None = None,
) -> ExportedProgram:
    """Quantize a model after training for the integer units of a backend.

    The result is for ``lower``. ``program``: an nn.Module in eval mode, or an
    ExportedProgram. ``calibration_batches``: typical arguments of the program, which
    determine the scales. Each batch is a tuple, a dict by names, or a tensor if the
    program takes one. ``quantizer``: a configured quantizer of torchao
    (``delegraph_tosa.quantizer.TOSAQuantizer``). By default it is that of ``backend``
    without settings. Without a backend, the only installed backend with a quantizer is
    taken; of several, the default backend. ``progress(done, total)`` is called after each
    batch; the total is None for a generator. The model is not changed. Buffers that it
    writes carry over from batch to batch. In the result they have their values before
    the first batch.

    ``floats``: calls that stay in floats, with any quantizer. An item is an operator
    (``torch.ops.aten.log.default``, or its name), a line (``"net.py:31"``), a module
    (``"features.0"``), or the name of a call in the exported program.
    ``recover_accuracy`` finds them. By default, calls for which integers are too coarse
    stay in floats: logarithms, roots and quotients that lose their small operands, with
    the calls before them, and scores before a sort. A DelegateWarning names them.
    ``floats=[]`` quantizes them, too.

    If a value was NaN or infinite in a batch, it has no scale, and the calls that make
    or take it stay in floats. A DelegraphWarning names it with its line. Another
    warning names inputs that never vary in the batches.

    Raises InputError for batches that do not fit or have no values, and for a program
    without quantized calls. Raises OptionError for items of ``floats`` without calls.
    Raises PluginUnavailable without torchao, and the errors of the registry for a
    backend without a quantizer.
    """
    registry = registry or default_registry()
    quantizer = quantizer_of(backend, registry) if quantizer is None else quantizer
    calibrated = calibrate_program(
        program, calibration_batches, quantizer, dynamic_shapes, progress, registry
    )
    notes = list(calibrated.notes)
    if floats is None:
        chosen, coarse_notes = _choose_floats(calibrated)
        notes += coarse_notes
    else:
        chosen = select(call_places(calibrated.exported), floats)
    with TRACING:
        if chosen:
            calls = calls_in_floats(calibrated.module, calibrated.exported, chosen)
            leave_calls_in_floats(calibrated.module, calls)
        with registry.attributing(quantizer, "conversion"):
            converted = convert(calibrated.module, calibrated.exported)
            first = calibrated.first
            with torch.no_grad():
                args, kwargs = distinct_inputs((first.args, first.kwargs), converted)
                quantized = torch.export.export(
                    converted, args, kwargs, dynamic_shapes=dynamic_shapes
                )
    if calibrated.unscaled:
        text = (
            "left in floats, with the calls that make or take it:"
            f" {'; '.join(map(str, calibrated.unscaled))}"
        )
        warnings.warn(text, DelegraphWarning, stacklevel=2)
    for note in notes:
        warnings.warn(note, DelegraphWarning, stacklevel=2)
    return quantized


class _Choice(NamedTuple):
    """Names of calls to leave in floats, and notes about them for the user."""

    names: set[str]
    notes: list[str]


def _choose_floats(calibrated: Calibrated) -> _Choice:
    """Choose the calls for which integers are too coarse."""
    module = calibrated.module
    layers = coarse_layers(module, calibrated.exported, calibrated.sample)
    names = set[str]().union(*(layer.in_floats for layer in layers))
    places = call_places(calibrated.exported)
    described = [layer.describe() for layer in layers]
    for call in coarse_calls(module, calibrated.sample, frozenset(names)):
        names |= call.in_floats
        described.append(call.describe(places))
    if not names:
        return _Choice(set(), [])
    text = "integers are too coarse for these calls, which stay in floats"
    in_floats = calls_in_floats(module, calibrated.exported, names)
    if not is_any_quantized(module, in_floats):
        names = set()
        text = (
            "integers are too coarse for these calls, which are quantized because the"
            " program has no others"
        )
    hint = "; floats=[] quantizes them" if names else ""
    return _Choice(names, [f"{text}: {'; '.join(described)}{hint}"])


def calibrate_program(
    program: Program,
    calibration_batches: Iterable[Any],
    quantizer: Any,
    dynamic_shapes: Any,
    progress: Progress | None,
    registry: Registry,
) -> Calibrated:
    """Export a program, put observers into it, and run all batches.

    For parameters and errors see ``quantize``.
    """
    expect_torchao()
    _expect_quantizer(quantizer, registry)
    batches, total = checked(
        program, calibration_batches, dynamic_shapes is not None, finite=False
    )
    first = next(batches)
    _expect_arguments(program, first)
    exported = export_whole(program, first, dynamic_shapes)
    _expect_floats(exported)
    inputs = CalibrationInputs(argument_names(program))
    sample = SampleOfBatches(exported)
    with TRACING:
        prepared = _prepare(exported, quantizer, registry)
        try:
            watched = sample.watch(inputs.watch(chain([first], batches)))
            unscaled = calibrate(
                prepared, lambda: module_of(exported), watched, total, progress
            )
        except FailsWithObservers as failed:
            assert failed.__cause__ is not None
            with registry.attributing(quantizer, "calibration"):
                raise failed.__cause__ from None
    notes = list(inputs.notes())
    return Calibrated(exported, prepared, first, sample.kept, unscaled, notes)


def convert(prepared: GraphModule, exported: ExportedProgram) -> GraphModule:
    """Return the program with integers in the place of observers, as a module.

    ``exported``: the program before observers were added.
    """
    converted = _replace_observers(prepared)
    unify_quantization(converted)
    for name, before in written_buffers(exported).items():
        # calibration wrote the buffer
        converted.get_buffer(name).copy_(before)
    return converted


def argument_names(program: Program) -> list[str]:
    """Return the names of the arguments in order; for a program, those of its inputs."""
    if not isinstance(program, ExportedProgram):
        return names_of(program)
    spec = program.call_spec.in_spec
    if spec is not None and all(child.is_leaf() for child in spec.child(0).children()):
        return [node.name for node in user_inputs(program)]
    return names_of(program)


def quantizer_of(backend: str | None, registry: Registry) -> Any:
    """Return the quantizer of a backend.

    Without a name, it is the backend that ``lower`` would take among those with one.
    """
    if backend is None:
        (backend,), _ = registry.default_backends(suits=lambda info: info.has_quantizer)
    kind = registry.get_quantizer(backend)
    with registry.attributing(kind, "making an object"):
        return kind()


def _expect_quantizer(quantizer: Any, registry: Registry) -> None:
    """Raise unless ``quantizer`` is one of torchao's.

    The error is ContractViolation if it belongs to a backend, and else OptionError.
    """
    from torchao.quantization.pt2e.quantizer import Quantizer

    if isinstance(quantizer, Quantizer):
        return
    record = registry.owner(type(quantizer))
    if record is not None:
        text = (
            f"{type(quantizer).__name__}, the quantizer of {record.owner}, does not"
            " derive from torchao's Quantizer"
        )
        hint = (
            "for its authors: derive it from"
            " torchao.quantization.pt2e.quantizer.Quantizer"
        )
        raise ContractViolation("contract-violation", text, hint=hint)
    raise OptionError(
        "option-invalid",
        f"quantizer must be a Quantizer object of torchao; got {quantizer!r}",
    )


def _expect_arguments(program: Program, batch: Batch) -> None:
    """Raise InputError if a batch has too many or too few values for the module.

    For example, a loader may yield labels as well.
    """
    if isinstance(program, torch.nn.Module):
        parameters = inspect.signature(program.forward)
        try:
            parameters.bind(*batch.args, **batch.kwargs)
        except TypeError as e:
            has = f"{len(batch.args)} values"
            if batch.kwargs:
                has = f"the arguments {', '.join(batch.kwargs)}"
            text = (
                f"a calibration batch has {has}, and {type(program).__name__} takes"
                f" {parameters}"
            )
            raise InputError(
                "input-invalid",
                text,
                hint="without labels: [(x,) for x, label in loader]",
            ) from e


def _expect_floats(exported: ExportedProgram) -> None:
    """Raise InputError for a program that is already quantized, or not float32."""
    if any(
        str(node.target).startswith("quantized_decomposed.")
        for node in exported.graph.nodes
    ):
        text = (
            "the program is quantized already: it calls operators of"
            " quantized_decomposed"
        )
        raise InputError(
            "input-invalid", text, hint="delegraph.lower takes it as it is"
        )
    values = [node.meta.get("val") for node in exported.graph.nodes]
    dtypes = {value.dtype for value in values if isinstance(value, torch.Tensor)}
    floats = {dtype for dtype in dtypes if dtype.is_floating_point}
    if floats and torch.float32 not in floats:
        names = ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in floats))
        raise InputError(
            "input-invalid",
            f"only programs in float32 can be quantized; this one computes in {names}",
            hint="model.float()",
        )


def _prepare(
    exported: ExportedProgram, quantizer: Any, registry: Registry
) -> GraphModule:
    """Return the program with observers.

    Errors of torchao about an annotation, and errors of the quantizer, are attributed
    to the quantizer.
    """
    from torchao.quantization.pt2e.quantize_pt2e import prepare_pt2e

    module = module_of(exported)
    unshare_weights(module)
    _name_layers(module)
    keep_batch_norms(module)
    fold_grouped_transposed(module)
    numbers = NumbersOfIntegers(module)
    with quietly(), registry.attributing(quantizer, "annotation"):
        prepared: GraphModule = prepare_pt2e(module, quantizer)
        _prepare_branches(prepared, lambda branch: prepare_pt2e(branch, quantizer))
    numbers.restore(prepared)
    leave_integers(prepared)
    # in an exported program, only observers are called as modules
    if not any(body.graph.find_nodes(op="call_module") for body in bodies(prepared)):
        text = "nothing is quantized: the quantizer annotated no call of the program"
        raise InputError(
            "input-invalid", text, hint="check the settings of the quantizer"
        )
    return prepared


def _prepare_branches(
    module: GraphModule, prepare: Callable[[GraphModule], GraphModule]
) -> None:
    """Put observers into the branches of ``cond``, at any depth.

    torchao does so only for bodies of loops.
    """
    for call in module.graph.find_nodes(op="call_function", target=_COND):
        for branch in call.args[1:3]:
            setattr(module, branch.target, prepare(getattr(module, branch.target)))
    for _, body in module.named_children():
        if isinstance(body, GraphModule):
            _prepare_branches(body, prepare)


def _name_layers(module: GraphModule) -> None:
    """Write each call's name into its metadata, which torch keeps in the last export.

    Calls that a quantizer adds later have no such name.
    """
    for node in module.graph.nodes:
        if node.op == "call_function":
            node.meta["custom"] = {**node.meta.get("custom", {}), LAYER: node.name}


def module_of(exported: ExportedProgram) -> GraphModule:
    """Return the program as a module, with copies of the buffers that it writes.

    Without copies, a run would change the buffers of the user's model.
    """
    module: GraphModule = exported.module(check_guards=False)
    for name in written_targets(exported):
        owner, _, attribute = name.rpartition(".")
        setattr(module.get_submodule(owner), attribute, module.get_buffer(name).clone())
    return module


def written_buffers(exported: ExportedProgram) -> dict[str, torch.Tensor]:
    """Return copies of the buffers that a program writes, by name."""
    module = module_of(exported)
    return {name: module.get_buffer(name) for name in written_targets(exported)}


def _replace_observers(prepared: GraphModule) -> GraphModule:
    """Return the program with quantize and dequantize operators instead of observers.

    Float weights that torchao leaves unused are removed.
    """
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e

    hidden = _hide_bodies(prepared)
    for target, stand_in in _STAND_INS.items():
        _retarget(prepared, target, stand_in)
    with quietly():
        converted: GraphModule = convert_pt2e(prepared)
    for target, stand_in in _STAND_INS.items():
        _retarget(converted, stand_in, target)
    used = {str(node.target) for node in converted.graph.nodes if node.op == "get_attr"}
    for name, _ in [*converted.named_parameters(), *converted.named_buffers()]:
        if name not in used:
            owner, _, attribute = name.rpartition(".")
            delattr(converted.get_submodule(owner), attribute)
    for name in used & hidden.keys():
        setattr(converted, name, hidden[name])
    return converted


class _HiddenBody(torch.nn.Module):
    """Replaces the body of a loop or a branch while torchao converts the calling graph."""

    def __init__(self, body: GraphModule) -> None:
        super().__init__()
        # in a tuple, it is no submodule, so torchao does not find it
        self._body = (body,)

    def forward(self, *operands: Any) -> Any:
        return self._body[0](*operands)


def _hide_bodies(prepared: GraphModule) -> dict[str, GraphModule]:
    """Replace the bodies of loops and branches by ``_HiddenBody``; return them by name.

    Bodies with observers are converted before that. The condition of a loop has none.
    """
    graph = prepared.graph
    names = {str(node.target) for node in graph.find_nodes(op="get_attr")}
    bodies_with_observers: list[Any] = []
    for loop in graph.find_nodes(op="call_function", target=_WHILE_LOOP):
        bodies_with_observers.append(loop.args[1])
    for scan in graph.find_nodes(op="call_function", target=_SCAN):
        bodies_with_observers.append(scan.args[0])
    for cond in graph.find_nodes(op="call_function", target=_COND):
        bodies_with_observers += cond.args[1:3]
    with_observers = {str(body.target) for body in bodies_with_observers}
    hidden = dict[str, GraphModule]()
    for name, body in list(prepared.named_children()):
        if name in names and isinstance(body, GraphModule):
            hidden[name] = _replace_observers(body) if name in with_observers else body
            setattr(prepared, name, _HiddenBody(hidden[name]))
    return hidden


def _batch_norm(*args: Any) -> torch.Tensor:
    """Replaces a batch norm while torchao converts.

    For graphs with batch norms, torchao exports a dozen patterns of training.
    """
    return torch.ops.aten.batch_norm.default(*args)  # type: ignore[no-any-return]


_WHILE_LOOP = torch.ops.higher_order.while_loop
_SCAN = torch.ops.higher_order.scan
_COND = torch.ops.higher_order.cond


def _while_loop(*args: Any) -> Any:
    """Call a loop; calls have this target while torchao converts a program.

    torchao converts the bodies of calls with the original target. These bodies are
    converted already.
    """
    return _WHILE_LOOP(*args)


def _scan(*args: Any) -> Any:
    """Replaces a scan while torchao converts, as ``_while_loop`` replaces a loop."""
    return _SCAN(*args)


_STAND_INS = {
    torch.ops.aten.batch_norm.default: _batch_norm,
    _WHILE_LOOP: _while_loop,
    _SCAN: _scan,
}
"""Replacements of calls that torchao should not recognize while it converts."""


def _retarget(module: GraphModule, old: Any, new: Any) -> None:
    """Let all calls of ``old`` in the graph of ``module`` call ``new``."""
    for node in module.graph.find_nodes(op="call_function", target=old):
        node.target = new
    module.recompile()


def export_whole(
    program: Program, inputs: Batch, dynamic_shapes: Any = None
) -> ExportedProgram:
    """Export a program for quantization, with recurrent layers decomposed into steps.

    A recurrent layer is one call for torch, and a quantizer could annotate nothing in
    it. Cells are decomposed, too. A program that writes its buffers becomes functional:
    otherwise torchao takes the buffers for constants.
    """
    exported = export(
        program,
        inputs.args,
        example_kwargs=inputs.kwargs or None,
        dynamic_shapes=dynamic_shapes,
    )["forward"]
    graphs = [body.graph for body in bodies(exported.graph_module)]
    nodes = chain.from_iterable(graph.nodes for graph in graphs)
    targets = {node.target for node in nodes if isinstance(node.target, OpOverload)}
    table: Any = {op: to_core(op) for op in targets if op._schema.name in RECURRENT}
    table |= {op: CELLS[op] for op in targets if op in CELLS}
    writes = any(_writes_buffer(node, exported) for node in exported.graph.nodes)
    if not table and not writes:
        return exported
    with TRACING, quietly():
        unrolled: ExportedProgram = exported.run_decompositions(table)
    return unrolled


def _writes_buffer(node: Node, program: ExportedProgram) -> bool:
    """Return whether a call writes a buffer, or a view of one."""
    if not isinstance(node.target, OpOverload) or not node.target._schema.is_mutable:
        return False
    # views have their source as first argument
    root = node
    while root.op == "call_function" and root.args and isinstance(root.args[0], Node):
        root = root.args[0]
    return root.name in program.graph_signature.inputs_to_buffers


def expect_torchao() -> None:
    """Raise PluginUnavailable unless torchao can be imported.

    torchao's log messages about its kernels are suppressed.
    """
    if find_spec("torchao") is None:
        text = "quantizing needs torchao, which is not installed"
        raise PluginUnavailable(
            "plugin-unavailable", text, hint="pip install torchao==0.18.0"
        )
    with quietly():
        import torchao.quantization.pt2e  # noqa: F401
