"""Refusals of an engine: at the call that it names, or without a call."""

import torch
from delegraph.errors import Unsupported
from delegraph_engines import NumberedCalls, TrialCompilation


class Waves(torch.nn.Module):
    def forward(self, x):
        low = x.sin()
        return low + x.cos()


def number_calls(calls=3):
    program = torch.export.export(Waves(), (torch.ones(2),))
    nodes = [node for node in program.graph.nodes if node.op == "call_function"]
    found = NumberedCalls()
    found.calls = nodes[:calls]
    return found


def test_a_refusal_is_at_the_call_that_the_engine_names():
    graph = number_calls()
    refusal = graph.refused("no cosine", "unknown operator at n1/Cos")
    assert isinstance(refusal, Unsupported)
    assert refusal.node is graph.calls[1]
    assert refusal.message == "no cosine"
    assert refusal.source.code == "return low + x.cos()"


def test_a_refusal_without_a_name_blames_none_of_several_calls():
    for text in ("out of memory", "unknown operator at n7/Cos"):
        refusal = number_calls().refused(text)
        assert not isinstance(refusal, Unsupported)
        assert str(refusal) == text


def test_a_refusal_without_a_name_is_about_the_only_call():
    graph = number_calls(calls=1)
    assert graph.refused("out of memory").node is graph.calls[0]


class Sines(torch.nn.Module):
    def forward(self, x, y):
        return x.sin(), y.sin()


def test_a_trial_of_several_calls_has_the_reason_of_the_engine():
    compiled = []

    def compile(program):
        compiled.append(program)
        calls = NumberedCalls()
        calls.calls = [
            node for node in program.graph.nodes if node.op == "call_function"
        ]
        raise calls.refused("no sines")

    program = torch.export.export(Sines(), (torch.ones(2), torch.ones(3)))
    nodes = [node for node in program.graph.nodes if node.op == "call_function"]
    ask = TrialCompilation(compile, lambda node, why: why == "no sines")
    assert ask.reasons(nodes) == dict.fromkeys(nodes, "no sines")
    assert len(compiled) == 1
