"""ExecuTorch's own runtime runs compiler-demo's delegates with its device half."""

import delegraph
import pytest
import torch
from delegraph.cli import main
from delegraph.errors import DelegraphError, InputError, NoRuntime
from delegraph_demo.compiler.runtime import CompilerDemoRuntime
from torch import nn
from torch.utils._pytree import tree_leaves

from .support.programs import CASES, lower, module_with_weights, randn

device = pytest.importorskip(
    "delegraph_executorch.device", reason="delegraph-executorch is not installed"
)


@pytest.fixture(autouse=True, scope="module")
def needs_runtime_and_compiler():
    """Skip the tests if the wheel of ExecuTorch or a C++ compiler is missing."""
    try:
        device.stock_runtime()
        device.compiler_line(CompilerDemoRuntime.device_half, "unused")
    except NoRuntime as e:
        pytest.skip(f"{e.message}; {e.hint}")


def load_on_device(lowered, folder):
    """Save a program, and load it in ExecuTorch's runtime.

    The first call builds the device half.
    """
    lowered.save(folder / "m.pte")
    return delegraph.load(folder / "m.pte", runtime="executorch")


def assert_close(results, expected):
    """Compare tensors up to a hundred-thousandth of the largest expected element."""
    for actual, wanted in zip(tree_leaves(results), tree_leaves(expected), strict=True):
        wanted = wanted.detach()
        finite = wanted.nan_to_num(0, 0, 0).abs()
        scale = finite.max().item() if finite.numel() else 0
        torch.testing.assert_close(
            actual, wanted, rtol=1e-5, atol=1e-5 * scale, equal_nan=True
        )


@pytest.mark.parametrize("name", CASES)
def test_delegates_compute_as_eager_on_the_device(name, tmp_path):
    function, *inputs = CASES[name]
    lowered = lower(function, *inputs)
    assert lowered.delegates

    results = load_on_device(lowered, tmp_path)(*inputs)

    assert_close(results, function(None, *inputs))


@pytest.mark.slow
def test_device_passes_the_numerics_of_the_conformance_kit(capsys):
    assert main(["check", "compiler-demo", "--device", "--quick"]) == 0
    assert "compiler-demo: 3 passed; " in capsys.readouterr().out


class Network(nn.Module):
    """Three delegates, of which the first two share a weight; activations on the host.

    The last delegate has two outputs.
    """

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.last = nn.Linear(8, 3)

    def forward(self, x):
        hidden = torch.relu(self.first(x)) + x
        hidden = torch.tanh(self.first(hidden)).cumsum(0)
        scores = self.last(hidden)
        return torch.softmax(scores, -1), torch.sin(scores) * 2


def test_programs_alternate_between_host_and_device(tmp_path):
    torch.manual_seed(0)
    network = Network().eval()
    lowered = delegraph.lower(network, (randn(4, 8),), backends=["compiler-demo"])
    assert len(lowered.delegates) == 3
    assert sum(lowered.report.host["forward"].values()) >= 4

    program = load_on_device(lowered, tmp_path)

    for x in (randn(4, 8), -randn(4, 8) * 100):
        assert_close(program(x), network(x))


def test_the_host_keeps_states_between_calls(tmp_path):
    def add_square(m, x):
        m.w0.add_(torch.mm(x, x))
        return m.w0 * 2

    accumulator = module_with_weights(add_square, torch.zeros(2, 2))
    lowered = delegraph.lower(accumulator, (randn(2, 2),), backends=["compiler-demo"])
    x = randn(2, 2)
    square = x @ x

    program = load_on_device(lowered, tmp_path).method("forward")

    for calls in (1, 2, 3):
        assert_close(program(x), 2 * calls * square)


@pytest.fixture
def limited_double(tmp_path):
    """Return a program that doubles its input, with results of at most 9."""
    lowered = lower(lambda m, x: torch.relu(torch.add(x, x)), randn(3), max_value=9.0)
    return load_on_device(lowered, tmp_path)


def test_results_within_max_value_are_returned(limited_double):
    assert_close(limited_double(torch.full((3,), 4.0)), torch.full((3,), 8.0))


@pytest.mark.parametrize("value", [5.0, 10.0, float("nan"), -float("inf")])
def test_the_device_refuses_values_beyond_max_value(value, limited_double):
    with pytest.raises(InputError, match="refuses"):
        limited_double(torch.full((3,), value))


def loads_on_device(path):
    try:
        delegraph.load(path, runtime="executorch").method("forward")
    except InputError:
        return False
    return True


def loads_on_host(blob, delegate):
    try:
        CompilerDemoRuntime.load(blob, (), delegate.module.named_data())
    except DelegraphError:
        return False
    return True


def test_device_and_host_refuse_the_same_damaged_blobs(tmp_path):
    lowered = lower(
        lambda m, x: torch.sin(nn.functional.linear(x, m.w0) + 1),
        randn(2, 3),
        weights=[randn(4, 3)],
    )
    [delegate] = lowered.delegates
    blob = delegate.processed_bytes
    path = tmp_path / "m.pte"
    lowered.save(path)
    before_blob, after_blob = path.read_bytes().split(blob, maxsplit=1)

    for position in range(len(blob)):
        for mask in (1, 4, 128):
            damaged = bytearray(blob)
            damaged[position] ^= mask
            path.write_bytes(before_blob + damaged + after_blob)

            on_host = loads_on_host(bytes(damaged), delegate)
            assert loads_on_device(path) == on_host, (position, mask)
