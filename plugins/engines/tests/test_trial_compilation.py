"""``TrialCompilation`` checks support by compiling calls, and remembers the answers."""

import pytest
import torch
from delegraph.errors import Unsupported
from delegraph_engines import TrialCompilation


def calls_of(program):
    """Return the calls of operators, without those that only unpack results."""
    return [
        node
        for node in program.graph.nodes
        if isinstance(node.target, torch._ops.OpOverload)
    ]


def export_calls(model, *args):
    """Return an exported program and its calls of operators."""
    exported = torch.export.export(model, args).run_decompositions({})
    return exported, calls_of(exported)


def run_with_ones(program):
    """Run a program with ones as inputs, and return its results."""
    inputs = [
        torch.ones(node.meta["val"].shape)
        for node in program.graph.nodes
        if node.op == "placeholder"
    ]
    return program.module()(*inputs)


class TwoSines(torch.nn.Module):
    def forward(self, x, y):
        return x.sin(), y.sin()


class SinesAndSums(torch.nn.Module):
    def forward(self, x):
        low, high = x.sin().sin().aminmax(dim=0)
        return low + 2, high, x.sin() + 3


def test_equal_calls_are_compiled_once():
    compiled = []

    def compile(program):
        [call] = calls_of(program)
        compiled.append(str(call.target))

    _, calls = export_calls(SinesAndSums(), torch.ones(3))
    trial = TrialCompilation(compile)
    for call in calls:
        assert trial(call) is None

    # the sums have different constants
    assert sorted(compiled) == [
        "aten.add.Tensor",
        "aten.add.Tensor",
        "aten.aminmax.default",
        "aten.sin.default",
    ]


def test_each_call_is_compiled_in_a_program_that_runs():
    _, calls = export_calls(SinesAndSums(), torch.ones(3))
    trial = TrialCompilation(run_with_ones)

    for call in calls:
        assert trial(call) is None


def test_the_reason_of_the_compiler_is_the_answer():
    def compile(program):
        [call] = calls_of(program)
        if "add" in str(call.target):
            raise Unsupported("unsupported", f"no sums with {call.args[1]}")

    _, calls = export_calls(SinesAndSums(), torch.ones(3))
    trial = TrialCompilation(compile)

    reasons = {trial(call) for call in calls}

    assert reasons == {None, "no sums with 2", "no sums with 3"}


@pytest.mark.parametrize(
    ("for_all", "compilations"),
    [(lambda node, why: why == "no rule", 1), (lambda node, why: False, 2)],
    ids=["for all shapes", "for this shape"],
)
def test_a_refusal_for_all_shapes_is_not_tried_again(for_all, compilations):
    compiled = []

    def compile(program):
        compiled.append(program)
        raise Unsupported("unsupported", "no rule")

    # two sines of different shapes
    _, (first, second) = export_calls(TwoSines(), torch.ones(3), torch.ones(4))
    trial = TrialCompilation(compile, for_all)

    assert trial(first) == trial(second) == trial(first) == "no rule"
    assert len(compiled) == compilations


class ManyCalls(torch.nn.Module):
    def forward(self, x, y):
        low, high = y.aminmax(dim=0)
        return x.sin(), y.sin(), x.sin() + 2, y.cos() + x, y.sin().sin() + 3, low, high


def refuse_cosine(node):
    return "no cos" if "cos" in node.name else None


class Compiler:
    """Refuses some calls of ``ManyCalls`` by ``refused``, and records its programs.

    ``refused``: "add" for sums with a constant, "sin" for sines of four values.
    """

    def __init__(self, refused):
        self.refused = refused
        self.programs = []
        """The names of the operators of each program."""

    def __call__(self, program):
        calls = calls_of(program)
        self.programs.append([call.target.overloadpacket.__name__ for call in calls])
        inputs = [node for node in program.graph.nodes if node.op == "placeholder"]
        # no operand is shared
        assert len(inputs) == sum(len(call.all_input_nodes) for call in calls)
        assert len(run_with_ones(program)) == len(program.graph_signature.output_specs)
        for call in calls:
            self.check(call)

    def check(self, call):
        operator = call.target.overloadpacket.__name__
        operand = call.all_input_nodes[0].meta["val"]
        if operator == self.refused == "add" and call.args[1] in (2, 3):
            raise Unsupported("unsupported", f"no sum with {call.args[1]}")
        if operator == self.refused == "sin" and operand.shape == (4,):
            raise Unsupported("unsupported", "no four")


@pytest.mark.parametrize("refused", ["nothing", "add", "sin"])
def test_calls_compiled_together_get_the_answers_of_single_trials(refused):
    exported, calls = export_calls(ManyCalls(), torch.ones(3, 1), torch.ones(4))
    support = TrialCompilation(Compiler(refused)).after(refuse_cosine)
    alone = TrialCompilation(Compiler(refused))

    support.begin(exported)

    for call in calls:
        assert support.why_not(call) == (refuse_cosine(call) or alone(call))


@pytest.mark.parametrize(
    ("refused", "compiled_again"),
    [
        ("nothing", []),
        ("add", [["add"]] * 3),
        # two of the three sines are equal
        ("sin", [["sin"]] * 2),
    ],
)
def test_only_refused_operators_are_compiled_call_by_call(refused, compiled_again):
    exported, calls = export_calls(ManyCalls(), torch.ones(3, 1), torch.ones(4))
    compiler = Compiler(refused)
    support = TrialCompilation(compiler).after(refuse_cosine)

    support.begin(exported)
    programs = list(compiler.programs)
    for call in calls:
        support.why_not(call)

    together = [["aminmax"], ["add"] * 3, ["sin"] * 2]
    assert sorted(programs) == sorted(together + compiled_again)
    assert compiler.programs == programs  # the answers of ``begin`` are used


def accept(program):
    """Compile nothing, and refuse nothing."""


def test_a_call_that_changed_after_begin_is_checked_again():
    exported, calls = export_calls(TwoSines(), torch.ones(3), torch.ones(4))
    support = TrialCompilation(accept).after(lambda node: node.meta.get("why"))
    support.begin(exported)
    for call in calls:
        assert support.why_not(call) is None

    calls[0].meta["why"] = "it has changed"

    assert support.why_not(calls[0]) == "it has changed"


def test_calls_of_another_program_are_checked():
    exported, _ = export_calls(TwoSines(), torch.ones(3), torch.ones(4))
    _, other_calls = export_calls(ManyCalls(), torch.ones(3, 1), torch.ones(4))
    support = TrialCompilation(accept).after(refuse_cosine)

    support.begin(exported)

    for call in other_calls:
        assert support.why_not(call) == refuse_cosine(call)


def test_an_operator_refused_for_all_shapes_is_compiled_once():
    compiled = []

    def compile(program):
        compiled.append(program)
        raise Unsupported("unsupported", "no rule")

    exported, calls = export_calls(TwoSines(), torch.ones(3), torch.ones(4))
    trial = TrialCompilation(compile, for_all=lambda node, why: why == "no rule")
    support = trial.after(lambda node: None)

    support.begin(exported)

    assert [support.why_not(call) for call in calls] == ["no rule", "no rule"]
    assert len(compiled) == 1
