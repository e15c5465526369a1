"""A partition becomes an IR, whose large constants are named data that refers to the model's own tensors."""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import openvino as ov
import torch
from delegraph.backend import BackendDetails, CompileSpec, NamedDataStore, PreprocessResult
from delegraph.delegates import Signature
from delegraph.io.sealed import seal
from torch.export import ExportedProgram

from .frontend import Draft
from .options import Options, from_compile_specs
from .runtime import DTYPES, MARK, WEIGHT, compile_model, is_present

SMALLEST = 4096
"""Bytes that a constant has at least to be stored beside the blob, where delegates share it: weights, few biases."""


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
        draft = Draft(edge_program)
        model = draft.convert()
        _name(model)
        if is_present(options.device):
            try:
                _try_to_compile(model, options)
            except RuntimeError as e:
                raise draft.refused(e) from e
        weights = _take_weights(model, draft.constants)
        handles = {k: (n.meta["debug_handle"],) for k, n in enumerate(draft.calls) if "debug_handle" in n.meta}
        blob = _serialize(model, Signature.of(edge_program))
        return PreprocessResult(blob, handles, weights.get_named_data_store_output())


def _try_to_compile(model: ov.Model, options: Options) -> None:
    """Compile a model, and let go of it. Raises RuntimeError with OpenVINO's reason."""
    compile_model(model, options)


def _name(model: ov.Model) -> None:
    """Name operators by their calls and places: OpenVINO numbers them as it makes them, in all of the process."""
    model.set_friendly_name("partition")
    for k, node in enumerate(model.get_ordered_ops()):
        call = re.match(r"n\d+(_in)?/", node.get_friendly_name())
        if node.get_type_name() != "Parameter":
            node.set_friendly_name(f"{call.group() if call else ''}{node.get_type_name()}/{k}")


def _take_weights(model: ov.Model, constants: Mapping[str, torch.Tensor]) -> NamedDataStore:
    """Put parameters in the places of large constants of the program; the named data that belongs there."""
    store = NamedDataStore()
    places = {t.data_ptr(): t for t in constants.values() if t.nbytes >= SMALLEST}
    parameters: dict[tuple[Any, ...], Any] = {}
    for node in model.get_ordered_ops():
        if node.get_type_name() != "Constant" or node.get_byte_size() < SMALLEST:
            continue
        kind, shape = node.get_element_type(), node.output(0).get_shape()
        tensor = places.get(node.data.ctypes.data)
        if tensor is None or node.get_byte_size() != tensor.nbytes:
            continue
        used = tensor.data_ptr(), kind.to_string(), *shape  # tied weights are one memory, maybe in several shapes
        if used not in parameters:
            # by content: equal weights have one key, whatever program they come from; zeros of other types have another
            content = hashlib.sha256(f"{used[1:]} ".encode())
            content.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
            key = WEIGHT + content.hexdigest()
            as_used = tensor.reshape(-1).view(getattr(torch, DTYPES[kind])).reshape(list(shape))
            store.add_named_data(key, as_used, alignment=64)
            parameters[used] = ov.opset13.parameter(shape, kind, name=key)
        node.output(0).replace(parameters[used].output(0))
    model.add_parameters(list(parameters.values()))
    return store


def _serialize(model: ov.Model, signature: Signature) -> bytes:
    """The two files of an IR, one behind the other, sealed: OpenVINO's own reader trusts what it reads."""
    with tempfile.TemporaryDirectory() as folder:
        xml, constants = Path(folder, "model.xml"), Path(folder, "model.bin")
        ov.serialize(model, xml, constants)
        size = xml.stat().st_size
        with xml.open("ab") as file:
            file.write(constants.read_bytes())
        return seal(xml, MARK, [size, *signature.told])
