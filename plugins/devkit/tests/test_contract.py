"""The checks as tests of a class, for the test suite of a backend."""

from itertools import pairwise

import delegraph_devkit as devkit
import torch

from .support import bad_backends as backends
from .support.kit import backend_under_test, failed_checks


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
    one = backend_under_test(register, may_refuse=True)
    figures = devkit.CHECKS["accepted_compiles"].run(one)
    assert figures["operators_refused"]
    refused = {why for o in one.sweep.outcomes for _, why in o.refused}
    assert "layer_norm.default cannot be compiled" in refused
    devkit.CHECKS["only_tagged_nodes_lowered"].run(one)


def test_spent_budgets_leave_a_program_for_each_check():
    one = backend_under_test(backends.register_good, budget=1e-6, gate=100)
    ended = []

    report = devkit.run_checks(one, ended=lambda result: ended.append(result.name))

    assert not failed_checks(report)
    assert ended == list(devkit.CHECKS)
    figures = {result.name: result.figures for result in report.results}
    assert figures["accepted_compiles"]["programs"] <= 3
    assert figures["deterministic"]["programs"] == 1
    damaged = figures["damaged_blob"]
    assert damaged["truncations"] + damaged["changed"] == 1


def test_long_checks_report_their_progress(monkeypatch):
    monkeypatch.setattr("delegraph_devkit.sweep.REPORT_SECONDS", 1e-6)
    printed = []
    one = backend_under_test(backends.register_good, tell=printed.append)
    # each process tries one program; none is left out or tried twice
    assert len(one.rehearsal) == len(one.programs)
    assert printed[0].startswith("process 1 of 1 has tried 1 programs, the last ")


def test_long_checks_report_failures_when_found(monkeypatch):
    monkeypatch.setattr("delegraph_devkit.sweep.REPORT_SECONDS", 1e-6)
    printed = []
    limits = []
    one = backend_under_test(
        backends.BAD["numerics"]["wrong_relu"], tell=printed.append
    )
    elsewhere = one.run_elsewhere

    def noting(*args, **kwargs):
        limits.append(args[-1])
        return elsewhere(*args, **kwargs)

    monkeypatch.setattr(one, "run_elsewhere", noting)

    wrong = [o.program for o in one.rehearsal if o.faults]

    assert wrong
    reported = [text for text in printed if ": the results differ from eager" in text]
    assert [text.partition(":")[0] for text in reported] == wrong
    assert all(later == 2 * sooner for sooner, later in pairwise(limits))
