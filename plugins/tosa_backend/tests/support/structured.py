"""Legal graphs with control flow, variables and custom operators, which one operator
alone cannot show.

Bodies that are nested as deep as level 8K allows, and lists as long, are among them.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from delegraph_tosa.ir import operators as ops
from delegraph_tosa.ir.graph import Graph, Operator, Value, literal
from delegraph_tosa.ir.types import ARRAY_DTYPES, BLOCK_SCALED, DType, Type
from delegraph_tosa.spec import required

from .samples import Sample, make_operator, merged

BOOL = DType.BOOL
I32 = DType.INT32
F32 = DType.FP32
MOVED = (
    *(
        BOOL,
        DType.INT4,
        DType.INT8,
        DType.INT16,
        I32,
        DType.INT48,
        F32,
        DType.FP16,
        DType.BF16,
    ),
    *(DType.FP8E4M3, DType.FP8E5M2),
)
"""Element types that a list may have: control flow only moves tensors."""
MOVED_OF_1_1 = (DType.INT64, *BLOCK_SCALED)
"""Those that only the draft has."""
PACKED = (DType.INT4, DType.INT48, *BLOCK_SCALED)
"""Element types that only IDENTITY takes, or takes without more ado."""
KEPT = (DType.INT8, DType.FP16, F32)
"""Element types of variables."""
DEEPEST = 5
"""How deep bodies may be nested at level 8K: tosa-opt counts the program as well, and
MAX_NESTING is 6.
"""
LONGEST = 64
"""MAX_TENSOR_LIST_SIZE of level 8K; for COND_IF the reference model counts the
condition too.
"""


def structured(version: tuple[int, int] = (1, 0)) -> Iterator[Sample]:
    """A sample for each way in which these operators are put together; ``allowed_by``
    is what they need.
    """
    for label, graph in _graphs(MOVED if version == (1, 0) else MOVED + MOVED_OF_1_1):
        needed = required(graph, version)
        names = {f"PRO-{p}" for p in needed.profiles} | {
            f"EXT-{e.upper()}" for e in needed.extensions
        }
        yield Sample(label, graph, (frozenset(names),))


def _graphs(moved_types: tuple[DType, ...]) -> Iterator[tuple[str, Graph]]:
    for dtype in moved_types:
        yield f"COND_IF({dtype})", branch(kept(dtype), moved(dtype))
        yield f"WHILE_LOOP({dtype})", loop(dtype)
    for rank in (0, 1, 6):
        yield f"COND_IF(condition of rank {rank})", branch(kept(F32), moved(F32), rank)
    yield "COND_IF(no list)", branch(constant(1), constant(2))
    yield "COND_IF(branches of one graph)", branch(*[kept(F32)] * 2)
    yield f"COND_IF(list of {LONGEST - 1})", branch(*[kept(F32, LONGEST - 1)] * 2)
    yield f"CUSTOM(list of {LONGEST})", custom(count=LONGEST)
    yield "CUSTOM(rank 7)", custom(rank=7)
    for depth in range(1, DEEPEST + 1):
        yield f"COND_IF({depth} deep)", branches(depth)
        yield f"WHILE_LOOP({depth} deep)", loops(depth)
    yield (
        "COND_IF(in WHILE_LOOP)",
        loop(F32, branch(kept(F32), moved(F32), name="inside")),
    )
    for dtype in KEPT:
        yield f"VARIABLE({dtype})", two_variables(dtype)
        yield f"VARIABLE_READ({dtype})", read_only(dtype)
        yield f"VARIABLE_WRITE({dtype})", written(dtype)
    yield "VARIABLE_WRITE(in WHILE_LOOP)", summed()
    yield "VARIABLE_READ(in both branches)", read_inside()
    yield "CUSTOM(several operands and results)", custom()


def value(*shape: int, dtype: DType = F32) -> Value:
    return Value(Type(shape, dtype))


def vector(dtype: DType) -> Value:
    """Of two elements, or of two blocks."""
    return value(64 if dtype in BLOCK_SCALED else 2, dtype=dtype)


def each(
    kind: type[Operator], dtype: DType, count: int, name: str, **attributes: int
) -> Graph:
    """A graph that does the same to each of its ``count`` inputs."""
    inputs = [vector(dtype) for _ in range(count)]
    made = [make_operator(kind, v, **attributes) for v in inputs]
    return Graph(inputs, [op.outputs[0] for op in made], made, name)


def kept(dtype: DType, count: int = 1) -> Graph:
    return each(ops.IDENTITY, dtype, count, "kept")


def moved(dtype: DType) -> Graph:
    return (
        each(ops.REVERSE, dtype, 1, "moved", axis=0)
        if dtype not in PACKED
        else kept(dtype)
    )


def constant(number: int) -> Graph:
    made = make_operator(ops.IDENTITY, literal([number, number], F32, np.float32))
    return Graph([], made.outputs, [made], f"constant_{number}")


def branch(
    then: Graph, other: Graph, rank: int = 1, name: str = "main", flag: DType = BOOL
) -> Graph:
    """A program that chooses between two graphs by its first input; inside of a loop,
    by a constant.
    """
    inside = name != "main"
    condition = (
        literal([True], BOOL, np.bool_) if inside else value(*[1] * rank, dtype=flag)
    )
    operands = [Value(value.type) for value in then.inputs]
    chosen = make_operator(
        ops.COND_IF, condition, *operands, then_graph=then, else_graph=other
    )
    return Graph(
        [*operands] if inside else [condition, *operands],
        chosen.outputs,
        [chosen],
        name,
    )


def branches(depth: int) -> Graph:
    """``depth`` choices inside each other."""
    inner = value(1, dtype=BOOL)
    made = make_operator(ops.LOGICAL_NOT, inner)
    graph = Graph([inner], made.outputs, [made], "innermost")
    for level in range(depth):
        flag = value(1, dtype=BOOL)
        chosen = make_operator(
            ops.COND_IF, flag, flag, then_graph=graph, else_graph=graph
        )
        graph = Graph(
            [flag],
            chosen.outputs,
            [chosen],
            "main" if level == depth - 1 else f"level_{level}",
        )
    return graph


def below(limit: int, *others: DType) -> Graph:
    """Whether the first of the inputs is below ``limit``."""
    inputs = [value(1, dtype=I32), *map(vector, others)]
    made = make_operator(ops.GREATER, literal([limit], I32, np.int32), inputs[0])
    return Graph(inputs, made.outputs, [made], f"below_{limit}")


def counting(*others: DType, step: Graph | None = None) -> Graph:
    """Adds 1 to the first input and reverses the others, or does to them what ``step``
    does.
    """
    count = value(1, dtype=I32)
    added = make_operator(ops.ADD, count, literal([1], I32, np.int32))
    if step is None:
        step = merged(moved(dtype) for dtype in others)
    return Graph(
        [count, *step.inputs],
        [*added.outputs, *step.outputs],
        [added, *step.operators],
        "counting",
    )


def loop(dtype: DType, step: Graph | None = None) -> Graph:
    """A program that counts to 4 and reverses a tensor on its way."""
    operands = [value(1, dtype=I32), vector(dtype)]
    bodies = {"cond_graph": below(4, dtype), "body_graph": counting(dtype, step=step)}
    made = make_operator(ops.WHILE_LOOP, *operands, **bodies)
    return Graph(operands, made.outputs, [made])


def loops(depth: int) -> Graph:
    """``depth`` loops inside each other: the innermost counts to 4, each other one goes
    on below its limit.
    """
    body = counting()
    for level in range(depth):
        count = value(1, dtype=I32)
        made = make_operator(
            ops.WHILE_LOOP, count, cond_graph=below(4 + level), body_graph=body
        )
        added = make_operator(ops.ADD, made.outputs[0], literal([1], I32, np.int32))
        body = Graph(
            [count],
            added.outputs,
            [made, added],
            "main" if level == depth - 1 else f"level_{level}",
        )
    return body


def _declared(dtype: DType, name: str = "state") -> Operator:
    return make_operator(
        ops.VARIABLE, literal([1, 0], dtype, ARRAY_DTYPES[dtype]), variable=name
    )


def _read(dtype: DType, name: str = "state") -> Operator:
    return make_operator(ops.VARIABLE_READ, variable=name, types=(Type((2,), dtype),))


def two_variables(dtype: DType) -> Graph:
    """Both are read; the reference model takes no inputs if the program has a variable
    that it does not use.
    """
    reads = [_read(dtype, "other"), _read(dtype)]
    declared = [_declared(dtype), _declared(dtype, "other")]
    return Graph([], [op.outputs[0] for op in reads], [*declared, *reads])


def read_only(dtype: DType) -> Graph:
    read = _read(dtype)
    return Graph([], read.outputs, [_declared(dtype), read])


def written(dtype: DType) -> Graph:
    """Reads, writes and reads again."""
    x = value(2, dtype=dtype)
    before = _read(dtype)
    after = _read(dtype)
    write = make_operator(ops.VARIABLE_WRITE, x, variable="state")
    return Graph(
        [x], [*before.outputs, *after.outputs], [_declared(dtype), before, write, after]
    )


def summed() -> Graph:
    """A loop that adds a tensor to a variable four times."""
    count = value(1, dtype=I32)
    x = value(2)
    state = _read(F32)
    counted = make_operator(ops.ADD, count, literal([1], I32, np.int32))
    total = make_operator(ops.ADD, state.outputs[0], x)
    write = make_operator(ops.VARIABLE_WRITE, *total.outputs, variable="state")
    copy = make_operator(ops.IDENTITY, x)
    body = Graph(
        [count, x],
        [*counted.outputs, *copy.outputs],
        [counted, state, total, write, copy],
        "summing",
    )
    operands = [value(1, dtype=I32), value(2)]
    made = make_operator(
        ops.WHILE_LOOP, *operands, cond_graph=below(4, F32), body_graph=body
    )
    after = _read(F32)
    return Graph(
        operands, [*made.outputs, *after.outputs], [_declared(F32), made, after]
    )


def read_inside() -> Graph:
    """Both branches read a variable; so does the program, without which the reference
    model takes no input.
    """
    bodies = []
    for kind in (ops.ADD, ops.SUB):
        x = value(2)
        state = _read(F32)
        made = make_operator(kind, x, *state.outputs)
        bodies.append(Graph([x], made.outputs, [state, made], kind.__name__.lower()))
    condition = value(1, dtype=BOOL)
    x = value(2)
    state = _read(F32)
    chosen = make_operator(
        ops.COND_IF, condition, x, then_graph=bodies[0], else_graph=bodies[1]
    )
    return Graph(
        [condition, x],
        [*chosen.outputs, *state.outputs],
        [_declared(F32), chosen, state],
    )


def custom(dtype: DType = F32, count: int = 2, rank: int = 2) -> Graph:
    operands = [
        value(*[3] * rank, dtype=dtype),
        *(value(4, dtype=I32) for _ in range(count - 1)),
    ]
    types = (Type((3,) * rank, dtype), Type((), I32))
    attributes = {
        "operator_name": "solve",
        "domain_name": "acme",
        "implementation_attrs": bytes(range(256)),
    }
    made = make_operator(ops.CUSTOM, *operands, types=types, **attributes)
    return Graph(operands, made.outputs, [made])
