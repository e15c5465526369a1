"""The compiler: calls become numbered instructions, weights become named data."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch
from delegraph.backend import (
    BackendDetails,
    CompileSpec,
    DelegateMappingBuilder,
    NamedDataStore,
    NamedDataStoreOutput,
    PreprocessResult,
)
from delegraph.errors import Unsupported
from delegraph_programs import (
    constant_placeholders,
    constant_tensor,
    output_node,
    placeholders,
    source_of,
    why_no_bytes,
)
from torch.fx import Node

from .format import Code, Constant, Instruction, encode
from .operators import BY_TARGET, Operator, Shape, fitting, refused
from .options import from_compile_specs

if TYPE_CHECKING:
    from torch.export import ExportedProgram

T = TypeVar("T")
Operand = Node | int | float
Value = Node | Constant


class BackendWithCompilerDemo(BackendDetails):
    """Compiles add, mul, mm, addmm, linear and sin on float32 tensors of fixed shapes.

    Compile spec ``max_value``: for a larger absolute value, the runtime raises
    ValueOutOfRange (see ``options``).
    """

    @staticmethod
    def preprocess(
        edge_program: ExportedProgram, compile_specs: list[CompileSpec]
    ) -> PreprocessResult:
        """Return the blob, a debug identifier for each instruction, and the weights.

        The weights are named data. Raises Unsupported, naming the operator and the
        user's line, and OptionError for other compile specs.
        """
        from_compile_specs(compile_specs)
        return _Compilation(edge_program).result()

    @staticmethod
    def fingerprint(compile_specs: list[CompileSpec]) -> str:
        """Return "": a cache may keep the blob.

        It depends only on the program, the compile specs and this package.
        """
        return ""


def why_not(node: Node) -> str | None:
    """Return why ``node`` cannot be compiled, or None if it can.

    It runs the function that compiles the node, so the two never disagree.
    """
    try:
        lower_call(node)
    except Unsupported as refusal:
        return refusal.message
    return None


class _Call(NamedTuple):
    """The operator of the demo compiler for a call, and the operands that it reads."""

    operator: Operator
    operands: list[Operand]


def lower_call(node: Node) -> _Call:
    """Return the operator for a call, and its operands.

    Raises Unsupported with the reason.
    """
    operator = BY_TARGET.get(node.target)  # type: ignore[call-overload]
    if operator is None:
        known = ", ".join(str(target).removeprefix("aten.") for target in BY_TARGET)
        hint = "name a backend after compiler-demo that supports this operator"
        raise refused(f"it compiles {known}", hint=hint, cause="unknown")
    arguments = _arguments(node)
    for argument in arguments[operator.max_operands :]:
        if argument.value != argument.default:
            raise refused(
                f"{argument.name} is {argument.value}; only {argument.default} is"
                " supported",
                hint=f"leave {argument.name} out",
            )
    values = [argument.value for argument in arguments[: operator.max_operands]]
    operands = [value for value in values if value is not None]
    operator.check_shapes(*map(shape_of, operands))
    return _Call(operator, operands)


class _Argument(NamedTuple):
    """An argument of a call, with its default in the operator's schema."""

    name: str
    value: Any
    default: Any


def _arguments(node: Node) -> list[_Argument]:
    """Return every argument in the schema of an ATen operator."""
    target: Any = node.target
    schema = target._schema.arguments
    given = {a.name: value for a, value in zip(schema, node.args, strict=False)}
    given |= node.kwargs
    arguments: list[_Argument] = []
    for declared in schema:
        value = given.get(declared.name, declared.default_value)
        arguments.append(_Argument(declared.name, value, declared.default_value))
    return arguments


def shape_of(operand: Any) -> Shape:
    """Return the shape of a float32 tensor; a Python number has rank 0.

    Raises Unsupported for other operands.
    """
    if isinstance(operand, (int, float)):
        return ()
    val: Any = operand.meta.get("val") if isinstance(operand, Node) else operand
    is_tensor = isinstance(val, torch.Tensor)
    is_float32 = is_tensor and val.dtype is torch.float32
    if not is_float32 or val.layout is not torch.strided:
        found = val.dtype if is_tensor else type(val).__name__
        text = f"it computes with dense float32 tensors, and {operand} is {found}"
        cause: dict[str, Any] = {}
        if isinstance(operand, Node):
            cause = {"cause": "float32", "of": operand, "unless": torch.float32}
        raise refused(text, hint=f"let {operand} be float32 from the start", **cause)
    if not all(isinstance(dimension, int) for dimension in val.shape):
        hint = (
            "export without dynamic_shapes, once for each size: delegraph.lower_buckets"
        )
        text = f"it compiles for fixed shapes, and {operand} has {list(val.shape)}"
        raise refused(text, hint=hint, cause="dynamic", unless="static")
    return fitting(tuple(val.shape))


class _Compilation:
    """Compiles one program to a blob."""

    def __init__(self, program: ExportedProgram) -> None:
        self.program = program
        self.calls: dict[Node, _Call] = {}
        for node in program.graph.nodes:
            if node.op == "call_function":
                self.calls[node] = _located(lower_call, node)
        self.inputs: dict[Node, Shape] = {}
        self.weights: dict[Node, Constant] = {}
        self.constants: dict[Constant, bytes] = {}
        constant = constant_placeholders(program)
        for node, spec in placeholders(program):
            shape = _located(shape_of, node)
            if node in constant:
                self.weights[node] = self._constant(constant_tensor(program, spec))
            else:
                self.inputs[node] = shape

    def result(self) -> PreprocessResult:
        """Return the blob, its debug identifiers and the named data."""
        values_of: dict[Node, list[Value]] = {}
        for node, call in self.calls.items():
            values_of[node] = [self._value(operand) for operand in call.operands]
        # numbered only now: above, Python numbers among the operands became constants
        values = [*self.inputs, *self.constants, *self.calls]
        number = {value: position for position, value in enumerate(values)}
        instructions: list[Instruction] = []
        for node, call in self.calls.items():
            read = [number[value] for value in values_of[node]]
            instructions.append(Instruction(call.operator, tuple(read)))
        code = Code(
            inputs=tuple(self.inputs.values()),
            constants=tuple(self.constants),
            instructions=tuple(instructions),
            outputs=tuple(number[node] for node in self._returned()),
        )
        debug_handles = _debug_map(self.calls)
        return PreprocessResult(encode(code), debug_handles, self._named_data())

    def _value(self, operand: Operand) -> Value:
        """Return the value of an operand; weights and Python numbers are constants."""
        if isinstance(operand, Node):
            return self.weights.get(operand, operand)
        return self._constant(torch.tensor(float(operand), dtype=torch.float32))

    def _constant(self, tensor: torch.Tensor) -> Constant:
        """Return the constant of a tensor; equal tensors are one constant.

        Raises Unsupported for a tensor without bytes.
        """
        why = why_no_bytes(tensor)
        if why is not None:
            raise refused(
                "BackendWithCompilerDemo stores the bytes of weights, but the weight of"
                f" shape {list(tensor.shape)} has none: {why}"
            )
        array = tensor.detach().cpu().resolve_neg().numpy()
        data = array.astype("<f4", copy=False).tobytes()
        constant = Constant(hashlib.sha256(data).digest(), tuple(tensor.shape))
        self.constants[constant] = data
        return constant

    def _returned(self) -> list[Node]:
        """Return the outputs of the program; Unsupported if one is no result of a call."""
        results: Any = output_node(self.program.graph).args[0]
        for result in results:
            if result not in self.calls:
                raise refused(
                    f"BackendWithCompilerDemo returns only results of its calls, and"
                    f" {result} is none"
                )
        return list(results)

    def _named_data(self) -> NamedDataStoreOutput:
        store = NamedDataStore()
        for constant, data in self.constants.items():
            store.add_named_data(constant.key, data, alignment=4)
        return store.get_named_data_store_output()


def _debug_map(calls: Iterable[Node]) -> dict[int, tuple[int, ...]]:
    """Return position of an instruction -> debug handle of its call."""
    mapping = DelegateMappingBuilder(generated_identifiers=True)
    for node in calls:
        mapping.insert_delegate_mapping_entry(nodes=node)
    return mapping.get_delegate_mapping()


def _located(lower: Callable[[Node], T], node: Node) -> T:
    """Return ``lower(node)``; let its refusal name the node and the user's line."""
    try:
        return lower(node)
    except Unsupported as refusal:
        text = (
            f"{node.op} {node.target} is not supported in backend"
            f" BackendWithCompilerDemo: {refusal.message}"
        )
        raise Unsupported(
            refusal.code, text, node=node, source=source_of(node), hint=refusal.hint
        ) from refusal
