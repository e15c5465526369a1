"""``NumberedCalls`` finds the call that an engine names when it refuses a program."""

import pytest
import torch
from delegraph.errors import Unsupported
from delegraph_engines import NumberedCalls, TrialCompilation


class Waves(torch.nn.Module):
    def forward(self, x):
        low = x.sin()
        return low + x.cos()


def number_calls(count=3):
    """Return the first calls of ``Waves`` as an engine numbers them: n0, n1 and so on."""
    program = torch.export.export(Waves(), (torch.ones(2),))
    nodes = [node for node in program.graph.nodes if node.op == "call_function"]
    numbered = NumberedCalls()
    numbered.calls = nodes[:count]
    return numbered


def test_a_refusal_is_at_the_call_that_the_engine_names():
    numbered = number_calls()

    refusal = numbered.refused("no cosine", "unknown operator at n1/Cos")

    assert isinstance(refusal, Unsupported)
    assert refusal.node is numbered.calls[1]
    assert refusal.message == "no cosine"
    assert refusal.source.code == "return low + x.cos()"


@pytest.mark.parametrize("text", ["out of memory", "unknown operator at n7/Cos"])
def test_a_refusal_without_a_known_number_blames_no_call(text):
    refusal = number_calls(count=3).refused(text)

    assert not isinstance(refusal, Unsupported)
    assert str(refusal) == text


def test_a_refusal_without_a_number_blames_an_only_call():
    numbered = number_calls(count=1)

    assert numbered.refused("out of memory").node is numbered.calls[0]


class Sines(torch.nn.Module):
    def forward(self, x, y):
        return x.sin(), y.sin()


def test_a_trial_compilation_reports_refusals_that_blame_no_call():
    compiled = []

    def compile(program):
        compiled.append(program)
        numbered = NumberedCalls()
        numbered.calls = [
            node for node in program.graph.nodes if node.op == "call_function"
        ]
        raise numbered.refused("no sines")

    program = torch.export.export(Sines(), (torch.ones(2), torch.ones(3)))
    first, second = [n for n in program.graph.nodes if n.op == "call_function"]
    trial = TrialCompilation(compile, for_all=lambda node, why: why == "no sines")

    reasons = trial.reasons([first, second])

    assert reasons == {first: "no sines", second: "no sines"}
    assert len(compiled) == 1
