"""The compiler demo's blob: its exact bytes, what a reader refuses, and damage of every
kind.
"""

import os
import random
import struct
import subprocess
import sys
from pathlib import Path

import delegraph
import pytest
import torch
from delegraph.errors import FormatError, InputError
from delegraph_demo.compiler.format import Code, Constant, Instruction, decode, encode
from delegraph_demo.compiler.operators import BY_CODE, TABLE
from delegraph_demo.compiler.runtime import CompilerDemoRuntime
from torch import nn

ADD = BY_CODE[1]
LINEAR = BY_CODE[5]
SIN = BY_CODE[6]
WEIGHT = Constant(bytes(range(32)), (4, 3))
CODE = Code(
    inputs=((2, 3), ()),
    constants=(WEIGHT,),
    instructions=(
        Instruction(SIN, (0,)),
        Instruction(LINEAR, (3, 2)),
        Instruction(ADD, (4, 1)),
    ),
    outputs=(5, 3),
)


class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a = nn.Linear(3, 4)
        self.b = nn.Linear(4, 2, bias=False)

    def forward(self, x, y):
        x = torch.sin(self.a(x)) * 0.5
        return self.b(x) + y, x


INPUTS = torch.linspace(-1, 1, 6).reshape(2, 3), torch.ones(2, 1)


def lower_to_one_delegate():
    (only,) = delegraph.lower(
        Layers().eval(), INPUTS, backends=["compiler-demo"]
    ).delegates
    return only.processed_bytes, only.module.named_data()


@pytest.fixture(scope="module")
def lowered():
    return lower_to_one_delegate()


def test_exact_bytes_of_version_1():
    """Blobs outlive the code that wrote them: a change of these bytes needs a new
    version number.
    """
    blob = encode(CODE)
    header = b"DGCD" + b"\x01" + struct.pack("<4I", 2, 1, 3, 2)
    shapes = (
        b"\x02"
        + struct.pack("<2I", 2, 3)
        + b"\x00"
        + bytes(range(32))
        + b"\x02"
        + struct.pack("<2I", 4, 3)
    )
    instructions = (
        b"\x06\x01" + struct.pack("<I", 0) + b"\x05\x02" + struct.pack("<2I", 3, 2)
    )
    instructions += b"\x01\x02" + struct.pack("<2I", 4, 1)
    assert blob == header + shapes + instructions + struct.pack("<2I", 5, 3)
    assert decode(blob) == CODE


def test_operator_codes_of_version_1():
    names = {row.code: str(row.target) for row in TABLE}
    assert len(names) == len(TABLE)
    assert names == {
        1: "aten.add.Tensor",
        2: "aten.mul.Tensor",
        3: "aten.mm.default",
        4: "aten.addmm.default",
        5: "aten.linear.default",
        6: "aten.sin.default",
    }


def test_another_version_is_named():
    blob = bytearray(encode(CODE))
    blob[4] = 7
    with pytest.raises(
        FormatError,
        match="was written by version 7 of its format; this runtime reads 1",
    ):
        decode(bytes(blob))


def code_with(**fields):
    return Code(**{**vars(CODE), **fields})


UNFIT = {
    "does not begin with b'DGCD'": b"PK\3\4" + encode(CODE)[4:],
    "1 bytes follow its end": encode(CODE) + b"\0",
    "it ends after 0 bytes": b"",
    "not all of them come before it": encode(
        code_with(instructions=(Instruction(SIN, (3,)),), outputs=(3,))
    ),
    "operator 6 with 2 operands": encode(
        code_with(instructions=(Instruction(SIN, (0, 0)),), outputs=(3,))
    ),
    "operator 1 with 0 operands": encode(
        code_with(instructions=(Instruction(ADD, ()),), outputs=(3,))
    ),
    "do not fit each other in a linear layer": encode(
        code_with(instructions=(Instruction(LINEAR, (2, 1)),) * 3)
    ),
    "do not broadcast": encode(code_with(instructions=(Instruction(ADD, (0, 2)),) * 3)),
    "returns value 0, which no instruction computes": encode(code_with(outputs=(0,))),
    "returns value 2, which no": encode(code_with(outputs=(2,))),
    "returns value 6, which no": encode(code_with(outputs=(6,))),
    "up to 64 dimensions": encode(
        Code(((2,), (1,) * 65), (), (Instruction(SIN, (0,)),), (2,))
    ),
    "less than 4294967296 elements": encode(
        Code(((2,), (2**31, 0, 2)), (), (Instruction(SIN, (0,)),), (2,))
    ),
}


@pytest.mark.parametrize("text", UNFIT)
def test_invalid_blobs_are_refused(text):
    with pytest.raises(FormatError, match=text):
        decode(UNFIT[text])


def test_an_unknown_operator_is_refused():
    blob = encode(code_with(instructions=(Instruction(SIN, (0,)),), outputs=(3,)))
    with pytest.raises(FormatError, match="operator 200 with 1 operands"):
        decode(blob.replace(b"\x06\x01", b"\xc8\x01"))


def test_a_result_that_is_too_large_is_refused():
    inputs = (2**16, 1), (1, 2**16)
    with pytest.raises(FormatError, match="less than 4294967296 elements"):
        decode(encode(Code(inputs, (), (Instruction(ADD, (0, 1)),), (2,))))


# --- weights --------------------------------------------------------------------------


def test_a_weight_that_is_missing(lowered):
    blob, data = lowered
    for key in data:
        with pytest.raises(FormatError, match=f"no named data '{key}'"):
            CompilerDemoRuntime.load(
                blob, [], {k: v for k, v in data.items() if k != key}
            )


def test_a_weight_of_another_size(lowered):
    blob, data = lowered
    for key, value in data.items():
        for wrong in (value[:-1], value + b"\0", b""):
            with pytest.raises(
                FormatError, match=f"has {len(wrong)} bytes, not {len(value)}"
            ):
                CompilerDemoRuntime.load(blob, [], {**data, key: wrong})


# --- damage ---------------------------------------------------------------------------


def test_every_truncation_is_refused(lowered):
    blob, data = lowered
    for size in range(len(blob)):
        with pytest.raises(FormatError):
            CompilerDemoRuntime.load(blob[:size], [], data)


def outcome_of(blob, data):
    """What comes of a blob: FormatError, InputError because it takes other inputs now,
    or tensors.
    """
    try:
        results = CompilerDemoRuntime.load(blob, [], data)(*INPUTS)
    except (FormatError, InputError) as e:
        return type(e).__name__
    assert all(
        isinstance(r, torch.Tensor) and r.dtype is torch.float32 for r in results
    )
    return "works"


def test_a_flipped_bit_is_refused_or_harmless(lowered):
    blob, data = lowered
    assert outcome_of(blob, data) == "works"
    found = set()
    for position in range(8 * len(blob)):
        damaged = bytearray(blob)
        damaged[position // 8] ^= 1 << position % 8
        found.add(outcome_of(bytes(damaged), data))
    assert found == {"FormatError", "works"}


def test_damaged_blobs_are_refused_or_harmless(lowered):
    blob, data = lowered
    rng = random.Random(3)
    for _ in range(3000):
        damaged = bytearray(blob)
        for _ in range(rng.choice((1, 2, 4, 16))):
            damaged[rng.randrange(len(blob))] = rng.choice(
                (0, 1, 2, 3, 6, 127, 255, rng.randrange(256))
            )
        outcome_of(bytes(damaged), data)


def test_random_bytes_after_a_header_are_refused_or_harmless():
    rng = random.Random(4)
    for _ in range(3000):
        head = b"DGCD\x01" + struct.pack("<4I", *(rng.randrange(3) for _ in range(4)))
        outcome_of(
            head + bytes(rng.choice((0, 1, 2, 6)) for _ in range(rng.randrange(60))), {}
        )


# --- the same bytes everywhere --------------------------------------------------------


def test_the_same_bytes_in_another_process(lowered):
    blob, data = lowered
    code = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
    code += (
        "from test_compiler_format import lower_to_one_delegate\nblob, data ="
        " lower_to_one_delegate()\nprint(blob.hex(), *sorted(data))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    completed = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    assert completed.stdout.split() == [blob.hex(), *sorted(data)]
