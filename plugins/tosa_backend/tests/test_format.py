"""``delegraph inspect`` and ``delegraph run`` on .tosa files, without torch."""

import json
import subprocess
import sys

import numpy as np
import pytest
from delegraph.cli import main
from delegraph.errors import InputError, Unsupported
from delegraph_tosa.evaluate import evaluate
from delegraph_tosa.format import TosaFormat
from delegraph_tosa.ir import operators as ops
from delegraph_tosa.ir.graph import Graph, Value, literal
from delegraph_tosa.ir.types import DType, Type
from delegraph_tosa.serialize import TosaFile
from delegraph_tosa.spec import TosaSpec

from .support.samples import make_operator
from .support.structured import structured


@pytest.fixture
def path(tmp_path):
    """A file with the outputs ``sum = x + [0..31]`` in fp32, and ``wide``, its bf16 cast."""
    x = Value(Type((2, 32), DType.FP32), name="x")
    row = literal(np.arange(32).reshape(1, 32), DType.FP32, np.float32)
    add = ops.ADD((x, row))
    total = Value(Type((2, 32), DType.FP32), name="sum", producer=add)
    add.outputs = (total,)
    cast = ops.CAST((total,), dtype=DType.BF16)
    wide = Value(Type((2, 32), DType.BF16), name="wide", producer=cast)
    cast.outputs = (wide,)
    file = tmp_path / "add.tosa"
    file.write_bytes(
        TosaFile(
            Graph([x], [total, wide], [add, cast]), TosaSpec.parse("TOSA-1.0+FP+bf16")
        ).join()
    )
    return file


def test_inspection_counts_operators_and_constants(path):
    found = TosaFormat.inspect(path)
    assert found.operators == {"ADD": 1, "CAST": 1}
    assert found.constants == 1
    assert found.constant_bytes == 32 * 4
    assert found.bytes == path.stat().st_size
    assert found.profiles == ("FP",)
    assert found.extensions == ("bf16",)
    assert found.inputs == ("%x: [2x32]fp32",)
    assert json.loads(json.dumps(found.to_json()))["outputs"] == [
        "%sum: [2x32]fp32",
        "%wide: [2x32]bf16",
    ]


def test_text_of_an_inspection_elides_constants(path):
    text = str(TosaFormat.inspect(path))
    assert "// needs profile FP, extension bf16" in text
    assert "ADD(%x" in text
    assert "const ..." in text


def test_running_a_file_returns_named_results(path):
    x = np.ones((2, 32), np.float32)
    (name, total), (_, wide) = TosaFormat.run(path, [x])
    assert name == "sum"
    np.testing.assert_array_equal(total, np.broadcast_to(np.arange(32) + 1.0, (2, 32)))
    np.testing.assert_array_equal(wide, total)


def test_running_a_file_without_inputs_is_refused(path):
    with pytest.raises(InputError, match="1 input is wanted, 0 were given"):
        TosaFormat.run(path, [])


def test_sample_inputs_fit_and_depend_on_the_seed_only(path):
    (first,), (again,), (other,) = (TosaFormat.sample(path, seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)
    assert first.dtype == np.float32
    assert first.shape == (2, 32)
    TosaFormat.run(path, [first])


def test_run_command_prints_and_saves_results(path, tmp_path, capsys):
    np.save(tmp_path / "x.npy", np.zeros((2, 32), np.float32))
    arguments = [
        "run",
        str(path),
        "--input",
        str(tmp_path / "x.npy"),
        "--output",
        str(tmp_path / "out"),
    ]
    assert main([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "delegraph.run/1"
    row = {
        "name": "sum",
        "dtype": "float32",
        "shape": [2, 32],
        "min": 0.0,
        "max": 31.0,
        "mean": 15.5,
        "nonfinite": 0,
    }
    assert found["outputs"][0] == row
    np.testing.assert_array_equal(
        np.load(tmp_path / "out" / "output_0.npy")[1], np.arange(32)
    )
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "output_0.npy",
        "output_1.npy",
    ]
    assert main(arguments) == 0
    assert "sum     float32  [2, 32]  0" in capsys.readouterr().out


def test_inspect_command_prints_operators(path, capsys):
    assert main(["inspect", str(path)]) == 0
    assert "// 2 operators: 1 ADD, 1 CAST" in capsys.readouterr().out
    assert main(["inspect", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["operators"] == {"ADD": 1, "CAST": 1}


@pytest.mark.parametrize("command", ["run", "inspect"])
def test_truncated_files_give_an_error_without_traceback(path, command, capsys):
    path.write_bytes(path.read_bytes()[:-40])
    assert main([command, str(path)]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error [format-invalid]")
    assert "Traceback" not in captured.err


@pytest.mark.parametrize("times", [1 << 28, 1 << 56])
def test_tensors_larger_than_memory_are_refused(times, path, monkeypatch, capsys):
    """A file of a few hundred bytes may declare tensors of any size."""
    x = Value(Type((4,), DType.FP32), name="x")
    tile = ops.TILE((x, literal([times], DType.SHAPE, np.int64)))
    tile.outputs = (Value(Type((4 * times,), DType.FP32), producer=tile),)
    monkeypatch.setattr(
        "delegraph_tosa.format.read", lambda data: Graph([x], tile.outputs, [tile])
    )
    monkeypatch.setattr("delegraph_tosa.format.evaluate", out_of_memory)
    assert main(["run", str(path)]) == 1
    assert (
        f"error [unsupported]: the program needs {16 * times + 16} bytes of memory at once"
        in capsys.readouterr().err
    )


def out_of_memory(graph, inputs):
    """Fail as numpy would, without using the memory."""
    raise MemoryError


def test_input_of_wrong_shape_is_refused(path, tmp_path, capsys):
    np.save(tmp_path / "x.npy", np.zeros((3, 32), np.float32))
    assert main(["run", str(path), "--input", str(tmp_path / "x.npy")]) == 1
    assert (
        "float32 [2, 32] is wanted, float32 [3, 32] was given"
        in capsys.readouterr().err
    )


def test_unreadable_input_is_refused(path, tmp_path, capsys):
    (tmp_path / "x.npy").write_bytes(b"no array")
    assert main(["run", str(path), "--input", str(tmp_path / "x.npy")]) == 1
    assert "is not a readable .npy file" in capsys.readouterr().err


def test_archive_of_arrays_as_input_is_refused(path, tmp_path, capsys):
    np.savez(tmp_path / "x.npz", image=np.zeros((2, 32), np.float32))
    assert main(["run", str(path), "--input", str(tmp_path / "x.npz")]) == 1
    assert (
        "x.npz is an archive of arrays: image\n  hint: give an .npy file for each input"
        in capsys.readouterr().err
    )


def test_neither_command_imports_torch(path):
    program = (
        "import sys; from delegraph.cli import main; codes = [main([c, sys.argv[1]])"
        " for c in ('run', 'inspect')]"
    )
    check = f"{program}; assert codes == [0, 0]; assert 'torch' not in sys.modules"
    subprocess.run(
        [sys.executable, "-c", check, str(path)], check=True, capture_output=True
    )


@pytest.mark.parametrize("piped", [False, True])
def test_a_page_on_standard_output_comes_before_the_result(path, tmp_path, piped):
    with open(tmp_path / "out", "w") as out:
        command = [
            sys.executable,
            "-m",
            "delegraph",
            "inspect",
            str(path),
            "--html",
            "/dev/stdout",
        ]
        completed = subprocess.run(
            command,
            stdout=subprocess.PIPE if piped else out,
            stderr=subprocess.PIPE,
            text=True,
        )
    text = completed.stdout if piped else (tmp_path / "out").read_text()
    assert completed.returncode == 0
    assert completed.stderr == ""
    assert text.startswith("<!DOCTYPE html>")
    assert "</html>\n// " in text


def write_file(graph, folder):
    file = folder / "g.tosa"
    file.write_bytes(TosaFile(graph, TosaSpec()).join())
    return file


@pytest.mark.parametrize(
    "given", [[], ["--input", "x.npy"]], ids=["random", "from a file"]
)
def test_illegal_files_are_not_run_and_name_the_rule(
    tmp_path, capsys, monkeypatch, given
):
    """The file can be read, and BITWISE_AND of floats would only fail in numpy."""
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", np.ones(3, np.float32))
    x = Value(Type((3,), DType.FP32), name="x")
    both = make_operator(ops.BITWISE_AND, x, x)
    file = write_file(Graph([x], both.outputs, [both]), tmp_path)
    assert main(["run", str(file), *given]) == 1
    stderr = capsys.readouterr().err
    assert stderr.startswith("error [tosa/invalid-graph]: 1 violations of TOSA-")
    assert (
        "operator 0 (BITWISE_AND): TOSA BITWISE_AND on fp32 is not in TOSA 1." in stderr
    )
    assert "[data-types: BITWISE_AND, Supported Data Types]" in stderr
    assert main(["inspect", str(file)]) == 0


def test_many_violations_are_shortened(tmp_path, capsys):
    x = Value(Type((3,), DType.FP32), name="x" * 10_000)
    operators = [make_operator(ops.BITWISE_AND, x, x) for _ in range(1000)]
    assert (
        main(
            [
                "run",
                str(write_file(Graph([x], operators[0].outputs, operators), tmp_path)),
            ]
        )
        == 1
    )
    stderr = capsys.readouterr().err
    assert "  and 900 more\n  raised by " in stderr
    assert len(stderr) < 100_000


def endless_graph():
    x = Value(Type((1,), DType.BOOL), name="on")
    count = Value(Type((1,), DType.BOOL))
    inner = Value(Type((1,), DType.BOOL))
    body = make_operator(ops.IDENTITY, inner)
    condition = make_operator(ops.LOGICAL_OR, count, literal([True], DType.BOOL, bool))
    graphs = {
        "cond_graph": Graph([count], condition.outputs, [condition], "goes_on"),
        "body_graph": Graph([inner], body.outputs, [body], "again"),
    }
    loop = make_operator(ops.WHILE_LOOP, x, **graphs)
    return Graph([x], loop.outputs, [loop])


def doubling_graph(depth):
    """Return nested graphs, each of which calls the next one twice. The innermost graph is
    called 2 ** (depth - 1) times.
    """
    graph = None
    for level in range(depth, 0, -1):
        x = Value(Type((1,), DType.FP32))
        condition = Value(Type((1,), DType.BOOL))
        last = x
        operators = []
        for _ in range(2):
            if graph is None:
                operators.append(make_operator(ops.ABS, last))
            else:
                operators.append(
                    make_operator(
                        ops.COND_IF,
                        condition,
                        last,
                        condition,
                        then_graph=graph,
                        else_graph=graph,
                    )
                )
            last = operators[-1].outputs[0]
        graph = Graph([x, condition], [last], operators, f"level_{level}")
    return graph


@pytest.mark.parametrize(
    "make", [endless_graph, lambda: doubling_graph(40)], ids=["loop", "calls"]
)
def test_programs_with_too_many_iterations_are_stopped(make, tmp_path, capsys):
    file = write_file(make(), tmp_path)
    assert main(["run", str(file), "--max-iterations", "1000"]) == 1
    assert (
        "more iterations of loops and branches than are allowed"
        in capsys.readouterr().err
    )
    with pytest.raises(Unsupported, match="more iterations"):
        TosaFormat.run(file, TosaFormat.sample(file, 0), max_iterations=100)


def test_loops_within_the_iteration_limit_run(tmp_path):
    graph = next(s.graph for s in structured() if s.label == "WHILE_LOOP(2 deep)")
    file = write_file(graph, tmp_path)
    inputs = TosaFormat.sample(file, 0)
    for (_, ours), expected in zip(
        TosaFormat.run(file, inputs), evaluate(graph, inputs), strict=True
    ):
        np.testing.assert_array_equal(ours, expected)


def test_the_iteration_limit_applies_to_each_run(tmp_path):
    file = write_file(doubling_graph(4), tmp_path)
    inputs = TosaFormat.sample(file, 0)
    for _ in range(3):
        TosaFormat.run(file, inputs, max_iterations=2 + 4 + 8)
    with pytest.raises(Unsupported):
        TosaFormat.run(file, inputs, max_iterations=2 + 4 + 8 - 1)


@pytest.mark.parametrize("number", ["-1", "x"])
def test_invalid_iteration_limits_are_refused(path, number, capsys):
    assert main(["run", str(path), "--max-iterations", number]) == 2
    assert "--max-iterations" in capsys.readouterr().err
