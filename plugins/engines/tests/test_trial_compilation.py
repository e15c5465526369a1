"""Support checks that compile single calls, and what they remember."""

import pytest
import torch
from delegraph.errors import Unsupported
from delegraph_engines import TrialCompilation


def test_equal_calls_are_compiled_once_and_alone():
    class Model(torch.nn.Module):
        def forward(self, x):
            low, high = x.sin().sin().aminmax(dim=0)
            return low + 2, high, x.sin() + 3

    asked = []

    def compile(program):
        [call, *_] = [
            node for node in program.graph.nodes if node.op == "call_function"
        ]
        asked.append((str(call.target), len(program.graph_signature.output_specs)))
        program.module()(
            *(
                torch.ones(node.meta["val"].shape)
                for node in program.graph.nodes
                if node.op == "placeholder"
            )
        )
        if "add" in asked[-1][0]:
            raise Unsupported("unsupported", f"no sums with {call.args[1]}")

    exported = torch.export.export(Model(), (torch.ones(3),)).run_decompositions({})
    ask = TrialCompilation(compile)
    calls = [
        node
        for node in exported.graph.nodes
        if node.op == "call_function" and "getitem" not in str(node.target)
    ]
    said = [ask(n) for n in calls if n.meta["val"] is not None]
    assert sorted(filter(None, said)) == ["no sums with 2", "no sums with 3"]
    assert asked.count(("aten.sin.default", 1)) == 1
    assert len(asked) == 4


def test_refusals_of_an_operator_hold_for_all_shapes():
    asked = []

    def compile(program):
        asked.append(program)
        raise Unsupported("unsupported", "no rule")

    exported = torch.export.export(Two(), (torch.ones(3), torch.ones(4)))
    first, second = [
        node for node in exported.graph.nodes if node.op == "call_function"
    ][:2]
    ask = TrialCompilation(compile, lambda node, why: why == "no rule")
    assert ask(first) == ask(second) == ask(first) == "no rule"
    assert len(asked) == 1
    asked.clear()
    ask = TrialCompilation(compile, lambda node, why: False)
    assert ask(first) == ask(second) == "no rule"
    assert len(asked) == 2


class Two(torch.nn.Module):
    def forward(self, x, y):
        return x.sin(), y.sin()


class Many(torch.nn.Module):
    def forward(self, x, y):
        low, high = y.aminmax(dim=0)
        return x.sin(), y.sin(), x.sin() + 2, y.cos() + x, y.sin().sin() + 3, low, high


def calls_of(model, *args):
    exported = torch.export.export(model, args).run_decompositions({})
    return exported, [
        node
        for node in exported.graph.nodes
        if isinstance(node.target, torch._ops.OpOverload)
    ]


@pytest.mark.parametrize("refused", ["", "add", "sin"])
def test_calls_are_compiled_together_and_alone_after_a_refusal(
    refused,
):
    """Each gets the answer that it gets alone; a program has the operands of each of
    its calls, and runs.
    """
    asked = []

    def compile(program):
        calls = [
            node
            for node in program.graph.nodes
            if isinstance(node.target, torch._ops.OpOverload)
        ]
        asked.append([str(n.target).split(".")[1] for n in calls])
        inputs = [
            torch.ones(node.meta["val"].shape)
            for node in program.graph.nodes
            if node.op == "placeholder"
        ]
        assert len(inputs) == sum(len(n.all_input_nodes) for n in calls)
        assert len(program.module()(*inputs)) == len(
            program.graph_signature.output_specs
        )
        for call in calls:
            if call.args[1:] in [(3,), (2,)] and refused == "add":
                raise Unsupported("unsupported", f"no sum with {call.args[1]}")
            if (
                call.all_input_nodes[0].meta["val"].shape == (4,)
                and refused == asked[-1][0] == "sin"
            ):
                raise Unsupported("unsupported", "no four")

    exported, calls = calls_of(Many(), torch.ones(3, 1), torch.ones(4))
    support = TrialCompilation(compile).after(
        lambda node: "no cos" if "cos" in node.name else None
    )
    support.begin(exported)
    together, asked[:] = list(asked), []
    answers = [support.why_not(node) for node in calls]
    assert asked == []
    alone = TrialCompilation(compile)
    assert answers == ["no cos" if "cos" in n.name else alone(n) for n in calls]
    assert sorted(map(sorted, together)) == sorted(
        [["aminmax"], ["add"] * 3, ["sin"] * 2]
        + (
            [["add"]] * 3
            if refused == "add"
            else [["sin"]] * 2
            if refused == "sin"
            else []
        )
    )


def test_changed_or_unknown_calls_are_checked_again():
    exported, calls = calls_of(Two(), torch.ones(3), torch.ones(4))
    _, others = calls_of(Many(), torch.ones(3, 1), torch.ones(4))
    support = TrialCompilation(lambda program: None).after(
        lambda node: node.meta.get("why")
    )
    support.begin(exported)
    assert [support.why_not(node) for node in (*calls, *others)] == [None] * (
        len(calls) + len(others)
    )
    calls[0].meta["why"] = "it has changed"
    assert support.why_not(calls[0]) == "it has changed"


def test_a_refusal_of_an_operator_ends_the_questions_about_it():
    asked = []

    def compile(program):
        asked.append(program)
        raise Unsupported("unsupported", "no rule")

    exported, calls = calls_of(Two(), torch.ones(3), torch.ones(4))
    support = TrialCompilation(compile, lambda node, why: why == "no rule").after(
        lambda node: None
    )
    support.begin(exported)
    assert [support.why_not(node) for node in calls] == ["no rule", "no rule"]
    assert len(asked) == 1
