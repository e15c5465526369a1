"""Bytes that are damaged, hostile, of another version, or of another torch: one
FormatError, and nothing else.
"""

import copy
import json
import random

import pytest
import torch
from delegraph.errors import FormatError
from delegraph_workers.forms import Form, read, write
from delegraph_workers.forms.form import dumps

from core.tests.support.partitions import PROGRAMS


def pack(form):
    return b"".join(form.pieces())


def test_every_truncation_and_every_flipped_byte_is_refused():
    data = pack(write(PROGRAMS["branches"]()))
    choose = random.Random(0)
    for end in [
        0,
        1,
        15,
        16,
        47,
        48,
        79,
        80,
        len(data) - 1,
        *choose.sample(range(len(data)), 100),
    ]:
        with pytest.raises(FormatError):
            read(data[:end])
    for place in [*range(80), *choose.sample(range(len(data)), 200)]:
        flipped = bytearray(data)
        flipped[place] ^= 1 << choose.randrange(8)
        with pytest.raises(FormatError):
            read(bytes(flipped))
    with pytest.raises(FormatError, match="bytes follow"):
        read(data + b"\0")


def pack_changed(form, change):
    """The form with its structure changed, packed with digests that fit."""
    structure = json.loads(form.structure)
    change(structure)
    return pack(Form(dumps(structure), form.labels, form.memories))


def _version(data):
    return data[:48] + (99).to_bytes(8, "little") + data[56:]


def test_another_version_is_refused_by_its_number():
    with pytest.raises(
        FormatError, match="has version 99; this delegraph reads version 1"
    ):
        read(_version(pack(write(PROGRAMS["counts"]()))))


REFUSED = {
    "aten::no_such(Tensor self) -> Tensor": (
        "'aten::no_such', which the torch of this process lacks"
    ),
    "nowhere::relu(Tensor self) -> Tensor": (
        "'nowhere::relu', which the torch of this process lacks"
    ),
    "aten::relu(Tensor self, int by=1) -> Tensor": (
        r"torch .* has aten::relu\(Tensor self\) -> Tensor"
    ),
    "load_library::relu(Tensor self) -> Tensor": "which the torch of this process lacks",
    "__class__::relu(Tensor self) -> Tensor": "which the torch of this process lacks",
    "higher_order.executorch_call_delegate": "which the torch of this process lacks",
    "higher_order.no_such": "which the torch of this process lacks",
    "builtins.eval": "'builtins.eval', which the torch of this process lacks",
    "os.system": "'os.system', which the torch of this process lacks",
}


@pytest.mark.parametrize("name", REFUSED)
def test_unknown_operators_are_refused_by_name(name):
    def change(structure):
        structure[3][0] = name

    with pytest.raises(FormatError, match=REFUSED[name]):
        read(pack_changed(write(PROGRAMS["counts"]()), change))


SOME = [
    None,
    True,
    False,
    0,
    1,
    -1,
    2,
    3,
    100,
    1 << 31,
    1 << 63,
    1 << 70,
    -(1 << 65),
    "",
    "float32",
    "bool",
    "s",
    "u",
]
SOME += [
    [],
    {},
    [[]],
    {"v": 0},
    {"v": 10**6},
    {"f": "7ff8000000000000"},
    {"f": "zz"},
    {"t": []},
    {"s": 0},
    {"int": 5},
]
SOME += [
    {"int": {"s": 0}},
    {"bool": ["Equality", {"s": 0}, 3]},
    {"device": "cuda"},
    {"device": "x"},
    {"k": [["a", 1]]},
]
SOME += [
    ["Pow", 9, ["Pow", 9, 9]],
    ["Pow", 9, 1 << 40],
    ["Pow", {"s": 0}, -1],
    ["FloorDiv", 1, 0],
    ["Rational", 1, 0],
]
SOME += [
    ["LShift", 1, 10**9],
    ["BooleanTrue"],
    ["Infinity"],
    "input",
    "output",
    "graph",
    "constant",
    "higher_order.cond",
]
SOME += ["operator.getitem", "higher_order.cond"]
SOME += [
    "PARAMETER",
    "USER_INPUT",
    "BUFFER_MUTATION",
    "TOKEN",
    "aten::relu(Tensor self) -> Tensor",
]


def paths_in(value, path=()):
    """The paths to everything inside of a JSON value."""
    for key in (
        range(len(value))
        if isinstance(value, list)
        else value
        if isinstance(value, dict)
        else ()
    ):
        yield (*path, key)
        yield from paths_in(value[key], (*path, key))


def value_at(value, path):
    for key in path:
        value = value[key]
    return value


def mutate(structure, choose):
    """Replace, remove, add or move something in a JSON value."""
    paths = list(paths_in(structure))
    *above, key = choose.choice(paths)
    owner = value_at(structure, above)
    kind = choose.randrange(5)
    if kind == 0 and isinstance(owner, list):
        del owner[key]
    elif kind == 1 and isinstance(owner, list):
        owner.insert(key, choose.choice(SOME))
    elif kind == 2:
        owner[key] = copy.deepcopy(value_at(structure, choose.choice(paths)))
    elif kind == 3 and type(owner[key]) is int:
        owner[key] += choose.choice([-1, 1, 5])
    else:
        owner[key] = copy.deepcopy(choose.choice(SOME))


def _hostile(count, seed):
    """How many of ``count`` forms with nonsense inside were refused; the rest are
    programs.
    """
    choose = random.Random(seed)
    refused = 0
    forms = [write(make()) for make in PROGRAMS.values()]
    for _ in range(count):
        form = choose.choice(forms)

        def change(structure):
            for _ in range(choose.choice([1, 1, 1, 2, 3])):
                mutate(structure, choose)

        data = pack_changed(form, change)
        try:
            program = read(data, named=choose.random() < 0.2)
        except FormatError:
            refused += 1
        else:
            assert isinstance(program, torch.export.ExportedProgram)
    return refused


def test_hostile_data_with_valid_digests_is_refused_or_loads():
    assert 50 < _hostile(120, seed=5) < 120


@pytest.mark.slow
def test_so_is_much_nonsense():
    _hostile(10_000, seed=6)


@pytest.mark.parametrize(
    "power",
    [["Pow", 9, {"s": 0}], ["LShift", 1, {"s": 0}], ["Pow", ["Pow", 9, {"s": 0}], 9]],
)
def test_powers_of_symbols_with_large_examples_are_refused(power):
    """torch computes a size with the example of its symbol; with one of 2**31, that
    took all memory.
    """

    def change(structure):
        structure[2][0][0][-1] = 5000
        path = next(
            p for p in paths_in(structure[4]) if value_at(structure[4], p) == {"s": 0}
        )
        value_at(structure[4], path[:-1])[path[-1]] = power

    with pytest.raises(FormatError, match="the serialized program has an invalid size"):
        read(pack_changed(write(PROGRAMS["sizes"]()), change))


@pytest.mark.parametrize(
    ("field", "value"), [(1, [1 << 20, [0]]), (1, [-1]), (2, [[0], 1])]
)
def test_shapes_and_strides_of_constants_are_whole_numbers(field, value):
    """A product of an int and a list is a list: one of 2**31 elements took all memory."""

    def change(structure):
        structure[5][0][field] = value

    with pytest.raises(FormatError, match="indices are integers of 0 or more"):
        read(pack_changed(write(PROGRAMS["layers"]()), change))


def test_deep_nesting_is_refused():
    data = pack(Form(b"[" * 100_000 + b"]" * 100_000, b"[]", []))
    with pytest.raises(FormatError, match="RecursionError"):
        read(data)


@pytest.mark.parametrize("number", ["1.5", "NaN", "Infinity", "1e400"])
def test_numbers_that_are_no_whole_numbers_are_refused(number):
    with pytest.raises(FormatError, match="but only integers are valid"):
        read(pack(Form(b"[%s]" % number.encode(), b"[]", [])))
