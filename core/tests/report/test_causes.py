"""Refusals are grouped by their first cause, and all counts of a report agree."""

import json
import sys

import delegraph.api as api
import pytest
import torch
from delegraph.backend import BackendDetails, PreprocessResult
from delegraph.discovery.registry import Registry
from delegraph.partitioner import CapabilityPartitioner, Reason, Refusal
from delegraph_executorch.edge import is_shape_dynamic
from torch import nn
from torch.export import Dim

aten = torch.ops.aten


class Any32(BackendDetails):
    @staticmethod
    def preprocess(edge_program, compile_specs):
        return PreprocessResult(b"blob")


def why_not(node):
    """Refuse doubles, dynamic sizes and sorts."""
    for value in node.all_input_nodes:
        if getattr(value.meta["val"], "dtype", None) is torch.float64:
            return Reason(
                f"{value.name} is double",
                hint="write .float()",
                cause="double",
                of=value,
                unless=torch.float32,
            )
    if is_shape_dynamic(node):
        return Reason(
            f"{node.name} is dynamic",
            hint="export static",
            cause="dynamic",
            unless="static",
        )
    return (
        Reason("sorts", hint="use topk") if node.target is aten.sort.default else None
    )


class Partitioner(CapabilityPartitioner):
    def __init__(self):
        super().__init__(why_not, "Any32")


@pytest.fixture(scope="module")
def registry():
    registry = Registry(discover=False)
    registry.register(Any32, partitioner=Partitioner)
    return registry


def causes_of(registry, function, *inputs, **options):
    class Model(nn.Module):
        def forward(self, *args):
            return function(*args)

    lowered = api.lower(
        Model().eval(), inputs, backends=["any32"], registry=registry, **options
    )
    return lowered.report.causes, lowered


def test_dependent_refusals_count_for_their_first_cause(registry):
    found, _ = causes_of(
        registry, lambda x, y: (x.sin().cos().exp() + torch.sort(y)[0]).tan(), *DOUBLES
    )
    first, second = found

    assert first.reason == "args_0 is double"
    assert first.hint == "write .float()"
    assert first.count == 5
    assert first.frees == 5
    assert [op.split(".")[1] for op in first.operators] == [
        "sin",
        "cos",
        "exp",
        "add",
        "tan",
    ]
    assert first.source.function == "forward"
    assert first.behind == ""
    assert second.reason == "sorts"
    assert second.hint == "use topk"
    assert second.operators == {"aten.sort.default": 1}


DOUBLES = torch.ones(3, dtype=torch.float64), torch.ones(3)


def test_a_program_with_static_sizes_has_no_sizes_to_constrain():
    """A backend that looks for constraints may then skip work."""
    asked = []

    class Looking(Partitioner):
        def partition(self, exported_program):
            asked.append(dict(exported_program.range_constraints))
            return super().partition(exported_program)

    looking = Registry(discover=False)
    looking.register(Any32, partitioner=Looking)
    found, _ = causes_of(
        looking, lambda x: x.sin(), torch.ones(3), dynamic_shapes=(({0: Dim("n")},),)
    )

    assert [c.frees for c in found] == [1]
    assert len(asked[0]) == 1
    assert asked[1] == {}


def test_two_values_of_one_kind_are_two_causes(registry):
    found, _ = causes_of(
        registry, lambda x, y: (x.sin().cos(), y.exp()), DOUBLES[0], DOUBLES[0] + 1
    )
    assert [(c.reason, c.count, c.frees) for c in found] == [
        ("args_0 is double", 2, 2),
        ("args_1 is double", 1, 1),
    ]


def test_refusals_that_follow_from_others_come_later(registry):
    found, _ = causes_of(registry, lambda x: torch.sort(x)[0].sin().cos(), DOUBLES[0])
    # sort passes it on as well
    assert [(c.reason, c.behind) for c in found] == [("args_0 is double", "")]

    found, _ = causes_of(
        registry, lambda x: torch.sort(x.double())[0].sin().cos(), torch.ones(3)
    )
    assert [(c.reason, c.count, c.behind, c.frees) for c in found] == [
        ("to is double", 3, "", 2)
    ]

    found, _ = causes_of(
        registry, lambda x: (torch.sort(x)[1] * 0.5).double().sin(), torch.ones(3)
    )
    assert [(c.reason, c.behind) for c in found] == [
        ("sorts", ""),
        ("to is double", ""),
    ]


def test_dynamic_sizes_are_one_cause(registry):
    def double(x):
        return x.sin().reshape(x.shape[0] * x.shape[1]).cos(), torch.sort(x)[0]

    found, lowered = causes_of(
        registry,
        double,
        torch.ones(3, 4),
        dynamic_shapes=(({0: torch.export.Dim("n")},),),
    )
    (only,) = found

    assert only.reason == "sin is dynamic"
    assert only.count == 4
    assert only.frees == 3, "sort would be refused still"
    assert lowered.host_operators == 4
    assert lowered.report.host_operators == 4
    assert lowered.verify(torch.randn(5, 4)).relative_error == 0


def test_predictions_do_not_change_program_or_report(registry):
    _, lowered = causes_of(registry, lambda x: x.sin().cos(), DOUBLES[0])
    before = lowered.report.to_json()
    assert lowered.report.to_json() == before
    assert lowered(DOUBLES[0]).dtype is torch.float64
    assert lowered.report.refusals[0].reason == "args_0 is double"


def test_without_delegraph_analysis_only_the_prediction_is_missing(
    registry, monkeypatch
):
    def lines():
        report = causes_of(
            registry, lambda x, y: (x.sin().cos(), torch.sort(y)[0]), *DOUBLES
        )[1].report
        return [
            line.strip()
            for line in str(report).splitlines()
            if not line.startswith("time:")
        ]

    with_prediction = lines()
    monkeypatch.setitem(sys.modules, "delegraph_analysis", None)
    with_prediction.remove("without that cause any32 would take 2 more operators")

    assert lines() == with_prediction


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        left, right = torch.split(self.linear(self.norm(x)), 4, -1)
        return torch.softmax(left, -1), torch.sort(right)[0].sin()


@pytest.mark.parametrize("backends", [[], ["any32"]])
def test_all_counts_of_a_report_agree(registry, backends):
    lowered = api.lower(
        Block().eval(), (torch.ones(2, 8),), backends=backends, registry=registry
    )
    report = lowered.report
    host = report.host_operators
    assert sum(report.host["forward"].values()) == host
    assert lowered.host_operators == host

    if backends:
        assert sum(cause.count for cause in report.causes) == host
        assert sum(refusal.count for refusal in report.refusals) == host

    delegated = sum(len(delegate.nodes) for delegate in lowered.delegates)
    assert report.delegated_operators == delegated
    text = f"{delegated} of {delegated + host} operators delegated"
    assert text in str(report)

    data = json.loads(json.dumps(report.to_json()))
    assert data["host_operators"] == host
    assert all(data["causes"][row["cause"]]["reason"] for row in data["refusals"])


def test_a_plain_string_is_a_separate_cause_for_each_operator(registry):
    """A ``Reason`` may join refusals to one cause; a string that repeats does not."""
    refuses_all = CapabilityPartitioner(lambda node: "not mine", "Any32")
    lowered = api.lower(
        Block().eval(), (torch.ones(2, 8),), backends=[refuses_all], registry=registry
    )
    causes = lowered.report.causes

    assert [cause.operators for cause in causes] == [
        {"aten.layer_norm.default": 1},
        {"aten.linear.default": 1},
        {"aten.split.Tensor": 1},
        {"aten.softmax.int": 1},
        {"aten.sort.default": 1},
        {"aten.sin.default": 1},
    ]
    assert {(cause.reason, cause.hint) for cause in causes} == {("not mine", "")}


def test_only_a_refusal_with_a_reason_object_has_a_hint():
    assert Refusal(None, "not mine").hint == ""
    assert Refusal(None, Reason("no", hint="go")).hint == "go"


def test_each_circle_of_reasons_is_one_cause(registry):
    class Pairs(CapabilityPartitioner):
        """Takes sine and cosine only together. Both blame each other; tan blames
        itself.
        """

        def __init__(self):
            super().__init__(self.refuse, "Any32")

        @staticmethod
        def refuse(node):
            other = {
                aten.sin.default: next(iter(node.users)),
                aten.cos.default: node.args[0],
            }
            return Reason(
                f"{node.name} alone", cause="pairs", of=other.get(node.target, node)
            )

    class Model(nn.Module):
        def forward(self, x):
            return x.sin().cos(), x.tan()

    lowered = api.lower(
        Model().eval(), (torch.ones(2),), backends=[Pairs()], registry=registry
    )

    circle, tan = lowered.report.causes
    assert circle.count == 2
    assert tan.count == 1
    # no other cause is behind them
    assert circle.behind == tan.behind == ""
