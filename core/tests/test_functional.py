"""Local functionalisation: in-place programs equal eager, and the report says when the graph had to be retraced."""

import copy

import pytest
import torch
from delegraph.execution import Executable
from delegraph.lowering.normalise import normalise
from torch import nn

F = nn.functional


def fn(function):
    class Module(nn.Module):
        def forward(self, *args):
            return function(*args)

    return Module().eval()


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("k", torch.zeros(3))

    def forward(self, x):
        self.k.add_(1)
        return x + self.k


class SliceWrite(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("k", torch.zeros(3, 4))

    def forward(self, x):
        self.k[1] = x
        return self.k * 2


class NoGrad(nn.Module):
    def forward(self, x):
        with torch.no_grad():
            y = torch.relu(x)
        return y + torch.tensor(3.0)


class Statistics(nn.Module):
    def __init__(self):
        super().__init__()
        self.bn = nn.BatchNorm1d(4)

    def forward(self, x):
        return F.batch_norm(x, self.bn.running_mean, self.bn.running_var, training=True)


def relu_of_view(x):
    y = x + 1
    y.view(-1).mul_(2)
    return y + 0


def write_after_read(x):
    y = x + 1
    z = y * 2
    y.add_(5)
    return y + z


def write_half(x):
    y = x + 1
    a, b = torch.chunk(y, 2)
    a.mul_(3)
    return y + torch.cat([b, a])


def dropout_alias(x):
    y = x + 1
    z = F.dropout(y, 0.5, False)
    z.mul_(2)
    return y + 0


def input_write(x):
    x.mul_(2)
    return x + 1


LOCAL = {
    "relu_": fn(lambda x: torch.relu_(x + 1)),
    "residual": fn(lambda x: (x * 2).add_(x)),
    "chain": fn(lambda x: F.hardtanh_(torch.relu_(x * 3), 0, 1).mul_(2)),
    "write_after_read": fn(write_after_read),
    "counter": Counter(),
    "no_grad": NoGrad(),
    "input_write": fn(input_write),
    "masked_fill": fn(lambda x: (x + 0).masked_fill_(x > 0, 7.0)),
    "copy": fn(lambda x: torch.zeros(3, 4).copy_(x)),
    "dropout_alias": fn(dropout_alias),
    "returns_input": fn(lambda x: (x, x + 1)),
}
RETRACED = {
    "write_through_view": fn(relu_of_view),
    "write_half": fn(write_half),
    "slice_write": SliceWrite(),
    "statistics": Statistics(),
}


def run_both(module, *inputs, times=2):
    """The normalised program and eager, called several times, and the notes."""
    program = torch.export.export(module, copy.deepcopy(inputs))
    before = str(program.graph)
    normal, notes = normalise(program)
    assert str(program.graph) == before, "the caller's program was changed"
    ours, theirs = Executable(normal, None), copy.deepcopy(module)
    for _ in range(times):
        mine, eager = copy.deepcopy(inputs), copy.deepcopy(inputs)
        torch.testing.assert_close(ours(*mine), theirs(*eager), rtol=0, atol=0, equal_nan=True)
        torch.testing.assert_close(mine, eager, rtol=0, atol=0)
    return normal, notes


SHAPES = {"statistics": (2, 4), "slice_write": (4,), "counter": (3,), "write_half": (4, 4)}


@pytest.mark.parametrize("name", LOCAL)
def test_local(name):
    normal, notes = run_both(LOCAL[name], torch.randn(SHAPES.get(name, (3, 4))))
    assert notes == []
    assert not any(n.op == "call_function" and str(n.target).split(".")[-2].endswith("_") for n in normal.graph.nodes)


@pytest.mark.parametrize("name", RETRACED)
def test_retraced_and_said_so(name):
    _, notes = run_both(RETRACED[name], torch.randn(SHAPES.get(name, (3, 4))))
    assert notes and all(n.startswith("retraced, because of ") for n in notes)


def test_mutation_is_in_the_signature():
    normal, _ = run_both(Counter(), torch.randn(3))
    assert list(normal.graph_signature.buffers_to_mutate.values()) == ["k"]


def test_input_mutation_is_in_the_signature():
    normal, _ = run_both(LOCAL["input_write"], torch.randn(3, 4))
    assert list(normal.graph_signature.user_inputs_to_mutate.values()) == ["args_0"]


def test_handles_are_unique_and_in_order():
    normal, _ = normalise(torch.export.export(LOCAL["chain"], (torch.randn(3),)))
    handles = [n.meta["debug_handle"] for n in normal.graph.nodes if n.op == "call_function"]
    assert handles == list(range(1, len(handles) + 1))


def test_normalising_again_keeps_handles():
    normal, _ = normalise(torch.export.export(LOCAL["residual"], (torch.randn(3),)))
    again, _ = normalise(normal)
    assert [n.meta.get("debug_handle") for n in again.graph.nodes] == [
        n.meta.get("debug_handle") for n in normal.graph.nodes
    ]


def test_promotion_is_not_taken_over():
    """x.add_(y64) keeps float32; the functional add would give float64."""
    module = fn(lambda x, y: (x + 0).add_(y))
    _, notes = run_both(module, torch.randn(3), torch.randn(3, dtype=torch.float64))
    assert notes == [
        "retraced, because of aten.add_.Tensor: its functional form gives torch.float64, not torch.float32"
    ]


def test_loaded_from_disk(tmp_path):
    """A saved program has lost its storages; schemas still tell what aliases."""
    program = torch.export.export(RETRACED["write_through_view"], (torch.randn(3, 4),))
    torch.export.save(program, tmp_path / "p.pt2")
    normal, notes = normalise(torch.export.load(tmp_path / "p.pt2"))
    x = torch.randn(3, 4)
    assert notes
    torch.testing.assert_close(Executable(normal, None)(x), (x + 1) * 2)


def test_programs_are_what_the_constructor_makes():
    """Programs are assembled without generating code; their attributes are the constructor's."""
    made, _ = normalise(torch.export.export(Counter(), (torch.randn(3),)))
    constructed = torch.export.ExportedProgram(
        made.graph_module,
        made.graph,
        made.graph_signature,
        made.state_dict,
        made.range_constraints,
        made.module_call_graph,
        constants=made.constants,
        verifiers=made.verifiers,
    )
    assert vars(made).keys() == vars(constructed).keys()
    for name, value in vars(constructed).items():
        assert type(vars(made)[name]) is type(value) or name == "_graph_module"
    copied = copy.deepcopy(made)
    torch.testing.assert_close(copied.module(check_guards=False)(torch.ones(3)), torch.full((3,), 2.0))
    assert "add" in str(made) and "add" in made.graph_module.code
