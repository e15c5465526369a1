"""Tests of ``LoweredBackendModule``: alone, in another module, and lowered again.

A row names the test of ExecuTorch that a test here repeats.
"""

import copy

import delegraph
import pytest
import torch
from delegraph.backend import BackendDetails, PreprocessResult
from delegraph.errors import InputError
from delegraph.runtime import BackendRuntime
from delegraph_executorch.edge import to_backend, to_edge
from torch import nn
from torch.export.graph_signature import InputKind, OutputKind

from . import backends
from .backends import (
    CALL,
    assert_close,
    aten,
    call_targets,
    export,
    export_wrapped,
    lowered_modules,
    run_on_host,
)
from .models import MODELS


@pytest.fixture(autouse=True)
def installed():
    with backends.installed():
        yield


def lower_program(program, backend="ExecutorBackend"):
    return to_backend(backend, to_edge(program).exported_program(), [])


def model_and_inputs(model):
    made = model().eval()
    return made, made.inputs()


def test_a_lowered_module_runs_alone_and_in_a_wrapper():
    """Row: lowered_module.test_emit_lowered_backend_module_end_to_end"""
    x = torch.ones(1)
    inner = lower_program(export(lambda s, x: torch.sin(x), x), "CompilerBackend")
    assert_close(inner(x), torch.sin(x))
    assert call_targets(export_wrapped(inner, x)) == [CALL]
    assert_close(run_on_host(export_wrapped(inner, x), x), torch.sin(x))
    assert torch.equal(x, torch.ones(1))


@pytest.mark.parametrize("model", MODELS, ids=lambda m: m.__name__)
def test_the_call_has_all_inputs_and_outputs_of_the_model(model):
    """Row: lowered_module.test_emit_lowered_backend_module"""
    made, inputs = model_and_inputs(model)
    source = torch.export.export(made, inputs)
    inner = lower_program(source)
    program = to_edge(export_wrapped(inner, *inputs)).exported_program()
    [call] = [
        node
        for node in program.graph.nodes
        if node.op == "call_function" and node.target is CALL
    ]
    taken = list(source.graph_signature.user_inputs)
    assert [value.name for value in inner.inputs] == taken
    assert len(call.args) == 1 + len(taken)
    assert len(inner.outputs) == len(source.graph_signature.user_outputs)

    expected = made(*inputs)
    assert_close(inner(*inputs), expected)
    assert_close(run_on_host(program, *inputs), expected)


@pytest.mark.parametrize("model", MODELS, ids=lambda m: m.__name__)
def test_a_wrapper_of_a_lowered_module_is_lowered_again(model):
    """Row: lowered_module.test_emit_nested_lowered_backend_module"""
    made, inputs = model_and_inputs(model)
    inner = lower_program(torch.export.export(made, inputs))
    outer = lower_program(export_wrapped(inner, *inputs))
    assert call_targets(outer.original_module) == [CALL]
    assert lowered_modules(outer.original_module) == [inner]

    program = export_wrapped(outer, *inputs)
    assert call_targets(program) == [CALL]
    assert lowered_modules(program) == [outer]
    assert inner.processed_bytes.hex() in outer.processed_bytes.decode()
    assert_close(run_on_host(program, *inputs), made(*inputs))


def between(s, x):
    """Compute a user output, then write a buffer, then compute another output."""
    first = x + x
    s.buf.mul_(x)
    return first, x - 1


def test_outputs_of_a_delegate_begin_with_its_writes():
    """Row:
    lowered_module.test_arrange_graph_outputs_reorders_mutations_before_user_outputs
    """
    x = torch.full((2,), 3.0)
    source = export(between, x, buf=torch.ones(2))
    inner = lower_program(source)
    specs = inner.original_module.graph_signature.output_specs

    assert [s.kind for s in specs] == [
        OutputKind.BUFFER_MUTATION,
        OutputKind.USER_OUTPUT,
        OutputKind.USER_OUTPUT,
    ]
    assert specs[0].target == "buf"
    assert inner.state == ("buf",)
    assert [output.name for output in inner.outputs] == [s.arg.name for s in specs[1:]]
    assert_close(inner(x), (x + x, x - 1))


def test_outputs_of_a_parent_begin_with_its_writes():
    x = torch.full((2,), 3.0)
    source = export(between, x, buf=torch.ones(2))
    program = (
        to_edge(source)
        .to_backend(backends.partitioner_for_all("ExecutorBackend"))
        .exported_program()
    )
    kinds = [spec.kind for spec in program.graph_signature.output_specs]
    assert kinds == [
        OutputKind.BUFFER_MUTATION,
        OutputKind.USER_OUTPUT,
        OutputKind.USER_OUTPUT,
    ]

    values = program.graph.output_node().args[0]
    assert sorted(v.args[1] for v in values) == [0, 1, 2]
    assert values[0].meta["val"].shape == (2,)

    graph_results = program.graph_module(torch.ones(2), x)
    for actual, expected in zip(graph_results, (x, x + x, x - 1), strict=True):
        assert_close(actual, expected)


def test_a_copy_shares_weights_and_blob():
    x = torch.randn(2, 3)
    inner = lower_program(
        export(lambda s, x: s.layer(x).relu(), x, layer=torch.nn.Linear(3, 4))
    )
    made = copy.deepcopy(inner)
    assert made is not inner
    assert made.original_module.graph is not inner.original_module.graph
    assert made.processed_bytes is inner.processed_bytes
    assert made.meta == inner.meta

    tensors = zip(
        made.original_module.state_dict.values(),
        inner.original_module.state_dict.values(),
        strict=True,
    )
    assert all(a.data_ptr() == b.data_ptr() for a, b in tensors)
    assert_close(made(x), inner(x))


def test_a_copy_has_its_own_state():
    inner = lower_program(export(between, torch.ones(2), buf=torch.ones(2)))

    made = copy.deepcopy(inner)

    state_of_inner = inner.original_module.state_dict["buf"]
    state_of_copy = made.original_module.state_dict["buf"]
    assert state_of_inner.data_ptr() != state_of_copy.data_ptr()


def test_a_call_writes_the_inputs_that_the_program_writes():
    x = torch.ones(3)
    inner = lower_program(export(lambda s, x: x.add_(1).mul(2), torch.ones(3)))
    assert_close(inner(x), torch.full((3,), 4.0))
    assert_close(x, torch.full((3,), 2.0))


class Accumulator(BackendDetails):
    """Compiles ``total.add_(x)``. The blob is the initial total."""

    @staticmethod
    def preprocess(edge_program, compile_specs):
        [total] = edge_program.state_dict.values()
        return PreprocessResult(total.numpy().tobytes())


class AccumulatorRuntime(BackendRuntime):
    @staticmethod
    def load(processed_bytes, compile_specs, named_data):
        total = torch.frombuffer(bytearray(processed_bytes), dtype=torch.float32)
        return lambda x: (total.add_(x).clone(),)


def test_a_delegate_keeps_state_that_verify_does_not_change():
    x = torch.ones(2)
    with delegraph.register(Accumulator, runtime=AccumulatorRuntime):
        inner = lower_program(
            export(lambda s, x: s.total.add_(x).clone(), x, total=torch.zeros(2)),
            "Accumulator",
        )
        program = delegraph.lower(export_wrapped(inner, x), backends=[])
        assert [program.verify(x).relative_error for _ in range(3)] == [0, 0, 0]
        assert_close([program(x) for _ in range(3)], [x, 2 * x, 3 * x])
        assert_close([inner(x) for _ in range(3)], [x, 2 * x, 3 * x])


@pytest.mark.parametrize("first", [0, 1])
def test_a_program_may_swap_its_inputs(first):
    """Each new value is computed before an input is overwritten."""

    def function(s, *pair):
        kept = pair[first].clone()
        pair[first].copy_(pair[1 - first])
        pair[1 - first].copy_(kept)
        return pair[0] + pair[1]

    source = export(function, torch.ones(2), torch.zeros(2))
    for call in (lower_program(source), delegraph.lower(source, backends=[])):
        x = torch.ones(2)
        y = torch.full((2,), 5.0)
        assert_close(call(x, y), torch.full((2,), 6.0))
        assert_close((x, y), (torch.full((2,), 5.0), torch.ones(2)))


class Fixed(nn.Module):
    def forward(self, x, times, *, offset=None, scale=2.0):
        return x * times * scale if offset is None else x * times + offset


def test_numbers_are_fixed_at_export():
    x = torch.ones(2)
    inner = lower_program(
        torch.export.export(Fixed().eval(), (x, 3), {"offset": torch.ones(2)})
    )

    assert_close(inner(x, 3, offset=x), 3 * x + x)
    assert len(inner.inputs) == 2
    with pytest.raises(InputError, match="input times was exported as 3; it is 4"):
        inner(x, 4, offset=x)


def test_structures_and_constants_are_returned_as_exported():
    x = torch.ones(3)
    inner = lower_program(
        export(
            lambda s, x, y: {"sum": x + 1, "given": y, "fixed": (s.c, 7)},
            x,
            2 * x,
            c=torch.ones(1),
        )
    )

    assert [value.name for value in inner.inputs] == ["inputs_0", "inputs_1"]
    assert_close(
        inner(x, 2 * x), {"sum": x + 1, "given": 2 * x, "fixed": (torch.ones(1), 7)}
    )


def test_wrong_numbers_and_names_of_arguments_are_refused():
    x = torch.ones(3)
    inner = lower_program(export(lambda s, x, y: x + y, x, x))

    with pytest.raises(InputError, match=r"takes \(.+, .+\); it was given \(Tensor\)"):
        inner(x)
    with pytest.raises(InputError, match="unknown keyword argument 'z'"):
        inner(x, x, z=1)


def test_lowered_module_accepts_other_sizes_than_exported():
    model = backends.make_module(lambda s, x: torch.sin(x).reshape(-1) * x.shape[0])
    shapes = {"inputs": ({0: torch.export.Dim("n", min=2, max=9)},)}
    inner = lower_program(
        torch.export.export(model, (torch.randn(4, 2),), dynamic_shapes=shapes)
    )
    x = torch.randn(6, 2)
    assert_close(inner(x), model(x))

    exported_again = torch.export.export(
        backends.Wrapper(inner), (torch.randn(4, 2),), dynamic_shapes=shapes
    )
    assert_close(run_on_host(exported_again, x), model(x))


def test_another_backend_compiles_the_calls_around_a_lowered_module():
    x = torch.randn(3)
    inner = lower_program(export(lambda s, x: torch.sin(x), x), "CompilerBackend")
    source = export(lambda s, x: s.inner(x * 2).tanh() + s.inner(x), x, inner=inner)
    program = (
        to_edge(source)
        .to_backend(backends.partitioner_for_all("ExecutorBackend"))
        .exported_program()
    )

    assert [m.backend_id for m in lowered_modules(program)].count(
        "ExecutorBackend"
    ) == 2
    assert call_targets(program) == [CALL] * 4
    assert inner in lowered_modules(program)
    assert_close(run_on_host(program, x), torch.sin(x * 2).tanh() + torch.sin(x))


def test_a_program_without_calls_is_refused():
    with pytest.raises(InputError, match="calls 0 delegates instead of one"):
        lower_program(export(lambda s, x: x, torch.ones(1)))


def test_a_buffer_that_becomes_an_input_is_refused():
    """The delegate does not compute the new value: it is the caller's tensor."""
    source = export(
        lambda s, x: (s.buf.copy_(x), x * 2)[1], torch.ones(2), buf=torch.ones(2)
    )
    with pytest.raises(
        InputError, match="writes buf, but the delegate does not compute its new value"
    ):
        lower_program(source.run_decompositions({}))


def test_placeholders_list_constants_before_inputs():
    x = torch.ones(2)
    y = torch.full((2,), 3.0)
    inner = lower_program(export(lambda s, x, y: (y - s.w) - x, x, y, w=torch.ones(2)))
    kinds = [spec.kind for spec in inner.original_module.graph_signature.input_specs]

    assert kinds == [InputKind.BUFFER, InputKind.USER_INPUT, InputKind.USER_INPUT]
    assert [value.name for value in inner.inputs] == ["inputs_0", "inputs_1"]
    assert_close(run_on_host(export_wrapped(inner, x, y), x, y), y - 1 - x)
    assert aten.sub.Tensor in call_targets(inner.original_module)
