"""What is computed while lowering: calls on constants alone that a backend refuses, and nothing else."""

import delegraph.api as api
import pytest
import torch
from delegraph.engine import constants
from delegraph.exported_program import add_constant, user_inputs
from delegraph.partitioner import CapabilityPartitioner
from torch import nn

aten = torch.ops.aten
X = torch.linspace(-1, 1, 12).reshape(3, 4)


class Positions(nn.Module):
    """Positions, type ids and a mask, as language models make them; and a result that is constant."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table, self.types = nn.Embedding(10, 4), nn.Embedding(2, 4)
        self.register_buffer("ids", torch.arange(10), persistent=False)

    def forward(self, x):
        types = self.types(torch.zeros_like(x[:, 0], dtype=torch.long))
        mask = torch.triu(torch.ones(4, 4), 1).masked_fill(torch.eye(4) > 0, 2.0)
        return (x + self.table(self.ids[:3] + 1) + types) @ mask, torch.arange(3).cumsum(0)


class Written(nn.Module):
    """Nothing here is constant: what is written, drawn, empty, of the data, or larger than is computed."""

    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(4))

    def forward(self, x):
        before = torch.exp(self.count)
        self.count += 1
        large = torch.ones(constants.LARGEST // 4 + 1).cumsum(0)[0]
        return x * before + torch.rand(4) + torch.exp(torch.empty(4).zero_()) * 0, x + large


def taking(*names):
    return CapabilityPartitioner(lambda n: None if any(k in str(n.target) for k in names) else "refused", "EchoBackend")


def lowered(registry, model, *inputs, takes=("add", "matmul", "mm", "mul"), **options):
    return api.lower(model.eval(), inputs, backends=[taking(*takes)], registry=registry, **options)


def test_positions_types_and_masks_are_constants_of_the_delegate(echo_registry):
    made = lowered(echo_registry, Positions(), X)
    assert made.report.host == {"forward": {"aten.clone.default": 1}}, "what is returned is a copy each time"
    assert len(made.delegates) == 1 and made.verify(X).relative_error == 0
    assert any("operators on constants alone computed while lowering, " in note for note in made.report.notes)
    kept = lowered(echo_registry, Positions(), X, fold_constants=False)
    assert "aten.embedding.default" in kept.report.host["forward"] and not kept.report.notes


def test_a_returned_constant_may_be_written_to(echo_registry):
    made = lowered(echo_registry, Positions(), X)
    made(X)[1].fill_(7)
    assert made(X)[1].tolist() == [0, 1, 3]


def test_what_is_written_random_or_large_is_not_computed(echo_registry):
    made = lowered(echo_registry, Written(), X, takes=("sin",))
    host = made.report.host["forward"]
    assert {"aten.exp.default", "aten.rand.default", "aten.cumsum.default"} <= host.keys()
    assert host["aten.exp.default"] == 2, "of the buffer, and of what was never filled"
    torch.manual_seed(0)
    first = made(X)[0]
    torch.manual_seed(0)
    assert not torch.equal(made(X)[0], first), "the buffer was written in between"


def test_a_backend_gets_the_calls_on_constants_that_it_takes(echo_registry):
    everything = ("arange", "embedding", "slice", "add", "matmul", "zeros", "ones", "eye", "triu", "gt", "fill", "mul")
    made = lowered(echo_registry, Positions(), X, takes=(*everything, "select", "cumsum"))
    assert "aten.embedding.default" in made.report.delegates[0].operators and not made.report.notes


def test_what_raises_when_it_is_computed_raises_when_the_program_runs(echo_registry):
    class Outside(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(3, 4)
            self.register_buffer("ids", torch.tensor([5]))

        def forward(self, x):
            return x + self.table(self.ids)

    made = lowered(echo_registry, Outside(), X)
    assert made.report.host == {"forward": {"aten.embedding.default": 1}}
    with pytest.raises(IndexError):
        made(X)


def test_a_transform_may_add_a_constant(echo_registry):
    """The same tensor, by reference; names that are taken are no trouble."""
    scale = torch.tensor([1.0, 2.0, 3.0, 4.0])

    def scaled(program):
        (x,) = user_inputs(program)
        nodes = [add_constant(program, scale, "x") for _ in range(2)]
        with program.graph.inserting_before(next(iter(x.users))):
            product = program.graph.call_function(aten.mul.Tensor, (x, nodes[1]))
        product.meta["val"] = x.meta["val"] * nodes[1].meta["val"]
        x.replace_all_uses_with(product, lambda user: user is not product)
        return program

    class Sine(nn.Module):
        def forward(self, x):
            return torch.sin(x)

    for takes in ((), ("mul", "sin")):
        made = lowered(echo_registry, Sine(), X, takes=takes, transforms=[scaled])
        torch.testing.assert_close(made(X), torch.sin(X * scale))
    inside = made.delegates[0].module.original_module
    assert any(t.data_ptr() == scale.data_ptr() for t in inside.constants.values())
