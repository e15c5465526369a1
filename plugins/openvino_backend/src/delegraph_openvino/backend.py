"""``OpenVINOBackend``: compiles a partition to an IR.

Large constants are named data, which refers to the model's own tensors.
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
from delegraph_engines import Signature, add_by_content, calls_in
from torch.export import ExportedProgram

from .frontend import DTYPES, Draft, reason_of
from .runtime import MARK, WEIGHT, compile_model, fold_operands, settings_of, why_absent

SMALLEST_SHARED = 4096
"""Constants of at least this many bytes are named data, which delegates share.

Smaller ones stay in the blob.
"""


class OpenVINOBackend(BackendDetails):
    """Compiles to OpenVINO's IR, which is the same for all devices.

    Later releases of OpenVINO can read it.
    """

    @staticmethod
    def fingerprint(compile_specs: list[CompileSpec]) -> str:
        return f"openvino {ov.get_version()}"

    @staticmethod
    def preprocess(
        edge_program: ExportedProgram, compile_specs: list[CompileSpec]
    ) -> PreprocessResult:
        """Return the blob, a debug identifier for each call, and the weights.

        Raises Unsupported with OpenVINO's reason. If this machine has the device, the
        program is compiled for it as a test, because only the compiler knows some
        limits.
        """
        settings = settings_of(compile_specs)
        draft = Draft(edge_program)
        model = draft.convert()
        _drop_casts(model)
        fold_operands(model, largest=SMALLEST_SHARED)
        _rename_operators(model)
        if not why_absent(settings["device"]):
            trial = model.clone()
            fold_operands(trial)  # as the runtime does
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
    """Remove casts that change no type, such as those of weights of norms."""
    for node in model.get_ordered_ops():
        is_cast = node.get_type_name() == "Convert"
        if is_cast and node.get_input_element_type(0) == node.get_element_type():
            node.output(0).replace(node.input_value(0))


def _rename_operators(model: ov.Model) -> None:
    """Name operators by their calls and positions, such as ``n2/Add/7``.

    OpenVINO's own names contain numbers that count all operators of the process.
    """
    model.set_friendly_name("partition")
    for k, node in enumerate(model.get_ordered_ops()):
        if node.get_type_name() == "Parameter":
            continue
        numbers = calls_in(node.get_friendly_name())
        call = f"n{numbers[0]}/" if numbers else ""
        node.set_friendly_name(f"{call}{node.get_type_name()}/{k}")


def _take_weights(model: ov.Model, constants: Iterable[torch.Tensor]) -> NamedDataStore:
    """Replace large constants of the program by parameters; return them as named data."""
    store = NamedDataStore()
    parameters: dict[str, Any] = {}
    # the frontend does not copy tensors, so an address identifies a constant
    by_address = {t.data_ptr(): t for t in constants if t.nbytes >= SMALLEST_SHARED}
    for node in model.get_ordered_ops():
        # the size first: reading an address takes longer
        if node.get_type_name() != "Constant" or node.get_byte_size() < SMALLEST_SHARED:
            continue
        tensor = by_address.get(node.data.ctypes.data)
        if tensor is None or node.get_byte_size() != tensor.nbytes:
            continue
        kind = node.get_element_type()
        shape = node.output(0).get_shape()
        # tied weights share memory, perhaps in several types and shapes
        in_type = tensor.reshape(-1).view(getattr(torch, DTYPES[kind]))
        key = add_by_content(store, WEIGHT, in_type.reshape(list(shape)), alignment=64)
        if key not in parameters:
            parameters[key] = ov.opset13.parameter(shape, kind, name=key)
        node.output(0).replace(parameters[key].output(0))
    model.add_parameters(list(parameters.values()))
    return store


def _serialize(model: ov.Model, signature: Signature) -> bytes:
    """Return the two files of an IR, XML and constants, as one sealed blob.

    It is sealed, because OpenVINO's reader does not check the files. The XML is
    compressed to about a tenth; in quantized models it would be larger than the
    weights. The blob records the sizes of the XML before and after compression.
    """
    with tempfile.TemporaryDirectory() as folder:
        xml_path = Path(folder, "model.xml")
        constants_path = Path(folder, "model.bin")
        ov.serialize(model, xml_path, constants_path)
        xml = xml_path.read_bytes()
        packed = zlib.compress(xml, 9)
        content_path = Path(folder, "content")
        content_path.write_bytes(packed + constants_path.read_bytes())
        return signature.seal(content_path, MARK, xml=len(xml), packed=len(packed))
