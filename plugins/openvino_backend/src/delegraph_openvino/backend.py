"""A partition becomes an IR, whose large constants are named data that refers to the model's own tensors."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import openvino as ov
import torch
from delegraph.backend import BackendDetails, CompileSpec, NamedDataStore, PreprocessResult
from delegraph.delegates import Signature, calls_in
from torch.export import ExportedProgram

from .frontend import DTYPES, Draft, reason_of
from .runtime import MARK, WEIGHT, compile_model, settings_of, why_absent

SMALLEST = 4096
"""Bytes that a constant has at least to be stored beside the blob, where delegates share it: weights, few biases."""

ELEMENTWISE = ("Add", "Subtract", "Multiply", "Divide", "Maximum", "Minimum")


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
        settings = settings_of(compile_specs)
        draft = Draft(edge_program)
        model = draft.convert()
        _fold_operands(model)
        _name(model)
        if not why_absent(settings["device"]):
            try:
                compile_model(model, settings)
            except RuntimeError as e:
                raise draft.refused(reason_of(e)) from e
        weights = _take_weights(model, draft.constants.values())
        blob = _serialize(model, draft.signature)
        return PreprocessResult(blob, draft.debug_handles, weights.get_named_data_store_output())


def _fold_operands(model: ov.Model) -> None:
    """Compute now what elementwise operators read of constants alone: dequantized ones, an LSTM's first state.

    OpenVINO computes them when it compiles, and lets the operator write its result over them: the next call finds it
    there (openvino 2026.4.1). Weights of products stay quantized. Casts that change no type are taken out.
    """
    varying, reads = {node.get_name() for node in model.get_parameters()}, []
    for node in model.get_ordered_ops():
        if node.get_type_name() == "Convert" and node.get_input_element_type(0) == node.get_element_type():
            node.output(0).replace(node.input_value(0))  # of weights of norms
        constant = [i for i in node.inputs() if i.get_source_output().get_node().get_name() not in varying]
        if len(constant) < len(node.inputs()):
            varying.add(node.get_name())
            if node.get_type_name() in ELEMENTWISE:
                reads += [i for i in constant if i.get_source_output().get_node().inputs()]
    computed = ov.Model([operand.get_source_output() for operand in reads], [])
    values = ov.compile_model(computed, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})({}) if reads else {}
    for k, operand in enumerate(reads):
        operand.replace_source_output(ov.opset13.constant(values[k]).output(0))


def _name(model: ov.Model) -> None:
    """Name operators by their calls and places: OpenVINO numbers them as it makes them, in all of the process."""
    model.set_friendly_name("partition")
    for k, node in enumerate(model.get_ordered_ops()):
        if node.get_type_name() != "Parameter":
            call = "".join(f"n{number}/" for number in calls_in(node.get_friendly_name())[:1])
            node.set_friendly_name(f"{call}{node.get_type_name()}/{k}")


def _take_weights(model: ov.Model, constants: Iterable[torch.Tensor]) -> NamedDataStore:
    """Put parameters in the places of large constants of the program; the named data that belongs there."""
    store, parameters = NamedDataStore(), dict[str, Any]()
    places = {t.data_ptr(): t for t in constants if t.nbytes >= SMALLEST}
    for node in model.get_ordered_ops():
        is_large = node.get_type_name() == "Constant" and node.get_byte_size() >= SMALLEST
        tensor = places.get(node.data.ctypes.data) if is_large else None  # to ask for an address takes longer
        if tensor is None or node.get_byte_size() != tensor.nbytes:
            continue
        kind, shape = node.get_element_type(), node.output(0).get_shape()
        # tied weights are one memory, maybe in several types and shapes
        as_used = tensor.reshape(-1).view(getattr(torch, DTYPES[kind])).reshape(list(shape))
        key = store.add_by_content(WEIGHT, as_used, alignment=64)
        parameter = parameters.setdefault(key, ov.opset13.parameter(shape, kind, name=key))
        node.output(0).replace(parameter.output(0))
    model.add_parameters(list(parameters.values()))
    return store


def _serialize(model: ov.Model, signature: Signature) -> bytes:
    """The two files of an IR, one behind the other, sealed: OpenVINO's own reader trusts what it reads."""
    with tempfile.TemporaryDirectory() as folder:
        xml, constants = Path(folder, "model.xml"), Path(folder, "model.bin")
        ov.serialize(model, xml, constants)
        size = xml.stat().st_size
        xml.write_bytes(xml.read_bytes() + constants.read_bytes())
        return signature.seal(xml, MARK, xml=size)
