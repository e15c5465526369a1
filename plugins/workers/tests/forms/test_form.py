"""Forms: a program goes into one and comes back; names never matter, all else does."""

import copy
import math
import os
import random
import struct
import subprocess
import sys
from pathlib import Path

import delegraph
import numpy as np
import pytest
import torch
from delegraph.delegates import LoweredBackendModule
from delegraph.errors import FormatError, Unsupported
from delegraph_programs import all_nodes, constant_tensor, copy_program, placeholders
from delegraph_workers.forms import read, write
from torch import nn
from torch.export.graph_signature import InputKind
from torch.fx import Node

from core.tests.support.partitions import PROGRAMS, sizes


def pack(program):
    return b"".join(write(program).pieces())


def fetching(form):
    """``fetch`` for the constants of a form, each time as bytes of their own."""
    table = {m.digest: b"".join(m.pieces()) for m in form.memories}
    return lambda digest, size: bytearray(table[digest])


def write_and_read(program, **options):
    form = write(program)
    return read(b"".join(form.pieces()), fetching(form), **options)


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_keep_their_form_when_read_back(name, named):
    program = PROGRAMS[name]()
    form = write(program)
    again = write_and_read(program, named=named)
    again.validate()
    assert write(again).key == form.key
    assert (write(again).labels == form.labels) == named


@pytest.mark.parametrize("name", ["layers", "sizes", "branches", "counts"])
def test_programs_compute_the_same_when_read_back(name):
    program = PROGRAMS[name]()
    inputs = {
        "layers": ((1, 3, 6, 6), (1, 6, 6)),
        "sizes": ((6, 8), (5, 4)),
        "branches": ((2, 4),),
        "counts": ((3,),),
    }
    given = [torch.randn(shape) for shape in inputs[name]]
    again = write_and_read(program)
    expected = copy.deepcopy(program).module()(*given)  # which may write its buffers
    actual = again.module(check_guards=False)(*given)
    for ours, theirs in zip(
        actual, expected if isinstance(expected, tuple) else (expected,), strict=True
    ):
        assert torch.equal(ours, theirs)


def test_names_are_restored_from_the_separate_part():
    program = delegraph.lower(
        nn.Linear(2, 2).eval(), (torch.ones(1, 2),), backends=[]
    ).exported_program("forward")
    program.graph_module.meta["partition"] = "tag7"
    bare = write_and_read(program)
    named = write_and_read(program, named=True)
    assert [node.name for node in bare.graph.nodes] == [
        "v0",
        "v1",
        "v2",
        "v3",
        "output",
    ]
    assert [node.name for node in named.graph.nodes] == [
        node.name for node in program.graph.nodes
    ]
    for ours, theirs in zip(named.graph.nodes, program.graph.nodes, strict=True):
        for key in ("stack_trace", "debug_handle"):
            assert ours.meta.get(key) == theirs.meta.get(key)
        assert list(ours.meta.get("nn_module_stack", {})) == list(
            theirs.meta.get("nn_module_stack", {})
        )
    assert named.state_dict.keys() == program.state_dict.keys()
    assert bare.state_dict.keys() == {"c0", "c1"}
    assert named.graph_module.meta["partition"] == "tag7"


def rename_everything(program):
    """The program with other names of nodes, constants, modules and lines, and with
    other debug handles.
    """
    program = copy_program(program)
    for k, node in enumerate(program.graph.nodes):
        (
            node._rename(f"other_{len(program.graph.nodes) - k}")
            if node.op == "call_function"
            else None
        )
        node.meta |= {
            "stack_trace": f'File "elsewhere.py", line {k}, in f',
            "nn_module_stack": {"a": ("b", "c")},
        }
        node.meta |= {
            "custom": {"delegraph.layer": node.name},
            "exported_name": "x",
            "debug_handle": 1000 - k,
        }
    return program


@pytest.mark.parametrize("name", PROGRAMS)
def test_names_lines_and_handles_do_not_matter(name):
    program = PROGRAMS[name]()
    for k, node in enumerate(program.graph.nodes):
        node.meta["debug_handle"] = k + 1
    ours = write(program)
    theirs = write(rename_everything(program))
    assert ours.key == theirs.key
    assert ours.labels != theirs.labels


def test_names_of_arguments_modules_and_dims_do_not_matter():
    class Other(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(3, 2)

        def forward(self, quite_another_name):
            return self.inner(quite_another_name)

    one = nn.Linear(3, 2)
    other = Other()
    other.inner.load_state_dict(one.state_dict())
    x = torch.randn(1, 3)
    forms = [
        write(torch.export.export(m.eval(), (x,)))
        for m in (one, other, other.requires_grad_(False))
    ]
    assert len({form.key for form in forms}) == 1
    assert write(sizes(names="ab")).key == write(sizes(names="yx")).key


def test_form_does_not_depend_on_example_sizes():
    assert write(sizes(rows=4)).key == write(sizes(rows=6)).key


SCRIPT = """
from core.tests.support.partitions import PROGRAMS
from delegraph_workers.forms import write
print([write(PROGRAMS[name]()).key for name in ("sizes", "branches")])
"""


def test_another_process_and_another_hash_seed_give_the_same_key():
    root = Path(__file__).parents[4]
    completed = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        capture_output=True,
        text=True,
        cwd=root,
        env=os.environ | {"PYTHONHASHSEED": "1"},
    )
    assert completed.stdout.strip() == str(
        [write(PROGRAMS[name]()).key for name in ("sizes", "branches")]
    ), completed.stderr


LITERALS = [
    1,
    -1,
    1.0,
    0.0,
    -0.0,
    math.inf,
    -math.inf,
    math.nan,
    True,
    False,
    None,
    "a",
    1 << 80,
    1j,
    -0j,
    (1, 2),
]
LITERALS += [
    struct.unpack(">d", bytes.fromhex("fff8000000000001"))[0],
    torch.float16,
    torch.device("cpu"),
]
LITERALS += [
    torch.channels_last,
    torch.strided,
    [1, [2.0, None]],
    (1,),
    [1],
    {"a": (2,), "b": 1},
]


def test_literals_are_restored_and_have_different_forms():
    forms = []
    program = PROGRAMS["counts"]()
    for literal in LITERALS:
        node = next(node for node in program.graph.nodes if node.op == "call_function")
        node.meta["vendor"] = [literal]
        forms.append(write(program).structure)
        (again,) = (
            write_and_read(program)
            .graph.find_nodes(op="call_function", target=node.target)[0]
            .meta["vendor"]
        )
        assert type(again) is type(literal)
        assert repr(again) == repr(literal)
        if isinstance(literal, float):
            assert struct.pack(">d", again) == struct.pack(">d", literal)
    assert len(set(forms)) == len(LITERALS)


def test_redundant_arguments_of_calls_are_normalized():
    class Says(nn.Module):
        def forward(self, x, y):
            return (
                torch.ops.aten.sub.Tensor(x, y),
                torch.ops.aten.softmax.int(x, 1, None),
                x.mean([0, 1]),
            )

    given = (torch.randn(2, 2), torch.randn(2, 2))
    program = torch.export.export(Says().eval(), given)
    wordy = copy.deepcopy(program)
    sub, softmax, mean, _ = (
        node for node in wordy.graph.nodes if node.op != "placeholder"
    )
    sub.kwargs = {"alpha": 1}
    softmax.args = softmax.args[:1]
    softmax.kwargs = {"dim": 1, "dtype": None}
    mean.args = (mean.args[0], (0, 1), False)
    assert write(program).key == write(wordy).key
    assert str(write_and_read(wordy).graph) == str(write_and_read(program).graph)
    assert str(write_and_read(wordy, named=True).graph) == str(program.graph)


def tensors_of(program):
    return [
        constant_tensor(program, s)
        for _, s in placeholders(program)
        if s.kind is not InputKind.USER_INPUT
    ]


class Holds(nn.Module):
    def __init__(self, *tensors):
        super().__init__()
        for k, tensor in enumerate(tensors):
            self.register_buffer(f"b{k}", tensor)

    def forward(self, x):
        return tuple(x + b for b in self.buffers())


def program_with_constants(*tensors):
    """A program with these constants, as they are."""
    program = torch.export.export(
        Holds(*(torch.zeros(t.shape, dtype=t.dtype) for t in tensors)),
        (torch.ones(()),),
    )
    for k, tensor in enumerate(tensors):
        program.state_dict[f"b{k}"] = tensor
    return program


def test_only_constants_that_shared_memory_share_it_again():
    base = torch.arange(12.0)
    program = program_with_constants(
        base[:6], base[2:8], base[8:], torch.ones(3), torch.ones(3), base[:6]
    )
    a, b, c, one, other, same = tensors_of(write_and_read(program))
    for ours, theirs in zip((a, b, c, one, other), tensors_of(program), strict=False):
        assert torch.equal(ours, theirs)
    a[2] = 77
    assert b[0] == 77
    assert same[2] == 77
    assert one.data_ptr() != other.data_ptr()
    assert (
        write(program_with_constants(base[:6], base[:6])).key
        != write(program_with_constants(base[:6], base[:6].clone())).key
    )


STRIDED = {
    "channels last": (
        lambda: torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    ),
    "every second": lambda: torch.arange(12.0)[::2],
    "a column": lambda: torch.randn(1000, 1000)[:, 3],
    "expanded": lambda: torch.tensor([3.0]).expand(5),
    "transposed": lambda: torch.randn(3, 4).T,
    "a number": lambda: torch.tensor(2.5),
    "nothing": lambda: torch.zeros(0, 3),
    "bool": lambda: torch.tensor([True, False]),
    "bfloat16": lambda: torch.randn(3, dtype=torch.bfloat16),
    "float8": lambda: torch.randn(4).to(torch.float8_e4m3fn),
    "conjugate": lambda: torch.tensor([1 + 2j, 3j]).conj(),
    "NaN and zeros": lambda: torch.tensor([math.nan, -0.0, math.inf]),
}


@pytest.mark.parametrize("name", STRIDED)
def test_constants_keep_elements_and_strides(name):
    tensor = STRIDED[name]()
    form = write(program_with_constants(tensor))
    (again,) = tensors_of(write_and_read(program_with_constants(tensor)))
    assert again.stride() == tensor.stride()
    assert again.dtype == tensor.dtype
    assert again.resolve_conj().contiguous().flatten().view(torch.uint8).tolist() == (
        tensor.resolve_conj().contiguous().flatten().view(torch.uint8).tolist()
    )
    assert sum(memory.size for memory in form.memories) <= tensor.nbytes  # no gaps


def test_memory_between_elements_does_not_change_the_key():
    base = torch.arange(12.0)
    before = write(program_with_constants(base[::2])).key
    base[1::2] = 99
    assert write(program_with_constants(base[::2])).key == before


LARGE = 1 << 18
"""Elements of a float32 constant of 1 MiB: the form has only its digest and size."""


def test_large_constants_are_fetched_and_used_without_copies():
    constant = torch.randn(LARGE)
    form = write(program_with_constants(constant))
    data = b"".join(form.pieces())
    assert len(data) < 10_000
    (memory,) = form.memories
    fetched = bytearray(b"".join(memory.pieces()))
    asked = []

    def fetch(digest, size):
        asked.append((digest, size))
        return fetched

    (tensor,) = tensors_of(read(data, fetch))
    assert asked == [(memory.digest, constant.nbytes)]
    assert torch.equal(tensor, constant)
    # the tensor is a view of the fetched buffer: writing the buffer changes it
    fetched[:4] = struct.pack("<f", 5.0)
    assert tensor[0] == 5


@pytest.mark.parametrize("fetches_one_buffer", [False, True])
def test_equal_large_constants_do_not_share_memory(fetches_one_buffer):
    """A program that writes one of them must not change the other."""
    ones = torch.ones(LARGE)
    form = write(program_with_constants(ones, ones.clone()))
    buffer = bytearray(ones.nbytes)
    buffer[:] = ones.numpy().tobytes()

    def fetch(digest, size):
        return buffer if fetches_one_buffer else bytearray(buffer)

    one, other = tensors_of(read(b"".join(form.pieces()), fetch))
    one.zero_()
    assert torch.equal(other, ones)


def test_large_constants_that_are_not_fetched_raise_errors():
    data = pack(program_with_constants(torch.ones(LARGE)))
    with pytest.raises(FormatError, match="damaged or missing"):
        read(data)
    with pytest.raises(FormatError, match="truncated"):
        read(data, lambda digest, size: bytearray(size - 4))


def test_a_written_program_is_read_in_several_threads():
    from concurrent.futures import ThreadPoolExecutor

    data = pack(sizes())
    key = write(sizes()).key
    with ThreadPoolExecutor(4) as pool:
        assert {write(program).key for program in pool.map(read, [data] * 8)} == {key}


class Vendor:
    """Something that a partitioner left on a node."""


def _mark(value, key="vendor"):
    def mark(program):
        next(node for node in program.graph.nodes if node.op == "call_function").meta[
            key
        ] = value
        return program

    return mark


def _constant(tensor):
    def replace(program):
        program.state_dict[next(iter(program.state_dict))] = tensor
        return program

    return replace


REFUSED = {
    "what a partitioner left is a Vendor": _mark(Vendor()),
    "a dict with keys that are no texts": _mark({1: 2}),
    "an array, which compares element by element": _mark(np.zeros(2)),
    "custom metadata of a kind that torch does not make": _mark(Vendor(), "custom"),
    "a constant without elements": _constant(torch.zeros(4, device="meta")),
    "a sparse constant": _constant(torch.zeros(4).to_sparse()),
    "a subclass": _constant(
        torch._subclasses.FakeTensorMode().from_tensor(torch.zeros(4))
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_programs_that_cannot_be_written_are_refused(name):
    with pytest.raises(
        Unsupported,
        match=(r"the program cannot be written as bytes: it has "),
    ):
        write(REFUSED[name](PROGRAMS["layers"]()))


def test_a_program_with_delegates_is_refused():
    program = torch.export.export(nn.Linear(2, 2).eval(), (torch.ones(1, 2),))
    program.graph_module.inner = LoweredBackendModule(
        "Keeps", copy_program(program), []
    )
    with program.graph.inserting_before(program.graph.output_node()):
        program.graph.get_attr("inner")
    with pytest.raises(Unsupported, match="LoweredBackendModule"):
        write(program)


def mutate_program(program, choose):
    """The program with one thing changed that a backend may see; what it was, or None
    if nothing fits.
    """
    nodes = [n for n in all_nodes(program.graph_module) if n.op == "call_function"]
    node = choose.choice(nodes)
    match choose.randrange(7):
        case 0:
            return _literal(node, choose)
        case 1:  # another type of a result
            values = [n for n in nodes if isinstance(n.meta.get("val"), torch.Tensor)]
            node = choose.choice(values)
            val = node.meta["val"]
            dtype = choose.choice(
                [
                    d
                    for d in (torch.float16, torch.int8, torch.float64)
                    if d != val.dtype
                ]
            )
            node.meta["val"] = val.to(dtype)
            return f"{node} is {dtype}"
        case 2:
            spec = choose.choice(
                [
                    s
                    for _, s in placeholders(program)
                    if s.kind is not InputKind.USER_INPUT
                ]
                or [None]
            )
            return spec and _bit(program, spec, choose)
        case 3:  # another operator of the same convention
            pairs = {torch.ops.aten.relu.default: torch.ops.aten.sigmoid.default}
            pairs |= {torch.ops.aten.mul.Tensor: torch.ops.aten.div.Tensor}
            node = choose.choice([n for n in nodes if n.target in pairs] or [None])
            if node is not None:
                node.target = pairs[node.target]
                return f"{node} calls {node.target}"
        case 4:  # operands that change places
            given = [k for k, a in enumerate(node.args) if isinstance(a, Node)]
            if len(given) > 1 and node.args[given[0]] is not node.args[given[1]]:
                args = list(node.args)
                args[given[0]], args[given[1]] = args[given[1]], args[given[0]]
                node.args = tuple(args)
                return f"{node} has its operands swapped"
        case 5:
            node.meta["vendor"] = (
                choose.choice(LITERALS[:12])
                if choose.random() < 0.5
                else {"k": choose.randrange(9)}
            )
            return None if node.meta["vendor"] is None else f"{node} is marked"
        case 6 if symbols := [s for s in program.range_constraints if s.is_Symbol]:
            symbol = choose.choice(symbols)
            old = program.range_constraints[symbol]
            program._range_constraints[symbol] = type(old)(
                old.lower, choose.randrange(100, 1000)
            )
            return f"{symbol} has another range"
    return None


def _literal(node, choose):
    places = [k for k, a in enumerate(node.args) if isinstance(a, (int, float))]
    if not places:
        return None
    k = choose.choice(places)
    old = node.args[k]
    new = choose.choice(
        [old + 1, -old - 3, float(old) + 0.5, not old]
        if not isinstance(old, bool)
        else [not old]
    )
    node.args = (*node.args[:k], new, *node.args[k + 1 :])
    return (
        None
        if type(new) is type(old) and new == old
        else f"{node} has {new!r} for {old!r}"
    )


def _bit(program, spec, choose):
    table = (
        program.state_dict if spec.target in program.state_dict else program.constants
    )
    tensor = table[spec.target].detach().clone()
    raw = tensor.view(-1).view(torch.uint8)
    raw[choose.randrange(len(raw))] ^= 1 << choose.randrange(8)
    table[spec.target] = (
        torch.nn.Parameter(tensor, requires_grad=False)
        if spec.kind is InputKind.PARAMETER
        else tensor
    )
    return f"a bit of {spec.target}"


def _mutations(count, seed):
    choose = random.Random(seed)
    known = {name: write(make()).key for name, make in PROGRAMS.items()}
    done = 0
    while done < count:
        name = choose.choice(list(PROGRAMS))
        program = PROGRAMS[name]()
        done += (what := mutate_program(program, choose)) is not None
        if what is not None:
            assert write(program).key != known[name], f"{name}: {what}"


def test_no_mutated_program_has_the_key_of_the_original():
    _mutations(200, seed=1)


@pytest.mark.slow
def test_ten_thousand_changed_programs_have_different_keys():
    _mutations(10_000, seed=2)


def test_programs_of_other_default_dtypes_are_refused():
    data = pack(PROGRAMS["counts"]())
    torch.set_default_dtype(torch.float64)
    try:
        with pytest.raises(
            FormatError,
            match="default dtype torch.float32; that of this process is torch.float64",
        ):
            read(data)
    finally:
        torch.set_default_dtype(torch.float32)


def test_the_subgraphs_of_a_branch_are_in_the_form():
    again = write_and_read(PROGRAMS["branches"]())
    assert len([n for n in all_nodes(again.graph_module) if n.op == "output"]) == 3
