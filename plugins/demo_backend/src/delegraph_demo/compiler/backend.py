"""The compiler: calls become numbered instructions, weights become named data."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

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

    Compile spec ``max_value``: the runtime raises ValueOutOfRange for a larger absolute
    value (see ``options``).
    """

    @staticmethod
    def preprocess(
        edge_program: ExportedProgram, compile_specs: list[CompileSpec]
    ) -> PreprocessResult:
        """The blob, one debug identifier an instruction, and the weights as named data.

        Raises Unsupported, naming the operator and the user's line, and OptionError for
        other compile specs.
        """
        from_compile_specs(compile_specs)
        return _Compilation(edge_program).result()

    @staticmethod
    def fingerprint(compile_specs: list[CompileSpec]) -> str:
        """Nothing: the blob depends on the program, the compile specs and this package
        alone. A cache may keep it.
        """
        return ""


def why_not(node: Node) -> str | None:
    """Why ``node`` is not compiled; None if it is. Runs the function that compiles it,
    so the two never disagree.
    """
    try:
        lower_call(node)
    except Unsupported as refusal:
        return refusal.message
    return None


def lower_call(node: Node) -> tuple[Operator, list[Operand]]:
    """The operator that a call becomes, and its operands. Raises Unsupported with the
    reason.
    """
    operator = BY_TARGET.get(node.target)  # type: ignore[call-overload]
    if operator is None:
        known = ", ".join(str(target).removeprefix("aten.") for target in BY_TARGET)
        hint = "name a backend after compiler-demo that takes it"
        raise refused(f"it compiles {known}", hint=hint, cause="unknown")
    arguments = _arguments(node)
    for name, value, default in arguments[operator.most :]:
        if value != default:
            raise refused(
                f"{name} is {value}, and {default} is all that it compiles",
                hint=f"leave {name} out",
            )
    operands = [
        value for _, value, _ in arguments[: operator.most] if value is not None
    ]
    operator.result(*map(shape_of, operands))
    return operator, operands


def _arguments(node: Node) -> list[tuple[str, Any, Any]]:
    """Name, value and default of every argument in the schema of an ATen operator."""
    target: Any = node.target
    schema = target._schema.arguments
    given = {
        a.name: value for a, value in zip(schema, node.args, strict=False)
    } | node.kwargs
    return [
        (a.name, given.get(a.name, a.default_value), a.default_value) for a in schema
    ]


def shape_of(operand: Any) -> Shape:
    """The shape of a float32 tensor; a Python number counts as one of rank 0. Raises
    Unsupported for all else.
    """
    if isinstance(operand, (int, float)):
        return ()
    val = operand.meta.get("val") if isinstance(operand, Node) else operand
    if (
        not isinstance(val, torch.Tensor)
        or val.dtype is not torch.float32
        or val.layout is not torch.strided
    ):
        found = val.dtype if isinstance(val, torch.Tensor) else type(val).__name__
        given = (
            {"cause": "float32", "of": operand, "unless": torch.float32}
            if isinstance(operand, Node)
            else {}
        )
        text = f"it computes with dense float32 tensors, and {operand} is {found}"
        raise refused(text, hint=f"let {operand} be float32 from the start", **given)
    if not all(isinstance(dimension, int) for dimension in val.shape):
        hint = (
            "export without dynamic_shapes, once for each size: delegraph.lower_buckets"
        )
        text = f"it compiles for fixed shapes, and {operand} has {list(val.shape)}"
        raise refused(text, hint=hint, cause="dynamic", unless="static")
    return fitting(tuple(val.shape))


class _Compilation:
    """One program on its way to a blob: what every placeholder and every call of it
    becomes.
    """

    def __init__(self, program: ExportedProgram) -> None:
        self.program = program
        self.calls = {
            n: _located(lower_call, n)
            for n in program.graph.nodes
            if n.op == "call_function"
        }
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
        operands = {
            node: [self._value(o) for o in given]
            for node, (_, given) in self.calls.items()
        }
        # numbered only now: a Python number among the operands became a constant in the
        # line above
        number = {
            value: k
            for k, value in enumerate([*self.inputs, *self.constants, *self.calls])
        }
        instructions = [
            Instruction(operator, tuple(number[value] for value in operands[node]))
            for node, (operator, _) in self.calls.items()
        ]
        outputs = [number[node] for node in self._returned()]
        code = Code(
            tuple(self.inputs.values()),
            tuple(self.constants),
            tuple(instructions),
            tuple(outputs),
        )
        return PreprocessResult(
            encode(code), _debug_map(self.calls), self._named_data()
        )

    def _value(self, operand: Operand) -> Value:
        if isinstance(operand, Node):
            return self.weights.get(operand, operand)
        return self._constant(torch.tensor(float(operand), dtype=torch.float32))

    def _constant(self, tensor: torch.Tensor) -> Constant:
        """Equal tensors are one constant, whatever they are called. Raises Unsupported
        for what has no bytes.
        """
        why = why_no_bytes(tensor)
        if why is not None:
            raise refused(
                "it stores the bytes of a weight, which one of shape"
                f" {list(tensor.shape)} does not have: {why}"
            )
        data = (
            tensor.detach()
            .cpu()
            .resolve_neg()
            .numpy()
            .astype("<f4", copy=False)
            .tobytes()
        )
        made = Constant(hashlib.sha256(data).digest(), tuple(tensor.shape))
        self.constants[made] = data
        return made

    def _returned(self) -> list[Node]:
        results: Any = output_node(self.program.graph).args[0]
        for result in results:
            if result not in self.calls:
                raise refused(
                    f"BackendWithCompilerDemo returns what it computes, and {result} is"
                    " not computed"
                )
        return list(results)

    def _named_data(self) -> NamedDataStoreOutput:
        store = NamedDataStore()
        for constant, data in self.constants.items():
            store.add_named_data(constant.key, data, alignment=4)
        return store.get_named_data_store_output()


def _debug_map(calls: Iterable[Node]) -> dict[int, tuple[int, ...]]:
    """Position of the instruction -> debug handle of the call that it comes from."""
    mapping = DelegateMappingBuilder(generated_identifiers=True)
    for node in calls:
        mapping.insert_delegate_mapping_entry(nodes=node)
    return mapping.get_delegate_mapping()


def _located(lower: Callable[[Node], T], node: Node) -> T:
    """``lower(node)``; its refusal becomes an error that names the node and the user's
    line.
    """
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
