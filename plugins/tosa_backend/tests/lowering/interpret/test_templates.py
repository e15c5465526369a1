"""Equal calls are lowered once and copied, and the copies equal what the rules make."""

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
    """A convolution with batch norm, attention with three linears, and a shortcut."""

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
    """Calls whose rules make constants too large to be merged by their elements."""

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


@pytest.fixture
def constants():
    return export(nn.Sequential(Constants(), Constants()), torch.randn(1, 2, 8, 8))


@pytest.mark.parametrize("program", ["blocks", "constants"])
def test_file_with_copies_equals_file_without(program, request, monkeypatch):
    exported = request.getfixturevalue(program)
    file_with_copies = compile_to_bytes(exported)

    monkeypatch.setattr(templates.Template, "copy", None)
    monkeypatch.setattr(
        templates.Templates, "apply", lambda self, *call: registry.apply(*call)
    )

    assert compile_to_bytes(exported) == file_with_copies


@pytest.fixture
def rule_calls(monkeypatch):
    """The targets for which a rule runs, in order; no template exists at first."""
    targets = []

    def record(t, rule, node, arguments):
        targets.append(node.target)
        return registry.apply(t, rule, node, arguments)

    monkeypatch.setattr(templates, "apply", record)
    templates.templates_for.cache_clear()
    return targets


def test_a_rule_runs_once_for_equal_calls(blocks, rule_calls):
    nodes = [node.target for node in blocks.graph.nodes if node.op == "call_function"]
    assert nodes.count(torch.ops.aten.linear.default) == 9
    assert nodes.count(torch.ops.aten.conv2d.default) == 3

    compile_to_bytes(blocks)

    assert rule_calls.count(torch.ops.aten.linear.default) == 1
    assert rule_calls.count(torch.ops.aten.conv2d.default) == 1


def test_another_program_uses_the_templates_of_the_first(blocks, rule_calls):
    compile_to_bytes(blocks)

    compile_to_bytes(export(nn.Sequential(Block()), torch.randn(1, 4, 5, 5)))

    assert rule_calls.count(torch.ops.aten.linear.default) == 1


def test_templates_keep_no_weights_alive():
    templates.templates_for.cache_clear()
    module = Block()
    weight = weakref.ref(module.linears[0].weight)
    compile_to_bytes(export(module, torch.randn(1, 4, 5, 5)))
    assert templates.templates_for.cache_info().currsize == 1

    del module
    gc.collect()

    assert weight() is None


class TransposedWeights(nn.Module):
    """Two equal products whose weights are transposed constants."""

    def __init__(self):
        super().__init__()
        self.weights = nn.ParameterList(
            [nn.Parameter(torch.randn(3, 3)) for _ in range(2)]
        )

    def forward(self, x):
        for weight in self.weights:
            x = torch.matmul(x, weight.t())
        return x


class ZerosOfBothSigns(nn.Module):
    """0.0 and -0.0 are equal as keys of a dictionary, but give different results."""

    def forward(self, x):
        return torch.cat(
            [1 / (x * -0.0), 1 / (x * 0.0), x.clamp(min=-0.0), x.clamp(min=0.0)]
        )


class RepeatedOperand(nn.Module):
    """A call with the same operand twice differs from one with two operands."""

    def forward(self, x, y):
        return torch.atan2(x, x) + torch.atan2(x, y) + torch.atan2(y, y)


@pytest.mark.parametrize(
    ("module", "inputs"),
    [
        (TransposedWeights(), (torch.randn(2, 3),)),
        (ZerosOfBothSigns(), (torch.ones(2),)),
        (RepeatedOperand(), (torch.ones(2), torch.randn(2))),
    ],
    ids=["transposed weights", "zeros of both signs", "repeated operand"],
)
def test_similar_calls_compute_their_own_results(module, inputs):
    exported = export(module, *inputs)

    (result,) = evaluate(compile_program(exported, SPEC), [x.numpy() for x in inputs])

    torch.testing.assert_close(torch.from_numpy(result), module(*inputs).detach())


class LookupBeyondTable(nn.Module):
    """Uses the numbers 0 to 19 as indices of 10 rows, so that the lowering concludes
    wrongly that they are below 10.
    """

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(10, 4)

    def forward(self, x):
        return self.table(torch.arange(20)).sum(0) + x


class ScaledNumbers(nn.Module):
    """Uses the same numbers 0 to 19 in a product."""

    def forward(self, x):
        return torch.arange(20) * x * 1_000_000


def test_ranges_derived_in_one_program_do_not_leak_into_another():
    """A range up to 9, as the first program derives, would make the product fit int32."""
    spec = TosaSpec.parse("TOSA-1.0+FP+INT")
    compile_program(export(LookupBeyondTable(), torch.zeros(4)), spec)
    second = export(ScaledNumbers(), torch.ones(20, dtype=torch.int8))

    # -128 * 19 million to 127 * 19 million
    with pytest.raises(
        Unsupported, match="its int64 result may be from -2432000000 to 2413000000"
    ):
        compile_program(second, spec)
