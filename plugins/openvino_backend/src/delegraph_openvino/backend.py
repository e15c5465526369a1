"""A partition becomes an IR, whose large constants are named data that refers to the
model's own tensors.
"""

from __future__ import annotations

import tempfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import openvino as ov
import torch
from delegraph.backend import (
    BackendDetails,
    CompileSpec,
    NamedDataStore,
    PreprocessResult,
)
from delegraph_engines import Signature, calls_in
from torch.export import ExportedProgram

from .frontend import DTYPES, Draft, reason_of
from .runtime import MARK, WEIGHT, compile_model, fold_operands, settings_of, why_absent

SMALLEST = 4096
"""Bytes that a constant has at least to be stored beside the blob, where delegates
share it: weights, few biases.
"""


class OpenVINOBackend(BackendDetails):
    """Compiles to OpenVINO's IR: the same for each device, and readable by later
    releases of OpenVINO.
    """

    @staticmethod
    def fingerprint(compile_specs: list[CompileSpec]) -> str:
        return f"openvino {ov.get_version()}"

    @staticmethod
    def preprocess(
        edge_program: ExportedProgram, compile_specs: list[CompileSpec]
    ) -> PreprocessResult:
        """The blob, one debug identifier a call, and the weights. Raises Unsupported
        with OpenVINO's reason.

        Compiles for the device if this machine has it: what only the compiler knows has
        to be said now.
        """
        settings = settings_of(compile_specs)
        draft = Draft(edge_program)
        model = draft.convert()
        _drop_casts(model)
        fold_operands(model, largest=SMALLEST)
        _name(model)
        if not why_absent(settings["device"]):
            trial = model.clone()
            fold_operands(trial)
            try:
                compile_model(trial, settings)
            except RuntimeError as e:
                raise draft.refused(reason_of(e)) from e
        weights = _take_weights(model, draft.constants.values())
        blob = _serialize(model, draft.signature)
        return PreprocessResult(
            blob, draft.debug_handles, weights.get_named_data_store_output()
        )


def _drop_casts(model: ov.Model) -> None:
    """Take out casts that change no type, such as those of weights of norms."""
    for node in model.get_ordered_ops():
        is_cast = node.get_type_name() == "Convert"
        if is_cast and node.get_input_element_type(0) == node.get_element_type():
            node.output(0).replace(node.input_value(0))


def _name(model: ov.Model) -> None:
    """Name operators by their calls and places: OpenVINO numbers them as it makes them,
    in all of the process.
    """
    model.set_friendly_name("partition")
    for k, node in enumerate(model.get_ordered_ops()):
        if node.get_type_name() != "Parameter":
            call = "".join(
                f"n{number}/" for number in calls_in(node.get_friendly_name())[:1]
            )
            node.set_friendly_name(f"{call}{node.get_type_name()}/{k}")


def _take_weights(model: ov.Model, constants: Iterable[torch.Tensor]) -> NamedDataStore:
    """Put parameters in the places of large constants of the program; the named data
    that belongs there.
    """
    store = NamedDataStore()
    parameters = dict[str, Any]()
    places = {t.data_ptr(): t for t in constants if t.nbytes >= SMALLEST}
    for node in model.get_ordered_ops():
        is_large = (
            node.get_type_name() == "Constant" and node.get_byte_size() >= SMALLEST
        )
        # to ask for an address takes longer
        tensor = places.get(node.data.ctypes.data) if is_large else None
        if tensor is None or node.get_byte_size() != tensor.nbytes:
            continue
        kind = node.get_element_type()
        shape = node.output(0).get_shape()
        # tied weights are one memory, maybe in several types and shapes
        as_used = (
            tensor.reshape(-1).view(getattr(torch, DTYPES[kind])).reshape(list(shape))
        )
        key = store.add_by_content(WEIGHT, as_used, alignment=64)
        parameter = parameters.setdefault(
            key, ov.opset13.parameter(shape, kind, name=key)
        )
        node.output(0).replace(parameter.output(0))
    model.add_parameters(list(parameters.values()))
    return store


def _serialize(model: ov.Model, signature: Signature) -> bytes:
    """Return the two files of an IR, one after the other, sealed: OpenVINO's own reader
    trusts what it reads.

    The XML is compressed to about a tenth. In quantized models it is larger than the
    weights otherwise.
    """
    with tempfile.TemporaryDirectory() as folder:
        xml = Path(folder, "model.xml")
        constants = Path(folder, "model.bin")
        ov.serialize(model, xml, constants)
        text = xml.read_bytes()
        packed = zlib.compress(text, 9)
        xml.write_bytes(packed + constants.read_bytes())
        return signature.seal(xml, MARK, xml=len(text), packed=len(packed))
