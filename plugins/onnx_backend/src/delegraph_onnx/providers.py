"""Find execution providers of ONNX Runtime, and add them to sessions.

A provider that is a wheel is a package ``onnxruntime_NAME`` or ``onnxruntime_ep_NAME``
with the functions ``get_library_path`` and ``get_ep_name``. Others, such as CUDA's, are
part of some builds of ONNX Runtime.
"""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any

import onnxruntime as ort
import torch
from delegraph.errors import NoRuntime
from delegraph_engines import saturates

from .plugin import package_of
from .settings import Settings

CPU = "CPUExecutionProvider"
PRECISION = "session.x64quantprecision"
"""A session option that makes products of int8 exact on x86 without VNNI.

By default, ONNX Runtime adds two such products in 16 bits there, which overflow. The
plugin's own models for the CPU have uint8, see ``unsigned_integers``. Files of other
tools may have int8.
"""
_LEVELS = {
    "disable_all": ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
    "basic": ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "extended": ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "layout": ort.GraphOptimizationLevel.ORT_ENABLE_LAYOUT,
    "all": ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
}
_MODES = {
    "sequential": ort.ExecutionMode.ORT_SEQUENTIAL,
    "parallel": ort.ExecutionMode.ORT_PARALLEL,
}
_ERRORS_ONLY = 3
"""A level of ONNX Runtime's log."""


def why_absent(ep: str) -> str | None:
    """Return a reason if this machine lacks the provider ``ep``; None if it has it."""
    if _built_in(ep) or package_of(ep):
        return None
    built_in = [name.removesuffix("ExecutionProvider") for name in _available()]
    return (
        f"the execution provider {ep!r} is not installed: there is no package"
        f" onnxruntime_{ep} or onnxruntime_ep_{ep}, and ONNX Runtime itself has"
        f" {', '.join(built_in)}"
    )


def make_options(settings: Settings) -> ort.SessionOptions:
    """Return session options with the provider of ``settings``.

    Raises NoRuntime if the provider is not installed or finds no device.
    """
    options = ort.SessionOptions()
    options.log_severity_level = _ERRORS_ONLY
    options.intra_op_num_threads = settings.threads
    for name, value in settings.session.items():
        if name == "graph_optimization_level":
            options.graph_optimization_level = _LEVELS[value]
        elif name == "execution_mode":
            options.execution_mode = _MODES[value]
        elif name == "inter_op_num_threads":
            options.inter_op_num_threads = int(value)
        else:
            options.add_session_config_entry(name, value)
    if PRECISION not in settings.session and saturates(torch.cpu.get_capabilities()):
        options.add_session_config_entry(PRECISION, "1")
    if settings.ep != "cpu":
        _add_provider(options, settings)
    return options


def _add_provider(options: ort.SessionOptions, settings: Settings) -> None:
    """Add the provider of ``settings``. Raises as ``make_options`` does."""
    why = why_absent(settings.ep)
    if why is not None:
        raise NoRuntime(
            "no-runtime",
            why,
            hint=f"pip install onnxruntime-{settings.ep}, or onnxruntime-ep-"
            f"{settings.ep}; lower with another option ep",
        )
    chosen = dict(settings.ep_options)
    if not package_of(settings.ep):
        options.add_provider(_built_in(settings.ep), chosen)
        return
    package = importlib.import_module(package_of(settings.ep))
    devices = _devices(settings.ep)
    if not devices:
        raise NoRuntime(
            "no-runtime",
            f"the execution provider {settings.ep!r} finds no device on this machine",
        )
    if settings.ep == "qnn":
        # the NPU quantizes inputs and dequantizes results, which QNN leaves to the CPU
        # without this option
        chosen.setdefault("offload_graph_io_quantization", "0")
        if "backend_type" not in chosen:
            chosen["backend_path"] = package.get_qnn_htp_path()
    options.add_provider_for_devices(devices, chosen)


@cache
def _devices(ep: str) -> list[Any]:
    """Register the library of a provider, once in a process; return its devices."""
    package = importlib.import_module(package_of(ep))
    name = package.get_ep_name()
    ort.register_execution_provider_library(name, package.get_library_path())
    devices = [device for device in ort.get_ep_devices() if device.ep_name == name]
    # for several devices, ONNX Runtime would make several providers
    return devices[:1]


def _built_in(ep: str) -> str:
    """Return the name of a provider that is part of ONNX Runtime; "" if it is not."""
    names = {
        name.removesuffix("ExecutionProvider").lower(): name for name in _available()
    }
    return names.get(ep, "")


def _available() -> list[str]:
    """Return the names of providers in this build of ONNX Runtime that compute."""
    # Azure's sends calls to a server
    return [name for name in ort.get_available_providers() if "Azure" not in name]
