"""The device half: program files with delegates of compiler-demo and host operators, in
ExecuTorch's own runtime.
"""

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
def what_it_takes():
    """The wheel and a compiler; the tests are skipped where one of them is missing."""
    try:
        device.stock_runtime()
        device.compiler_line(CompilerDemoRuntime.device_half, "unused")
    except NoRuntime as e:
        pytest.skip(f"{e.message}; {e.hint}")


def run_on_device(lowered, folder):
    """The program file of ``lowered``, in the runtime, which gets the device half with
    the first of them.
    """
    lowered.save(folder / "m.pte")
    return delegraph.load(folder / "m.pte", runtime="executorch")


def expect_equal(got, wanted):
    """One tensor or several, each up to a hundred-thousandth of its largest element."""
    for ours, theirs in zip(*map(tree_leaves, (got, wanted)), strict=True):
        finite = theirs.detach().nan_to_num(0, 0, 0).abs()
        scale = finite.max().item() if finite.numel() else 0
        torch.testing.assert_close(
            ours, theirs.detach(), rtol=1e-5, atol=1e-5 * scale, equal_nan=True
        )


@pytest.mark.parametrize("name", CASES)
def test_delegates_compute_as_eager_on_the_device(name, tmp_path):
    function, *inputs = CASES[name]
    lowered = lower(function, *inputs)
    assert lowered.delegates
    expect_equal(run_on_device(lowered, tmp_path)(*inputs), function(None, *inputs))


@pytest.mark.slow
def test_device_passes_the_numerics_of_the_conformance_kit(capsys):
    assert main(["check", "compiler-demo", "--device", "--quick"]) == 0
    assert "compiler-demo: 3 passed; " in capsys.readouterr().out


class Network(nn.Module):
    """Layers on the device, with activations on the host, a weight that two delegates
    share, and two outputs of one.
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


def test_host_operators_between_delegates(tmp_path):
    torch.manual_seed(0)
    network = Network().eval()
    lowered = delegraph.lower(network, (randn(4, 8),), backends=["compiler-demo"])
    assert len(lowered.delegates) == 3
    assert sum(lowered.report.host["forward"].values()) >= 4
    program = run_on_device(lowered, tmp_path)
    for inputs in (randn(4, 8), -randn(4, 8) * 100):
        expect_equal(program(inputs), network(inputs))


def test_a_state_that_the_host_keeps(tmp_path):
    def step(m, x):
        m.w0.add_(torch.mm(x, x))
        return m.w0 * 2

    counter = module_with_weights(step, torch.zeros(2, 2))
    lowered = delegraph.lower(counter, (randn(2, 2),), backends=["compiler-demo"])
    program = run_on_device(lowered, tmp_path).method("forward")
    square = randn(2, 2) @ randn(2, 2)
    for times in (1, 2, 3):
        expect_equal(program(randn(2, 2)), 2 * times * square)


def test_a_setting_is_enforced(tmp_path):
    program = run_on_device(
        lower(lambda m, x: torch.relu(torch.add(x, x)), randn(3), max_value=9.0),
        tmp_path,
    )
    expect_equal(program(torch.full((3,), 4.0)), torch.full((3,), 8.0))
    for refused in (5.0, 10.0, float("nan"), -float("inf")):
        with pytest.raises(InputError, match="refuses"):
            program(torch.full((3,), refused))


def test_damaged_blobs_are_refused_as_on_the_host(tmp_path):
    """Each byte of a blob in turn: what the host's runtime refuses the device refuses,
    and nothing else.
    """
    function = lambda m, x: torch.sin(nn.functional.linear(x, m.w0) + 1)
    weights = [randn(4, 3)]
    lowered = lower(function, randn(2, 3), weights=weights)
    [delegate] = lowered.delegates
    lowered.save(tmp_path / "m.pte")
    file = (tmp_path / "m.pte").read_bytes()
    blob = delegate.processed_bytes
    start = file.index(blob)
    for position, flipped in (
        (p, bit) for p in range(len(blob)) for bit in (1, 4, 128)
    ):
        mutated = bytearray(blob)
        mutated[position] ^= flipped
        (tmp_path / "m.pte").write_bytes(
            file[:start] + mutated + file[start + len(blob) :]
        )
        assert loads_on_device(tmp_path / "m.pte") == loads_on_host(
            bytes(mutated), delegate
        ), (position, flipped)


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
