"""The checks as tests of a class: what a backend's own test-suite has."""

from itertools import pairwise

import delegraph_devkit as devkit
import torch

from .support import bad_backends as backends
from .support.kit import failures, under_test


class TestGood(devkit.BackendContract):
    backend = "good"
    gate = 40
    register = staticmethod(backends.register_good)

    @staticmethod
    def example():
        return torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Sigmoid()).eval(), (
            torch.ones(2, 3),
        )


def test_the_class_has_one_method_for_each_check():
    methods = [
        name.removeprefix("test_")
        for name in dir(devkit.BackendContract)
        if name.startswith("test_")
    ]
    assert sorted(methods) == sorted(devkit.CHECKS)
    assert all(check.purpose for check in devkit.CHECKS.values())


def test_compilers_may_refuse_accepted_operators_if_declared():
    register = backends.BAD["accepted_compiles"]["accepts_too_much"]
    one = under_test(register, may_refuse=True)
    figures = devkit.CHECKS["accepted_compiles"].run(one)
    assert figures["operators_refused"]
    refused = {why for o in one.sweep.outcomes for _, why in o.refused}
    assert "layer_norm.default cannot be compiled" in refused
    devkit.CHECKS["only_tagged_nodes_lowered"].run(one)


def test_spent_budgets_leave_a_program_for_each_check():
    one = under_test(backends.register_good, budget=1e-6, gate=100)
    told = []
    report = devkit.run_checks(
        one, ended=lambda result: told.append((result.name, len(told)))
    )
    assert not failures(report)
    assert told == [(name, k) for k, name in enumerate(devkit.CHECKS)]
    figures = {result.name: result.figures for result in report.results}
    assert (
        figures["accepted_compiles"]["programs"] <= 3
        and figures["deterministic"]["programs"] == 1
    )
    assert (
        figures["damaged_blob"]["truncations"] + figures["damaged_blob"]["changed"] == 1
    )


def test_how_far_a_long_check_has_come(monkeypatch):
    monkeypatch.setattr("delegraph_devkit.sweep.TOLD_SECONDS", 1e-6)
    told = []
    one = under_test(backends.register_good, tell=told.append)
    # in parts of one program, and none is left out or tried twice
    assert len(one.rehearsal) == len(one.programs)
    assert told[0].startswith("1 programs of process 1 of 1 tried, the last ")


def test_long_checks_report_failures_when_found(
    monkeypatch,
):
    monkeypatch.setattr("delegraph_devkit.sweep.TOLD_SECONDS", 1e-6)
    told = []
    given = []
    one = under_test(backends.BAD["numerics"]["wrong_relu"], tell=told.append)
    elsewhere = one.run_elsewhere

    def noting(*args, **kwargs):
        given.append(args[-1])
        return elsewhere(*args, **kwargs)

    monkeypatch.setattr(one, "run_elsewhere", noting)
    assert any(o.faults for o in one.rehearsal)
    wrong = [o.program for o in one.rehearsal if o.faults]
    assert [
        text.partition(":")[0]
        for text in told
        if ": the results differ from eager" in text
    ] == wrong
    assert all(later == 2 * sooner for sooner, later in pairwise(given))
