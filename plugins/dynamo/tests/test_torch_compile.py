"""``torch.compile(model, backend="delegraph")`` computes what eager PyTorch does, also
what a graph does not show.
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
def _anew():
    """Dynamo keeps code by function, also from test to test."""
    torch._dynamo.reset()
    torch.manual_seed(0)


def compile_and_list_graphs(model, backends=("tosa",), dynamic=False, **options):
    """The compiled model, and the list of its graphs."""
    graphs = []
    options = {"backends": list(backends), "graphs": graphs, **options}
    return (
        torch.compile(model, backend="delegraph", options=options, dynamic=dynamic),
        graphs,
    )


def assert_equals_eager(model, *inputs, calls=1, **settings):
    """Call compiled model and eager ``calls`` times on copies of the inputs; compare
    results, inputs and buffers.

    Returns the graphs.
    """
    eager = copy.deepcopy(model)
    called, graphs = compile_and_list_graphs(model, **settings)
    with torch.no_grad():
        for _ in range(calls):
            ours = copy.deepcopy(inputs)
            theirs = copy.deepcopy(inputs)
            torch.testing.assert_close(called(*ours), eager(*theirs), equal_nan=True)
            torch.testing.assert_close(ours, theirs, equal_nan=True)
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


class Broken(Classifier):
    """With a branch on values, which ends a graph."""

    def forward(self, x):
        x = self.conv(x)
        if x.sum() > 0:
            x = x * 2
        return self.linear(x.relu().mean((2, 3)))


class Counting(nn.Module):
    """Writes a buffer and an input, and returns views of both."""

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
    assert (
        graph.report.summary()
        == "4 of 4 operators delegated, in 1 delegate; 0 on the host"
    )
    assert str(graph).startswith(
        "graph 0: 4 of 4 operators delegated, in 1 delegate; 0 on the host\nforward:\n"
    )
    assert len(graph.programs) == 1
    assert not graph.why_eager


def test_a_break_makes_two_graphs_and_a_report_for_each():
    graphs = assert_equals_eager(Broken().eval(), torch.randn(1, 3, 8, 8))
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
        Counting(), torch.randn(2, 4), backends=backends, calls=2
    )
    assert not graph.why_eager


def test_results_that_are_views_of_inputs_stay_views():
    model = Counting()
    called, _ = compile_and_list_graphs(model)
    x = torch.randn(2, 4)
    with torch.no_grad():
        _, flat, seen, same = called(x)
    flat.fill_(7)
    seen.fill_(5)
    assert same is x
    assert (x == 7).all()
    assert (model.seen.view(-1)[1:] == 5).all()


def test_graphs_whose_results_share_memory_run_in_eager():
    def function(x):
        y = x * 2
        return y, y[1:]

    called, graphs = compile_and_list_graphs(function)
    y, rest = called(torch.randn(3))
    rest.fill_(7)
    assert (y[1:] == 7).all()
    assert (
        str(graphs[0])
        == "graph 0: runs in eager PyTorch: its results 0 and 1 share memory"
    )


def test_results_that_share_memory_are_delegated():
    [graph] = assert_equals_eager(lambda x: (x * 2).chunk(3, -1), torch.randn(2, 6))
    assert graph.report.host_operators == 0


def test_inputs_may_share_memory_with_written_ones():
    def function(x, y):
        x.add_(1)
        return y * 2

    called, _ = compile_and_list_graphs(function)
    assert torch.equal(called(torch.zeros(4), torch.ones(4)), torch.full((4,), 2.0))
    memory = torch.arange(6.0)
    expected = function(memory[:4], memory[2:])
    memory = torch.arange(6.0)
    assert torch.equal(called(memory[:4], memory[2:]), expected)


def test_changed_weights_are_lowered_again():
    model = nn.Linear(4, 2).eval()
    called, graphs = compile_and_list_graphs(model)
    x = torch.randn(1, 4)
    with torch.no_grad():
        before = called(x)
        model.weight.mul_(2)
        torch.testing.assert_close(called(x), model(x))
        model.load_state_dict(nn.Linear(4, 2).state_dict())
        torch.testing.assert_close(called(x), model(x))
        model.weight = nn.Parameter(torch.ones(2, 4))
        torch.testing.assert_close(called(x), model(x))
        assert not torch.equal(called(x), before)
    assert len(graphs) == 1


def test_frozen_weights_keep_the_values_of_the_first_call():
    model = nn.Linear(4, 2).eval()
    called, graphs = compile_and_list_graphs(model, freezing=True)
    x = torch.randn(1, 4)
    with torch.no_grad():
        before = called(x)
        model.weight.mul_(2)
        assert torch.equal(called(x), before)
        model.weight = nn.Parameter(torch.ones(2, 4))
        torch.testing.assert_close(called(x), model(x))
        model.weight.mul_(2)
        torch.compiler.reset()
        torch.testing.assert_close(called(x), model(x))
    assert sum(len(graph.programs) for graph in graphs) == 3


def test_replaced_equal_weights_are_used():
    model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1, bias=False)).eval()
    called, _ = compile_and_list_graphs(model, backends=[])
    x = torch.randn(3, 1)
    with torch.no_grad():
        called(x)
        for layer in (model[0], model[1]):  # the graph has x between their weights
            layer.weight = nn.Parameter(layer.weight.clone())
            called(x)
            layer.weight.add_(1)
            torch.testing.assert_close(called(x), model(x))


def test_graphs_refuse_another_number_of_inputs():
    called, graphs = compile_and_list_graphs(Classifier().eval(), backends=[])
    with torch.no_grad():
        called(torch.randn(1, 3, 8, 8))
        with pytest.raises(delegraph.errors.InputError, match="inputs, 1 were given"):
            graphs[0](torch.randn(1, 3, 8, 8))


def test_modules_with_one_graph_have_separate_programs():
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
    assert sum(len(graph.programs) for graph in graphs) == 3


@pytest.mark.parametrize("backends", [["tosa"], ["compiler-demo"], []])
def test_one_program_takes_all_sizes_that_dynamo_lets_vary(backends):
    called, graphs = compile_and_list_graphs(
        Classifier().eval(), backends, dynamic=True
    )
    eager = called._orig_mod
    with torch.no_grad():
        for n in (2, 3, 5):
            x = torch.randn(n, 3, 8 + n, 8)
            torch.testing.assert_close(called(x), Classifier.forward(eager, x))
    assert len(graphs) == 1
    assert len(graphs[0].programs) == 1
    assert not graphs[0].why_eager


def test_sizes_fixed_by_export_get_separate_programs():
    def function(x):
        # export would need x.shape[0] to be even
        return x.reshape(2, -1)[:, : x.shape[0] // 2] * 3

    called, graphs = compile_and_list_graphs(function, [], dynamic=True)
    for n in (4, 6, 8, 6):
        x = torch.randn(n)
        assert torch.equal(called(x), function(x))
    assert len(graphs) == 1
    assert not graphs[0].why_eager


def test_a_number_that_varies():
    def function(x, n):
        return x * n

    called, _ = compile_and_list_graphs(function, [], dynamic=True)
    for n in (3, 4, 0.5, 0.25):
        assert torch.equal(called(torch.ones(2), n), torch.full((2,), float(n)))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_compiled_model_runs_in_inference_modes(mode):
    model = Classifier()  # made with gradients, in training mode
    called, _ = compile_and_list_graphs(model)
    with mode():
        x = torch.randn(1, 3, 8, 8)
        result = called(x)
        torch.testing.assert_close(result, model(x))
    assert not result.requires_grad


def test_weights_made_in_inference_mode_stay_inputs():
    """Torch counts no writes to them."""
    with torch.inference_mode():
        model = nn.Linear(4, 2)
        called, _ = compile_and_list_graphs(model, [])
        x = torch.randn(1, 4)
        called(x)
        model.weight.mul_(2)
        torch.testing.assert_close(called(x), model(x))


@pytest.mark.parametrize("backends", [["tosa"], []])
def test_autocast_computes_in_its_type(backends):
    model = nn.Sequential(nn.Linear(4, 4), nn.Softmax(-1)).eval()
    called, _ = compile_and_list_graphs(model, backends)
    x = torch.randn(2, 4)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        result = called(x)
        assert result.dtype is model(x).dtype
        torch.testing.assert_close(result, model(x))


def test_gradients_are_an_error_of_ours():
    called, _ = compile_and_list_graphs(Classifier())
    with pytest.raises(
        delegraph.errors.InputError,
        match=(
            r"computes no gradients.*\n  at .*\n  hint: call the model inside"
            r" torch\.no_grad"
        ),
    ):
        called(torch.randn(1, 3, 8, 8))
    with torch.no_grad():
        called(torch.randn(1, 3, 8, 8))


def test_gradients_are_an_error_that_names_the_line():
    def function(x):
        return x * 3

    called, _ = compile_and_list_graphs(function, [])
    with pytest.raises(
        delegraph.errors.InputError,
        match=r"test_torch_compile.py:\d+, in function: return x \* 3",
    ):
        called(torch.ones(2, requires_grad=True))


def test_statistics_of_training_reach_buffers():
    """Batch norm in training mode writes its statistics, and torch does not count that."""
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 2)).train()
    [graph] = assert_equals_eager(model, torch.randn(3, 4), calls=2)
    assert "running_mean" in str(graph)
    assert "constant_" not in str(graph)


def test_a_copy_of_a_compiled_model_computes_the_same():
    called, graphs = compile_and_list_graphs(nn.Linear(4, 2).eval())
    x = torch.randn(1, 4)
    with torch.no_grad():
        expected = called(x)
        torch.testing.assert_close(copy.deepcopy(called)(x), expected)
    assert copy.deepcopy(graphs) == graphs


def test_uncounted_writes_are_seen_after_a_reset():
    model = nn.Linear(4, 2).eval()
    called, _ = compile_and_list_graphs(model)
    x = torch.randn(1, 4)
    with torch.no_grad():
        called(x)
        model.weight.data.mul_(2)
        torch.compiler.reset()
        torch.testing.assert_close(called(x), model(x))


@pytest.mark.parametrize("backends", [["tosa"], []])
def test_threads_call_one_graph_while_it_is_lowered(backends):
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)).eval()
    called, graphs = compile_and_list_graphs(model, backends)
    inputs = [torch.randn(2, 8) for _ in range(4)]

    def run(x):
        with torch.no_grad():
            results = [called(x) for _ in range(10)]
            assert all(graph.programs is not None for graph in graphs)
            return results

    with ThreadPoolExecutor(len(inputs)) as threads:
        for x, results in zip(inputs, threads.map(run, inputs), strict=True):
            with torch.no_grad():
                torch.testing.assert_close(results, [model(x)] * 10)


@pytest.mark.parametrize(
    ("settings", "said"),
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
def test_wrong_settings_are_errors_of_ours(settings, said):
    with pytest.raises(delegraph.DelegraphError, match=said):
        torch.compile(torch.relu, backend="delegraph", **settings)(torch.ones(2))


def test_require_full_lists_the_operators_on_the_host():
    called, _ = compile_and_list_graphs(
        lambda x: torch.special.bessel_j0(x) + 1, require_full=True
    )
    with pytest.raises(delegraph.errors.NotFullyDelegated, match="special_bessel_j0"):
        called(torch.ones(2))


def test_a_function_without_inputs_is_lowered():
    [graph] = assert_equals_eager(lambda: torch.arange(3) + 1)
    assert "0 on the host" in str(graph)


@pytest.mark.slow
def test_benchmark_models_equal_eager():
    """Those of benchmarks/torch_compile.py, whose table has what of each is delegated."""
    root = Path(__file__).parents[3]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, root / "benchmarks/torch_compile.py", "--models"]
    completed = subprocess.run(
        command, cwd=root, env=environment, capture_output=True, text=True
    )
    assert completed.returncode == 0, completed.stderr
    rows = [line for line in completed.stdout.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 25
    assert [row for row in rows if "differs" in row or "eager" in row] == []
