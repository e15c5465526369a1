"""``torch.compile(model, backend="delegraph")`` computes what eager PyTorch computes.

That includes writes to buffers and inputs, and results that share memory.
"""

import copy
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import delegraph
import pytest
import torch
from torch import nn


@pytest.fixture(autouse=True)
def reset_dynamo():
    """Forget the code that Dynamo compiled for functions of other tests."""
    torch._dynamo.reset()
    torch.manual_seed(0)


def compile_and_list_graphs(model, backends=("tosa",), dynamic=False, **options):
    """Return the compiled model, and a list that gets each of its graphs."""
    graphs = []
    options = {"backends": list(backends), "graphs": graphs, **options}
    compiled = torch.compile(
        model, backend="delegraph", options=options, dynamic=dynamic
    )
    return compiled, graphs


def assert_equals_eager(model, *inputs, calls=1, **settings):
    """Compare a compiled model with eager, and return its graphs.

    Both are called ``calls`` times with copies of the inputs. Results, inputs after the
    call, and buffers must be equal.
    """
    eager = copy.deepcopy(model)
    compiled, graphs = compile_and_list_graphs(model, **settings)
    with torch.no_grad():
        for _ in range(calls):
            inputs_of_compiled = copy.deepcopy(inputs)
            inputs_of_eager = copy.deepcopy(inputs)
            result = compiled(*inputs_of_compiled)
            expected = eager(*inputs_of_eager)
            torch.testing.assert_close(result, expected, equal_nan=True)
            torch.testing.assert_close(
                inputs_of_compiled, inputs_of_eager, equal_nan=True
            )
    if isinstance(model, nn.Module):
        torch.testing.assert_close(model.state_dict(), eager.state_dict())
    return graphs


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.linear = nn.Linear(4, 2)

    def forward(self, x):
        return self.linear(self.conv(x).relu().mean((2, 3)))


class Branching(Classifier):
    """A branch on values, at which Dynamo ends a graph."""

    def forward(self, x):
        x = self.conv(x)
        if x.sum() > 0:
            x = x * 2
        return self.linear(x.relu().mean((2, 3)))


class Writing(nn.Module):
    """Writes to a buffer and an input, and returns views of both."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("seen", torch.zeros(3, 4))

    def forward(self, x):
        self.seen[: x.shape[0]].add_(x)
        flat = x.view(-1)
        flat.mul_(2)
        return self.linear(x), flat, self.seen.view(-1)[1:], x


def test_torch_lists_the_backend():
    assert "delegraph" in torch._dynamo.list_backends()


def test_a_model_is_one_graph_with_a_report():
    [graph] = assert_equals_eager(Classifier().eval(), torch.randn(1, 3, 8, 8), calls=2)

    summary = "4 of 4 operators delegated, in 1 delegate; 0 on the host"
    assert graph.report.summary() == summary
    assert str(graph).startswith(f"graph 0: {summary}\nforward:\n")
    assert len(graph.programs) == 1
    assert not graph.why_eager


def test_a_branch_makes_two_graphs_with_a_report_each():
    graphs = assert_equals_eager(Branching().eval(), torch.randn(1, 3, 8, 8))

    assert [graph.name for graph in graphs] == ["graph 0", "graph 1"]
    assert all(graph.report.delegated_operators for graph in graphs)


def test_a_report_names_the_line_of_the_user():
    def function(x):
        return torch.linalg.cholesky_ex(x @ x.mT)[0]

    [graph] = assert_equals_eager(function, torch.randn(4, 4))

    assert "test_torch_compile.py" in str(graph)
    assert "torch.linalg.cholesky_ex(x @ x.mT)[0]" in str(graph)


@pytest.mark.parametrize("backends", [["tosa"], []])
def test_writes_of_graphs_reach_buffers_and_inputs(backends):
    [graph] = assert_equals_eager(
        Writing(), torch.randn(2, 4), backends=backends, calls=2
    )

    assert not graph.why_eager


def test_results_that_are_views_of_inputs_stay_views():
    model = Writing()
    compiled, _ = compile_and_list_graphs(model)
    x = torch.randn(2, 4)

    with torch.no_grad():
        _, view_of_x, view_of_buffer, same_as_x = compiled(x)
    view_of_x.fill_(7)
    view_of_buffer.fill_(5)

    assert same_as_x is x
    assert (x == 7).all()
    assert (model.seen.view(-1)[1:] == 5).all()


def test_graphs_whose_results_share_memory_run_in_eager():
    def function(x):
        y = x * 2
        return y, y[1:]

    compiled, graphs = compile_and_list_graphs(function)
    y, rest = compiled(torch.randn(3))
    rest.fill_(7)

    assert (y[1:] == 7).all()
    assert str(graphs[0]) == (
        "graph 0: runs in eager PyTorch: its results 0 and 1 share memory"
    )


def test_chunks_are_delegated():
    """They are parts of one tensor, but have no element in common."""
    [graph] = assert_equals_eager(lambda x: (x * 2).chunk(3, -1), torch.randn(2, 6))

    assert graph.report.host_operators == 0


def test_inputs_may_share_memory_with_written_inputs():
    def function(x, y):
        x.add_(1)
        return y * 2

    compiled, _ = compile_and_list_graphs(function)
    # the graph is made for inputs that share no memory
    assert torch.equal(compiled(torch.zeros(4), torch.ones(4)), torch.full((4,), 2.0))

    for_eager = torch.arange(6.0)
    for_compiled = torch.arange(6.0)
    expected = function(for_eager[:4], for_eager[2:])

    assert torch.equal(compiled(for_compiled[:4], for_compiled[2:]), expected)


@pytest.fixture
def linear():
    return nn.Linear(4, 2).eval()


X = torch.randn(1, 4, generator=torch.Generator().manual_seed(0))


def write_to_weight(model):
    model.weight.mul_(2)


def load_other_weights(model):
    model.load_state_dict(nn.Linear(4, 2).state_dict())


def replace_weight(model):
    model.weight = nn.Parameter(torch.ones(2, 4))


@pytest.mark.parametrize(
    "change", [write_to_weight, load_other_weights, replace_weight]
)
def test_changed_weights_are_used_without_another_graph(change, linear):
    compiled, graphs = compile_and_list_graphs(linear)
    with torch.no_grad():
        before = compiled(X)

        change(linear)

        torch.testing.assert_close(compiled(X), linear(X))
        assert not torch.equal(compiled(X), before)
    assert len(graphs) == 1


def test_frozen_weights_keep_the_values_of_the_first_call(linear):
    compiled, _ = compile_and_list_graphs(linear, freezing=True)
    with torch.no_grad():
        before = compiled(X)

        write_to_weight(linear)

        assert torch.equal(compiled(X), before)


def test_replaced_frozen_weights_are_lowered_again(linear):
    compiled, graphs = compile_and_list_graphs(linear, freezing=True)
    with torch.no_grad():
        compiled(X)

        replace_weight(linear)

        torch.testing.assert_close(compiled(X), linear(X))
    assert sum(len(graph.programs) for graph in graphs) == 2


def test_frozen_weights_are_lowered_again_after_a_reset(linear):
    compiled, graphs = compile_and_list_graphs(linear, freezing=True)
    with torch.no_grad():
        compiled(X)
        write_to_weight(linear)

        torch.compiler.reset()

        torch.testing.assert_close(compiled(X), linear(X))
    assert sum(len(graph.programs) for graph in graphs) == 2


@pytest.mark.parametrize("index", [0, 1])
def test_weights_replaced_by_equal_ones_are_used(index):
    """In the graph, the input x is between the weights of the two layers."""
    model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1, bias=False)).eval()
    compiled, _ = compile_and_list_graphs(model, backends=[])
    x = torch.randn(3, 1)
    layer = model[index]
    with torch.no_grad():
        compiled(x)
        layer.weight = nn.Parameter(layer.weight.clone())
        compiled(x)

        layer.weight.add_(1)

        torch.testing.assert_close(compiled(x), model(x))


def test_graphs_refuse_another_number_of_inputs():
    compiled, graphs = compile_and_list_graphs(Classifier().eval(), backends=[])
    with torch.no_grad():
        compiled(torch.randn(1, 3, 8, 8))

        # a graph takes the weights, too
        with pytest.raises(delegraph.errors.InputError, match="inputs, 1 were given"):
            graphs[0](torch.randn(1, 3, 8, 8))


def test_modules_of_one_class_have_separate_programs():
    models = [Classifier().eval() for _ in range(3)]
    graphs = []
    x = torch.randn(1, 3, 8, 8)
    with torch.no_grad():
        expected = [model(x) for model in models]
        for model in models:
            model.compile(
                backend="delegraph",
                options={"backends": ["tosa"], "graphs": graphs},
                dynamic=False,
            )

        for _ in range(2):
            torch.testing.assert_close([model(x) for model in models], expected)

    assert sum(len(graph.programs) for graph in graphs) == len(models)


@pytest.mark.parametrize("backends", [["tosa"], ["compiler-demo"], []])
def test_one_program_takes_all_sizes_that_dynamo_lets_vary(backends):
    model = Classifier().eval()
    compiled, graphs = compile_and_list_graphs(model, backends, dynamic=True)

    with torch.no_grad():
        for n in (2, 3, 5):
            x = torch.randn(n, 3, 8 + n, 8)
            torch.testing.assert_close(compiled(x), model(x))

    assert len(graphs) == 1
    assert len(graphs[0].programs) == 1
    assert not graphs[0].why_eager


def test_sizes_fixed_by_export_get_separate_programs():
    def function(x):
        # torch.export would need a dynamic x.shape[0] to be even
        return x.reshape(2, -1)[:, : x.shape[0] // 2] * 3

    compiled, graphs = compile_and_list_graphs(function, [], dynamic=True)

    for n in (4, 6, 8, 6):
        x = torch.randn(n)
        assert torch.equal(compiled(x), function(x))

    assert len(graphs) == 1
    assert not graphs[0].why_eager


def test_numbers_may_vary_between_calls():
    def function(x, n):
        return x * n

    compiled, _ = compile_and_list_graphs(function, [], dynamic=True)

    for n in (3, 4, 0.5, 0.25):
        assert torch.equal(compiled(torch.ones(2), n), torch.full((2,), float(n)))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_compiled_model_runs_in_inference_modes(mode):
    model = Classifier()  # made with gradients, in training mode
    compiled, _ = compile_and_list_graphs(model)
    with mode():
        x = torch.randn(1, 3, 8, 8)
        result = compiled(x)
        torch.testing.assert_close(result, model(x))
    assert not result.requires_grad


def test_weights_made_in_inference_mode_stay_inputs():
    """torch does not count writes to them, so they cannot be constants."""
    with torch.inference_mode():
        model = nn.Linear(4, 2)
        compiled, _ = compile_and_list_graphs(model, [])
        x = torch.randn(1, 4)
        compiled(x)
        model.weight.mul_(2)
        torch.testing.assert_close(compiled(x), model(x))


@pytest.mark.parametrize("backends", [["tosa"], []])
def test_autocast_computes_in_its_type(backends):
    model = nn.Sequential(nn.Linear(4, 4), nn.Softmax(-1)).eval()
    compiled, _ = compile_and_list_graphs(model, backends)
    x = torch.randn(2, 4)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        result = compiled(x)
        assert result.dtype is model(x).dtype
        torch.testing.assert_close(result, model(x))


def test_gradients_are_an_error_with_a_hint():
    compiled, _ = compile_and_list_graphs(Classifier())
    x = torch.randn(1, 3, 8, 8)

    with pytest.raises(
        delegraph.errors.InputError,
        match=(
            r"computes no gradients.*\n  at .*\n  hint: call the model inside"
            r" torch\.no_grad"
        ),
    ):
        compiled(x)

    with torch.no_grad():
        compiled(x)


def test_errors_about_gradients_name_the_users_line():
    def function(x):
        return x * 3

    compiled, _ = compile_and_list_graphs(function, [])

    with pytest.raises(
        delegraph.errors.InputError,
        match=r"test_torch_compile.py:\d+, in function: return x \* 3",
    ):
        compiled(torch.ones(2, requires_grad=True))


def test_statistics_of_training_reach_buffers():
    """torch does not count the writes of batch norm in training mode."""
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 2)).train()

    [graph] = assert_equals_eager(model, torch.randn(3, 4), calls=2)

    assert "running_mean" in str(graph)
    assert "constant_" not in str(graph)


def test_a_copy_of_a_compiled_model_computes_the_same(linear):
    compiled, graphs = compile_and_list_graphs(linear)
    with torch.no_grad():
        expected = compiled(X)

        torch.testing.assert_close(copy.deepcopy(compiled)(X), expected)

    assert copy.deepcopy(graphs) == graphs


def test_writes_to_data_are_seen_after_a_reset(linear):
    """torch does not count writes to ``Tensor.data``."""
    compiled, _ = compile_and_list_graphs(linear)
    with torch.no_grad():
        compiled(X)
        linear.weight.data.mul_(2)

        torch.compiler.reset()

        torch.testing.assert_close(compiled(X), linear(X))


@pytest.mark.parametrize("backends", [["tosa"], []])
def test_threads_call_one_graph_while_it_is_lowered(backends):
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)).eval()
    compiled, graphs = compile_and_list_graphs(model, backends)
    inputs = [torch.randn(2, 8) for _ in range(4)]

    def call_ten_times(x):
        with torch.no_grad():
            results = [compiled(x) for _ in range(10)]
        # other threads may add programs just now
        assert all(graph.programs is not None for graph in graphs)
        return results

    with ThreadPoolExecutor(len(inputs)) as threads:
        results_of_threads = list(threads.map(call_ten_times, inputs))

    for x, results in zip(inputs, results_of_threads, strict=True):
        with torch.no_grad():
            torch.testing.assert_close(results, [model(x)] * 10)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"options": {"bakends": []}},
            "the backend 'delegraph' has no option 'bakends'",
        ),
        ({"options": {"graphs": ()}}, "the option 'graphs' must be a list"),
        (
            {"options": {"freezing": 1}},
            "the option 'freezing' must be True or False; got 1",
        ),
        ({"options": {"backends": ["nobody"]}}, "Backend nobody was not found"),
        ({"mode": "max-autotune"}, "the backend 'delegraph' has no 'mode'"),
    ],
)
def test_wrong_settings_are_refused(settings, message):
    compiled = torch.compile(torch.relu, backend="delegraph", **settings)

    with pytest.raises(delegraph.DelegraphError, match=message):
        compiled(torch.ones(2))


def test_require_full_lists_the_operators_on_the_host():
    compiled, _ = compile_and_list_graphs(
        lambda x: torch.special.bessel_j0(x) + 1, require_full=True
    )

    with pytest.raises(delegraph.errors.NotFullyDelegated, match="special_bessel_j0"):
        compiled(torch.ones(2))


def test_a_function_without_inputs_is_lowered():
    [graph] = assert_equals_eager(lambda: torch.arange(3) + 1)
    assert "0 on the host" in str(graph)


@pytest.mark.slow
def test_benchmark_models_equal_eager():
    """The script prints a table with a row for each model."""
    root = Path(__file__).parents[3]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, root / "benchmarks/torch_compile.py", "--models"]
    completed = subprocess.run(
        command, cwd=root, env=environment, capture_output=True, text=True
    )

    assert completed.returncode == 0, completed.stderr
    lines = completed.stdout.splitlines()
    _, *rows = [line for line in lines if line.startswith("| ")]  # without the heading
    assert len(rows) > 25
    for row in rows:
        assert "differs" not in row
        assert "eager" not in row
