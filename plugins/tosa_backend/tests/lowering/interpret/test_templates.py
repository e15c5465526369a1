"""Alike calls are lowered once and copied: what is made is what the rules themselves
would have made.
"""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from delegraph.errors import Unsupported
from delegraph_tosa.backend import compile_program
from delegraph_tosa.evaluate import evaluate
from delegraph_tosa.lowering import registry
from delegraph_tosa.lowering.interpret import templates
from delegraph_tosa.serialize import TosaFile
from delegraph_tosa.spec import TosaSpec
from torch import nn

SPEC = TosaSpec.parse("TOSA-1.0+FP")


class Block(nn.Module):
    """Convolution and batch norm (folded constants), activation, attention with a head
    of linears, a shortcut.
    """

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.linears = nn.ModuleList([nn.Linear(5, 5) for _ in range(3)])

    def forward(self, x):
        y = nn.functional.relu6(self.norm(self.conv(x)))
        q, k, v = (linear(y) for linear in self.linears)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v).clamp(-1.0, 1.0)
        return x + mixed.split(2, 1)[0].repeat(1, 2, 1, 1)


def export(module, *inputs):
    torch.manual_seed(0)
    return torch.export.export(module.eval(), inputs)


def compile_to_bytes(exported):
    return TosaFile(compile_program(exported, SPEC), SPEC).join()


@pytest.fixture
def blocks():
    return export(nn.Sequential(*[Block() for _ in range(3)]), torch.randn(1, 4, 5, 5))


class Constants(nn.Module):
    """Rules that make constants, of more elements than what is merged by its elements
    afterwards.
    """

    def forward(self, x):
        attended = nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)
        pooled, places = nn.functional.max_pool2d(attended, 2, 1, return_indices=True)
        y = (
            nn.functional.interpolate(pooled, (8, 8), mode="bicubic")
            + places.float().sum()
            + torch.arange(8.0)
        )
        y = (
            torch.view_as_real(torch.fft.rfft(y))[..., [0, 2, 1, 3, 2, 4, 3, 1], 1]
            + torch.eye(8)
            + torch.linspace(0, 1, 8)
        )
        return y + torch.histc(y, 20, -1, 1).sum()


def test_a_file_is_the_same_as_without_copies(blocks, monkeypatch):
    programs = (
        blocks,
        export(nn.Sequential(Constants(), Constants()), torch.randn(1, 2, 8, 8)),
    )
    copied = [compile_to_bytes(exported) for exported in programs]
    monkeypatch.setattr(templates.Template, "copy", None)
    monkeypatch.setattr(
        templates.Templates, "apply", lambda self, *call: registry.apply(*call)
    )
    assert [compile_to_bytes(exported) for exported in programs] == copied


def test_a_rule_runs_once_for_equal_calls(blocks, monkeypatch):
    seen = []

    def count(t, rule, node, arguments):
        seen.append(node.target)
        return registry.apply(t, rule, node, arguments)

    monkeypatch.setattr(templates, "apply", count)
    templates.templates_for.cache_clear()
    compile_to_bytes(blocks)
    calls = [node.target for node in blocks.graph.nodes if node.op == "call_function"]
    for target, count in (
        (torch.ops.aten.linear.default, 9),
        (torch.ops.aten.conv2d.default, 3),
    ):
        assert calls.count(target) == count
        assert seen.count(target) == 1
    compile_to_bytes(export(nn.Sequential(Block()), torch.randn(1, 4, 5, 5)))
    assert (
        len([target for target in seen if target is torch.ops.aten.linear.default]) == 1
    )


def test_templates_keep_no_weights():
    templates.templates_for.cache_clear()
    module = Block()
    weight = weakref.ref(module.linears[0].weight)
    compile_to_bytes(export(module, torch.randn(1, 4, 5, 5)))
    assert templates.templates_for.cache_info().currsize == 1
    del module
    gc.collect()
    assert weight() is None


class Turned(nn.Module):
    """``t()`` of a weight is a folded TRANSPOSE, which the rule of ``linear``
    transposes back: it finds the weight.
    """

    def __init__(self):
        super().__init__()
        self.weights = nn.ParameterList(
            [nn.Parameter(torch.randn(3, 3)) for _ in range(2)]
        )

    def forward(self, x):
        for weight in self.weights:
            x = torch.matmul(x, weight.t())
        return x


class Zeros(nn.Module):
    """0.0 and -0.0 are equal in Python and make different numbers, as 1 and True do."""

    def forward(self, x):
        return torch.cat(
            [1 / (x * -0.0), 1 / (x * 0.0), x.clamp(min=-0.0), x.clamp(min=0.0)]
        )


class Same(nn.Module):
    """One value as two operands is another call than two values of the same type."""

    def forward(self, x, y):
        return torch.atan2(x, x) + torch.atan2(x, y) + torch.atan2(y, y)


@pytest.mark.parametrize(
    ("module", "inputs"),
    [
        (Turned(), (torch.randn(2, 3),)),
        (Zeros(), (torch.ones(2),)),
        (Same(), (torch.ones(2), torch.randn(2))),
    ],
    ids=["weights behind constants", "zeros", "one value twice"],
)
def test_similar_layers_compute_their_own_results(module, inputs):
    exported = export(module, *inputs)
    (actual,) = evaluate(compile_program(exported, SPEC), [x.numpy() for x in inputs])
    torch.testing.assert_close(torch.from_numpy(actual), module(*inputs).detach())


class Rows(nn.Module):
    """Asks for more rows of a table than there are, so that a use proves that the
    numbers are smaller than they are.
    """

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(10, 4)

    def forward(self, x):
        return self.table(torch.arange(20)).sum(0) + x


class Scaled(nn.Module):
    def forward(self, x):
        return torch.arange(20) * x * 1_000_000


def test_proofs_about_shared_numbers_hold_for_one_program():
    """128 million times 19 is more than int32 holds, 128 million times 9 is not."""
    spec = TosaSpec.parse("TOSA-1.0+FP+INT")
    compile_program(export(Rows(), torch.zeros(4)), spec)
    with pytest.raises(
        Unsupported, match="its int64 result may be from -2432000000 to 2413000000"
    ):
        compile_program(export(Scaled(), torch.ones(20, dtype=torch.int8)), spec)
