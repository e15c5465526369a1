"""Writes a TOSA graph as MLIR for iree-compile: TOSA, and other dialects.

IREE 3.13 compiles some operators of TOSA wrongly, or not at all. These are written in
other dialects here, mostly as ``linalg.generic``, a loop over elements. The cases are:

For sizes that are known only at run time, IREE's elementwise operators test whether to
broadcast a size of 1, and branch. Such a branch gave wrong numbers. Two such sizes are
equal in our graphs, so ``linalg.generic`` without a branch suffices.

IREE has none of the operators that compute shapes. They become arithmetic on
``index``, MLIR's type for sizes.

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
from typing import Any, NamedTuple

import numpy as np
from delegraph.errors import Unsupported
from delegraph_tosa import DType, Graph, Operator, Value, materialize

from .mlir import Put, Writer, element_of, number_of, type_of

OUT_OF_RANGE = "an index is out of range, or an integer is divided by zero"
"""The error text of a module whose checks fail."""
FLOATS = frozenset({DType.FP32, DType.FP16, DType.BF16})

Entry = int | str
"""An entry of a shape: a number, or the name of a value of type ``index``.

``_tensor_type`` also takes "?" as a name.
"""


class _Tensor(NamedTuple):
    """The name of a tensor in the text, and its type, such as ``tensor<2x?xf32>``."""

    name: str
    type: str

    @property
    def element(self) -> str:
        """The element type, such as ``f32``."""
        return self.type.removeprefix("tensor<").removesuffix(">").rpartition("x")[2]


def write_for_iree(graph: Graph, put: Put) -> None:
    """Write a module with the function ``main`` for iree-compile.

    Raises Unsupported as ``write_mlir`` does.
    """
    _IREEWriter(put).module(graph)


class _IREEWriter(Writer):
    """Writes one module. Methods that write an operation return its result's name."""

    def __init__(self, put: Put) -> None:
        super().__init__(put)
        self._entries: dict[Value, list[Entry]] = {}
        """Computed shape -> its entries."""
        self._checks: list[_Tensor] = []
        """Tensors ``i1`` of the current region that must be true."""
        self._depth = 0
        self._temporaries = 0
        """How many values %t0, %t1, ... are written. They are not values of the graph."""

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

    def _tensor(self, value: Value) -> _Tensor:
        """Return a value of the graph as the text refers to it."""
        return _Tensor(self._names[value], type_of(value.type))

    def _temporary(self) -> str:
        """Return a new name, %t0, %t1, ..."""
        name = f"%t{self._temporaries}"
        self._temporaries += 1
        return name

    def _write(self, operation: str) -> str:
        """Write an operation with one result, and return the result's name."""
        name = self._temporary()
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
        tensor = self._tensor(value)
        position = self._index(axis)
        return self._write(f"tensor.dim {tensor.name}, {position} : {tensor.type}")

    def _empty_like(self, result: Value, sizes: Sequence[Entry]) -> _Tensor:
        """Write a tensor without content, with the type of ``result`` and these sizes.

        linalg's operations write their result into such a tensor.
        """
        unknown: list[str] = []
        for size, declared in zip(sizes, result.type.declared, strict=True):
            if declared < 0:
                unknown.append(self._index(size))
        return self._empty(unknown, type_of(result.type))

    def _empty(self, sizes: Sequence[Entry], type: str) -> _Tensor:
        """Write a tensor without content; ``sizes`` may contain the known ones, too."""
        unknown = ", ".join(size for size in sizes if isinstance(size, str))
        return _Tensor(self._write(f"tensor.empty({unknown}) : {type}"), type)

    def _filled(self, tensor: _Tensor, number: str) -> _Tensor:
        """Write a fill of ``tensor`` with ``number``, the text of an ``arith.constant``."""
        constant = self._write(f"arith.constant {number}")
        filled = self._write(
            f"linalg.fill ins({constant} : {tensor.element})"
            f" outs({tensor.name} : {tensor.type}) -> {tensor.type}"
        )
        return _Tensor(filled, tensor.type)

    def _generic(
        self,
        maps: Sequence[str],
        kinds: Sequence[str],
        inputs: Sequence[_Tensor],
        output: _Tensor,
        body: Sequence[str],
        result: Value | None = None,
        yields: str = "%r",
    ) -> _Tensor:
        """Write a ``linalg.generic``, a loop over elements.

        ``maps``: right sides of the affine maps, one for each tensor. They select the
        element by the loops' indices: with ``d1, d0`` a tensor is read transposed.
        ``kinds``: "parallel" or "reduction" for each loop. ``body``: lines that compute
        %r, or ``yields``, from the inputs' elements %a, %b, %c, ... and from the
        output's element %o. ``result``: the value of the graph that the operation
        defines, if it defines one.
        """
        loops = ", ".join(f"d{k}" for k in range(len(kinds)))
        maps_text = ", ".join(f"affine_map<({loops}) -> ({text})>" for text in maps)
        kinds_text = ", ".join(f'"{kind}"' for kind in kinds)
        ins = ""
        if inputs:
            input_names = ", ".join(tensor.name for tensor in inputs)
            input_types = ", ".join(tensor.type for tensor in inputs)
            ins = f"ins({input_names} : {input_types}) "
        letters = [*"abcdefghijkl"[: len(inputs)], "o"]
        pairs = zip(letters, [*inputs, output], strict=True)
        arguments = ", ".join(
            f"%{letter}: {tensor.element}" for letter, tensor in pairs
        )
        name = self._temporary() if result is None else self._define(result)
        head = f"{{indexing_maps = [{maps_text}], iterator_types = [{kinds_text}]}}"
        outs = f"outs({output.name} : {output.type})"
        self._line(self._depth, f"{name} = linalg.generic {head} {ins}{outs} {{")
        self._line(self._depth, f"^bb0({arguments}):")
        for line in body:
            self._line(self._depth + 1, line)
        self._line(self._depth + 1, f"linalg.yield {yields} : {output.element}")
        self._line(self._depth, f"}} -> {output.type}")
        return _Tensor(name, output.type)

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
        self._generic(
            maps=[*maps, _identity(rank)],
            kinds=["parallel"] * rank,
            inputs=[self._tensor(value) for value in operands],
            output=self._empty_like(result, sizes),
            body=_elementwise_body(operator),
            result=result,
        )

    def _broadcast_size(self, operands: Sequence[Value], axis: int) -> Entry:
        """Return the size of the result of an elementwise operator along an axis.

        In our graphs, run-time sizes along an axis are equal. So the first one is the
        result's, unless another operand has a known size above 1.
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
        # the reduction by ``and`` begins with true
        start = self._filled(self._empty([], "tensor<i1>"), "true")
        check = self._generic(
            maps=[_identity(rank), ""],
            kinds=["reduction"] * rank,
            inputs=[self._tensor(value)],
            output=start,
            body=[*condition, "%r = arith.andi %q, %o : i1"],
        )
        self._checks.append(check)

    def _assert_checks(self) -> None:
        """Write a single assertion for all checks: each assertion waits for the device."""
        if not self._checks:
            return
        all_hold = self._checks[0]
        for check in self._checks[1:]:
            all_hold = self._generic(
                maps=["", "", ""],
                kinds=[],
                inputs=[all_hold, check],
                output=self._empty([], "tensor<i1>"),
                body=["%r = arith.andi %a, %b : i1"],
            )
        holds = self._write(f"tensor.extract {all_hold.name}[] : tensor<i1>")
        self._line(self._depth, f'cf.assert {holds}, "{OUT_OF_RANGE}"')

    def _check_divisor(self, divisor: Value) -> None:
        """Add a check that no element is zero; a constant without zeros needs none."""
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
        sizes = [self._size(indices, axis) for axis in range(2)]
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
            inputs=[self._tensor(indices)],
            output=self._empty_like(indices, sizes),
            body=body,
        )
        # the operator reads the clamped indices; other operators read the given ones
        before = self._names[indices]
        self._names[indices] = clamped.name
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
        transposed = self._generic(
            maps=["0, d2, d1" if second.shape[0] == 1 else "d0, d2, d1", _identity(3)],
            kinds=["parallel"] * 3,
            inputs=[self._tensor(second)],
            output=self._empty(sizes, _tensor_type(sizes, element_of(second.dtype))),
            body=[],
            yields="%a",
        )
        operands = [self._tensor(first), transposed, *map(self._tensor, zero_points)]
        names = ", ".join(operand.name for operand in operands)
        types = ", ".join(operand.type for operand in operands)
        signature = f"({types}) -> {type_of(result.type)}"
        self._write_result(result, f'"tosa.matmul"({names}) : {signature}')

    # --- maxima

    def _reduction(self, operator: Operator) -> None:
        """Write a REDUCE_MAX or REDUCE_MIN of floats that begins with infinity.

        A reducing loop drops the axis. TOSA keeps it with size 1, so it is added again.
        """
        [operand] = operator.inputs
        [result] = operator.outputs
        axis = operator.axis  # type: ignore[attr-defined]
        rank = len(operand.shape)
        kept = [k for k in range(rank) if k != axis]
        operation, beginning = _REDUCTIONS[operator.name]
        element = element_of(operand.dtype)
        sizes = [self._size(operand, k) for k in kept]
        empty = self._empty(sizes, _tensor_type(sizes, element))
        reduced = self._generic(
            maps=[_identity(rank), ", ".join(f"d{k}" for k in kept)],
            kinds=["reduction" if k == axis else "parallel" for k in range(rank)],
            inputs=[self._tensor(operand)],
            output=self._filled(empty, number_of(beginning, operand.dtype)),
            body=[f"%r = {operation} %a, %o : {element}"],
        )
        full = [*sizes[:axis], 1, *sizes[axis:]]
        groups = _groups_with_unit_axis(rank, axis)
        self._expand(result, reduced, groups, full)

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
        image = self._tensor(operand)
        element = image.element
        if any(pad):
            sizes = list(operand.type.declared)
            if sizes[1] >= 0:
                sizes[1] += pad[0] + pad[1]
            if sizes[2] >= 0:
                sizes[2] += pad[2] + pad[3]
            padded_type = _tensor_type(
                ["?" if size < 0 else size for size in sizes], element
            )
            low = ["0", str(pad[0]), str(pad[2]), "0"]
            high = ["0", str(pad[1]), str(pad[3]), "0"]
            inside = self._write(f"arith.constant {lowest}")
            padded = self._write(_padded(image, low, high, inside, padded_type))
            image = _Tensor(padded, padded_type)
        sizes_of_result = [
            self._size(operand, 0),
            self._windows(operand, 1, pad[0] + pad[1], kernel[0], stride[0]),
            self._windows(operand, 2, pad[2] + pad[3], kernel[1], stride[1]),
            self._size(operand, 3),
        ]
        start = self._filled(self._empty_like(result, sizes_of_result), lowest)
        window = f"tensor<{kernel[0]}x{kernel[1]}x{element}>"
        # linalg reads only the shape of the window
        shape_only = self._write(f"tensor.empty() : {window}")
        dilations = "dilations = dense<1> : vector<2xi64>"
        strides = f"strides = dense<{list(stride)}> : vector<2xi64>"
        ins = f"ins({image.name}, {shape_only} : {image.type}, {window})"
        outs = f"outs({start.name} : {start.type})"
        self._write_result(
            result,
            f"linalg.pooling_nhwc_max {{{dilations}, {strides}}} {ins} {outs} ->"
            f" {start.type}",
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
        """Write the arithmetic of an operator on shapes; return the computed entries."""
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
        """Return one computed entry.

        Two numbers are computed now. Otherwise, this writes the operation for run time.
        """
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
        self._expand(result, _Tensor(name, wanted), [list(range(rank))], sizes)

    def _expand(
        self,
        result: Value,
        tensor: _Tensor,
        groups: Sequence[Sequence[int]],
        sizes: Sequence[Entry],
    ) -> None:
        """Write ``result``: ``tensor`` with each axis split into several axes.

        ``groups`` has the new axes of each old one: [[0], [1, 2]] splits the second.
        ``sizes``: those of the result.
        """
        result_type = type_of(result.type)
        if len(groups) == len(result.shape):
            self._write_result(
                result, f"tensor.cast {tensor.name} : {tensor.type} to {result_type}"
            )
            return
        shape = f"output_shape [{', '.join(self._sizes_as_text(result, sizes))}]"
        self._write_result(
            result,
            f"tensor.expand_shape {tensor.name} {_groups_as_text(groups)} {shape} :"
            f" {tensor.type} into {result_type}",
        )

    def _sizes_as_text(self, result: Value, sizes: Sequence[Entry]) -> list[str]:
        """Return the sizes of ``result`` as text; run-time ones as names of values."""
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
        operation = _padded(
            self._tensor(operand),
            low=entries[::2],
            high=entries[1::2],
            inside=inside,
            result_type=type_of(result.type),
        )
        self._write_result(result, operation)

    def _tile(self, operator: Operator) -> None:
        """Write a TILE: each axis [S] becomes [times, S]; then the two are joined.

        If ``times`` or S is 1, the axis stays one axis. The obvious form is a single
        loop that reads elements at an index modulo S. IREE's vectorizer is wrong there:
        it reads zeros.
        """
        operand, multiples = operator.inputs
        [result] = operator.outputs
        # of the repeated tensor, before its axes are joined
        sizes: list[Entry] = []
        # the axes of the repeated tensor, for each axis of the operand
        groups: list[list[int]] = []
        # the index along each axis of the operand, as an affine expression
        sources: list[str] = []
        for axis, times in enumerate(self._entries_of(multiples)):
            size = self._size(operand, axis)
            group = [times, size]
            if times == 1 or size == 1:
                group = [self._binary("MUL_SHAPE", size, times)]
            groups.append([len(sizes) + k for k in range(len(group))])
            sizes += group
            sources.append("0" if size == 1 else f"d{len(sizes) - 1}")
        type = _tensor_type(sizes, element_of(result.dtype))
        repeated = self._generic(
            maps=[", ".join(sources), _identity(len(sizes))],
            kinds=["parallel"] * len(sizes),
            inputs=[self._tensor(operand)],
            output=self._empty(sizes, type),
            body=[],
            yields="%a",
        )
        self._join(result, repeated, groups, sizes)

    def _join(
        self,
        result: Value,
        tensor: _Tensor,
        groups: Sequence[Sequence[int]],
        sizes: Sequence[Entry],
    ) -> None:
        """Write ``result``: ``tensor`` with the axes of each group joined into one.

        ``sizes``: those of ``tensor``.
        """
        name, type = tensor
        if len(groups) < len(sizes):
            joined: list[Entry] = []
            for group in groups:
                factors = [sizes[axis] for axis in group]
                is_known = all(isinstance(factor, int) for factor in factors)
                joined.append(prod(factors) if is_known else "?")
            type = _tensor_type(joined, element_of(result.dtype))
            name = self._write(
                f"tensor.collapse_shape {name} {_groups_as_text(groups)} :"
                f" {tensor.type} into {type}"
            )
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
"""Operator on shapes -> its function on numbers, and its operation on ``index``.

The operation is right for entries that are not negative.
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
    """Return why ``write_for_iree`` refuses an operator, or None.

    It refuses some operators with shapes that are computed at run time.
    """
    on_shapes = {*_SHAPES, "ASSERT_EQUAL_SHAPE"}
    if operator.name.endswith("_SHAPE") and operator.name not in on_shapes:
        return f"IREE does not compile {operator.name}"
    has_form = operator.name in {*on_shapes, "RESHAPE", "SLICE", "PAD", "TILE"}
    if not has_form and any(_is_computed_shape(value) for value in operator.inputs):
        return computed_parameters(operator)
    return None


def computed_parameters(operator: Operator) -> str:
    """Return why an operator is refused whose parameters are computed from sizes."""
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
    for value in operator.inputs[:2]:
        if value.constant is not None and np.all(materialize(value) == 0):
            return True
    return False


def _groups_as_text(groups: Sequence[Sequence[int]]) -> str:
    """Return groups of axes in MLIR's form, such as ``[[0], [1, 2]]``."""
    return f"[{', '.join(str(list(group)) for group in groups)}]"


def _padded(
    tensor: _Tensor,
    low: Sequence[str],
    high: Sequence[str],
    inside: str,
    result_type: str,
) -> str:
    """Return the operation that pads a tensor with the scalar ``inside``.

    ``low`` and ``high``: the padding before and after each axis, as text.
    """
    arguments = ", ".join(f"%p{k}: index" for k in range(len(low)))
    block = f"{{\n^bb0({arguments}):\ntensor.yield {inside} : {tensor.element}\n}}"
    return (
        f"tensor.pad {tensor.name} low[{', '.join(low)}] high[{', '.join(high)}]"
        f" {block} : {tensor.type} to {result_type}"
    )


def _tensor_type(sizes: Sequence[Entry], element: str) -> str:
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
    """Return lines for a MUL of integers.

    With a shift, the product of 64 bits is rounded and shifted right, as the
    specification of MUL defines.
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
    """Return lines for the quotient of integers, which never end the process.

    The divisor becomes 1 if it is 0, or if it is -1 and the quotient would not fit.
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
    """Return lines for the integer %a shifted right by %b bits.

    With ``round``, the last bit that is shifted out is added. It is the lowest bit of
    %a shifted by %b - 1. If %b is 0, no bit is shifted out; a shift by -1 is undefined.
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
