"""``BackendContract`` runs the checks of the kit; long checks report their progress."""

from itertools import pairwise

import delegraph_devkit as devkit
import pytest
import torch

from .support import bad_backends as backends
from .support.kit import backend_under_test, failed_checks


class TestGood(devkit.BackendContract):
    backend = "good"
    gate = 40
    register = staticmethod(backends.register_good)

    @staticmethod
    def example():
        model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Sigmoid())
        return model.eval(), (torch.ones(2, 3),)


def test_the_class_has_one_method_for_each_check():
    methods = [
        name.removeprefix("test_")
        for name in dir(devkit.BackendContract)
        if name.startswith("test_")
    ]
    assert sorted(methods) == sorted(devkit.CHECKS)


def test_each_check_has_a_purpose():
    assert all(check.purpose for check in devkit.CHECKS.values())


def test_compilers_may_refuse_accepted_operators_if_declared():
    register = backends.BAD["accepted_compiles"]["accepts_too_much"]
    backend = backend_under_test(register, may_refuse=True)

    figures = devkit.CHECKS["accepted_compiles"].run(backend)

    assert figures["operators_refused"]
    reasons = set()
    for outcome in backend.sweep.outcomes:
        reasons.update(reason for _, reason in outcome.refused)
    assert "layer_norm.default cannot be compiled" in reasons
    devkit.CHECKS["only_tagged_nodes_lowered"].run(backend)  # raises if it fails


def test_each_check_tries_a_program_even_without_a_budget():
    backend = backend_under_test(backends.register_good, budget=1e-6, gate=100)
    ended = []

    report = devkit.run_checks(backend, ended=lambda result: ended.append(result.name))

    assert not failed_checks(report)
    assert ended == list(devkit.CHECKS)
    figures = {result.name: result.figures for result in report.results}
    assert figures["accepted_compiles"]["programs"] <= 3
    assert figures["deterministic"]["programs"] == 1
    damaged = figures["damaged_blob"]
    assert damaged["truncations"] + damaged["changed"] == 1


@pytest.fixture
def always_report(monkeypatch):
    """Let a check report its progress after each program."""
    monkeypatch.setattr("delegraph_devkit.sweep.REPORT_SECONDS", 1e-6)


def test_long_checks_report_their_progress(always_report):
    printed = []
    backend = backend_under_test(backends.register_good, tell=printed.append)

    # each process tries one program; none is left out or tried twice
    assert len(backend.rehearsal) == len(backend.programs)
    assert printed[0].startswith("process 1 of 1 has tried 1 programs, the last ")


def test_long_checks_report_failures_when_found(always_report):
    printed = []
    register = backends.BAD["numerics"]["wrong_relu"]
    backend = backend_under_test(register, tell=printed.append)

    wrong = [outcome.program for outcome in backend.rehearsal if outcome.faults]

    assert wrong
    reports = [text for text in printed if ": the results differ from eager" in text]
    assert [text.partition(":")[0] for text in reports] == wrong


def test_times_between_reports_double(always_report, monkeypatch):
    backend = backend_under_test(backends.register_good)
    run_elsewhere = backend.run_elsewhere
    report_times = []

    def record_report_time(*args, **kwargs):
        report_times.append(args[-1])
        return run_elsewhere(*args, **kwargs)

    monkeypatch.setattr(backend, "run_elsewhere", record_report_time)
    assert backend.rehearsal

    assert len(report_times) > 1
    for earlier, later in pairwise(report_times):
        assert later == 2 * earlier
