"""Calls on constants alone are computed while lowering if a backend refuses them."""

import delegraph.api as api
import pytest
import torch
from delegraph.partitioner import (
    CapabilityPartitioner,
    DelegationSpec,
    Partitioner,
    PartitionResult,
)
from delegraph_programs import (
    add_constant,
    compute_constant_calls,
    placeholders,
    user_inputs,
)
from torch import nn

aten = torch.ops.aten
X = torch.linspace(-1, 1, 12).reshape(3, 4)


class Positions(nn.Module):
    """Positions, type ids and a mask, as in language models, and a constant result."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(10, 4)
        self.types = nn.Embedding(2, 4)
        self.register_buffer("ids", torch.arange(10), persistent=False)

    def forward(self, x):
        types = self.types(torch.zeros_like(x[:, 0], dtype=torch.long))
        mask = torch.triu(torch.ones(4, 4), 1).masked_fill(torch.eye(4) > 0, 2.0)
        return (x + self.table(self.ids[:3] + 1) + types) @ mask, torch.arange(
            3
        ).cumsum(0)


class Written(nn.Module):
    """Calls that are not constant: written, random, uninitialized or too large values."""

    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(4))

    def forward(self, x):
        before = torch.exp(self.count)
        self.count += 1
        large = torch.ones(compute_constant_calls.LARGEST // 4 + 1).cumsum(0)[0]
        return (
            x * before + torch.rand(4) + torch.exp(torch.empty(4).zero_()) * 0,
            x + large,
        )


def partitioner_for(*names):
    return CapabilityPartitioner(
        lambda n: None if any(k in str(n.target) for k in names) else "refused",
        "EchoBackend",
    )


def lower(registry, model, *inputs, takes=("add", "matmul", "mm", "mul"), **options):
    return api.lower(
        model.eval(),
        inputs,
        backends=[partitioner_for(*takes)],
        registry=registry,
        **options,
    )


def test_positions_types_and_masks_are_constants_of_the_delegate(echo_registry):
    lowered = lower(echo_registry, Positions(), X)
    assert lowered.report.host == {"forward": {"aten.clone.default": 1}}, (
        "what is returned is a copy each time"
    )
    assert len(lowered.delegates) == 1
    assert lowered.verify(X).relative_error == 0
    assert any(
        "operators on constants alone computed while lowering, " in note
        for note in lowered.report.notes
    )


def test_a_returned_constant_may_be_written_to(echo_registry):
    lowered = lower(echo_registry, Positions(), X)
    _, constant = lowered(X)
    assert constant.tolist() == [0, 1, 3]

    constant.fill_(7)

    _, constant = lowered(X)
    assert constant.tolist() == [0, 1, 3]


def test_written_random_or_large_values_are_not_folded(echo_registry):
    lowered = lower(echo_registry, Written(), X, takes=("sin",))
    host = lowered.report.host["forward"]
    assert {
        "aten.exp.default",
        "aten.rand.default",
        "aten.cumsum.default",
    } <= host.keys()
    assert host["aten.exp.default"] == 2, "of the buffer, and of what was never filled"

    torch.manual_seed(0)
    first = lowered(X)[0]
    torch.manual_seed(0)
    assert not torch.equal(lowered(X)[0], first), "the buffer was written in between"


def test_backend_gets_the_constant_calls_that_it_supports(echo_registry):
    everything = (
        "arange",
        "embedding",
        "slice",
        "add",
        "matmul",
        "zeros",
        "ones",
        "eye",
        "triu",
        "gt",
        "fill",
        "mul",
    )
    lowered = lower(
        echo_registry, Positions(), X, takes=(*everything, "select", "cumsum")
    )

    assert "aten.embedding.default" in lowered.report.delegates[0].operators
    assert not lowered.report.notes


def test_folding_leaves_errors_to_the_run_of_the_program(echo_registry):
    class Outside(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(3, 4)
            self.register_buffer("ids", torch.tensor([5]))

        def forward(self, x):
            return x + self.table(self.ids)

    lowered = lower(echo_registry, Outside(), X)
    assert lowered.report.host == {"forward": {"aten.embedding.default": 1}}
    with pytest.raises(IndexError):
        lowered(X)


class Swin(nn.Module):
    """Small tables that would become large: a relative bias, dequantized weights and
    masks.
    """

    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(127))
        self.eighths = nn.Parameter(
            torch.randint(-128, 127, (64, 64), dtype=torch.int8), requires_grad=False
        )

    def forward(self, x):
        weights = self.eighths.to(torch.float32) * 0.125
        hidden = torch.full((64, 64), 2.0).triu(1) + torch.arange(64)
        places = torch.arange(64)[:, None] - torch.arange(64) + 63
        return x @ self.table[places] @ (weights + hidden)


class Normed(nn.Module):
    """Two weight norms, and a table of which eight rows are used."""

    def __init__(self):
        super().__init__()
        self.first, self.second = (
            nn.utils.parametrizations.weight_norm(nn.Linear(64, 64)) for _ in range(2)
        )
        self.table = nn.Embedding(64, 64)
        self.part = torch.arange(8)

    def forward(self, x):
        return (
            self.second(self.first(x)),
            x[:, :1] + self.table(self.part + 1)[:, 0],
            self.second.parametrizations.weight.original1,
        )


def test_values_larger_than_their_sources_are_not_folded(echo_registry):
    x = torch.randn(2, 64)
    lowered = lower(echo_registry, Swin(), x, takes=("mm", "matmul"))
    assert not lowered.report.notes
    assert lowered.verify(x).relative_error < 1e-5

    stored = lowered.exported_program()
    tensors = [*stored.state_dict.values(), *stored.constants.values()]
    bytes_of_table = 127 * 4
    bytes_of_eighths = 64 * 64
    assert sum(t.nbytes for t in tensors) == bytes_of_table + bytes_of_eighths


def test_values_smaller_than_their_sources_are_folded(echo_registry):
    """The second norm's source is returned, so it stays in the program and nothing is
    saved.
    """
    lowered = lower(echo_registry, Normed(), torch.randn(8, 64), takes=("linear",))
    kept = {
        spec.target
        for node, spec in placeholders(lowered.exported_program())
        if node.users
    }
    folded = {
        "first.parametrizations.weight.original0",
        "first.parametrizations.weight.original1",
        "table.weight",
    }

    assert folded.isdisjoint(kept)
    assert "second.parametrizations.weight.original1" in kept
    assert lowered.verify(torch.randn(8, 64)).relative_error < 1e-6


class TagsAll(Partitioner):
    """Tags operators by name, without a check for single calls."""

    def __init__(self, *names):
        super().__init__()
        self.names = names

    def partition(self, exported_program):
        for node in exported_program.graph.nodes:
            if node.op == "call_function" and any(
                name in str(node.target) for name in self.names
            ):
                node.meta["delegation_tag"] = "all"
        return PartitionResult(
            exported_program, {"all": DelegationSpec("EchoBackend", [])}
        )


def test_a_tagging_partitioner_gets_no_calls_on_constants(echo_registry):
    """Otherwise the delegate would compute the constant weight in every call."""
    module = nn.utils.parametrizations.weight_norm(nn.Linear(64, 64)).eval()
    lowered = api.lower(
        module,
        (torch.randn(2, 64),),
        backends=[TagsAll("mul", "div", "permute", "addmm")],
        registry=echo_registry,
    )

    assert lowered.report.delegates[0].operators.keys() <= {
        "aten.addmm.default",
        "aten.permute.default",
    }
    assert lowered.verify(torch.randn(2, 64)).relative_error < 1e-6


def test_calls_on_a_weight_with_two_users_are_not_folded(echo_registry):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(32, 64)
            self.head = nn.Linear(64, 32, bias=False)
            self.head.weight = self.table.weight
            self.ids = torch.arange(32)

        def forward(self, x):
            return self.head(x + self.table(self.ids))

    lowered = lower(echo_registry, Tied(), torch.randn(32, 64))
    assert "aten.embedding.default" in lowered.report.host["forward"]


def test_a_transform_may_add_a_constant(echo_registry):
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
        lowered = lower(echo_registry, Sine(), X, takes=takes, transforms=[scaled])
        torch.testing.assert_close(lowered(X), torch.sin(X * scale))
    inside = lowered.delegates[0].module.original_module

    assert any(t.data_ptr() == scale.data_ptr() for t in inside.constants.values())
