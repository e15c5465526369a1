"""``TOSABackend`` compiles programs to files, and checks its compile specs."""

from __future__ import annotations

import io
import re
import warnings
from itertools import chain
from pathlib import Path

import delegraph
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from delegraph.backend import Blob, CompileSpec
from delegraph.errors import ContractViolation, OptionError, Unsupported, WriteError
from delegraph_tosa.backend import (
    TOSABackend,
    compile_program,
    filter_tosa_compile_specs,
)
from delegraph_tosa.evaluate import evaluate
from delegraph_tosa.partitioner import TOSAPartitioner
from delegraph_tosa.serialize import read
from delegraph_tosa.spec import TosaSpec
from delegraph_tosa.text import render
from torch import nn

torch.set_num_threads(1)
SPECS = {"output_format": "tosa", "tosa_spec": "TOSA-1.0+FP"}


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


def export(function, *inputs):
    return torch.export.export(Function(function), inputs)


def preprocess(program, **specs):
    listed = [
        CompileSpec(key, value.encode())
        for key, value in {**SPECS, **specs}.items()
        if value
    ]
    return TOSABackend.preprocess(program, listed)


X = torch.randn(2, 3)
Y = torch.randn(3)
PROGRAM = export(lambda x, y: (x.exp() + y, x), X, Y)


def test_blob_is_a_graph_that_computes_as_eager():
    result = preprocess(PROGRAM)

    assert isinstance(result.processed_bytes, Blob)
    graph = read(result.processed_bytes.join())
    assert [value.name for value in graph.inputs] == ["args_0", "args_1"]
    # The second output is the first input.
    assert [output.name for output in graph.outputs] == ["add", "args_0_"]
    assert [op.name for op in graph.operators] == ["EXP", "RESHAPE", "ADD", "IDENTITY"]
    total, _ = evaluate(graph, [X.numpy(), Y.numpy()])
    np.testing.assert_allclose(total, (X.exp() + Y).numpy(), rtol=1e-6, atol=1e-6)


def test_outputs_have_unique_names_like_those_of_the_program():
    class Named(nn.Module):
        def forward(self, add, mul_):
            mul = mul_ * 2
            return add + mul_, mul, mul, add

    program = torch.export.export(Named(), (X, Y))
    graph = read(preprocess(program).processed_bytes.join())
    names = [v.name for v in (*graph.inputs, *graph.outputs)]
    assert names == ["add", "mul_", "add_1", "mul", "mul__", "add_"]


def five_results(x):
    difference = x - 1
    return x.exp(), difference, difference * 2, difference.abs(), difference


@pytest.mark.parametrize(
    "function",
    [five_results, lambda x: five_results(x)[::-1]],
    ids=["in order", "reversed"],
)
def test_saved_files_return_results_in_the_order_of_the_program(function, tmp_path):
    file = tmp_path / "m.tosa"
    delegraph.lower(Function(function).eval(), (X,), backends=["tosa"]).save(file)

    results = delegraph.load(file)(X)

    torch.testing.assert_close(results, function(X))


def test_partitions_keep_the_names_of_inputs_and_outputs():
    def chosen(x):
        return torch.linalg.inv_ex(x)[0].exp().topk(2)

    part = delegraph.lower(
        Function(chosen).eval(), (2 * torch.eye(3),), backends=["tosa"]
    ).delegates[0]
    graph = read(part.processed_bytes)
    assert [value.name for value in graph.inputs] == [
        value.name for value in part.inputs
    ]
    values, places = (output.name for output in part.outputs)
    assert [output.name for output in graph.outputs] == [values, f"{places}_as_int32"]


@pytest.mark.parametrize(
    ("specs", "text"),
    [
        ({"output_format": None}, "compile spec: output_format must be 'tosa'"),
        ({"output_format": "vela"}, "compile spec: output_format must be 'tosa'"),
        ({"tosa_spec": "TOSA-0.70+MI"}, "TOSA 1.0, 0.80 and the 1.1 draft"),
        (
            {"compile_flags": "--fast"},
            "compile spec: compile_flags '--fast': TOSA has no compile flags",
        ),
        (
            {"color": "red"},
            (
                "compile spec: unknown key 'color'; known: output_format, tosa_spec,"
                " debug_artifact_path"
            ),
        ),
        (
            {"input_order": "1,1"},
            "compile spec: input_order '1,1' must be a permutation of input positions, like '1,0,2'",
        ),
        (
            {"locations": "yes"},
            "compile spec: locations 'yes' must be 'true' or 'false'",
        ),
        (
            {"input_order": "a"},
            "compile spec: input_order 'a' must be a permutation of input positions, like '1,0,2'",
        ),
        (
            {"input_order": "2,0,1"},
            (
                "compile spec: input_order '2,0,1' has 3 entries, the delegate has 2"
                " inputs"
            ),
        ),
    ],
)
def test_wrong_compile_specs_are_refused(specs, text):
    with pytest.raises(OptionError) as caught:
        preprocess(PROGRAM, **specs)
    assert text in caught.value.message


@pytest.mark.parametrize(
    ("specs", "text"),
    [
        (
            [CompileSpec("output_format", b"tosa")],
            "tosa_spec is missing: the target, like TOSA-1.0",
        ),
        ([CompileSpec("tosa_spec", b"TOSA-1.0+FP")] * 2, "tosa_spec is given twice"),
        ([CompileSpec("tosa_spec", b"\xff")], "tosa_spec is not utf-8"),
    ],
    ids=["missing", "repeated", "not text"],
)
def test_missing_repeated_and_undecodable_specs_are_refused(specs, text):
    with pytest.raises(OptionError, match=text):
        TOSABackend.preprocess(PROGRAM, specs)


def test_filter_keeps_compile_specs_of_tosa():
    given = [
        CompileSpec("tosa_spec", b"TOSA-1.0+FP"),
        CompileSpec("chip", b"u85"),
        CompileSpec("compile_flags", b"-O"),
    ]
    assert TOSABackend.filter_tosa_compile_specs is filter_tosa_compile_specs
    kept = filter_tosa_compile_specs(
        [*given, CompileSpec("debug_artifact_path", b"here")]
    )
    assert [(s.key, s.value) for s in kept] == [
        ("output_format", b"tosa"),
        ("tosa_spec", b"TOSA-1.0+FP"),
        ("debug_artifact_path", b"here"),
    ]


def test_input_order_reorders_the_inputs_of_the_graph():
    graph = read(preprocess(PROGRAM, input_order="1,0").processed_bytes.join())
    assert [value.name for value in graph.inputs] == ["args_1", "args_0"]
    lowered = delegraph.lower(
        PROGRAM, backends=[TOSAPartitioner("TOSA-1.0+FP", input_order="1,0")]
    )
    torch.testing.assert_close(lowered(X, Y)[0], X.exp() + Y)


def test_weights_changed_between_lowering_and_writing_are_refused():
    """The blob refers to the weights instead of copying them."""
    layer = nn.Linear(64, 64).requires_grad_(False)
    blob = preprocess(torch.export.export(layer, (torch.ones(1, 64),))).processed_bytes
    assert len(blob) > 64 * 64 * 4  # the size is known without writing

    layer.weight.add_(1)

    with pytest.raises(
        ContractViolation,
        match="the weights of weight changed between lowering and writing",
    ):
        blob.write_to(io.BytesIO())


def test_shared_weights_are_written_once():
    table = nn.Parameter(torch.randn(64, 64))

    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = table

        def forward(self, x):
            return F.linear(F.linear(x, self.table), self.table)

    blob = preprocess(torch.export.export(Tied(), (torch.ones(1, 64),))).processed_bytes

    weight_bytes = 64 * 64 * 4
    assert len(blob) < 1.5 * weight_bytes


def test_debug_path_receives_the_compiled_file(tmp_path):
    folder = tmp_path / "new" / "debug"

    blob = preprocess(PROGRAM, debug_artifact_path=str(folder)).processed_bytes

    (file,) = folder.iterdir()
    assert file.name == "output_TOSA-1.0+FP.tosa"
    assert [op.name for op in read(file.read_bytes()).operators] == [
        op.name for op in read(blob.join()).operators
    ]


def test_debug_path_receives_the_file_of_each_delegate(tmp_path):
    host_between_two_delegates = export(lambda x: torch.special.bessel_j0(x * 2) + 1, X)

    delegraph.lower(
        host_between_two_delegates,
        backends=[TOSAPartitioner("TOSA-1.0+FP", str(tmp_path))],
    )

    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "output_TOSABackend_0_TOSA-1.0+FP.tosa",
        "output_TOSABackend_1_TOSA-1.0+FP.tosa",
    ]


def test_failed_lowerings_leave_a_partial_debug_file(tmp_path):
    with pytest.raises(Unsupported):
        preprocess(
            export(lambda x: torch.special.bessel_j0(x.exp() + 1), X),
            debug_artifact_path=str(tmp_path),
        )
    (file,) = tmp_path.iterdir()
    assert file.name == "output_TOSA-1.0+FP_failed.tosa"
    assert [op.name for op in read(file.read_bytes()).operators] == ["EXP", "ADD"]


def test_debug_path_that_cannot_be_created_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(WriteError, match="cannot create"):
        preprocess(PROGRAM, debug_artifact_path=str(tmp_path / "file"))


def test_blob_maps_operators_to_debug_handles():
    program = export(lambda x, y: torch.maximum(F.relu(x * 2), y), X, Y)
    calls = [node for node in program.graph.nodes if node.op == "call_function"]
    for handle, node in enumerate(calls, start=7):
        node.meta["debug_handle"] = handle
    result = preprocess(program)
    assert numbered(result.processed_bytes.join()) == [
        *("CONST", "CONST", "CONST_SHAPE"),
        *("MUL", "CLAMP", "RESHAPE", "MAXIMUM"),
    ]
    assert result.debug_handle_map == {3: (7,), 4: (8,), 5: (9,), 6: (9,)}


def test_debug_handles_cover_operators_inside_of_branches():
    def gate(x):
        return torch.cond(
            x.sum() > 0, lambda x: torch.relu(x) + 1, lambda x: x.sin(), (x,)
        )

    target = {"tosa": {"spec": "TOSA-1.0+FP+controlflow"}}
    (delegate,) = delegraph.lower(
        Function(gate).eval(), (X,), backends=["tosa"], options=target
    ).delegates

    names = numbered(delegate.processed_bytes)
    computing = [name for name in names if not name.startswith("CONST")]
    assert [names[number] for number in delegate.debug_handle_map] == computing
    target_of_handle = {
        node.meta["debug_handle"]: str(node.target)
        for node in all_calls(delegate.module.original_module.graph_module)
    }
    targets_by_operator = {
        names[number]: {target_of_handle[handle] for handle in handles}
        for number, handles in delegate.debug_handle_map.items()
    }
    assert targets_by_operator["CLAMP"] == {"aten.relu.default"}
    assert targets_by_operator["SIN"] == {"aten.sin.default"}
    assert targets_by_operator["COND_IF"] == {"cond"}


def all_calls(module):
    return [
        n
        for m in module.modules()
        if isinstance(m, torch.fx.GraphModule)
        for n in m.graph.nodes
        if is_call(n)
    ]


def numbered(file):
    """Return the names of a file's operators, region after region. The position in this
    list is the number that ``debug_handle_map`` uses.
    """
    pytest.importorskip("tosa.TosaGraph")
    from tosa.Op import Op
    from tosa.TosaGraph import TosaGraph

    names = {code: name for name, code in vars(Op).items() if isinstance(code, int)}
    graph = TosaGraph.GetRootAs(file)
    blocks = [graph.Regions(r).Blocks(0) for r in range(graph.RegionsLength())]
    return [
        names[block.Operators(k).Op()]
        for block in blocks
        for k in range(block.OperatorsLength())
    ]


def linear_and_relu():
    return nn.Sequential(nn.Linear(3, 3), nn.Sequential(Function(torch.relu))).eval()


def test_locations_name_nodes_modules_and_lines():
    model = linear_and_relu()
    file = (
        delegraph.lower(model, (X,), options={"tosa": {"locations": True}})
        .delegates[0]
        .processed_bytes
    )
    source = next(str(op.source) for op in read(file).operators if op.name == "CLAMP")
    assert re.match(
        r"\w+ = aten\.relu\.default in 1\.0 at .*test_backend\.py:\d+, in forward:"
        r" return self\.func",
        source,
    )
    assert source in render(read(file))


def test_files_have_no_locations_by_default():
    lowered = delegraph.lower(linear_and_relu(), (X,), backends=["tosa"])

    plain = lowered.delegates[0].processed_bytes
    assert __file__.encode() not in plain
    assert not any(op.source for op in read(plain).operators)


def test_decomposed_operators_name_their_source_lines():
    """LSTM has no rule and is decomposed. The two transpositions cancel and leave a copy
    of the input, which must have a source, too.
    """

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.cells = nn.LSTM(4, 3, batch_first=True)

        def forward(self, x):
            return torch.logsumexp(self.cells(x)[0], -1), x.transpose(0, 1).transpose(
                0, 1
            )

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The tensor attributes")
        lowered = delegraph.lower(
            Model().eval(),
            (torch.randn(1, 2, 4),),
            options={"tosa": {"locations": True}},
        )
    (delegate,) = lowered.delegates
    operators = read(delegate.processed_bytes).operators
    assert operators[-1].name == "IDENTITY"
    assert [
        op.name for op in operators if Path(__file__).name not in str(op.source)
    ] == []
    own = {
        node.meta["debug_handle"]
        for node in delegate.module.original_module.graph.nodes
        if is_call(node)
    }
    assert set(chain.from_iterable(delegate.debug_handle_map.values())) <= own


def is_call(node):
    return node.op == "call_function"


def test_relu_keeps_infinities_and_nan():
    x = torch.tensor([-torch.inf, -1.0, -0.0, 2.0, torch.inf, torch.nan])
    graph = compile_program(export(F.relu, x), TosaSpec.parse("TOSA-1.0+FP"))
    np.testing.assert_array_equal(evaluate(graph, [x.numpy()])[0], F.relu(x).numpy())


def test_the_same_program_gives_the_same_bytes():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3)
    ).eval()
    first, second = (
        preprocess(torch.export.export(model, (torch.ones(1, 2, 4, 4),)))
        for _ in range(2)
    )
    assert first.processed_bytes.join() == second.processed_bytes.join()
