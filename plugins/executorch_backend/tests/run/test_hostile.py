"""What a file must not do to whoever loads, shows or runs it: end the process, hang, or
take memory, as each once did.

They are written by hand. ``benchmarks/damaged_files.py`` finds new ones.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import tracemalloc
from pathlib import Path
from typing import Any

import delegraph
import numpy as np
import pytest
import torch
from delegraph.cli import main
from delegraph.errors import (
    DelegraphError,
    FormatError,
    InputError,
    OptionError,
    Unsupported,
)
from delegraph_executorch.format import PteFormat
from delegraph_executorch.memory.verify import find_conflicts
from delegraph_executorch.program import pte_tables as t
from delegraph_executorch.run.calls import split_delegate_calls
from delegraph_executorch.run.kernels import kernel
from delegraph_executorch.run.program import HostProgram
from delegraph_executorch.run.scalars import SCALAR_KERNELS
from delegraph_executorch.serialize.file import program_file
from delegraph_executorch.serialize.reader import read_program

from ..support.by_hand import LONG, program, tensor
from ..support.judge import host_program, stock_runtime

NOTHING = t.Null()
SUM = "aten::sum.IntList_out"


def load_content(content: bytes, **limits: int) -> HostProgram:
    return host_program(read_program(content), **limits)


def program_that_sums(
    dtype: Any = NOTHING, dims: Any = None, keep: Any = None
) -> bytes:
    values = [
        tensor(4),
        dims or t.IntList(()),
        keep or t.Bool(False),
        dtype,
        tensor(at=64),
    ]
    return program(values, [(SUM, (0, 1, 2, 3, 4, 4))], [0], [4])


WRONG = {
    "an element type that there is not": program_that_sums(t.Int(200)),
    "a negative one": program_that_sums(t.Int(-1)),
    "one of quantized tensors": program_that_sums(t.Int(12)),
    "a text for a type": program_that_sums(t.String("float")),
    "a list with an input for a type": program(
        [
            tensor(4),
            t.IntList(()),
            t.Bool(False),
            t.IntList((5,)),
            tensor(at=64),
            t.Int(6),
        ],
        [(SUM, (0, 1, 2, 3, 4, 4))],
        [0, 5],
        [4],
    ),
    "a number for dimensions": program_that_sums(dims=t.Int(0)),
    "numbers for dimensions": program_that_sums(dims=t.DoubleList((0.0,))),
    "a number for a bool": program_that_sums(keep=t.Int(1)),
    "a tensor that is none": program(
        [t.Int(3), t.Int(1), tensor(4)], [("aten::add.out", (0, 2, 1, 2, 2))]
    ),
    "a number that is a tensor": program(
        [tensor(4), tensor(4)], [("aten::add.out", (0, 0, 0, 1, 1))]
    ),
    "a mode of rounding": program(
        [tensor(4), t.String("up"), tensor(4, at=64)],
        [("aten::div.out_mode", (0, 0, 1, 2, 2))],
    ),
    "an approximation": program(
        [tensor(4), t.String("x"), tensor(4, at=64)], [("aten::gelu.out", (0, 1, 2, 2))]
    ),
    "a memory format": program(
        [tensor(4), t.Bool(False), t.Int(9), tensor(4, at=64)],
        [("aten::_to_copy.out", (0, 1, 2, 3, 3))],
    ),
    "no arguments": program([tensor(4)], [("aten::relu.out", ())]),
    "a view without sizes": program(
        [tensor(4), tensor(2, 2)], [("executorch_prim::et_view.default", (0, 1))]
    ),
    "a tensor moved to a number": program([tensor(4), t.Int(1)], [t.MoveCall(0, 1)]),
    "a result that is a number": program(
        [tensor(4), t.Int(2)], [("aten::relu.out", (0, 1, 1))]
    ),
    "a jump on a number": program([t.Int(1)], [t.JumpFalseCall(0, 0)]),
    "a jump on floats": program([tensor(4)], [t.JumpFalseCall(0, 0)]),
    "an input that can be no tensor": program(
        [t.Bool(True), tensor(4)], [("aten::relu.out", (0, 1, 1))], [0], [1]
    ),
    "a tensor that lies nowhere": program(
        [tensor(4, at=None), tensor(4)], [("aten::relu.out", (1, 0, 0))], [1], [1]
    ),
    "a freed number": program([t.Int(1)], [t.FreeCall(0)]),
    "a freed tensor that is planned": program(
        [tensor(4), tensor(4, at=64)], [t.FreeCall(1)]
    ),
    "text plus text": program(
        [t.String("a"), t.Int(0)], [("executorch_prim::add.Scalar", (0, 0, 1))]
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_arguments_outside_the_schema_are_refused_on_load(
    name: str, tmp_path: Path
) -> None:
    with pytest.raises(
        FormatError, match=r"damaged .pte file: method 'forward': instruction 0"
    ):
        load_content(WRONG[name])
    path = tmp_path / "wrong.pte"
    path.write_bytes(WRONG[name])
    with pytest.raises(FormatError, match="instruction 0"):
        delegraph.load(path)
    assert [v.accepted for v in PteFormat.verify(path)] == [False, None, None]
    stock_runtime()
    with pytest.raises(FormatError, match="instruction 0"):
        delegraph.load(path, runtime="executorch")
    assert main(["run", str(path), "--runtime", "executorch"]) == 1


def test_lists_as_results_are_refused_on_load(tmp_path: Path) -> None:
    path = tmp_path / "wrong.pte"
    path.write_bytes(program([tensor(4), t.TensorList((0,))], [], [0], [1]))
    for runtime in (None, "executorch"):
        with pytest.raises(
            FormatError,
            match=r"'forward' returns a TensorList, neither a tensor nor a number",
        ):
            delegraph.load(path, runtime=runtime)


def reason_of_refusal(content: bytes) -> str:
    try:
        load_content(content)
    except FormatError as e:
        return str(e)
    return ""


def test_an_operator_without_a_name_is_refused() -> None:
    assert "operator 0 has no name" in reason_of_refusal(
        program([tensor(4)], [(".out", (0, 0))])
    )


def test_missing_vector_differs_from_an_empty_one() -> None:
    """ExecuTorch's runtime ends the process where a method has no list of inputs. Each
    list is left out in turn.
    """
    content = program([tensor(4)], [("aten::relu.out", (0, 0, 0))], [0], [0])
    forgotten = (
        content[:at] + b"\0\0" + content[at + 2 :] for at in range(8, len(content), 2)
    )
    told = {
        why.split(": ", 1)[1]
        for why in map(reason_of_refusal, forgotten)
        if "missing" in why
    }
    assert {
        "plans 0: inputs is missing",
        "plans 0: values is missing",
        "plans 0: chains is missing",
    } <= told


def test_known_enumerations_are_accepted() -> None:
    assert load_content(program_that_sums(t.Int(6))).run(
        "forward", [torch.arange(4.0)]
    ) == [torch.tensor(6.0)]


def test_types_given_by_the_caller_are_checked_on_call() -> None:
    content = program(
        [tensor(4), t.IntList(()), t.Bool(False), t.Int(6), tensor(at=64)],
        [(SUM, (0, 1, 2, 3, 4, 4))],
        [0, 3],
        [4],
    )
    program_ = load_content(content)
    assert program_.run("forward", [torch.arange(4.0), 6]) == [torch.tensor(6.0)]
    with pytest.raises(FormatError, match="argument 3 77, which must be one of"):
        program_.run("forward", [torch.arange(4.0), 77])


def test_a_number_that_becomes_another_kind_is_noticed() -> None:
    """A float is moved to where the dimension of a sum is."""
    values = [
        tensor(4),
        t.IntList((5,)),
        t.Bool(False),
        NOTHING,
        tensor(at=64),
        t.Int(0),
        t.Double(0.5),
    ]
    with pytest.raises(FormatError, match=r"argument 1 0.5 among integers"):
        load_content(
            program(values, [t.MoveCall(6, 5), (SUM, (0, 1, 2, 3, 4, 4))], [0], [4])
        ).run("forward", [torch.ones(4)])


def test_float_in_a_list_of_sizes_is_noticed() -> None:
    values = [tensor(4), t.IntList((3,)), tensor(4, at=64), t.Int(4), t.Double(4.0)]
    view = ("aten::view_copy.out", (0, 1, 2, 2))
    loaded = load_content(program(values, [t.MoveCall(4, 3), view], [0], [2]))
    with pytest.raises(FormatError, match=r"argument 1 4.0 among integers"):
        loaded.run("forward", [torch.ones(4)])


# --- integers -------------------------------------------------------------------------

LOW = -(1 << 63)
HIGH = (1 << 63) - 1
OPERANDS: list[Any] = [
    0,
    1,
    -1,
    3,
    -3,
    7,
    -7,
    LOW,
    HIGH,
    1 << 62,
    1.5,
    -2.5,
    2.5,
    0.0,
    -0.0,
    1e300,
    math.inf,
    math.nan,
]
OPERANDS += [True, False]


def undefined(name: str, operands: tuple[Any, ...]) -> bool:
    """What C does not define: these end the process in ExecuTorch, give what the
    processor gives, or are refused.
    """
    if name.startswith(("floordiv", "mod")) and all(type(v) is int for v in operands):
        return operands[1] == 0 or operands == (LOW, -1)
    if name[:2] in ("eq", "lt", "le", "gt", "ge"):
        return sum(type(v) is bool for v in operands) == 1  # ExecuTorch refuses it, too
    # and none is a NaN
    small = all(type(v) is int or abs(v) < 2.0**63 for v in operands)
    return name.startswith(("ceil", "round", "trunc", "sym_int")) and not small


def valued(value: Any) -> Any:
    return {bool: t.Bool, int: t.Int, float: t.Double}[type(value)](value)


@pytest.mark.parametrize("name", SCALAR_KERNELS)
def test_numbers_are_computed_as_executorch_does(name: str) -> None:
    runtime = stock_runtime()
    kinds = SCALAR_KERNELS[name][0]
    for operands in itertools.product(OPERANDS, repeat=min(2, len(kinds))):
        given = (True, *operands) if name.startswith("sym_ite") else operands
        accepted = all(
            isinstance(valued(v), kind) for v, kind in zip(given, kinds, strict=True)
        )
        content = program(
            [*map(valued, given), t.Int(0)],
            [(f"executorch_prim::{name}", tuple(range(len(given) + 1)))],
            outputs=[len(given)],
        )
        if not accepted:
            with pytest.raises(FormatError):
                load_content(content)
            if name.endswith(".int"):  # these end the process
                continue
            with pytest.raises(RuntimeError):
                runtime.load_program(content).load_method("forward").execute([])
        elif undefined(name, given):
            with pytest.raises(FormatError):
                load_content(content).run("forward", [])
        else:
            [ours] = load_content(content).run("forward", [])
            keep = runtime.load_program(content)
            [theirs] = keep.load_method("forward").execute([])
            assert type(ours) is type(theirs), (name, given)
            assert ours == theirs or (math.isnan(ours) and math.isnan(theirs)), (
                name,
                given,
            )


def test_a_loop_that_squares_an_integer_ends() -> None:
    square = ("executorch_prim::mul.Scalar", (0, 0, 0))
    content = program(
        [t.Int(3), t.Bool(False)], [square, t.JumpFalseCall(1, 0)], outputs=[0]
    )
    with pytest.raises(Unsupported, match="ran 1000 rounds"):
        load_content(content, max_iterations=1000).run("forward", [])


def test_only_listed_kernels_have_no_schema() -> None:
    """So that nothing that this host computes escapes the check."""
    from delegraph_executorch.kernels import stock_kernels
    from delegraph_executorch.run.arguments import signature

    for name in sorted(stock_kernels().names):
        assert signature(name) is not None, name
        assert kernel(name)


# --- memory ---------------------------------------------------------------------------


def resident() -> int:
    """Bytes of this process that are in memory."""
    status = Path("/proc/self/statm")
    if not status.exists():
        pytest.skip("no /proc")
    return int(status.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_planned_memory_takes_no_pages_that_no_value_needs() -> None:
    content = program(
        [tensor(4), tensor(4, at=4 << 30)],
        [("aten::relu.out", (0, 1, 1))],
        [0],
        [1],
        (4 << 30) + 64,
    )
    before = resident()
    program_ = load_content(content)
    torch.testing.assert_close(
        program_.run("forward", [-torch.ones(4)]), [torch.zeros(4)]
    )
    assert resident() - before < 256 << 20


def test_results_outside_of_the_plan_count_as_memory() -> None:
    values = [
        tensor(1, 1),
        t.IntList((2, 2)),
        t.Int(1 << 17),
        tensor(1 << 17, 1 << 17, at=None),
        t.Bool(False),
    ]
    content = program(values, [("aten::expand_copy.out", (0, 1, 4, 3, 3))], [0], [3])
    with pytest.raises(
        Unsupported,
        match="68719476736 of results outside of it, and 8589934592 are allowed",
    ):
        load_content(content).run("forward", [torch.ones(1, 1)])


def test_files_that_need_too_much_memory_are_refused(tmp_path: Path) -> None:
    stock_runtime()
    path = tmp_path / "much.pte"
    path.write_bytes(program([tensor(4)], inputs=[0], outputs=[0], memory=1 << 46))
    with pytest.raises((Unsupported, InputError), match=r"much\.pte"):
        delegraph.load(path, runtime="executorch")


def test_arrays_without_elements_reach_executorch_in_c_order(tmp_path: Path) -> None:
    """Strides of 0, as numpy's have, ended the process."""
    stock_runtime()
    path = tmp_path / "empty.pte"
    path.write_bytes(
        program(
            [tensor(0, 4), tensor(0, 4, at=64)],
            [("aten::relu.out", (0, 1, 1))],
            [0],
            [1],
        )
    )
    given = torch.from_numpy(np.zeros((0, 4), np.float32))
    assert delegraph.load(path, runtime="executorch")(given)[0].shape == (0, 4)


def test_limits_of_memory_and_iterations_are_the_users(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "loop.pte"
    path.write_bytes(program([t.Bool(False)], [t.JumpFalseCall(0, 0)], memory=5000))
    with pytest.raises(
        Unsupported, match="plans 5000 bytes of memory, and 4999 are allowed"
    ):
        delegraph.load(path, max_memory=4999)()
    with pytest.raises(Unsupported, match="ran 7 rounds"):
        delegraph.load(path, max_memory=5000, max_iterations=7)()
    for wrong in (-1, True, "1"):
        with pytest.raises(OptionError, match="max_memory is a natural number"):
            delegraph.load(path, max_memory=wrong)  # type: ignore[arg-type]
    assert main(["run", str(path), "--max-memory", "4999"]) == 1
    assert "4999 are allowed" in capsys.readouterr().err
    assert main(["run", str(path), "--max-iterations", "7"]) == 1
    assert "ran 7 rounds" in capsys.readouterr().err
    assert main(["run", str(path), "--max-memory", "9", "--runtime", "executorch"]) == 2
    assert "the runtime executorch does not limit memory" in capsys.readouterr().err


def test_finding_delegate_outputs_takes_linear_memory() -> None:
    count = 3000
    calls = [t.DelegateCall(0, (k, k + 1)) for k in range(count)]
    content = program(
        [tensor(4, at=16 * k) for k in range(count + 1)],
        calls,
        [0],
        [count],
        16 * (count + 1),
    )
    plan = read_program(content).program.plans[0]
    tracemalloc.start()
    found = split_delegate_calls(plan)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert set(found.values()) == {1}
    assert peak < 16 * len(content)


# --- what is no FormatError elsewhere -------------------------------------------------


def test_a_file_without_methods(tmp_path: Path) -> None:
    path = tmp_path / "none.pte"
    path.write_bytes(
        program_file(
            t.Program(constant_segment=t.SubsegmentOffsets(0, (0,))), []
        ).join()
    )
    for look in (
        delegraph.load,
        PteFormat.inspect,
        PteFormat.verify,
        lambda p: PteFormat.sample(p, 0),
    ):
        with pytest.raises(FormatError, match="it has no methods"):
            look(path)


@pytest.mark.parametrize(
    "sizes", [(2**31 - 1, 2**15), (2**31 - 1, 2**31 - 1, 0), (1,) * 70]
)
def test_inputs_that_no_memory_holds(sizes: tuple[int, ...], tmp_path: Path) -> None:
    path = tmp_path / "huge.pte"
    path.write_bytes(program([tensor(*sizes, at=None)], inputs=[0], outputs=[0]))
    with pytest.raises((FormatError, Unsupported)):
        PteFormat.sample(path, 0)
    assert main(["run", str(path)]) == 1


@pytest.mark.parametrize(
    "structure",
    ["*", {"tuple": []}, {"list": ["*"]}, {"tuple": ["*", {"dict": []}]}, {"tuple": 3}],
)
def test_inputs_that_are_no_arguments_of_a_call(structure: Any, tmp_path: Path) -> None:
    path = tmp_path / "structure.pte"
    container = t.ContainerMetadata(
        json.dumps({"structure": structure, "names": ["x"]}), ""
    )
    path.write_bytes(program([tensor(2)], inputs=[0], outputs=[0], container=container))
    with pytest.raises(FormatError, match="the structure of inputs"):
        delegraph.load(path)


def test_long_texts_and_lists_are_shortened_when_shown(tmp_path: Path) -> None:
    """Each instruction names the same long operator, list and text; the file has them
    once.
    """
    path = tmp_path / "long.pte"
    count = 400
    name = "\x01" * 40_000
    values = [tensor(1), t.TensorList((0,) * 2000), t.String(name)]
    path.write_bytes(
        program(values, [(f"acme::{name}.out", (1, 2, 0, 1))] * count, [0], [0])
    )
    tracemalloc.start()
    shown = str(PteFormat.inspect(path))
    page = PteFormat.page(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert "... (40010 characters)" in shown
    assert "2000 in all" in shown
    assert len(shown) < 1_000_000
    assert len(page) < 2_000_000
    assert peak < 16 * path.stat().st_size + (4 << 20)


def test_proving_a_memory_plan_takes_linear_memory() -> None:
    """Thousands of tensors in one place, and as many jumps: what is whole where is a
    set for each.
    """
    count = 2000
    calls: list[Any] = []
    for k in range(count):
        calls += [
            ("aten::relu.out", (k, k + 1, k + 1)),
            t.JumpFalseCall(count + 1, 2 * k + 2),
        ]
    values = [*(tensor(4, at=16 * (k % 2)) for k in range(count + 1)), t.Bool(True)]
    plan = read_program(program(values, calls, [0], [count])).program.plans[0]
    tracemalloc.start()
    assert find_conflicts(plan, {}) == []
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 16 << 20
    listed = [*values, t.TensorList((0,) * 5000), t.Int(0)]
    end = len(listed) - 2
    plan = read_program(
        program(listed, [("aten::cat.out", (end, end + 1, 1, 1))] * 5000, [0], [1])
    ).program.plans[0]
    with pytest.raises(Unsupported, match="too large to prove its memory plan"):
        find_conflicts(plan, {})
    backward = [i for k in range(3000) for i in (t.JumpFalseCall(count + 1, k // 2),)]
    plan = read_program(
        program(values, [*calls[:1], *backward], [0], [1])
    ).program.plans[0]
    assert find_conflicts(plan, {}) == []


def test_texts_and_numbers_as_inputs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "plain.pte"
    values = [t.String("abc"), t.Int(5), t.Double(0.5), tensor(2)]
    path.write_bytes(program(values, inputs=[0, 1, 2, 3], outputs=[1, 3, 0]))
    assert main(["run", str(path)]) == 0
    assert "output_2  str" in capsys.readouterr().out
    arrays = [np.array("xyz"), np.array(6), np.array(1.5), np.ones(2, np.float32)]
    for k, array in enumerate(arrays):
        np.save(tmp_path / f"{k}.npy", array)
    given = [word for k in range(4) for word in ("--input", str(tmp_path / f"{k}.npy"))]
    assert main(["run", str(path), *given, "--output", str(tmp_path / "out")]) == 0
    assert np.load(tmp_path / "out" / "output_0.npy") == 6
    assert main(["run", str(path), *given[:6], *given[:2]]) == 1
    assert (
        "input 3 is an array that torch cannot convert to a tensor"
        in capsys.readouterr().err
    )


def test_results_of_types_that_numpy_lacks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values = [
        tensor(2, dtype=LONG),
        tensor(2, at=64, dtype=15),
        tensor(2, at=128, dtype=9),
        NOTHING,
    ]
    path = tmp_path / "types.pte"
    path.write_bytes(program(values, inputs=[0], outputs=[1, 2, 3]))
    assert main(["run", str(path)]) == 0
    out = capsys.readouterr().out
    assert "output_0  float32" in out
    assert "output_1  complex64" in out


@pytest.mark.parametrize(
    "shape",
    [
        "(1099511627776,)",
        "(4611686018427387904, 8)",
        "(3,)",
        "(0, 99999999999999999999)",
        "'x'",
    ],
)
def test_arrays_that_state_more_than_their_file_holds(
    shape: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "plain.pte"
    array = tmp_path / "x.npy"
    path.write_bytes(program([tensor(2)], inputs=[0], outputs=[0]))
    header = (
        f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".ljust(117)
        + "\n"
    )
    array.write_bytes(
        b"\x93NUMPY\x01\x00"
        + len(header).to_bytes(2, "little")
        + header.encode()
        + bytes(8)
    )
    assert main(["run", str(path), "--input", str(array)]) == 1
    assert "error [input-invalid]" in capsys.readouterr().err


def test_damaged_files_raise_only_delegraph_errors(tmp_path: Path) -> None:
    """Each value of a plan that says everything, replaced by one of each kind."""
    kinds = [
        tensor(4),
        t.Int(3),
        t.Bool(True),
        t.Double(1.5),
        t.String("x"),
        NOTHING,
        t.IntList((1,)),
        t.TensorList((0,)),
    ]
    for position, kind in itertools.product(range(5), kinds):
        values = [tensor(4), t.IntList((3,)), t.Bool(False), t.Int(0), tensor(at=64)]
        values[position] = kind
        try:
            load_content(program(values, [(SUM, (0, 1, 2, 3, 4, 4))], [0], [4])).run(
                "forward", [torch.ones(4)]
            )
        except DelegraphError as e:
            assert isinstance(e, (FormatError, InputError))
