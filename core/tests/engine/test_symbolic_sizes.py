"""Symbolic sizes stay symbolic, and delegates take them as numbers."""

from __future__ import annotations

import operator

import delegraph
import pytest
import torch
from delegraph.partitioner import CapabilityPartitioner, Limits
from torch.export import Dim
from torch.export.graph_signature import SymIntArgument, TensorArgument

aten = torch.ops.aten
CALL_DELEGATE = torch.ops.higher_order.executorch_call_delegate
ROWS = Dim("rows", min=2, max=12)


class Sizes(torch.nn.Module):
    """Reshapes with the size of another tensor. Host and backend both compute with it."""

    def forward(self, x, y):
        rows = x.shape[0]
        wide = torch.relu(y).reshape(rows, -1) + x.sum()
        return torch.sort(wide)[0], x.new_ones(2 * rows) * rows, torch.cat([x, x]).sin()


def export_with_shapes(model, inputs, shapes):
    return torch.export.export(model.eval(), inputs, dynamic_shapes=shapes)


@pytest.fixture
def program():
    return export_with_shapes(
        Sizes(), (torch.ones(4, 3), torch.ones(4, 6)), {"x": {0: ROWS}, "y": {0: ROWS}}
    )


def make_inputs(rows):
    torch.manual_seed(rows)
    return torch.randn(rows, 3), torch.randn(rows, 6)


def lower(program, registry, *refused, largest=None):
    who = CapabilityPartitioner(
        lambda n: "refused" if n.target in refused else None,
        "EchoBackend",
        limits=Limits(largest=largest),
    )
    return delegraph.lower(program, backends=[who], registry=registry)


SIZE = aten.sym_size.int
PRODUCT = operator.mul
CASES = {
    "everything": (),
    "sizes on the host": (SIZE, PRODUCT),
    "products on the host": (PRODUCT,),
    "work on the host": (
        aten.relu.default,
        aten.reshape.default,
        aten.mul.Tensor,
        aten.cat.default,
    ),
    "sort on the host": (aten.sort.default,),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("largest", [None, 1])
def test_every_size_in_the_range_equals_eager(program, registry, case, largest):
    lowered = lower(program, registry, *CASES[case], largest=largest)
    for rows in (2, 3, 12):
        torch.testing.assert_close(
            lowered(*make_inputs(rows)), Sizes()(*make_inputs(rows))
        )


def test_numbers_enter_and_leave_delegates_as_numbers(program, registry):
    """One partition computes the sizes; the others get them as inputs."""
    lowered = lower(program, registry, largest=1)
    made = {a.name for d in lowered.delegates for a in d.outputs if a.dtype is None}
    taken = {a.name for d in lowered.delegates for a in d.inputs if a.dtype is None}

    assert made
    assert taken
    assert taken <= made
    for delegate in lowered.delegates:
        signature = delegate.module.original_module.graph_signature
        for spec, argument in [
            *zip(signature.input_specs, delegate.inputs, strict=True),
            *zip(signature.output_specs, delegate.outputs, strict=True),
        ]:
            assert type(spec.arg) is (
                SymIntArgument if argument.dtype is None else TensorArgument
            ), spec


def test_values_keep_symbolic_types(program, registry):
    lowered = lower(program, registry, largest=1)
    graph = lowered.exported_program().graph
    calls = [node for node in graph.nodes if node.target is CALL_DELEGATE]
    kinds = {type(v) for n in calls for v in n.meta["val"]}
    assert torch.SymInt in kinds

    parts = [
        node
        for node in graph.nodes
        if node.target is operator.getitem and node.args[0] in calls
    ]
    assert all(n.meta["val"] is n.args[0].meta["val"][n.args[1]] for n in parts)

    symbols = {
        str(d)
        for n in parts
        if isinstance(n.meta["val"], torch.Tensor)
        for d in n.meta["val"].shape
    }
    assert any(s.startswith("s") for s in symbols)


def test_ranges_are_kept_by_the_parent_and_by_every_part(program, registry):
    lowered = lower(program, registry, largest=1)
    expected = {
        str(k): (v.lower, v.upper) for k, v in program.range_constraints.items()
    }

    assert list(expected.values()) == [(2, 12)]
    for each in (
        lowered.exported_program(),
        *(delegate.module.original_module for delegate in lowered.delegates),
    ):
        assert {
            str(k): (v.lower, v.upper) for k, v in each.range_constraints.items()
        } == expected


def test_lowering_fixes_no_size_and_adds_no_guard(program, registry):
    x, _ = [
        node.meta["val"] for node in program.graph.nodes if node.op == "placeholder"
    ]
    env = x.fake_mode.shape_env
    before = len(env.guards), dict(env.replacements)
    lower(program, registry, aten.sort.default)
    assert (len(env.guards), dict(env.replacements)) == before


def test_the_parent_program_runs_and_can_be_lowered_again(program, registry):
    first = lower(program, registry, aten.sort.default, aten.sin.default)
    second = delegraph.lower(
        first.exported_program(),
        backends=[
            CapabilityPartitioner(
                lambda n: None if n.target is aten.sin.default else "no", "EchoBackend"
            )
        ],
        registry=registry,
    )
    for rows in (2, 7):
        torch.testing.assert_close(
            second.exported_program().module()(*make_inputs(rows)),
            Sizes()(*make_inputs(rows)),
        )
        torch.testing.assert_close(
            second(*make_inputs(rows)), Sizes()(*make_inputs(rows))
        )


def test_a_symbolic_number_may_be_an_input(registry):
    class Scaled(torch.nn.Module):
        def forward(self, x, n):
            return x * n, torch.sort(x)[0] + n

    program = export_with_shapes(Scaled(), (torch.ones(3), 5), (None, Dim.DYNAMIC))
    lowered = lower(program, registry, aten.sort.default)
    assert {a.name for d in lowered.delegates for a in d.inputs if a.dtype is None} == {
        "n"
    }
    for n in (3, 8):
        x = torch.randn(3)
        torch.testing.assert_close(lowered(x, n), Scaled()(x, n))


def test_a_size_may_be_returned(registry):
    class Returned(torch.nn.Module):
        def forward(self, x):
            return x + 1, x.shape[0] * 2

    program = export_with_shapes(Returned(), (torch.ones(4, 3),), ({0: ROWS},))
    for refused in ((), (SIZE,), (PRODUCT,), (aten.add.Tensor,)):
        lowered = lower(program, registry, *refused)
        for rows in (2, 9):
            actual = lowered(torch.ones(rows, 3))
            assert actual[1] == 2 * rows
            assert actual[0].shape == (rows, 3)


def test_an_input_of_the_wrong_static_size_is_refused(program, registry):
    with pytest.raises(
        delegraph.errors.InputError, match="input x must be torch.float32 of shape"
    ):
        lower(program, registry)(torch.ones(4, 5), torch.ones(4, 6))
