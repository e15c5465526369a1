"""Decompose operators that no kernel computes into graphs of simpler ones.

The decompositions are PyTorch's own and those in ``formulas``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from delegraph.errors import Unsupported
from delegraph_programs import erase, find_checks, source_of
from torch._decomp import decomposition_table
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx import Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import (
    GuardOnDataDependentSymNode,
    _ShapeEnvGuardError,
)
from torch.utils import _pytree as pytree

from ..kernels import kernel_name
from ..program.quantized_library import NAMESPACE
from .formulas import FORMULAS
from .graph_emitter import Replacement
from .quantized_formulas import QUANTIZED_FORMULAS

_COMPOSITE = "CompositeImplicitAutograd"


def decompose(node: Node) -> Replacement | None:
    """Return the decomposition of a node; None if there is none.

    Raises Unsupported if the decomposition does not work for these arguments.
    """
    function = _decomposition(node.target)
    if function is None:
        return None
    leaves, structure = pytree.tree_flatten((node.args, node.kwargs))
    inputs = [leaf for leaf in leaves if isinstance(leaf, Node)]

    def call(*given: Any) -> Any:
        """Call ``function`` with the node's arguments; ``given`` replaces the nodes."""
        values = iter(given)
        filled = [next(values) if isinstance(leaf, Node) else leaf for leaf in leaves]
        args, kwargs = pytree.tree_unflatten(filled, structure)
        result = function(*args, **kwargs)
        if result is NotImplemented:
            raise NotImplementedError(
                "PyTorch's function does not support the types of the arguments"
            )
        # torch.fx would record a named tuple as a call of its class.
        return tuple(result) if isinstance(result, tuple) else result

    vals = [n.meta["val"] for n in inputs]
    known = [*vals, *pytree.tree_leaves(node.meta["val"])]
    mode = next((v.fake_mode for v in known if isinstance(v, FakeTensor)), None)
    if mode is None:
        return None
    try:
        # The graph must be right for every size, so guards are errors. The cache of
        # fake tensors is off: it reads the storage size of views, which adds a guard.
        with mode, torch.no_grad(), no_new_guards(mode), _no_cache(mode):
            module = make_fx(call)(*vals)
            # Runtimes have no kernels for assertions.
            erase(module.graph, find_checks(module.graph))
    except _ShapeEnvGuardError as e:
        text = (
            f"PyTorch's decomposition of {node.target} depends on sizes that are only"
            " known at run time"
        )
        raise Unsupported("unsupported", text, node, source_of(node)) from e
    except (
        NotImplementedError,
        RecursionError,
        RuntimeError,
        GuardOnDataDependentSymNode,
    ) as e:
        reason = str(e).splitlines()[0] if str(e) else repr(e)
        text = f"the decomposition of {node.target} fails for these arguments: {reason}"
        raise Unsupported("unsupported", text, node, source_of(node)) from e
    found = _types(module.graph.output_node().args)
    wanted = _types(node)
    if node.target not in FORMULAS and found != wanted:
        text = (
            f"PyTorch's decomposition of {node.target} returns the element types"
            f" {found}, but the operator returns {wanted}"
        )
        raise Unsupported("unsupported", text, node, source_of(node))
    return Replacement(module, inputs)


def no_new_guards(mode: FakeTensorMode) -> AbstractContextManager[Any]:
    """Return a context that raises an error if code assumes a fact about dynamic sizes."""
    if mode.shape_env is None:
        return nullcontext()
    return mode.shape_env.error_on_new_guards()


@contextmanager
def _no_cache(mode: FakeTensorMode) -> Iterator[None]:
    """Return a context in which fake tensors do not use their cache."""
    enabled = mode.cache_enabled
    mode.cache_enabled = False
    try:
        yield
    finally:
        mode.cache_enabled = enabled


def _types(values: Any) -> list[torch.dtype]:
    """Return the element types of all tensors in nested values of nodes."""
    leaves = pytree.tree_leaves(values)
    vals = [leaf.meta["val"] if isinstance(leaf, Node) else leaf for leaf in leaves]
    tensors = [v for v in pytree.tree_leaves(vals) if isinstance(v, torch.Tensor)]
    return [tensor.dtype for tensor in tensors]


def _decomposition(target: Any) -> Any:
    """Return the function that computes an operator by simpler ones; None if none is known.

    Formulas of this plugin come before PyTorch's decompositions.
    """
    if not isinstance(target, OpOverload):
        return None
    if target in FORMULAS:
        return FORMULAS[target]
    if target.namespace == NAMESPACE:
        return QUANTIZED_FORMULAS.get(str(target).removeprefix(f"{NAMESPACE}."))
    # Each of PyTorch's primitives names an ATen operator that computes it.
    if target.namespace == "prims":
        return getattr(target.overloadpacket, "impl_aten", None)
    name = kernel_name(target._schema.name, target._schema.overload_name)
    try:
        composite = torch._C._dispatch_has_kernel_for_dispatch_key(name, _COMPOSITE)
    except RuntimeError:
        # The dispatcher does not know operators of TorchScript, such as aten::size.
        return None
    return decomposition_table.get(target) or (target.decompose if composite else None)
