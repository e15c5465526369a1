"""Operators that no kernel computes, as graphs of simpler ones: PyTorch's own
decompositions, and ``formulas``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from delegraph.errors import Unsupported
from delegraph_programs import erase, find_checks, source_of
from torch._decomp import decomposition_table
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import (
    GuardOnDataDependentSymNode,
    _ShapeEnvGuardError,
)
from torch.utils import _pytree as pytree

from ..kernels import kernel_name
from ..program.quantized_library import NAMESPACE
from .formulas import FORMULAS
from .quantized_formulas import QUANTIZED_FORMULAS

_COMPOSITE = "CompositeImplicitAutograd"


def decompose(node: Node) -> tuple[GraphModule | None, list[Node]]:
    """(graph, nodes that are its inputs) of what a node computes; None if PyTorch has
    no decomposition of it.

    Raises Unsupported if the decomposition does not work for these arguments.
    """
    function = _decomposition(node.target)
    if function is None:
        return None, []
    leaves, structure = pytree.tree_flatten((node.args, node.kwargs))
    inputs = [leaf for leaf in leaves if isinstance(leaf, Node)]

    def call(*given: Any) -> Any:
        values = iter(given)
        args, kwargs = pytree.tree_unflatten(
            [next(values) if isinstance(v, Node) else v for v in leaves], structure
        )
        result = function(*args, **kwargs)
        if result is NotImplemented:
            raise NotImplementedError("it does not know arguments of these types")
        # named tuples would be calls of their class
        return tuple(result) if isinstance(result, tuple) else result

    vals = [n.meta["val"] for n in inputs]
    known = [*vals, *pytree.tree_leaves(node.meta["val"])]
    mode = next((v.fake_mode for v in known if isinstance(v, FakeTensor)), None)
    if mode is None:
        return None, []
    no_new_guards = (
        nullcontext()
        if mode.shape_env is None
        else mode.shape_env.error_on_new_guards()
    )
    try:
        # no new guards: it has to be right for every size; no cache, which asks for the
        # storage's size of a view
        with mode, torch.no_grad(), no_new_guards, _no_cache(mode):
            module = make_fx(call)(*vals)
            # no runtime has kernels for them
            erase(module.graph, find_checks(module.graph))
    except _ShapeEnvGuardError as e:
        text = (
            f"PyTorch's decomposition of {node.target} depends on sizes that are known"
            " at run time only"
        )
        raise Unsupported("unsupported", text, node, source_of(node)) from e
    except (
        NotImplementedError,
        RecursionError,
        RuntimeError,
        GuardOnDataDependentSymNode,
    ) as e:
        text = (
            f"PyTorch's decomposition of {node.target} fails here:"
            f" {str(e).splitlines()[0] if str(e) else repr(e)}"
        )
        raise Unsupported("unsupported", text, node, source_of(node)) from e
    if node.target not in FORMULAS and _types(
        module.graph.output_node().args
    ) != _types(node):
        text = (
            f"PyTorch's decomposition of {node.target} gives other element types here"
            " than the operator"
        )
        raise Unsupported("unsupported", text, node, source_of(node))
    return module, inputs


@contextmanager
def _no_cache(mode: FakeTensorMode) -> Iterator[None]:
    enabled = mode.cache_enabled
    mode.cache_enabled = False
    try:
        yield
    finally:
        mode.cache_enabled = enabled


def _types(values: Any) -> list[torch.dtype]:
    """Element types of all tensors among values of nodes."""
    vals = pytree.tree_leaves(
        [
            n.meta["val"] if isinstance(n, Node) else n
            for n in pytree.tree_leaves(values)
        ]
    )
    return [v.dtype for v in vals if isinstance(v, torch.Tensor)]


def _decomposition(target: Any) -> Any:
    if not isinstance(target, OpOverload):
        return None
    if target in FORMULAS:
        return FORMULAS[target]
    if target.namespace == NAMESPACE:
        return QUANTIZED_FORMULAS.get(str(target).removeprefix(f"{NAMESPACE}."))
    # PyTorch's primitives know the operator that computes them
    if target.namespace == "prims":
        return getattr(target.overloadpacket, "impl_aten", None)
    name = kernel_name(target._schema.name, target._schema.overload_name)
    try:
        composite = torch._C._dispatch_has_kernel_for_dispatch_key(name, _COMPOSITE)
    except RuntimeError:
        # the dispatcher does not know it: TorchScript's own, such as aten::size
        return None
    return decomposition_table.get(target) or (target.decompose if composite else None)
