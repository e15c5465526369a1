"""Emit branches and loops as jumps.

A branch writes its results to the results of the ``cond``, without a copy.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Node

from .graph_emitter import GraphEmitter, Item, Result
from .kernel_calls import copy_tensor
from .method_values import (
    Computed,
    ScalarValue,
    TensorValue,
    planned_tensor,
    scalar_value,
)
from .symbolic import PRIM

higher_order = torch.ops.higher_order


def emit_cond(emitter: GraphEmitter, node: Node) -> Result:
    """Emit ``cond``: both branches write to the same results.

    The instructions: jump to "else" if the condition is false, the true branch, jump to
    the end, "else": the false branch, the end.
    """
    condition, if_true, if_false, operands = node.args
    results = emitter.new_results(node)
    inputs = [emitter.item(o) for o in operands]  # type: ignore[union-attr]
    condition_position = emitter.position(emitter.item(condition))
    to_else = emitter.assembler.add_jump_if_false(condition_position)
    _emit_branch(emitter, if_true, inputs, results)
    to_end = emitter.assembler.add_jump()
    emitter.assembler.set_target(to_else)
    _emit_branch(emitter, if_false, inputs, results)
    emitter.assembler.set_target(to_end)
    return list(results)


def _emit_branch(
    emitter: GraphEmitter, branch: Any, inputs: Sequence[Item], results: Sequence[Item]
) -> None:
    """Emit a branch that writes to ``results``."""
    nested = emitter.subgraph_emitter(branch, inputs)
    nested.preset_results = _direct_targets(nested.output_arguments, results)
    nested.emit()
    _assign(nested, nested.output_values(), results)


def _direct_targets(
    returned: Sequence[Any], results: Sequence[Item]
) -> dict[tuple[Node, int], Computed]:
    """Return (node, number of its output) -> the result that it can write directly.

    ``returned``: the nodes that a branch returns. A tensor that is returned twice is written once,
    and copied to both results.
    """
    targets: dict[tuple[Node, int], Computed] = {}
    for value, result in zip(returned, results, strict=True):
        if not isinstance(value, Node) or not isinstance(result, TensorValue):
            continue
        if value.op != "call_function" or returned.count(value) > 1:
            continue
        node: Any = value
        output: Any = 0
        if value.target is operator.getitem:
            node, output = value.args
        targets[node, output] = result
    return targets


def _assign(
    emitter: GraphEmitter, values: Sequence[Item], results: Sequence[Item]
) -> None:
    """Append copies of ``values`` to ``results``.

    A result that was written directly needs none: it is the same object as the value.
    """
    for value, result in zip(values, results, strict=True):
        if isinstance(result, TensorValue) and value is not result:
            assert isinstance(value, TensorValue)
            copy_tensor(emitter, value, result)
        elif isinstance(result, ScalarValue):
            emitter.assembler.add_move(emitter.position(value), result)


def emit_while(emitter: GraphEmitter, node: Node) -> Result:
    """Emit ``while_loop``.

    The carried values are the results from the start. Each round computes all new
    values, and then replaces the carried ones.
    """
    condition, step, carried, constant = node.args
    results = emitter.new_results(node)
    _assign(emitter, [emitter.item(c) for c in carried], results)  # type: ignore[union-attr]
    inputs = [*results, *(emitter.item(c) for c in constant)]  # type: ignore[union-attr]
    start = emitter.assembler.next_position
    check = emitter.subgraph_emitter(condition, inputs)
    check.emit()
    to_end = emitter.assembler.add_jump_if_false(
        check.position(check.output_values()[0])
    )
    round_ = emitter.subgraph_emitter(step, inputs)
    round_.emit()
    _assign_together(round_, round_.output_values(), results)
    emitter.assembler.add_jump(start)
    emitter.assembler.set_target(to_end)
    emitter.assembler.loops.append((start, emitter.assembler.next_position - 1))
    return list(results)


def _assign_together(
    emitter: GraphEmitter, values: Sequence[Item], results: Sequence[Item]
) -> None:
    """Append copies of ``values`` to ``results``, as in ``a, b = b, a``.

    A value that is another result is saved first, before a copy overwrites it.
    """
    memory = {r.storage for r in results if isinstance(r, TensorValue)}
    numbers = {r for r in results if isinstance(r, ScalarValue)}
    saved: list[Item] = []
    for value, result in zip(values, results, strict=True):
        if value is result:
            saved.append(value)
        elif isinstance(value, TensorValue) and value.storage in memory:
            saved.append(_copy_of(emitter, value))
        elif isinstance(value, ScalarValue) and value in numbers:
            number = scalar_value(type(value.start.value))
            emitter.assembler.add_move(value, number)
            saved.append(number)
        else:
            saved.append(value)
    _assign(emitter, saved, results)


def _copy_of(emitter: GraphEmitter, value: TensorValue) -> TensorValue:
    """Append a copy of a tensor to new memory, and return it."""
    copy = planned_tensor(value.dtype, value.sizes, value.varies)
    copy_tensor(emitter, value, copy)
    return copy


def emit_map(emitter: GraphEmitter, node: Node) -> Result:
    """Emit ``map``: a loop over the rows that appends each row's results."""
    function, rows, constant = node.args
    results = emitter.new_results(node)
    inputs = [emitter.item(c) for c in constant]  # type: ignore[union-attr]

    def emit_round(row: Sequence[Item]) -> Sequence[Item]:
        nested = emitter.subgraph_emitter(function, [*row, *inputs])
        nested.emit()
        return nested.output_values()

    _emit_rows(emitter, rows, results, emit_round)
    return list(results)


def emit_scan(emitter: GraphEmitter, node: Node) -> Result:
    """Emit ``scan``: like ``map``, with values that are carried from row to row.

    The carried values are returned before the rows' results.
    """
    function, initial, rows, constant = node.args
    results = emitter.new_results(node)
    carried = results[: len(initial)]  # type: ignore[arg-type]
    _assign(emitter, [emitter.item(i) for i in initial], carried)  # type: ignore[union-attr]
    inputs = [emitter.item(c) for c in constant]  # type: ignore[union-attr]

    def emit_round(row: Sequence[Item]) -> Sequence[Item]:
        nested = emitter.subgraph_emitter(function, [*carried, *row, *inputs])
        nested.emit()
        values = nested.output_values()
        outputs = [
            _copy_if_carried(nested, value, carried) for value in values[len(carried) :]
        ]
        _assign_together(nested, values[: len(carried)], carried)
        return outputs

    _emit_rows(emitter, rows, results[len(carried) :], emit_round)
    return list(results)


def _copy_if_carried(
    emitter: GraphEmitter, value: Item, carried: Sequence[Item]
) -> Item:
    """Return a row's result, or a copy of it if it shares memory with a carried value.

    The carried value is replaced before the row's result is appended.
    """
    memory = {c.storage for c in carried if isinstance(c, TensorValue)}
    if isinstance(value, TensorValue) and value.storage in memory:
        return _copy_of(emitter, value)
    return value


def _emit_rows(
    emitter: GraphEmitter,
    rows: Any,
    results: Sequence[Item],
    emit_round: Callable[[Sequence[Item]], Sequence[Item]],
) -> None:
    """Emit a loop over the rows of tensors, which appends each row's results.

    ``emit_round`` emits the computation of a row, and returns its results. All tensors
    in ``rows`` have the same number of rows. The condition comes after the computation:
    without rows, the first round fails at run time, as it does in eager PyTorch.
    """

    def call(name: str, overload: str, *values: Item) -> None:
        """Append a call of a kernel with these values as arguments."""
        positions = [emitter.position(value) for value in values]
        emitter.assembler.add_kernel_call(name, overload, positions)

    stacked = [r for r in results if isinstance(r, TensorValue)]
    for result in stacked:
        # the kernel et_copy_index resizes its result in each round
        result.varies = True
    sources = [emitter.tensor(r) for r in rows]
    index = scalar_value(int)
    count = scalar_value(int)
    done = scalar_value(bool)
    emitter.assembler.add_move(emitter.position(0), index)
    call("aten::sym_size", "int", sources[0], 0, count)
    emitter.assembler.keep_from_here(stacked)
    start = emitter.assembler.next_position
    row = [_new_row_of(source) for source in sources]
    for source, part in zip(sources, row, strict=True):
        # (tensor, axis, index, out, result): the last two are the same value
        call("aten::select_copy", "int_out", source, 0, index, part, part)
    for value, result in zip(emit_round(row), stacked, strict=True):
        call(f"{PRIM}::et_copy_index", "tensor", result, value, index)
    call(f"{PRIM}::add", "Scalar", index, 1, index)
    call(f"{PRIM}::eq", "Scalar", index, count, done)
    emitter.assembler.add_jump_if_false(emitter.position(done), start)
    emitter.assembler.loops.append((start, emitter.assembler.next_position - 1))


def _new_row_of(tensor: TensorValue) -> TensorValue:
    """Return a new value for a row of a tensor."""
    return planned_tensor(tensor.dtype, tensor.sizes[1:], tensor.varies)


CONTROL_FLOW: dict[Any, Callable[[GraphEmitter, Node], Result]] = {
    higher_order.cond: emit_cond,
    higher_order.while_loop: emit_while,
    higher_order.map_impl: emit_map,
    higher_order.scan: emit_scan,
}
