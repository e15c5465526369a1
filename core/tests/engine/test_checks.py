"""Calls that only check values are not refused operators, and make no delegate."""

import delegraph.api as api
import pytest
import torch
from delegraph.partitioner import CapabilityPartitioner
from torch import nn

aten = torch.ops.aten
X = torch.linspace(0.1, 1, 6).reshape(2, 3)


class Checked(nn.Module):
    """Checks an input, a value between two calls, a value of the host, and a result.

    ``bound`` is a buffer.
    """

    def __init__(self):
        super().__init__()
        self.register_buffer("bound", torch.full((3,), 100.0))

    def forward(self, x):
        torch._check_tensor_all(x.abs() < 50, lambda: "input")
        y = x * 2 + 1
        torch._assert_async((y < 1e6).all(), "between")
        z = (y * 3).tanh()
        torch._assert_async((z <= self.bound / 100).all(), "of the host")
        w = z * self.bound
        torch._assert_async((w + x < 130).all(), "result")
        return w


def lower(
    registry,
    model,
    *inputs,
    refused=("tanh", "assert", "item", "_is_all_true"),
    **options,
):
    why_not = lambda n: "refused" if any(k in str(n.target) for k in refused) else None
    partitioner = CapabilityPartitioner(why_not, "EchoBackend")
    return api.lower(
        model.eval(), inputs, backends=[partitioner], registry=registry, **options
    )


def test_checks_do_not_split_delegates(echo_registry):
    lowered = lower(echo_registry, Checked(), X)
    assert lowered.report.host == {"forward": {"aten.tanh.default": 1}}

    before_tanh, after_tanh = lowered.report.delegates
    assert set(before_tanh.operators) == {"aten.mul.Tensor", "aten.add.Tensor"}
    assert set(after_tanh.operators) == {"aten.mul.Tensor"}

    for delegate in lowered.delegates:
        assert len(delegate.module.inputs) == 1
        assert len(delegate.module.outputs) == 1
    assert lowered.verify(X).relative_error == 0


def test_a_note_names_checks_inside_of_delegates(echo_registry):
    lowered = lower(echo_registry, Checked(), X)
    [note] = [n for n in lowered.report.notes if "dropped" in n]
    assert note.startswith(
        "forward: 1 check of values inside of delegates dropped, first at "
    )
    assert 'torch._assert_async((y < 1e6).all(), "between")' in note


class TwiceChecked(nn.Module):
    def forward(self, x):
        y = x + 1
        torch._assert_async((y > 0).all(), "first")
        torch._assert_async((y < 9).all(), "second")
        return y * 2


def test_the_note_skips_checks_without_a_line(echo_registry):
    program = torch.export.export(TwiceChecked(), (X,))
    first = next(node for node in program.graph.nodes if "_assert" in str(node.target))
    for key in ("stack_trace", "from_node"):
        first.meta.pop(key, None)
    partitioner = CapabilityPartitioner(lambda n: None, "EchoBackend")
    lowered = api.lower(program, backends=[partitioner], registry=echo_registry)
    (note,) = [n for n in lowered.report.notes if "dropped" in n]

    assert "2 checks" in note
    assert '"second")' in note
    assert "None" not in note


@pytest.mark.parametrize(
    ("x", "said"),
    [(X * 1000, "Runtime|input"), (X * 40, "result")],
    ids=["input", "result"],
)
def test_checks_of_inputs_and_results_still_run(echo_registry, x, said):
    with pytest.raises(RuntimeError, match=said):
        Checked()(x)
    with pytest.raises(RuntimeError, match=said):
        lower(echo_registry, Checked(), X)(x)


class Unused(nn.Module):
    def forward(self, x):
        y = x + 1
        (y.sum() > 3).item()
        return y


def test_calls_that_only_feed_checks_are_not_refused(echo_registry):
    lowered = lower(echo_registry, Unused(), X, refused=("item",), require_full=True)
    assert lowered.report.host_operators == 0
    assert not lowered.report.notes
    assert [list(row.operators) for row in lowered.report.delegates] == [
        ["aten.add.Tensor"]
    ]


class Branches(nn.Module):
    def forward(self, x):
        def small(v):
            torch._assert_async((v < 5).all(), "small")
            return v + 1

        return torch.cond(x.sum() > 0, small, lambda v: v - 1, (x,))


def test_checks_in_branches_are_not_refused(echo_registry):
    lowered = lower(echo_registry, Branches(), X, refused=("cond", "assert"))
    assert "aten._assert_async.msg" not in lowered.report.host["forward"]
    assert lowered.verify(X).relative_error == 0
    with pytest.raises(RuntimeError, match="small"):
        lowered(X * 100)


def test_a_program_of_only_checks_runs_on_the_host(echo_registry):
    class Alone(nn.Module):
        def forward(self, x):
            torch._assert_async((x < 5).all(), "alone")
            return x

    lowered = lower(echo_registry, Alone(), X)
    assert lowered.delegates == []
    assert lowered.report.host_operators == 0
    with pytest.raises(RuntimeError, match="alone"):
        lowered(X * 100)


def test_random_calls_with_unused_results_are_reported(echo_registry):
    class Acts(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x):
            self.count += 1
            torch.rand(2)
            return x + 1

    lowered = lower(echo_registry, Acts(), X, refused=("rand",))
    assert "aten.rand.default" in lowered.report.host["forward"]
