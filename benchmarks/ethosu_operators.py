"""Vela, asked about files of one TOSA operator each, beside what the tables of
delegraph-ethosu say of it.

    python benchmarks/ethosu_operators.py

A row where the table takes what Vela refuses is a defect of the table. The other way
round the table is stricter: Vela does not promise what it happens to compile.
"""

from __future__ import annotations

import itertools
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import publishing
from delegraph_ethosu.hardware import why_not_u55, why_not_u85
from delegraph_tosa import (
    DType,
    Graph,
    Operator,
    TosaFile,
    TosaSpec,
    Type,
    Value,
    operators,
)
from delegraph_tosa.ir.graph import Literal, shape_value
from delegraph_tosa.ir.types import ARRAY_DTYPES
from ethosu.vela import vela

SPEC = TosaSpec.parse("TOSA-1.0+INT+int16+int4")
DEVICES = (
    ("ethos-u55-128", "Ethos_U55_High_End_Embedded", "Shared_Sram", why_not_u55),
    ("ethos-u85-256", "Ethos_U85_SYS_DRAM_Mid", "Sram_Only", why_not_u85),
)
COLUMNS = (
    "operator",
    "accelerator",
    "Vela and the table refuse",
    "the table refuses, Vela compiles it",
)
INT8 = DType.INT8
INT16 = DType.INT16
INT32 = DType.INT32
BOOL = DType.BOOL
IMAGE = (1, 4, 6, 8)


def _input(shape: tuple[int, ...], dtype: DType) -> Value:
    return Value(Type(shape, dtype))


def _constant(shape: tuple[int, ...], dtype: DType) -> Value:
    return Value(Type(shape, dtype), Literal(np.zeros(shape, ARRAY_DTYPES[dtype])))


def _made(name: str, inputs: list[Value], **attributes: Any) -> Operator:
    operator: Operator = getattr(operators, name)(inputs, None, **attributes)
    operator.outputs = tuple(
        Value(type, producer=operator) for type in operator.infer()
    )
    return operator


def _cases() -> Iterator[tuple[str, Operator]]:
    """A name, and an operator of the integer profile."""
    for name, dtype in itertools.product(("ABS", "CLZ", "BITWISE_NOT"), (INT32,)):
        yield str(dtype), _made(name, [_input(IMAGE, dtype)])
    numbers = (
        "ADD",
        "SUB",
        "MAXIMUM",
        "MINIMUM",
        "INTDIV",
        "EQUAL",
        "GREATER",
        "BITWISE_AND",
        "LOGICAL_LEFT_SHIFT",
    )
    for name in numbers:
        yield "int32", _made(name, [_input(IMAGE, INT32), _input(IMAGE, INT32)])
    for name in ("LOGICAL_AND", "LOGICAL_OR"):
        yield "bool", _made(name, [_input(IMAGE, BOOL), _input(IMAGE, BOOL)])
    for dtype in (INT8, INT16, INT32):
        yield (
            str(dtype),
            _made(
                "MUL",
                [_input(IMAGE, dtype), _input(IMAGE, dtype), _constant((1,), INT8)],
            ),
        )
        yield (
            str(dtype),
            _made(
                "NEGATE",
                [_input(IMAGE, dtype), _constant((1,), dtype), _constant((1,), dtype)],
            ),
        )
        yield (
            str(dtype),
            _made(
                "SELECT",
                [_input(IMAGE, BOOL), _input(IMAGE, dtype), _input(IMAGE, dtype)],
            ),
        )
        yield (
            str(dtype),
            _made("CONCAT", [_input(IMAGE, dtype), _input(IMAGE, dtype)], axis=3),
        )
        yield (
            str(dtype),
            _made("GATHER", [_input((1, 6, 8), dtype), _input((1, 3), INT32)]),
        )
        for rank, name in itertools.product(range(1, 6), ("REDUCE_MAX", "REDUCE_MIN")):
            shape = (2, 3, 4, 5, 6)[-rank:]
            yield (
                f"{dtype} rank {rank}",
                _made(name, [_input(shape, dtype)], axis=rank - 1),
            )
        for axis in range(4):
            yield (
                f"{dtype} axis {axis}",
                _made("REVERSE", [_input(IMAGE, dtype)], axis=axis),
            )
        for perms in itertools.permutations(range(4)):
            yield (
                f"{dtype} {perms}",
                _made("TRANSPOSE", [_input((2, 3, 4, 5), dtype)], perms=perms),
            )
        for other in {INT8, INT16, INT32} - {dtype}:
            yield (
                f"{dtype} to {other}",
                _made("CAST", [_input(IMAGE, dtype)], dtype=other),
            )
    for dtype in (INT8, INT16):
        yield str(dtype), _made("CLAMP", [_input(IMAGE, dtype)], min_val=-5, max_val=9)
        for batch, channels in ((1, 100), (1, 127), (1, 128), (2, 8)):
            yield (
                f"{dtype} {batch}x{channels}",
                _made("ARGMAX", [_input((batch, 2, 2, channels), dtype)], axis=3),
            )
        for kernel, stride in itertools.product((2, 3, 9), (1, 2, 3, 4)):
            image = _input((1, kernel + 4 * stride, kernel + 4 * stride, 4), dtype)
            padding = (0, 0, 0, 0)
            window = {
                "kernel": (kernel, kernel),
                "stride": (stride, stride),
                "pad": padding,
            }
            yield f"{dtype} {kernel}/{stride}", _made("MAX_POOL2D", [image], **window)
            points = _constant((1,), dtype), _constant((1,), dtype)
            yield (
                f"{dtype} {kernel}/{stride}",
                _made("AVG_POOL2D", [image, *points], acc_type=INT32, **window),
            )
    for stride, dilation in itertools.product((1, 2, 3, 4), (1, 2)):
        size = 2 * dilation + 1 + 4 * stride
        window = {
            "pad": (0,) * 4,
            "stride": (stride,) * 2,
            "dilation": (dilation,) * 2,
            "acc_type": INT32,
        }
        image = _input((1, size, size, 4), INT8)
        zeros = [_constant((1,), INT8)] * 2
        for name, shape, bias in (
            ("CONV2D", (8, 3, 3, 4), 8),
            ("DEPTHWISE_CONV2D", (3, 3, 4, 1), 4),
        ):
            inputs = [image, _constant(shape, INT8), _constant((bias,), INT32), *zeros]
            yield (
                f"int8 stride {stride}, dilation {dilation}",
                _made(name, inputs, **window),
            )
    for factor in (2, 3, 4, 8, 16):
        settings = (2 * factor, 2) * 2, (1 - factor,) * 2, (factor - 1,) * 2
        image = _input((1, 8, 8, 4), INT8)
        yield (
            f"nearest, {factor} times",
            _made("RESIZE", [image, *map(shape_value, settings)], mode=1),
        )


def main() -> None:
    """Print a row for each operator that an accelerator does not take in all cases, and
    the number of cases.
    """
    given = publishing.parser(__doc__).parse_args()
    count = 0
    wrong = 0
    refused: dict[tuple[str, str], tuple[list[str], list[str]]] = {}
    for what, operator in _cases():
        graph = Graph(
            [v for v in operator.inputs if v.constant is None],
            list(operator.outputs),
            [operator],
        )
        for accelerator, system, memory, why_not in DEVICES:
            table = why_not(operator) is None
            vela = _compiles(graph, accelerator, system, memory)
            if table and not vela:
                print(
                    f"{accelerator}: the table takes {operator.name} {what}, Vela"
                    " refuses it",
                    flush=True,
                )
            wrong += table and not vela
            if not table:
                refused.setdefault((operator.name, accelerator), ([], []))[vela].append(
                    what
                )
        count += 1
    given.remark = (
        given.remark
        or f"{count} cases on each accelerator; {wrong} that a table takes and Vela refuses"
    )
    rows = [[*key, *map("; ".join, cases)] for key, cases in refused.items()]
    publishing.report(
        given,
        "ethosu_operators",
        ["delegraph-ethosu"],
        publishing.Table(COLUMNS, rows, keys=2),
    )


def _compiles(graph: Graph, accelerator: str, system: str, memory: str) -> bool:
    """Whether Vela makes one command stream of the file, and leaves nothing to a
    processor.

    In a fork of this process, which has imported Vela: to import it takes longer than
    to compile one operator.
    """
    flags = [
        f"--accelerator-config={accelerator}",
        "--config=Arm/vela.ini",
        f"--system-config={system}",
    ]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with (folder / "one.tosa").open("wb") as stream:
            TosaFile(graph, SPEC).write_to(stream)
        arguments = [
            *flags,
            f"--memory-mode={memory}",
            "--output-format=raw",
            f"--output-dir={folder}",
        ]
        with (folder / "printed.txt").open("wb") as printed:
            child = os.fork()
            if not child:
                _run([*arguments, str(folder / "one.tosa")], printed.fileno())
        status = os.waitpid(child, 0)[1]
        left = re.search(
            r"^CPU operators = [1-9]",
            (folder / "printed.txt").read_text(errors="replace"),
            re.MULTILINE,
        )
        return (
            status == 0 and left is None and len([*folder.glob("one_vela*.npz")]) == 1
        )


def _run(arguments: list[str], printed: int) -> None:
    """Run Vela and end this process with its exit code; 1 for an exception."""
    os.dup2(printed, 1)
    os.dup2(printed, 2)
    code: Any = 1
    try:
        code = vela.main(arguments) or 0
    except SystemExit as ended:
        code = ended.code
    finally:
        sys.stdout.flush()
        os._exit(code if isinstance(code, int) else 1)


if __name__ == "__main__":
    main()
