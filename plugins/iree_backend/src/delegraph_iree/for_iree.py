"""Writes a TOSA graph as MLIR for iree-compile: TOSA, and other dialects.

IREE 3.13 differs from the specification of TOSA in the following points. Each of them
is written in another form here.

IREE compares sizes that are known only at run time, and computes elementwise operators
in branches. A branch for the size 1 gave wrong numbers. Two such sizes are equal in our
graphs, so ``linalg.generic`` without a branch suffices.

IREE has no operators that compute shapes. They become arithmetic on ``index``.

IREE's maxima begin with the least finite number. Here they begin with minus infinity.

In IREE, a product with a constant of zeros is zero, even for NaN.

In IREE, an index out of range reads or writes foreign memory, and a division by zero
may end the process. Here the operand is moved into its range, and the function ``main``
fails after it. IREE's caller gets an error, as in eager PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from math import prod
from typing import Any

import numpy as np
from delegraph.errors import Unsupported
from delegraph_tosa import DType, Graph, Operator, Value, materialize

from .mlir import Put, Writer, element_of, number_of, type_of

OUT_OF_RANGE = "an index is out of range, or an integer is divided by zero"
"""The error text of a module."""
FLOATS = frozenset({DType.FP32, DType.FP16, DType.BF16})

Entry = int | str
"""An entry of a shape: a number, or the name of a value of type ``index``.

In the text of a type, the name may also be "?".
"""


def write_for_iree(graph: Graph, put: Put) -> None:
    """Write a module with the function ``main`` for iree-compile.

    Raises Unsupported as ``write_mlir`` does.
    """
    _IREEWriter(put).module(graph)


class _IREEWriter(Writer):
    def __init__(self, put: Put) -> None:
        super().__init__(put)
        self._entries: dict[Value, list[Entry]] = {}
        """Computed shape -> its entries."""
        self._checks: list[str] = []
        """Names of tensors ``i1`` of the current region that must be true."""
        self._depth = 0
        self._temporaries = 0
        """How many values %t0, %t1, ... were written that are not the graph's."""

    def _write_operators(self, graph: Graph, depth: int) -> None:
        """Write the operators of a region, and then one assertion for its checks."""
        outer_checks = self._checks
        self._checks = []
        for operator in graph.operators:
            self._depth = depth
            self._operator(operator, depth)
        self._depth = depth
        self._assert_checks()
        self._checks = outer_checks

    def _operator(self, operator: Operator, depth: int) -> None:
        """Write one operator, in a special form if there is one for it.

        Operators on shapes write arithmetic on ``index``; their result is kept in
        ``_entries`` for the operators that use the shape.
        """
        # in our graphs these shapes are equal, so IREE need not compare them
        if operator.name == "ASSERT_EQUAL_SHAPE":
            return
        if operator.name in _SHAPES:
            self._entries[operator.outputs[0]] = self._shape(operator)
            return
        write = self._special_form(operator)
        if write is None:
            if any(_is_computed_shape(value) for value in operator.inputs):
                raise Unsupported("unsupported", computed_parameters(operator))
            super()._operator(operator, depth)
            return
        write(operator)

    def _special_form(self, operator: Operator) -> Callable[[Operator], None] | None:
        """Return the method that writes an operator in a special form.

        None for an operator that IREE compiles correctly as TOSA's.
        """
        if operator.name in ("GATHER", "SCATTER"):
            return self._indexed
        if operator.name == "MATMUL_T":
            return self._transposed_product
        if (
            operator.name == "INTDIV"
            or _broadcasts_at_run_time(operator)
            or _multiplies_by_zeros(operator)
        ):
            return self._elementwise
        is_float = operator.outputs[0].dtype in FLOATS
        propagates_nan = str(getattr(operator, "nan_mode", "")) == "PROPAGATE"
        if operator.name in _REDUCTIONS and is_float and propagates_nan:
            return self._reduction
        if operator.name == "MAX_POOL2D" and is_float and propagates_nan:
            return self._max_pool
        if operator.name == "RESHAPE" and (
            operator.inputs[0].type.is_dynamic or operator.outputs[0].type.is_dynamic
        ):
            return self._reshape
        if any(_is_computed_shape(value) for value in operator.inputs):
            by_name = {"SLICE": self._slice, "PAD": self._pad, "TILE": self._tile}
            return by_name.get(operator.name)
        return None

    # --- pieces of text

    def _write(self, operation: str) -> str:
        """Write an operation with one result, and return the result's name."""
        name = f"%t{self._temporaries}"
        self._temporaries += 1
        self._line(self._depth, f"{name} = {operation}")
        return name

    def _write_result(self, value: Value, operation: str) -> None:
        """Write an operation, and define a value of the graph as its result."""
        self._line(self._depth, f"{self._define(value)} = {operation}")

    def _index(self, entry: Entry) -> str:
        """Return the name of an entry as a value of type ``index``.

        For a number, this writes a constant.
        """
        if isinstance(entry, str):
            return entry
        return self._write(f"arith.constant {entry} : index")

    def _size(self, value: Value, axis: int) -> Entry:
        """Return a size of a tensor; for a run-time size, write a ``tensor.dim``."""
        size = value.type.declared[axis]
        if size >= 0:
            return size
        name = self._names[value]
        position = self._index(axis)
        return self._write(f"tensor.dim {name}, {position} : {type_of(value.type)}")

    def _empty(self, result: Value, sizes: Sequence[Entry]) -> str:
        """Write a tensor without content, with the type of ``result`` and these sizes.

        Return its name. linalg's operations write their result into such a tensor.
        """
        unknown: list[str] = []
        for size, declared in zip(sizes, result.type.declared, strict=True):
            if declared < 0:
                unknown.append(self._index(size))
        return self._write(
            f"tensor.empty({', '.join(unknown)}) : {type_of(result.type)}"
        )

    def _empty_of(self, sizes: Sequence[Entry], type: str) -> str:
        """Write a tensor without content of these sizes, and return its name."""
        unknown = ", ".join(size for size in sizes if isinstance(size, str))
        return self._write(f"tensor.empty({unknown}) : {type}")

    def _filled(self, number: str, element: str, tensor: str, type: str) -> str:
        """Write a fill of ``tensor`` with ``number``, and return the result's name.

        ``number`` is the text of an ``arith.constant``.
        """
        constant = self._write(f"arith.constant {number}")
        return self._write(
            f"linalg.fill ins({constant} : {element}) outs({tensor} : {type}) -> {type}"
        )

    def _generic(
        self,
        maps: Sequence[str],
        kinds: Sequence[str],
        inputs: Sequence[tuple[str, str]],
        output: tuple[str, str],
        elements: Sequence[str],
        body: Sequence[str],
        result: Value | None = None,
        yields: str = "%r",
    ) -> str:
        """Write a ``linalg.generic``, a loop over elements, and return its result's name.

        ``maps``: right sides of the affine maps, one for each tensor. ``kinds``: one
        for each loop. ``inputs`` and ``output``: names and types of tensors.
        ``elements``: their element types. ``body``: lines that compute %r, or
        ``yields``, from %a, %b, %c, ... and from the output's element %o. ``result``:
        the value of the graph that the operation defines, if it defines one.
        """
        loops = ", ".join(f"d{k}" for k in range(len(kinds)))
        maps_text = ", ".join(f"affine_map<({loops}) -> ({text})>" for text in maps)
        kinds_text = ", ".join(f'"{kind}"' for kind in kinds)
        ins = ""
        if inputs:
            input_names = ", ".join(name for name, _ in inputs)
            input_types = ", ".join(type_ for _, type_ in inputs)
            ins = f"ins({input_names} : {input_types}) "
        # the elements of the inputs are %a, %b, ...; that of the output is %o
        names = [*"abcdefghijkl"[: len(inputs)], "o"]
        pairs = zip(names, elements, strict=True)
        arguments = ", ".join(f"%{name}: {element}" for name, element in pairs)
        if result is None:
            made = f"%t{self._temporaries}"
            self._temporaries += 1
        else:
            made = self._define(result)
        head = f"{{indexing_maps = [{maps_text}], iterator_types = [{kinds_text}]}}"
        self._line(
            self._depth,
            f"{made} = linalg.generic {head} {ins}outs({output[0]} : {output[1]}) {{",
        )
        self._line(self._depth, f"^bb0({arguments}):")
        for line in body:
            self._line(self._depth + 1, line)
        self._line(self._depth + 1, f"linalg.yield {yields} : {elements[-1]}")
        self._line(self._depth, f"}} -> {output[1]}")
        return made

    # --- elementwise operators

    def _elementwise(self, operator: Operator) -> None:
        """Write an elementwise operator as one loop, without branches on sizes."""
        [result] = operator.outputs
        operands = list(operator.inputs)
        if operator.name == "MUL":
            # the third input is a constant shift, which the body contains
            operands = operands[:2]
        rank = len(result.shape)
        sizes = [self._broadcast_size(operands, axis) for axis in range(rank)]
        if operator.name == "INTDIV":
            self._check_divisor(operands[1])
        maps = [_broadcast_map(operand, result) for operand in operands]
        tensors = [(self._names[value], type_of(value.type)) for value in operands]
        self._generic(
            maps=[*maps, _identity(rank)],
            kinds=["parallel"] * rank,
            inputs=tensors,
            output=(self._empty(result, sizes), type_of(result.type)),
            elements=[element_of(value.dtype) for value in (*operands, result)],
            body=_elementwise_body(operator),
            result=result,
        )

    def _broadcast_size(self, operands: Sequence[Value], axis: int) -> Entry:
        """Return a size of the result.

        Sizes that are known only at run time are equal, or the other sizes are 1.
        """
        known = [operand.type.declared[axis] for operand in operands]
        if max(known) > 1 or -1 not in known:
            return max(known)
        return self._size(operands[known.index(-1)], axis)

    # --- checks

    def _check_elements(self, value: Value, condition: Sequence[str]) -> None:
        """Add a check of all elements.

        The lines of ``condition`` compute the bool %q from the element %a.
        """
        rank = len(value.shape)
        empty = self._write("tensor.empty() : tensor<i1>")
        # the reduction by ``and`` begins with true
        true = self._filled("true", "i1", empty, "tensor<i1>")
        check = self._generic(
            maps=[_identity(rank), ""],
            kinds=["reduction"] * rank,
            inputs=[(self._names[value], type_of(value.type))],
            output=(true, "tensor<i1>"),
            elements=[element_of(value.dtype), "i1"],
            body=[*condition, "%r = arith.andi %q, %o : i1"],
        )
        self._checks.append(check)

    def _assert_checks(self) -> None:
        """Write a single assertion for all checks: each assertion waits for the device."""
        if not self._checks:
            return
        all_hold = self._checks[0]
        for check in self._checks[1:]:
            empty = self._write("tensor.empty() : tensor<i1>")
            operands = [(all_hold, "tensor<i1>"), (check, "tensor<i1>")]
            body = ["%r = arith.andi %a, %b : i1"]
            all_hold = self._generic(
                ["", "", ""], [], operands, (empty, "tensor<i1>"), ["i1"] * 3, body
            )
        holds = self._write(f"tensor.extract {all_hold}[] : tensor<i1>")
        self._line(self._depth, f'cf.assert {holds}, "{OUT_OF_RANGE}"')

    def _check_divisor(self, divisor: Value) -> None:
        """Add a check that no element is zero, except for constants without zeros."""
        if divisor.constant is not None and materialize(divisor).all():
            return
        element = element_of(divisor.dtype)
        self._check_elements(
            divisor,
            [
                f"%z = arith.constant 0 : {element}",
                f"%q = arith.cmpi ne, %a, %z : {element}",
            ],
        )

    # --- indices

    def _indexed(self, operator: Operator) -> None:
        """Write a GATHER or SCATTER with indices in range, and check the given ones.

        Out-of-range indices are clamped, because IREE would access foreign memory. The
        check makes the call fail afterwards. Constant indices in range need neither.
        """
        values, indices = operator.inputs[:2]
        # values are [N,K,C], indices are [N,W] with elements below K
        rows = self._size(values, 1)
        if indices.constant is not None and isinstance(rows, int):
            if _are_in_range(materialize(indices), rows):
                super()._operator(operator, self._depth)
                return
        element = element_of(indices.dtype)
        count = self._write(
            f"arith.index_cast {self._index(rows)} : index to {element}"
        )
        # ``ult`` compares without sign: negative indices are large numbers there
        self._check_elements(indices, [f"%q = arith.cmpi ult, %a, {count} : {element}"])
        type = type_of(indices.type)
        empty = self._empty(indices, [self._size(indices, axis) for axis in range(2)])
        body = [
            f"%z = arith.constant 0 : {element}",
            f"%u = arith.constant 1 : {element}",
            f"%l = arith.subi {count}, %u : {element}",
            f"%m = arith.maxsi %a, %z : {element}",
            f"%r = arith.minsi %m, %l : {element}",
        ]
        clamped = self._generic(
            maps=[_identity(2), _identity(2)],
            kinds=["parallel"] * 2,
            inputs=[(self._names[indices], type)],
            output=(empty, type),
            elements=[element, element],
            body=body,
        )
        # the operator reads the clamped indices; other operators read the given ones
        before = self._names[indices]
        self._names[indices] = clamped
        super()._operator(operator, self._depth)
        self._names[indices] = before

    # --- products

    def _transposed_product(self, operator: Operator) -> None:
        """Write a MATMUL_T as a MATMUL.

        Its second operand [N or 1,W,C] becomes [N,C,W].
        """
        first, second, *zero_points = operator.inputs
        [result] = operator.outputs
        sizes = [self._size(first, 0), self._size(second, 2), self._size(second, 1)]
        element = element_of(second.dtype)
        type = _tensor_of(sizes, element)
        maps = ["0, d2, d1" if second.shape[0] == 1 else "d0, d2, d1", _identity(3)]
        operands = [(self._names[second], type_of(second.type))]
        empty = self._empty_of(sizes, type)
        kinds = ["parallel"] * 3
        transposed = self._generic(
            maps, kinds, operands, (empty, type), [element] * 2, [], yields="%a"
        )
        names = [self._names[first], transposed]
        names += [self._names[value] for value in zero_points]
        types = [type_of(first.type), type, *(type_of(v.type) for v in zero_points)]
        signature = f"({', '.join(types)}) -> {type_of(result.type)}"
        self._write_result(result, f'"tosa.matmul"({", ".join(names)}) : {signature}')

    # --- maxima

    def _reduction(self, operator: Operator) -> None:
        """Write a REDUCE_MAX or REDUCE_MIN of floats that begins with infinity.

        The loop drops the axis, which TOSA keeps with size 1; so it is added after it.
        """
        [operand] = operator.inputs
        [result] = operator.outputs
        axis = operator.axis  # type: ignore[attr-defined]
        rank = len(operand.shape)
        kept = [k for k in range(rank) if k != axis]
        operation, beginning = _REDUCTIONS[operator.name]
        element = element_of(operand.dtype)
        sizes = [self._size(operand, k) for k in kept]
        type = _tensor_of(sizes, element)
        empty = self._empty_of(sizes, type)
        start = self._filled(number_of(beginning, operand.dtype), element, empty, type)
        kinds = ["reduction" if k == axis else "parallel" for k in range(rank)]
        maps = [_identity(rank), ", ".join(f"d{k}" for k in kept)]
        operands = [(self._names[operand], type_of(operand.type))]
        line = f"%r = {operation} %a, %o : {element}"
        reduced = self._generic(
            maps, kinds, operands, (start, type), [element] * 2, [line]
        )
        full = [*sizes[:axis], 1, *sizes[axis:]]
        groups = _groups_with_unit_axis(rank, axis)
        self._expand(result, reduced, type, groups, full)

    def _max_pool(self, operator: Operator) -> None:
        """Write a MAX_POOL2D of floats [N,H,W,C] that begins with minus infinity.

        The pads of TOSA are top, bottom, left, right; linalg needs a padded operand.
        """
        [operand] = operator.inputs
        [result] = operator.outputs
        pool: Any = operator
        kernel = pool.kernel
        stride = pool.stride
        pad = pool.pad
        lowest = number_of(-np.inf, operand.dtype)
        name = self._names[operand]
        type = type_of(operand.type)
        element = element_of(operand.dtype)
        if any(pad):
            sizes = list(operand.type.declared)
            if sizes[1] >= 0:
                sizes[1] += pad[0] + pad[1]
            if sizes[2] >= 0:
                sizes[2] += pad[2] + pad[3]
            padded = _tensor_of(["?" if size < 0 else size for size in sizes], element)
            low = ["0", str(pad[0]), str(pad[2]), "0"]
            high = ["0", str(pad[1]), str(pad[3]), "0"]
            inside = self._write(f"arith.constant {lowest}")
            name = self._write(self._padded(name, type, low, high, inside, padded))
            type = padded
        sizes_of_result = [
            self._size(operand, 0),
            self._windows(operand, 1, pad[0] + pad[1], kernel[0], stride[0]),
            self._windows(operand, 2, pad[2] + pad[3], kernel[1], stride[1]),
            self._size(operand, 3),
        ]
        result_type = type_of(result.type)
        empty = self._empty(result, sizes_of_result)
        start = self._filled(lowest, element, empty, result_type)
        window = f"tensor<{kernel[0]}x{kernel[1]}x{element}>"
        # linalg reads only the shape of the window
        shape_only = self._write(f"tensor.empty() : {window}")
        dilations = "dilations = dense<1> : vector<2xi64>"
        strides = f"strides = dense<{list(stride)}> : vector<2xi64>"
        ins = f"ins({name}, {shape_only} : {type}, {window})"
        outs = f"outs({start} : {result_type})"
        self._write_result(
            result,
            f"linalg.pooling_nhwc_max {{{dilations}, {strides}}} {ins} {outs} ->"
            f" {result_type}",
        )

    def _windows(
        self, operand: Value, axis: int, pad: int, kernel: int, stride: int
    ) -> Entry:
        """Return the number of windows along an axis, rounded down.

        ``pad``: the sum of the pads on both sides.
        """
        room = self._binary("ADD_SHAPE", self._size(operand, axis), pad - kernel)
        steps = self._binary("DIV_FLOOR_SHAPE", room, stride)
        return self._binary("ADD_SHAPE", steps, 1)

    # --- shapes

    def _entries_of(self, value: Value) -> list[Entry]:
        """Return the entries of a shape, constant or computed."""
        if value in self._entries:
            return self._entries[value]
        return [int(entry) for entry in materialize(value)]

    def _shape(self, operator: Operator) -> list[Entry]:
        """Write the arithmetic of an operator on shapes; return its result."""
        if operator.name == "DIM":
            return [self._size(operator.inputs[0], operator.axis)]  # type: ignore[attr-defined]
        operands = [self._entries_of(value) for value in operator.inputs]
        if operator.name == "CONCAT_SHAPE":
            return list(chain.from_iterable(operands))
        if operator.name == "SLICE_SHAPE":
            entries, [start], [size] = operands
            if not isinstance(start, int) or not isinstance(size, int):
                raise Unsupported("unsupported", computed_parameters(operator))
            return entries[start : start + size]
        left, right = operands
        return [
            self._binary(operator.name, a, b) for a, b in zip(left, right, strict=True)
        ]

    def _binary(self, name: str, left: Entry, right: Entry) -> Entry:
        """Compute one entry: now if both operands are numbers, otherwise at run time."""
        compute, operation = _SHAPE_ARITHMETIC[name]
        if isinstance(left, int) and isinstance(right, int):
            return compute(left, right)
        # ceil(a / b) is (a + b - 1) / b, rounded down
        if name == "DIV_CEIL_SHAPE":
            left = self._binary("ADD_SHAPE", left, self._binary("SUB_SHAPE", right, 1))
        return self._write(
            f"{operation} {self._index(left)}, {self._index(right)} : index"
        )

    def _reshape(self, operator: Operator) -> None:
        """Write a reshape as a collapse to one axis, and an expansion from it."""
        operand = operator.inputs[0]
        [result] = operator.outputs
        element = element_of(operand.dtype)
        declared = operand.type.declared
        name = self._names[operand]
        flat = f"tensor<{'?' if operand.type.is_dynamic else prod(declared)}x{element}>"
        if not declared:
            name = self._write(
                f"tensor.expand_shape {name} [] output_shape [1] :"
                f" tensor<{element}> into {flat}"
            )
        elif len(declared) > 1:
            axes = ", ".join(map(str, range(len(declared))))
            name = self._write(
                f"tensor.collapse_shape {name} [[{axes}]] : {type_of(operand.type)}"
                f" into {flat}"
            )
        is_dynamic = result.type.is_dynamic
        count = "?" if is_dynamic else str(prod(result.type.declared))
        wanted = f"tensor<{count}x{element}>"
        if wanted != flat:
            name = self._write(f"tensor.cast {name} : {flat} to {wanted}")
        rank = len(result.shape)
        if rank == 0:
            self._write_result(
                result,
                f"tensor.collapse_shape {name} [] : {wanted} into"
                f" {type_of(result.type)}",
            )
            return
        sizes = self._entries_of(operator.inputs[1])
        self._expand(result, name, wanted, [list(range(rank))], sizes)

    def _expand(
        self,
        result: Value,
        name: str,
        type: str,
        groups: Sequence[Sequence[int]],
        sizes: Sequence[Entry],
    ) -> None:
        """Write a tensor with more axes; ``groups`` has the new axes of each axis."""
        wanted = type_of(result.type)
        if len(groups) == len(result.shape):
            self._write_result(result, f"tensor.cast {name} : {type} to {wanted}")
            return
        shape = f"output_shape [{', '.join(self._sizes_as_text(result, sizes))}]"
        groups_text = ", ".join(f"[{', '.join(map(str, group))}]" for group in groups)
        self._write_result(
            result,
            f"tensor.expand_shape {name} [{groups_text}] {shape} : {type} into"
            f" {wanted}",
        )

    def _sizes_as_text(self, result: Value, sizes: Sequence[Entry]) -> list[str]:
        """Return the sizes of ``result`` as text; run-time ones as names."""
        return [
            self._index(size) if declared < 0 else str(declared)
            for size, declared in zip(sizes, result.type.declared, strict=True)
        ]

    def _slice(self, operator: Operator) -> None:
        """Write a SLICE with a computed start or size as ``tensor.extract_slice``.

        That operation has three lists in brackets: offsets, sizes and steps.
        """
        operand, start, size = operator.inputs
        [result] = operator.outputs
        offsets = [self._index(entry) for entry in self._entries_of(start)]
        sizes = self._sizes_as_text(result, self._entries_of(size))
        steps = ["1"] * len(sizes)
        lists = "".join(
            f"[{', '.join(entries)}]" for entries in (offsets, sizes, steps)
        )
        types = f"{type_of(operand.type)} to {type_of(result.type)}"
        self._write_result(
            result, f"tensor.extract_slice {self._names[operand]}{lists} : {types}"
        )

    def _pad(self, operator: Operator) -> None:
        """Write a PAD with computed padding as ``tensor.pad``.

        ``padding`` has two entries for each axis: before and after it.
        """
        operand, padding, number = operator.inputs
        [result] = operator.outputs
        entries = [self._index(entry) for entry in self._entries_of(padding)]
        if number.constant is None:
            zero = self._index(0)
            inside = self._write(
                f"tensor.extract {self._names[number]}[{zero}] : {type_of(number.type)}"
            )
        else:
            if operand.dtype in FLOATS:
                text = number_of(_as_float(number), operand.dtype)
            else:
                [value] = materialize(number).tolist()
                text = number_of(value, operand.dtype)
                if operand.dtype is DType.BOOL:
                    text = "true" if value else "false"
            inside = self._write(f"arith.constant {text}")
        operation = self._padded(
            self._names[operand],
            type_of(operand.type),
            low=entries[::2],
            high=entries[1::2],
            inside=inside,
            result=type_of(result.type),
        )
        self._write_result(result, operation)

    def _padded(
        self,
        name: str,
        type: str,
        low: Sequence[str],
        high: Sequence[str],
        inside: str,
        result: str,
    ) -> str:
        """Return the operation that pads a tensor with the scalar ``inside``."""
        arguments = ", ".join(f"%p{k}: index" for k in range(len(low)))
        # ``type`` is text such as tensor<2x?xf32>
        element = type.removeprefix("tensor<").removesuffix(">").rpartition("x")[2]
        block = f"{{\n^bb0({arguments}):\ntensor.yield {inside} : {element}\n}}"
        return (
            f"tensor.pad {name} low[{', '.join(low)}] high[{', '.join(high)}] {block} :"
            f" {type} to {result}"
        )

    def _tile(self, operator: Operator) -> None:
        """Write a TILE: each axis [S] becomes [times, S]; then the two are joined.

        An axis that needs only one of them stays one axis. ``groups`` has the new axes
        for each axis, and ``sources`` the operand's index as an affine expression.
        Reading elements at the place modulo the size would need no second operation,
        but IREE's vectorizer is wrong there: it reads zeros.
        """
        operand, multiples = operator.inputs
        [result] = operator.outputs
        sizes: list[Entry] = []
        groups: list[list[int]] = []
        sources: list[str] = []
        for axis, times in enumerate(self._entries_of(multiples)):
            size = self._size(operand, axis)
            group = [times, size]
            if times == 1 or size == 1:
                group = [self._binary("MUL_SHAPE", size, times)]
            groups.append([len(sizes) + k for k in range(len(group))])
            sizes += group
            sources.append("0" if size == 1 else f"d{len(sizes) - 1}")
        element = element_of(result.dtype)
        type = _tensor_of(sizes, element)
        empty = self._empty_of(sizes, type)
        operands = [(self._names[operand], type_of(operand.type))]
        maps = [", ".join(sources), _identity(len(sizes))]
        kinds = ["parallel"] * len(sizes)
        repeated = self._generic(
            maps, kinds, operands, (empty, type), [element] * 2, [], yields="%a"
        )
        self._join(result, repeated, type, groups, sizes)

    def _join(
        self,
        result: Value,
        name: str,
        type: str,
        groups: Sequence[Sequence[int]],
        sizes: Sequence[Entry],
    ) -> None:
        """Write a tensor with fewer axes; ``groups`` has the axes that each joins."""
        if len(groups) < len(sizes):
            joined: list[Entry] = []
            for group in groups:
                factors = [sizes[axis] for axis in group]
                is_known = all(isinstance(factor, int) for factor in factors)
                joined.append(prod(factors) if is_known else "?")
            flat = _tensor_of(joined, element_of(result.dtype))
            groups_text = ", ".join(
                f"[{', '.join(map(str, group))}]" for group in groups
            )
            name = self._write(
                f"tensor.collapse_shape {name} [{groups_text}] : {type} into {flat}"
            )
            type = flat
        self._write_result(
            result, f"tensor.cast {name} : {type} to {type_of(result.type)}"
        )


_SHAPE_ARITHMETIC: dict[str, tuple[Callable[[int, int], int], str]] = {
    "ADD_SHAPE": (lambda a, b: a + b, "arith.addi"),
    "SUB_SHAPE": (lambda a, b: a - b, "arith.subi"),
    "MUL_SHAPE": (lambda a, b: a * b, "arith.muli"),
    "MAX_SHAPE": (max, "arith.maxsi"),
    "MIN_SHAPE": (min, "arith.minsi"),
    "MOD_SHAPE": (lambda a, b: a % b, "arith.remsi"),
    "DIV_CEIL_SHAPE": (lambda a, b: -(-a // b), "arith.divsi"),
    "DIV_FLOOR_SHAPE": (lambda a, b: a // b, "arith.divsi"),
}
"""Operator on shapes -> its function, and its operation on ``index``.

The operation is used for entries that are not negative.
"""
_SHAPES = frozenset({"DIM", "CONCAT_SHAPE", "SLICE_SHAPE", *_SHAPE_ARITHMETIC})
_REDUCTIONS = {
    "REDUCE_MAX": ("arith.maximumf", -np.inf),
    "REDUCE_MIN": ("arith.minimumf", np.inf),
}
"""Reduction -> its operation, and the number it begins with."""
_OPERATIONS = {
    "ADD": "add",
    "SUB": "sub",
    "MUL": "mul",
    "POW": "math.powf",
    "BITWISE_AND": "arith.andi",
    "BITWISE_OR": "arith.ori",
    "BITWISE_XOR": "arith.xori",
    "LOGICAL_AND": "arith.andi",
    "LOGICAL_OR": "arith.ori",
    "LOGICAL_XOR": "arith.xori",
    "LOGICAL_LEFT_SHIFT": "arith.shli",
    "LOGICAL_RIGHT_SHIFT": "arith.shrui",
}
"""Operator with two operands -> its operation; ``add`` may become ``arith.addf``."""
_COMPARISONS = {"EQUAL": "eq", "GREATER": "gt", "GREATER_EQUAL": "ge"}
_ELEMENTWISE = frozenset(
    {
        *_OPERATIONS,
        *_COMPARISONS,
        "INTDIV",
        "MAXIMUM",
        "MINIMUM",
        "SELECT",
        "ARITHMETIC_RIGHT_SHIFT",
    }
)


def why_not_at_run_time(operator: Operator) -> str | None:
    """Return why an operator cannot be written for run-time sizes, or None."""
    on_shapes = {*_SHAPES, "ASSERT_EQUAL_SHAPE"}
    if operator.name.endswith("_SHAPE") and operator.name not in on_shapes:
        return f"IREE does not compile {operator.name}"
    has_form = operator.name in {*on_shapes, "RESHAPE", "SLICE", "PAD", "TILE"}
    if not has_form and any(_is_computed_shape(value) for value in operator.inputs):
        return computed_parameters(operator)
    return None


def computed_parameters(operator: Operator) -> str:
    """Return the refusal reason of an operator with parameters computed from sizes."""
    return (
        f"IREE does not compile {operator.name} with parameters that are computed at"
        " run time"
    )


def _is_computed_shape(value: Value) -> bool:
    return value.dtype is DType.SHAPE and value.constant is None


def _are_in_range(indices: np.ndarray[Any, Any], rows: int) -> bool:
    return bool(indices.min() >= 0 and indices.max() < rows)


def _as_float(value: Value) -> float:
    """Return the number of a constant of one float."""
    array = materialize(value)
    # bfloat16 is stored as uint16: the upper half of a float32
    if value.dtype is DType.BF16:
        array = (array.astype(np.uint32) << 16).view(np.float32)
    return float(array.reshape(-1)[0])


def _broadcasts_at_run_time(operator: Operator) -> bool:
    """Return whether several operands have run-time sizes along the same axis."""
    if operator.name not in _ELEMENTWISE:
        return False
    declared = [value.type.declared for value in operator.inputs[:3]]
    return any(sizes.count(-1) > 1 for sizes in zip(*declared, strict=False))


def _multiplies_by_zeros(operator: Operator) -> bool:
    """Return whether this is a product of floats with a constant of zeros only."""
    if operator.name != "MUL" or operator.outputs[0].dtype not in FLOATS:
        return False
    constants = [value for value in operator.inputs[:2] if value.constant is not None]
    return any(not (materialize(value) != 0).any() for value in constants)


def _tensor_of(sizes: Sequence[Entry], element: str) -> str:
    """Return a tensor type such as ``tensor<2x?xf32>``; run-time sizes become "?"."""
    declared = ["?" if isinstance(size, str) else str(size) for size in sizes]
    return f"tensor<{'x'.join([*declared, element])}>"


def _identity(rank: int) -> str:
    """Return the right side of the affine map that reads element [d0, d1, ...]."""
    return ", ".join(f"d{k}" for k in range(rank))


def _broadcast_map(operand: Value, result: Value) -> str:
    """Return the right side of an operand's map; axes of size 1 are broadcast."""
    pairs = zip(operand.type.declared, result.type.declared, strict=True)
    return ", ".join(
        "0" if size == 1 and wanted != 1 else f"d{k}"
        for k, (size, wanted) in enumerate(pairs)
    )


def _groups_with_unit_axis(rank: int, axis: int) -> list[list[int]]:
    """Return which axes of a result come from each axis of its operand.

    The result has ``rank`` axes, and the operand lacks the one at ``axis``, of size 1.
    MLIR needs this axis in the group of a neighbor.
    """
    groups = [[k] for k in range(rank) if k != axis]
    if groups:
        groups[max(axis - 1, 0)].append(axis)
        groups[max(axis - 1, 0)].sort()
    return groups


def _elementwise_body(operator: Operator) -> list[str]:
    """Return lines that compute %r from %a, %b and %c as the operator does."""
    name = operator.name
    dtype = operator.inputs[0].dtype
    element = element_of(dtype)
    is_float = dtype in FLOATS
    if name == "SELECT":
        return [
            f"%r = arith.select %a, %b, %c : {element_of(operator.outputs[0].dtype)}"
        ]
    if name in _COMPARISONS:
        kind = _COMPARISONS[name]
        if is_float:
            # "o" for ordered: a comparison with NaN is false
            return [f"%r = arith.cmpf o{kind}, %a, %b : {element}"]
        # "s" for signed
        signed = kind if kind == "eq" else f"s{kind}"
        return [f"%r = arith.cmpi {signed}, %a, %b : {element}"]
    if name in ("MAXIMUM", "MINIMUM"):
        return _extreme_body(operator, element, is_float)
    if name == "MUL" and not is_float:
        return _integer_product_body(operator, element)
    if name == "INTDIV":
        return _division_body(element)
    if name == "ARITHMETIC_RIGHT_SHIFT":
        return _right_shift_body(operator, element)
    operation = _OPERATIONS[name]
    if "." not in operation:
        operation = f"arith.{operation}{'f' if is_float else 'i'}"
    return [f"%r = {operation} %a, %b : {element}"]


def _extreme_body(operator: Operator, element: str, is_float: bool) -> list[str]:
    """Return the line for a MAXIMUM or MINIMUM.

    ``arith.maximumf`` returns NaN if an operand is NaN, ``arith.maxnumf`` the other one.
    """
    word = "max" if operator.name == "MAXIMUM" else "min"
    if not is_float:
        return [f"%r = arith.{word}si %a, %b : {element}"]
    if str(operator.nan_mode) == "PROPAGATE":  # type: ignore[attr-defined]
        return [f"%r = arith.{word}imumf %a, %b : {element}"]
    return [f"%r = arith.{word}numf %a, %b : {element}"]


def _integer_product_body(operator: Operator, element: str) -> list[str]:
    """Return lines for the product of 64 bits, rounded and shifted right.

    The specification of MUL defines the rounding.
    """
    wide = element_of(operator.outputs[0].dtype)
    shift = int(materialize(operator.inputs[2]).item())
    if not shift:
        if wide == element:
            return [f"%r = arith.muli %a, %b : {element}"]
        return [
            f"%x = arith.extsi %a : {element} to {wide}",
            f"%y = arith.extsi %b : {element} to {wide}",
            f"%r = arith.muli %x, %y : {wide}",
        ]
    return [
        f"%x = arith.extsi %a : {element} to i64",
        f"%y = arith.extsi %b : {element} to i64",
        "%p = arith.muli %x, %y : i64",
        # half of the unit that remains after the shift
        f"%h = arith.constant {1 << shift - 1} : i64",
        f"%s = arith.constant {shift} : i64",
        "%q = arith.addi %p, %h : i64",
        "%v = arith.shrsi %q, %s : i64",
        f"%r = arith.trunci %v : i64 to {wide}",
    ]


def _division_body(element: str) -> list[str]:
    """Return lines for the quotient.

    The divisor is 1 if it would be 0, or if it is -1 and the quotient would not fit.
    """
    # ``element`` is the name of an integer type, such as i32
    least = -(1 << int(element[1:]) - 1)
    return [
        f"%z = arith.constant 0 : {element}",
        f"%u = arith.constant 1 : {element}",
        f"%m = arith.constant -1 : {element}",
        f"%l = arith.constant {least} : {element}",
        f"%d = arith.cmpi eq, %b, %z : {element}",
        f"%e = arith.cmpi eq, %b, %m : {element}",
        f"%f = arith.cmpi eq, %a, %l : {element}",
        "%g = arith.andi %e, %f : i1",
        "%h = arith.ori %d, %g : i1",
        f"%y = arith.select %h, %u, %b : {element}",
        f"%r = arith.divsi %a, %y : {element}",
    ]


def _right_shift_body(operator: Operator, element: str) -> list[str]:
    """Return lines for the shifted integer.

    With ``round``, the last bit that was shifted out is added. Nothing is shifted out
    by a count of 0; %n keeps the count of the shift that finds the bit from -1.
    """
    if not operator.round:  # type: ignore[attr-defined]
        return [f"%r = arith.shrsi %a, %b : {element}"]
    return [
        f"%z = arith.constant 0 : {element}",
        f"%u = arith.constant 1 : {element}",
        f"%s = arith.shrsi %a, %b : {element}",
        f"%w = arith.subi %b, %u : {element}",
        f"%n = arith.maxsi %w, %z : {element}",
        f"%x = arith.shrsi %a, %n : {element}",
        f"%y = arith.andi %x, %u : {element}",
        f"%k = arith.cmpi sgt, %b, %z : {element}",
        f"%j = arith.select %k, %y, %z : {element}",
        f"%r = arith.addi %s, %j : {element}",
    ]
