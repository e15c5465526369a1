"""A partition becomes an IR, whose large constants are named data that refers to the model's own tensors."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import openvino as ov
import torch
from delegraph.backend import BackendDetails, CompileSpec, NamedDataStore, PreprocessResult
from delegraph.errors import Unsupported
from delegraph.exported_program import constant_placeholders, constant_tensor, output_values, placeholders
from delegraph.source import source_of
from torch.export import ExportedProgram
from torch.fx import Node

from .blob import encode, key_of
from .frontend import Draft, reason_of
from .options import from_compile_specs
from .runtime import compile_model, is_present

SMALLEST = 256
"""Bytes that a constant has at least to be stored beside the blob, where delegates share it."""


class OpenVINOBackend(BackendDetails):
    """Compiles to OpenVINO's IR: the same for each device, and readable by later releases of OpenVINO."""

    @staticmethod
    def fingerprint(compile_specs: list[CompileSpec]) -> str:
        return f"openvino {ov.get_version()}"

    @staticmethod
    def preprocess(edge_program: ExportedProgram, compile_specs: list[CompileSpec]) -> PreprocessResult:
        """The blob, one debug identifier a call, and the weights. Raises Unsupported with OpenVINO's reason.

        Compiles for the device if this machine has it: what only the compiler knows has to be said now.
        """
        options = from_compile_specs(compile_specs)
        options.mark_cache()
        draft, model = convert(edge_program)
        _name(model, ["size" if isinstance(n.meta["val"], torch.SymInt) else "y" for n in output_values(edge_program)])
        if is_present(options.device):
            try:
                compile_model(model, options)
            except RuntimeError as e:
                raise _refused(draft.calls, reason_of(e)) from e
        weights = _take_weights(model, draft.constants)
        handles = {k: (n.meta["debug_handle"],) for k, n in enumerate(draft.calls) if "debug_handle" in n.meta}
        return PreprocessResult(_serialize(model), handles, weights.get_named_data_store_output())


def convert(program: ExportedProgram) -> tuple[Draft, ov.Model]:
    """OpenVINO's model of a program, and the draft of it."""
    draft, constant = Draft(), constant_placeholders(program)
    for node, spec in placeholders(program):
        if node in constant:
            draft.add_constant(node, constant_tensor(program, spec))
        else:
            draft.add_input(node)
    for node in program.graph.nodes:
        if node.op == "call_function":
            draft.add_call(node)
    try:
        model = draft.convert(output_values(program))
    except Unsupported as refusal:
        raise _refused(draft.calls, refusal.message) from refusal
    return draft, model


def _refused(calls: list[Node], reason: str) -> Unsupported:
    """The refusal of a partition, at the call that OpenVINO names in its reason, or at the first."""
    named = re.search(r"\bn(\d+)/", reason)
    node = calls[int(named.group(1)) if named and int(named.group(1)) < len(calls) else 0]
    return Unsupported("unsupported", reason, node=node, source=source_of(node))


def _name(model: ov.Model, results: list[str]) -> None:
    """Name operators by their calls and places: OpenVINO numbers them as it makes them, in all of the process."""
    model.set_friendly_name("partition")
    for k, node in enumerate(model.get_ordered_ops()):
        call = re.match(r"n\d+/", node.get_friendly_name())
        if node.get_type_name() != "Parameter":
            node.set_friendly_name(f"{call.group() if call else ''}{node.get_type_name()}/{k}")
    for k, (result, name) in enumerate(zip(model.get_results(), results, strict=True)):
        result.set_friendly_name(f"{name}{k}")


def _take_weights(model: ov.Model, constants: Mapping[str, torch.Tensor]) -> NamedDataStore:
    """Put parameters in the places of large constants of the program; the named data that belongs there."""
    store = NamedDataStore()
    places = {t.data_ptr(): t for t in constants.values() if t.nbytes >= SMALLEST}
    parameters: dict[int, Any] = {}
    for node in model.get_ordered_ops():
        if node.get_type_name() != "Constant" or node.get_byte_size() < SMALLEST:
            continue
        place = node.data.ctypes.data
        tensor = places.get(place)
        if tensor is None or node.get_byte_size() != tensor.nbytes:
            continue
        if place not in parameters:
            key = key_of(tensor.reshape(-1).view(torch.uint8).numpy().data)
            store.add_named_data(key, tensor, alignment=64)
            shape, kind = node.output(0).get_partial_shape(), node.get_element_type()
            parameters[place] = ov.opset13.parameter(shape, kind, name=key)
        node.output(0).replace(parameters[place].output(0))
    model.add_parameters(list(parameters.values()))
    return store


def _serialize(model: ov.Model) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        xml, constants = Path(folder, "model.xml"), Path(folder, "model.bin")
        ov.serialize(model, xml, constants)
        return encode(xml.read_bytes(), constants.read_bytes())
