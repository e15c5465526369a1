"""Declare a delegraph backend for an ExecuTorch backend: ``bridge``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from inspect import getattr_static
from types import new_class
from typing import Any, NamedTuple

from delegraph.errors import ContractViolation
from torch.export import ExportedProgram
from torch.fx import Node

from .backend import BridgedBackend, JointlyBridgedBackend
from .partitioner import BridgedPartitioner
from .runtime import BridgedRuntime, XnnpackBridgedRuntime


class Bridge(NamedTuple):
    """The three parts of a delegraph backend, for plugins and ``delegraph.register``."""

    backend: type[BridgedBackend]
    partitioner: type[BridgedPartitioner]
    runtime: type[BridgedRuntime]


def bridge(
    backend: type[Any],
    partitioner: Callable[..., Any],
    refuses: Callable[[Node, Collection[Node]], str | None] = lambda _, constants: None,
    cached: bool = False,
    prepare: Callable[[ExportedProgram], ExportedProgram] = lambda edge: edge,
    loads: bool = False,
) -> Bridge:
    """Make a delegraph backend of an ExecuTorch backend and its partitioner.

    ``backend`` is a ``BackendDetails`` class. ``partitioner`` is a ``Partitioner``
    class, or a function that makes one. It is called with the options of the backend.
    The returned classes belong to the calling module, so that a plugin's targets can
    name them::

    AcmeBackend, AcmePartitioner, AcmeRuntime = bridge(acme.AcmeBackend,
        acme.AcmePartitioner)

    ``refuses`` returns why a core ATen call must stay on the host, or None. It gets the
    call and the placeholders of the program's constants. Use it for calls that the
    partitioner takes but the backend computes wrongly.

    ``cached``: whether a cache may keep blobs and tags. Blobs may then depend only on
    the arguments of ``preprocess``, the plugin, ExecuTorch, and the distributions that
    the plugin's declaration ``composes``. Tags may depend only on the program, the
    options, the plugin and ExecuTorch.

    ``prepare`` changes a partition's program in edge dialect before ``backend`` gets
    it, to work around faults of the backend's passes. ``loads``: whether to load blobs
    in ExecuTorch's runtime, if it is installed, and to refuse blobs that fail.

    The runtime is the one of the wheel ``executorch``, so backends that the wheel lacks
    cannot run. Raises ContractViolation if ``backend`` is no
    ``BackendDetails`` class.
    """
    from executorch.exir.backend.backend_details import BackendDetails

    is_backend = isinstance(backend, type) and issubclass(backend, BackendDetails)
    if not is_backend or not callable(partitioner):
        text = (
            "bridge takes a BackendDetails class of ExecuTorch and its Partitioner,"
            f" not {backend!r:.80} and {partitioner!r:.80}"
        )
        raise ContractViolation("contract-violation", text)
    name = backend.__name__
    # the ``__module__`` of the returned classes
    calling_module = sys._getframe(1).f_globals.get("__name__", __name__)
    compile_method = getattr_static(backend, "preprocess_multimethod")
    inherited = getattr_static(BackendDetails, "preprocess_multimethod")
    if compile_method is inherited:
        backend_base = BridgedBackend
    else:
        backend_base = JointlyBridgedBackend
    runtime_base = BridgedRuntime
    if name == "XnnpackBackend":
        runtime_base = XnnpackBridgedRuntime

    def derive(title: str, base: type[Any], **members: Any) -> Any:
        """Return a subclass of ``base`` with these attributes."""
        members["__module__"] = calling_module
        return new_class(title, (base,), exec_body=lambda body: body.update(members))

    runtime_class = derive(f"{name}Runtime", runtime_base, backend_id=name)
    backend_class = derive(
        name,
        backend_base,
        theirs=backend,
        cached=cached,
        prepare=staticmethod(prepare),
        loaded_by=runtime_class if loads else None,
    )
    partitioner_class = derive(
        f"{name}Partitioner",
        BridgedPartitioner,
        backend_id=name,
        make=staticmethod(partitioner),
        refuses=staticmethod(refuses),
        cached=cached,
    )
    return Bridge(backend_class, partitioner_class, runtime_class)
