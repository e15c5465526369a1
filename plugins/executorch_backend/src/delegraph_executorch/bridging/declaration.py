"""``bridge``: the one declaration that makes a delegraph backend of an ExecuTorch one."""

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
    """The three parts of a delegraph backend, as the declarations of a plugin and
    ``delegraph.register`` take them.
    """

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
    """Make a delegraph backend of an ExecuTorch ``BackendDetails`` class and its
    ``Partitioner``.

    ``partitioner`` is that class, or a function that makes one; it is called with the
    options of the backend. The parts are classes of the calling module, so that a
    plugin's targets name them::

        AcmeBackend, AcmePartitioner, AcmeRuntime = bridge(acme.AcmeBackend,
        acme.AcmePartitioner)

    ``refuses`` says why a call of core ATen must stay on the host although the
    partitioner would take it, or None: for what a backend is known to get wrong. It
    gets the call, and the placeholders of the program's constants.

    ``cached`` says that what ``backend`` compiles depends on nothing but its arguments,
    the plugin, ExecuTorch, and what the plugin's declaration ``composes`` on, and the
    tags of ``partitioner`` on nothing but the program, its options, the plugin and
    ExecuTorch: a cache may keep both.

    ``prepare`` changes a partition's program in edge dialect before ``backend`` gets
    it, for what its passes get wrong. ``loads``: what was compiled is loaded by
    ExecuTorch's runtime where that is installed, and refused if that fails.

    The runtime is ExecuTorch's own, and runs what its wheel has a device half of.
    Raises ContractViolation if ``backend`` is no such class.
    """
    from executorch.exir.backend.backend_details import BackendDetails

    if not (
        isinstance(backend, type) and issubclass(backend, BackendDetails)
    ) or not callable(partitioner):
        given = f"{backend!r:.80} and {partitioner!r:.80}"
        text = (
            "bridge takes a BackendDetails class of ExecuTorch and its Partitioner,"
            f" not {given}"
        )
        raise ContractViolation("contract-violation", text)
    name = backend.__name__
    module = sys._getframe(1).f_globals.get("__name__", __name__)
    own, inherited = (
        getattr_static(c, "preprocess_multimethod") for c in (backend, BackendDetails)
    )
    runtime = XnnpackBridgedRuntime if name == "XnnpackBackend" else BridgedRuntime
    kind = BridgedBackend if own is inherited else JointlyBridgedBackend

    def derive(title: str, base: type[Any], **members: Any) -> Any:
        return new_class(
            title,
            (base,),
            exec_body=lambda body: body.update(members, __module__=module),
        )

    made = derive(f"{name}Runtime", runtime, backend_id=name)
    return Bridge(
        derive(
            name,
            kind,
            theirs=backend,
            cached=cached,
            prepare=staticmethod(prepare),
            loaded_by=made if loads else None,
        ),
        derive(
            f"{name}Partitioner",
            BridgedPartitioner,
            backend_id=name,
            make=staticmethod(partitioner),
            refuses=staticmethod(refuses),
            cached=cached,
        ),
        made,
    )
