"""Branches and loops as jumps. Their results are written where their users look: no
tensor is moved.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Node

from .body import Body, Item, Result
from .kernel_calls import copy_tensor
from .symbolic import PRIM
from .values import Computed, ScalarValue, TensorValue, planned_tensor, scalar_value

higher_order = torch.ops.higher_order


def emit_cond(body: Body, node: Node) -> Result:
    """``if``: both branches write into the same results."""
    condition, if_true, if_false, operands = node.args
    results = body.new_results(node)
    inputs = [body.item(o) for o in operands]  # type: ignore[union-attr]
    to_else = body.assembler.jump_if_false(body.position(body.item(condition)))
    _emit_branch(body, if_true, inputs, results)
    to_end = body.assembler.jump()
    body.assembler.land(to_else)
    _emit_branch(body, if_false, inputs, results)
    body.assembler.land(to_end)
    return list(results)


def _emit_branch(
    body: Body, branch: Any, inputs: Sequence[Item], results: Sequence[Item]
) -> None:
    nested = body.subgraph(branch, inputs)
    nested.targets = _direct_targets(nested.results, results)
    nested.emit()
    _assign(nested, [nested.item(r) for r in nested.results], results)


def _direct_targets(
    returned: Sequence[Any], results: Sequence[Item]
) -> dict[tuple[Node, int], Computed]:
    """Results that the node which computes them can write itself: tensors that are
    returned once.
    """
    targets: dict[tuple[Node, int], Computed] = {}
    for value, result in zip(returned, results, strict=True):
        if (
            not isinstance(value, Node)
            or not isinstance(result, TensorValue)
            or returned.count(value) > 1
        ):
            continue
        key = (
            (value.args[0], value.args[1])
            if value.target is operator.getitem
            else (value, 0)
        )
        if value.op == "call_function":
            targets[key] = result  # type: ignore[index]
    return targets


def _assign(body: Body, values: Sequence[Item], results: Sequence[Item]) -> None:
    """Set results to values, but for those that were written in place."""
    for value, result in zip(values, results, strict=True):
        if isinstance(result, TensorValue) and value is not result:
            assert isinstance(value, TensorValue)
            copy_tensor(body, value, result)
        elif isinstance(result, ScalarValue):
            body.assembler.move(body.position(value), result)


def emit_while(body: Body, node: Node) -> Result:
    """``while``: the carried values are copies, which each round replaces once all new
    ones are computed.
    """
    condition, step, carried, constant = node.args
    results = body.new_results(node)
    _assign(body, [body.item(c) for c in carried], results)  # type: ignore[union-attr]
    inputs = [*results, *(body.item(c) for c in constant)]  # type: ignore[union-attr]
    start = body.assembler.here
    check = body.subgraph(condition, inputs)
    check.emit()
    to_end = body.assembler.jump_if_false(check.position(check.item(check.results[0])))
    round_ = body.subgraph(step, inputs)
    round_.emit()
    _assign_together(round_, [round_.item(r) for r in round_.results], results)
    body.assembler.jump(start)
    body.assembler.land(to_end)
    body.assembler.loops.append((start, body.assembler.here - 1))
    return list(results)


def _assign_together(
    body: Body, values: Sequence[Item], results: Sequence[Item]
) -> None:
    """Set results to values that may share the memory of other results, as in ``a, b =
    b, a``.
    """
    memory = {r.storage for r in results if isinstance(r, TensorValue)}
    numbers = {r for r in results if isinstance(r, ScalarValue)}
    safe: list[Item] = []
    for value, result in zip(values, results, strict=True):
        if value is result:
            safe.append(value)
        elif isinstance(value, TensorValue) and value.storage in memory:
            spare = TensorValue(
                value.dtype,
                value.sizes,
                type(value.storage)(value.storage.nbytes, value.storage.home),
            )
            spare.varies = value.varies
            copy_tensor(body, value, spare)
            safe.append(spare)
        elif isinstance(value, ScalarValue) and value in numbers:
            spare_number = scalar_value(type(value.start.value))
            body.assembler.move(value, spare_number)
            safe.append(spare_number)
        else:
            safe.append(value)
    _assign(body, safe, results)


def emit_map(body: Body, node: Node) -> Result:
    """``map``: row by row, each result appended to what its rows have become so far."""
    function, rows, constant = node.args
    results = body.new_results(node)
    inputs = [body.item(c) for c in constant]  # type: ignore[union-attr]

    def emit_round(taken: Sequence[Item]) -> Sequence[Item]:
        nested = body.subgraph(function, [*taken, *inputs])
        nested.emit()
        return [nested.item(r) for r in nested.results]

    _emit_rows(body, rows, results, emit_round)
    return list(results)


def emit_scan(body: Body, node: Node) -> Result:
    """``scan``: as ``map``, with values that are carried from row to row and returned
    before the rows' results.
    """
    function, initial, rows, constant = node.args
    results = body.new_results(node)
    carried = results[: len(initial)]  # type: ignore[arg-type]
    _assign(body, [body.item(i) for i in initial], carried)  # type: ignore[union-attr]
    inputs = [body.item(c) for c in constant]  # type: ignore[union-attr]

    def emit_round(taken: Sequence[Item]) -> Sequence[Item]:
        nested = body.subgraph(function, [*carried, *taken, *inputs])
        nested.emit()
        values = [nested.item(r) for r in nested.results]
        outputs = [_apart(nested, value, carried) for value in values[len(carried) :]]
        _assign_together(nested, values[: len(carried)], carried)
        return outputs

    _emit_rows(body, rows, results[len(carried) :], emit_round)
    return list(results)


def _apart(body: Body, value: Item, carried: Sequence[Item]) -> Item:
    """A tensor that does not change when the carried ones do."""
    memory = {c.storage for c in carried if isinstance(c, TensorValue)}
    if not isinstance(value, TensorValue) or value.storage not in memory:
        return value
    spare = planned_tensor(value.dtype, value.sizes, value.varies)
    copy_tensor(body, value, spare)
    return spare


def _emit_rows(
    body: Body,
    rows: Any,
    results: Sequence[Item],
    emit_round: Callable[[Sequence[Item]], Sequence[Item]],
) -> None:
    """A loop over the rows of tensors; what a round returns for one is appended to
    ``results``.

    Without rows, taking the first fails at run time, as eager does.
    """
    grown = [r for r in results if isinstance(r, TensorValue)]
    for result in grown:
        result.varies = True  # it grows by a row in each round
    sources = [body.tensor(r) for r in rows]
    index = scalar_value(int)
    count = scalar_value(int)
    done = scalar_value(bool)
    body.assembler.move(body.position(0), index)
    kernel = body.assembler.kernel
    kernel("aten::sym_size", "int", [body.position(v) for v in (sources[0], 0, count)])
    body.assembler.keep_from_here(grown)
    start = body.assembler.here
    taken = [_row_of(source) for source in sources]
    for source, row in zip(sources, taken, strict=True):
        kernel(
            "aten::select_copy",
            "int_out",
            [body.position(v) for v in (source, 0, index, row, row)],
        )
    for value, result in zip(emit_round(taken), grown, strict=True):
        kernel(
            f"{PRIM}::et_copy_index",
            "tensor",
            [body.position(v) for v in (result, value, index)],
        )
    kernel(f"{PRIM}::add", "Scalar", [body.position(v) for v in (index, 1, index)])
    kernel(f"{PRIM}::eq", "Scalar", [body.position(v) for v in (index, count, done)])
    body.assembler.jump_if_false(body.position(done), start)
    body.assembler.loops.append((start, body.assembler.here - 1))


def _row_of(tensor: TensorValue) -> TensorValue:
    return planned_tensor(tensor.dtype, tensor.sizes[1:], tensor.varies)


CONTROL_FLOW: dict[Any, Callable[[Body, Node], Result]] = {
    higher_order.cond: emit_cond,
    higher_order.while_loop: emit_while,
    higher_order.map_impl: emit_map,
    higher_order.scan: emit_scan,
}
