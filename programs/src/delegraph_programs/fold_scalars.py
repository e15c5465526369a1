"""Replaces numbers that a program reads from constants by literals.

An example is ``.item()`` of a buffer. ``torch.export`` gives such a number a symbol,
because it does not look at the elements of a buffer. The symbol then makes shapes
unknown, and backends refuse each call that uses it. Here the number is read from the
constant: calls get it as a literal, the symbol vanishes from all recorded shapes, and
assertions that hold are dropped. A ``cond`` on a constant becomes the branch that is
taken.

A buffer that some method writes is not a constant, so numbers from it stay calls.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import sympy
import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils import _pytree as pytree

from .compute_constant_calls import ConstantValues, constants_of
from .exported_program import add_constant, erase_unused, output_node
from .higher_order_subgraphs import graphs, rewrite_subgraphs
from .operator_schema import overloads

aten = torch.ops.aten
_COND = torch.ops.higher_order.cond
_BINDINGS = "unbacked_bindings"
"""Key in the metadata of a call: the symbols that torch made for its result."""
_SYMBOLIC = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}
"""Type of a symbolic number -> type of its literal."""
_RANGES = overloads("sym_constrain_range.default sym_constrain_range_for_size.default")
"""Assertions that a number is between ``min`` and ``max``."""


class Folded(NamedTuple):
    """The counts of numbers that became literals, and of conditions that were decided."""

    numbers: int = 0
    conditions: int = 0


def fold_scalars(program: ExportedProgram) -> Folded:
    """Replace numbers that ``program`` reads from constants by literals, in place, also
    in its subgraphs.

    An assertion about such a number that does not hold stays, and fails when the
    program runs.
    """
    folding = _Folding(program)
    for node in list(program.graph.nodes):
        if node.op == "call_function" and not node._erased:
            folding.visit(node)
    folding.finish()

    def fold(subgraph: ExportedProgram) -> ExportedProgram:
        folded = fold_scalars(subgraph)
        folding.numbers += folded.numbers
        folding.conditions += folded.conditions
        return subgraph

    _, *inner_graphs = graphs(program.graph_module)
    # extracting subgraphs takes a while, so first look whether one reads numbers
    if any(map(_reads_numbers, inner_graphs)):
        rewrite_subgraphs(program, fold)
    return Folded(folding.numbers, folding.conditions)


def _reads_numbers(graph: Graph) -> bool:
    """Return whether a graph has a call that reads a number from a tensor."""
    return any(
        isinstance(n.target, OpOverload) and type(n.meta.get("val")) in _SYMBOLIC
        for n in graph.nodes
    )


class _Folding:
    """The numbers of one program that are known so far.

    ``_known``: symbol -> its number, or an expression of other symbols. ``numbers`` and
    ``conditions``: those of ``Folded``.
    """

    def __init__(self, program: ExportedProgram) -> None:
        self._program = program
        self._values = ConstantValues(constants_of(program))
        self._known: dict[sympy.Symbol, Any] = {}
        self.numbers = 0
        self.conditions = 0

    def visit(self, node: Node) -> None:
        """Replace or erase the call ``node`` if its result is known by now.

        Its operands must have been visited before.
        """
        val = node.meta.get("val")  # before known symbols are replaced in it
        self._substitute(node)
        if node.target is _COND:
            self._inline_taken_branch(node)
        elif node.target is aten._assert_scalar.default or node.target in _RANGES:
            self._erase_if_it_holds(node)
        elif type(val) in _SYMBOLIC or _is_python_arithmetic(node):
            self._replace_by_number(node, val)
        elif _BINDINGS in node.meta and self._known:
            self._infer_sizes(node)

    def _replace_by_number(self, node: Node, val: Any) -> None:
        """Replace a call that returns a number by that number, if it is known.

        ``val`` is the number as torch recorded it, perhaps with symbols.
        """
        number = None
        if isinstance(node.target, OpOverload):
            number = self._values.results(node)
            self.numbers += number is not None
        elif not node.all_input_nodes and callable(node.target):
            # arithmetic of Python on literals
            try:
                number = node.target(*node.args, **node.kwargs)
            except (ArithmeticError, TypeError, ValueError):
                return  # the same call fails when the program runs
        if number is None:
            # the recorded value may be a number, now that known symbols are replaced
            number = node.meta["val"]
        if type(number) is _SYMBOLIC.get(type(val), type(val)):
            self._learn(val, number)
            self._replace(node, number)

    def _replace(self, node: Node, number: Any) -> None:
        """Let users of ``node`` use ``number``, and erase ``node``."""
        node.replace_all_uses_with(number)  # torch accepts a literal instead of a node
        node.graph.erase_node(node)

    def _learn(self, val: Any, number: Any) -> None:
        """Record that the symbolic number ``val`` is ``number``.

        ``number`` is a literal or another symbolic number. Nothing is recorded unless
        ``val`` is a single symbol that torch made for a number in a tensor.
        """
        if type(val) not in _SYMBOLIC:
            return
        expression = val.node.expr
        value = number.node.expr if type(number) in _SYMBOLIC else sympy.sympify(number)
        if type(val) is torch.SymBool:  # torch writes a bool as Eq(symbol, 1)
            if not isinstance(expression, sympy.Eq) or expression.args[1] != 1:
                return
            expression = expression.args[0]
            value = sympy.Integer(int(number))
        if (
            expression.is_Symbol
            and expression != value
            and free_unbacked_symbols(expression)
        ):
            self._known[expression] = value

    def _erase_if_it_holds(self, node: Node) -> None:
        """Erase an assertion about a number that is known, if it holds."""
        if node.all_input_nodes:
            return  # the number is still a node, so it is not known
        if node.target is aten._assert_scalar.default:
            holds = bool(node.args[0])
        else:
            number: Any = node.args[0]
            low = node.kwargs.get("min")
            high = node.kwargs.get("max")
            holds = (low is None or number >= low) and (high is None or number <= high)
        if holds:
            node.graph.erase_node(node)

    def _infer_sizes(self, node: Node) -> None:
        """Learn sizes of a call's result for which torch had made symbols.

        The call is repeated under fake tensors, now that more of its operands are
        known.
        """
        val = node.meta["val"]
        vals = torch.fx.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
        fakes = [
            leaf
            for leaf in pytree.tree_leaves((vals, val))
            if isinstance(leaf, FakeTensor)
        ]
        if not fakes or not isinstance(node.target, OpOverload):
            return
        mode = fakes[0].fake_mode
        environment = mode.shape_env
        assert environment is not None
        args, kwargs = vals
        with mode, environment.ignore_fresh_unbacked_symbols(), torch.no_grad():
            inferred = node.target(*args, **kwargs)
        before = len(self._known)
        for old, new in zip(
            pytree.tree_leaves(val), pytree.tree_leaves(inferred), strict=True
        ):
            if isinstance(old, torch.Tensor):
                for size, found in zip(old.shape, new.shape, strict=True):
                    if not free_unbacked_symbols(found):
                        self._learn(size, found)
        if len(self._known) > before:
            self._substitute(node)

    def _inline_taken_branch(self, node: Node) -> None:
        """Replace a ``cond`` by the calls of one branch, if its condition is known."""
        condition, *branches, operands = node.args
        if isinstance(condition, Node):
            value = self._values.of(condition)
            if value is None or value.numel() != 1:
                return
            condition = bool(value)
        taken: Any = branches[0 if condition else 1]
        module: Any = self._program.graph_module
        branch: GraphModule = getattr(module, str(taken.target))
        copies = dict(
            zip(branch.graph.find_nodes(op="placeholder"), operands, strict=True)  # type: ignore[arg-type]
        )
        graph = node.graph
        new: list[Node] = []
        with graph.inserting_before(node):
            for inner in branch.graph.nodes:
                if inner.op == "get_attr":
                    copies[inner] = self._fetch(
                        getattr(branch, str(inner.target)), inner
                    )
                elif inner.op == "call_function":
                    copies[inner] = graph.node_copy(inner, lambda n: copies[n])
                    new.append(copies[inner])
        results: Any = torch.fx.map_arg(
            output_node(branch.graph).args[0], lambda n: copies[n]
        )
        for user in list(node.users):
            result = results[user.args[1]]
            if isinstance(result, Node):
                self._learn_sizes(user.meta.get("val"), result.meta.get("val"))
            self._replace(user, result)
        graph.erase_node(node)
        self.conditions += 1
        for call in new:
            if not call._erased:
                self.visit(call)

    def _fetch(self, attribute: Any, inner: Node) -> Any:
        """Return a node of the program for ``attribute``, which a branch fetches.

        A tensor becomes a constant of the program, a subgraph an attribute of its
        module. ``inner``: the node in the branch that fetches it.
        """
        if isinstance(attribute, torch.Tensor):
            return add_constant(self._program, attribute, inner.name)
        module: Any = self._program.graph_module
        name = str(inner.target)
        while hasattr(module, name):
            name += "_"
        setattr(module, name, attribute)
        fetched = self._program.graph.get_attr(name)
        fetched.meta = dict(inner.meta)
        return fetched

    def _learn_sizes(self, old: Any, new: Any) -> None:
        """Learn symbols in the recorded value ``old`` from ``new``, which replaces it."""
        if isinstance(old, torch.Tensor) and isinstance(new, torch.Tensor):
            for size, found in zip(old.shape, new.shape, strict=True):
                self._learn(size, found)
        else:
            self._learn(old, new)

    def finish(self) -> None:
        """Remove unused calls and known symbols, in the program and its subgraphs."""
        program = self._program
        if not self.numbers and not self.conditions:
            return
        for graph in graphs(program.graph_module):
            for node in list(graph.nodes):
                self._substitute(node)
                if graph is not program.graph:
                    self._replace_in_subgraph(node)
        erase_unused(program.graph)
        ranges = program.range_constraints.items()
        program._range_constraints = {
            s: bounds for s, bounds in ranges if s not in self._known
        }
        program.graph_module.recompile()

    def _replace_in_subgraph(self, node: Node) -> None:
        """Let users of a number that is known in a subgraph use the literal.

        The node itself stays, because calls pass a value for each placeholder.
        """
        val: Any = node.meta.get("val")
        if type(val) in _SYMBOLIC.values() and node.op in (
            "placeholder",
            "call_function",
        ):
            node.replace_all_uses_with(val)

    def _substitute(self, node: Node) -> None:
        """Replace known symbols in the recorded value of ``node``, and remove them from
        the symbols that ``node`` binds.
        """
        if not self._known or "val" not in node.meta:
            return
        node.meta["val"] = pytree.tree_map(
            self._replace_known_symbols, node.meta["val"]
        )
        bindings = node.meta.get(_BINDINGS)
        if not bindings:
            return
        unknown = {
            symbol: path
            for symbol, path in bindings.items()
            if symbol not in self._known
        }
        if unknown:
            node.meta[_BINDINGS] = unknown
        else:
            del node.meta[_BINDINGS]

    def _replace_known_symbols(self, val: Any) -> Any:
        """Return a recorded value, a number or a tensor, with known symbols replaced.

        Symbols of a tensor are in its sizes, strides and offset.
        """
        if type(val) in _SYMBOLIC:
            return self._without_known_symbols(val)
        if not isinstance(val, FakeTensor) or not val._has_symbolic_sizes_strides:
            return val
        if not any(
            self._has_known_symbols(size)
            for size in (*val.shape, *val.stride(), val.storage_offset())
        ):
            return val
        shape = [self._without_known_symbols(size) for size in val.shape]
        strides = [self._without_known_symbols(stride) for stride in val.stride()]
        with val.fake_mode:
            new = torch.empty_strided(
                shape, strides, dtype=val.dtype, device=val.device
            )
        return new.requires_grad_(val.requires_grad)

    def _has_known_symbols(self, size: Any) -> bool:
        """Return whether a size has symbols that are known."""
        return type(size) in _SYMBOLIC and not self._known.keys().isdisjoint(
            size.node.expr.free_symbols
        )

    def _without_known_symbols(self, number: Any) -> Any:
        """Return a symbolic number with known symbols replaced.

        If no symbol remains, it is a number of Python.
        """
        if not self._has_known_symbols(number):
            return number
        expression = number.node.expr
        # known symbols may stand for expressions of other known symbols
        while not self._known.keys().isdisjoint(expression.free_symbols):
            expression = expression.xreplace(self._known)
        kind = _SYMBOLIC[type(number)]
        if expression.is_number or expression in (sympy.true, sympy.false):
            return kind(expression)
        environment = number.node.shape_env
        if kind is bool:
            return environment.create_symboolnode(expression)
        if kind is int:
            return environment.create_symintnode(expression, hint=None)
        return environment.create_symfloatnode(expression, hint=None)


def _is_python_arithmetic(node: Node) -> bool:
    """Return whether a call of Python, no operator, returns a plain number."""
    is_number = type(node.meta.get("val")) in _SYMBOLIC.values()
    return is_number and not isinstance(node.target, OpOverload)
