"""Whole programs and partitions on a backend whose runtime runs its blobs.

A row names the test of ExecuTorch that a test here repeats. Checks of ``.pte`` files
are left out.
"""

import warnings

import pytest
import torch
from delegraph.backend import CompileSpec
from delegraph.errors import BackendNotFound, ContractViolation, Unsupported
from delegraph.partitioner import DelegationSpec, Partitioner, PartitionResult
from delegraph_executorch.edge import (
    get_lowered_submodules,
    to_backend,
    to_edge,
    to_edge_transform_and_lower,
)
from torch import nn
from torch._higher_order_ops.map import map as torch_map

from . import backends
from .backends import (
    CALL,
    assert_close,
    aten,
    attribute_targets,
    call_targets,
    export,
    lowered_modules,
    partitioner_for,
    partitioner_for_all,
    run_on_host,
)

LIMIT = [CompileSpec("max_value", bytes([4]))]
ONES, TWOS, THREES = (k * torch.ones(2, 2) for k in (1, 2, 3))


@pytest.fixture(autouse=True)
def installed():
    with backends.installed():
        yield


def sine(s, x):
    return torch.sin(x)


def add_mul(s, a, x, b):
    return torch.mm(a, x) + b


def lower_whole(function, *inputs, specs=LIMIT, backend="CompilerBackend"):
    return to_backend(
        backend, to_edge(export(function, *inputs)).exported_program(), specs
    )


def test_lowered_module_is_called_like_the_program():
    """Row: lifted.test_simple"""
    x = torch.ones(1)
    assert_close(lower_whole(sine, x, specs=[])(x), torch.sin(x))
    edge = to_edge(export(sine, x)).to_backend(partitioner_for_all())
    [inner] = lowered_modules(edge.exported_program())
    assert len(inner(x)) == 1
    assert_close(inner(x)[0], torch.sin(x))


@pytest.mark.parametrize("strict", [False, True])
def test_exported_caller_has_one_call_of_the_delegate(strict):
    """Row: lifted.test_backend_with_compiler"""
    x = torch.ones(1)
    lowered = lower_whole(sine, x)
    program = torch.export.export(backends.Wrapper(lowered).eval(), (x,), strict=strict)
    edge = to_edge(program).exported_program()
    assert call_targets(edge) == [CALL]
    assert attribute_targets(edge) == ["lowered_module_0"]
    assert "lowered_module_0" in str(edge)
    assert "executorch_call_delegate" in edge.graph_module.code

    [inner] = lowered_modules(edge)
    assert inner.backend_id == "CompilerBackend"
    assert inner.compile_specs == LIMIT

    calls = '[["sin", "aten.sin.default", [{"node": "inputs_0"}], {}]]'
    blob = (
        f'1 {{"inputs": ["inputs_0"], "weights": {{}}, "calls": {calls}, "outputs":'
        ' [{"node": "sin"}]}'
    )
    assert inner.processed_bytes == blob.encode()
    assert_close(run_on_host(program, x), torch.sin(torch.ones(1)))
    assert torch.equal(x, torch.ones(1))


def test_lowered_module_takes_three_inputs():
    """Row: lifted.test_lowered_add_mul"""
    inputs = (ONES, TWOS, THREES)
    lowered = lower_whole(add_mul, *inputs)
    assert len(lowered.inputs) == 3
    assert_close(
        run_on_host(backends.export_wrapped(lowered, *inputs), *inputs),
        add_mul(None, *inputs),
    )


def test_the_runtime_enforces_a_limit_of_the_compile_specs():
    """Row: lifted.test_backend_with_compiler_out_of_range"""
    x = torch.zeros(6)
    program = backends.export_wrapped(lower_whole(sine, torch.ones(6)), x)
    with pytest.raises(RuntimeError, match="more than 4 rows"):
        run_on_host(program, x)


def test_one_lowered_module_may_be_called_twice():
    """Row: lifted.test_backend_with_compiler_delegate_and_operator"""
    x = torch.ones(1)
    program = export(
        lambda s, x: s.inner(x)[0] + s.inner(x)[0],
        x,
        inner=lower_whole(lambda s, x: [torch.sin(x)], x),
    )
    edge = to_edge(program).exported_program()

    assert call_targets(edge) == [CALL, CALL, aten.add.Tensor]
    assert {
        node.args[0].target for node in edge.graph.nodes if node.target is CALL
    } == {"lowered_module_0"}
    assert len(lowered_modules(edge)) == 1
    assert_close(run_on_host(program, x), 2 * torch.sin(x))
    assert torch.equal(x, torch.ones(1))


def test_a_refusal_of_the_backend_names_operator_and_line():
    """Row: lifted.test_backend_with_compiler_backend_runtime_exception"""
    text = r"call_function aten.cos.default is not supported in backend CompilerBackend"
    with pytest.raises(RuntimeError, match=text) as caught:
        lower_whole(lambda s, x: torch.sin(x) + torch.cos(x), torch.ones(1), specs=[])
    assert isinstance(caught.value, Unsupported)
    assert caught.value.source
    assert caught.value.node.target is aten.cos.default


def test_an_unknown_backend_is_named():
    """Row: lifted.test_backend_with_compiler_backend_not_found_exception"""
    with pytest.raises(
        NotImplementedError, match="FakeBackendWithCompilerDemo"
    ) as caught:
        lower_whole(sine, torch.ones(1), backend="FakeBackendWithCompilerDemo")
    assert isinstance(caught.value, BackendNotFound)


def test_a_model_may_call_lowered_and_other_modules():
    """Row: lifted.test_backend_with_compiler_delegate_and_operator_with_two_modules"""

    def composite(s, x):
        a = s.lowerable(x)
        b = s.lowerable(a)
        return a, b, s.rest(a, b)

    x = torch.ones(1)
    rest = backends.make_module(
        lambda s, a, b: a + b + s.bias, bias=torch.ones(1) * 0.3
    )
    program = export(composite, x, lowerable=lower_whole(sine, x), rest=rest)
    a = torch.sin(x)
    b = torch.sin(torch.sin(x))

    assert_close(run_on_host(program, x), (a, b, a + b + 0.3))


class Patterns(nn.Module):
    """A recurrent layer, a convolution and two differences."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.lstm = nn.LSTM(input_size=32, hidden_size=32, num_layers=1)
        self.conv = nn.Conv1d(1, 1, 1, stride=2)

    def forward(self, x_raw, h, c):
        output, (hn, cn) = self.lstm(x_raw, (h, c))
        k = self.conv(output)
        return torch.sub(output, torch.sub(output, cn)) * 3, hn, k


@pytest.mark.filterwarnings("ignore:The tensor attributes")
@pytest.mark.parametrize(
    ("pattern", "left"),
    [
        ((aten.lstm.input, aten.conv1d.default, aten.sub.Tensor), [aten.mul.Tensor]),
        (
            (aten.lstm.input,),
            [
                aten.convolution.default,
                aten.mul.Tensor,
                aten.sub.Tensor,
                aten.sub.Tensor,
            ],
        ),
    ],
    ids=["multiple_patterns", "one_patterns"],
)
def test_chosen_operators_are_kept_whole_and_delegated(pattern, left):
    """Rows: lifted.test_partition_delegate_graph_with_multiple_patterns,
    lifted.test_partition_delegate_graph_with_one_patterns
    """
    inputs = tuple(torch.ones(1, 32) for _ in range(3))
    source = torch.export.export(Patterns().eval(), inputs)
    edge = to_edge_transform_and_lower(
        source, partitioner=partitioner_for(*pattern, backend="ExecutorBackend")
    )
    program = edge.exported_program()
    assert {m.backend_id for m in lowered_modules(program)} == {"ExecutorBackend"}
    assert all(
        m.processed_bytes.startswith(backends.VERSION) for m in lowered_modules(program)
    )

    host = {op for op in call_targets(program) if op is not CALL}
    assert host & {aten.sub.Tensor, aten.convolution.default, aten.mul.Tensor} == {
        *left
    }

    expected = source.module(check_guards=False)(*inputs)
    assert_close(program.module(check_guards=False)(*inputs), expected)
    assert_close(run_on_host(program, *inputs), expected)


def test_two_delegates_run_in_order():
    """Row: lifted.test_add_mul_partitioner"""

    def function(s, a, x, b):
        y = torch.mm(a, x)
        z = y + b
        a = z - a
        y = torch.mm(a, x)
        return y + b

    inputs = (torch.randn(2, 2), torch.randn(2, 2), torch.randn(2, 2))
    source = export(function, *inputs)
    program = to_backend(
        to_edge(source).exported_program(),
        partitioner_for(aten.mm.default, aten.add.Tensor),
    )

    assert attribute_targets(program) == ["lowered_module_0", "lowered_module_1"]
    assert_close(program.graph_module(*inputs)[0], function(None, *inputs))
    assert_close(run_on_host(program, *inputs), function(None, *inputs))


def test_each_delegate_owns_the_buffer_that_it_uses():
    """Row: lifted.test_partitioner_with_attributes"""
    add_one = {f"one_{k}": torch.full((1, 3), float(k)) for k in (1, 2)}
    x = torch.randn(1, 3)
    y = torch.randn(1, 3)
    source = export(lambda s, x, y: (x + s.one_1) * y + s.one_2, x, y, **add_one)
    program = (
        to_edge(source).to_backend(partitioner_for(aten.add.Tensor)).exported_program()
    )
    modules = lowered_modules(program)
    assert len(modules) == 2

    for inner in modules:
        assert len(inner.original_module.state_dict) == 1
        assert (
            len(
                [
                    node
                    for node in inner.original_module.graph.nodes
                    if node.op == "placeholder"
                ]
            )
            == 2
        )
    assert not program.state_dict
    assert_close(program.graph_module(x, y)[0], (x + 1) * y + 2)
    assert_close(run_on_host(program, x, y), (x + 1) * y + 2)


def test_partitioner_that_changes_calls_is_refused():
    """Row: lifted.test_bad_partitioner"""

    class BadPartitioner(Partitioner):
        def partition(self, exported_program):
            for node in exported_program.graph.nodes:
                if node.target is aten.add.Tensor:
                    node.target = aten.mul.Tensor
            return PartitionResult(
                exported_program, {"tag1": DelegationSpec("CompilerBackend")}
            )

    edge = to_edge(
        export(lambda s, x, y: (x + y) * y - y, torch.randn(1, 3), torch.randn(1, 3))
    )

    with pytest.raises(ContractViolation, match="BadPartitioner changed the graph"):
        edge.to_backend(BadPartitioner())


def test_quantized_layer_in_edge_form_equals_its_source():
    """Row: lifted.test_quantized_with_delegate"""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torch.ao.quantization.fx._decomposed  # registers the operators
    operators = torch.ops.quantized_decomposed
    q = operators.quantize_per_tensor.default
    dq = operators.dequantize_per_tensor.default

    def quantized(value, low, high, dtype):
        return dq(q(value, 0.1, 0, low, high, dtype), 0.1, 0, low, high, dtype)

    def function(s, x):
        x = quantized(x, 0, 255, torch.uint8)
        w = quantized(s.weight, -127, 127, torch.int8)
        return quantized(nn.functional.linear(x, w, s.bias), 0, 255, torch.uint8)

    parts = {
        "weight": nn.Parameter(torch.randn(4, 3)),
        "bias": nn.Parameter(torch.randn(4)),
    }
    source = export(function, torch.ones(2, 3), **parts)
    edge = to_edge(source).exported_program()

    assert call_targets(edge).count(q) == 3
    assert call_targets(edge).count(aten.addmm.default) == 1
    assert_close(
        edge.module(check_guards=False)(torch.ones(2, 3)),
        source.module(check_guards=False)(torch.ones(2, 3)),
    )


# --- control flow ---------------------------------------------------------------------

ADD_MM = (aten.add.Tensor, aten.mm.default)


def delegated_operators(module):
    """Return the operators of each delegate that the graph itself calls."""
    return [
        call_targets(m.original_module) for _, m, _ in get_lowered_submodules(module)
    ]


def subgraphs_of(module):
    """Return the bodies of the higher-order calls of a graph, in order."""
    found = (
        getattr(module, node.target)
        for node in module.graph.nodes
        if node.op == "get_attr"
    )
    return [body for body in found if isinstance(body, torch.fx.GraphModule)]


def assert_equals_eager(program, function, *inputs):
    assert_close(program.module(check_guards=False)(*inputs), function(None, *inputs))
    assert_close(run_on_host(program, *inputs), function(None, *inputs))


def test_delegates_are_outside_and_inside_of_branches():
    """Row: lifted.test_partition_with_control_flow"""

    def function(s, x, y):
        x = x + y
        return (
            torch.cond(
                x[0][0] == 1,
                lambda x, y: x - y + y - y,
                lambda x, y: torch.mm(x - y, y) - y,
                [x, y],
            )
            - y
        )

    program = (
        to_edge(export(function, ONES, TWOS))
        .to_backend(partitioner_for(*ADD_MM))
        .exported_program()
    )

    assert delegated_operators(program.graph_module) == [[aten.add.Tensor]]
    assert [
        delegated_operators(body) for body in subgraphs_of(program.graph_module)
    ] == [
        [[aten.add.Tensor]],
        [[aten.mm.default]],
    ]
    assert_equals_eager(program, function, ONES, TWOS)
    assert_equals_eager(program, function, ONES, 0 * ONES)


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
def test_delegates_are_outside_and_inside_of_map():
    """Row: lifted.test_partition_with_map"""

    def function(s, xs, y):
        return torch_map(lambda x, y: x - y + y, xs, torch.mm(y, y))

    inputs = (torch.randn(2, 2), ONES)
    program = (
        to_edge(export(function, *inputs))
        .to_backend(partitioner_for(*ADD_MM))
        .exported_program()
    )
    assert delegated_operators(program.graph_module) == [[aten.mm.default]]

    [body] = subgraphs_of(program.graph_module)
    assert delegated_operators(body) == [[aten.add.Tensor]]
    assert_equals_eager(program, function, *inputs)


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
def test_delegates_are_in_branches_of_branches_of_map():
    """Row: lifted.test_partition_with_nested_control_flow"""

    def true_nested(y):
        y = y + y
        return torch.mm(y, y)

    def true_branch(x, inner):
        return x + torch.cond(inner, true_nested, lambda y: torch.mm(y, y), [x])

    def body(x, outer, inner, y):
        y = torch.cond(outer, true_branch, lambda x, inner: x.cos(), [y, inner])
        return (x.cos() * y).sin()

    def function(s, xs, outer, inner, y):
        return torch_map(body, xs, outer, inner, torch.mm(y, y))

    inputs = (torch.randn(2, 2), torch.tensor(False), torch.tensor(False), ONES)
    program = (
        to_edge(export(function, *inputs))
        .to_backend(partitioner_for(*ADD_MM))
        .exported_program()
    )
    assert delegated_operators(program.graph_module) == [[aten.mm.default]]

    [mapped] = subgraphs_of(program.graph_module)
    true, false = subgraphs_of(mapped)
    true_true, true_false = subgraphs_of(true)
    assert [delegated_operators(m) for m in (mapped, true, false)] == [
        [],
        [[aten.add.Tensor]],
        [],
    ]
    assert [delegated_operators(m) for m in (true_true, true_false)] == [
        [[*ADD_MM]],
        [[aten.mm.default]],
    ]

    for outer in (False, True):
        for inner in (False, True):
            assert_equals_eager(
                program,
                function,
                inputs[0],
                torch.tensor(outer),
                torch.tensor(inner),
                inputs[3],
            )


# --- structures -----------------------------------------------------------------------


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(
    ("function", "structure"),
    [
        pytest.param(lambda s, x: x[0] + x[1], lambda a, b: [a, b], id="list"),
        pytest.param(
            lambda s, x: x["a"] + x["b"], lambda a, b: {"a": a, "b": b}, id="dict"
        ),
    ],
)
def test_lists_and_dictionaries_are_inputs_of_delegates(function, structure, strict):
    """Rows: lifted.test_list_input, lifted.test_dict_input"""
    a = torch.randn(2, 2)
    b = torch.randn(2, 2)
    given = structure(a, b)
    lowered = lower_whole(function, given, specs=[])
    assert_close(lowered(given), a + b)

    program = torch.export.export(
        backends.Wrapper(lowered).eval(), (given,), strict=strict
    )
    edge = to_edge(program).exported_program()
    assert call_targets(edge) == [CALL]
    assert_close(edge.module(check_guards=False)(given), a + b)
    assert_close(run_on_host(program, given), a + b)


def test_facts_of_preprocess_are_in_the_meta():
    """Row: lifted.test_delegate_info_full_delegate"""
    assert lower_whole(sine, torch.ones(1)).meta["_delegate_info_meta"] == "test"


def test_facts_of_a_partition_are_in_the_meta():
    """Row: lifted.test_delegate_info_partitioner"""
    edge = to_edge(export(sine, torch.ones(1))).to_backend(
        partitioner_for_all(specs=LIMIT)
    )
    [inner] = lowered_modules(edge.exported_program())
    assert inner.meta["_delegate_info_meta"] == "test"
