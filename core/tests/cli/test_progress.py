"""Progress of a command: one line on a terminal, and a line at intervals in a file."""

import io
import logging
import time

import pytest
import torch
from delegraph import lower
from delegraph.command import outcome
from delegraph.partitioner import CapabilityPartitioner
from torch import nn


class Watched(io.StringIO):
    def isatty(self):
        return True


class Steps(nn.Module):
    def forward(self, x):
        return ((x + 1).sin() + 1).sin() + 1


def lower_slowly(registry):
    class Slow(logging.Handler):
        def emit(self, record):
            time.sleep(0.12)

    slow = Slow()
    logging.getLogger("delegraph.progress").addHandler(slow)
    try:
        partitioner = CapabilityPartitioner(
            lambda n: "no" if "sin" in str(n.target) else None, "EchoBackend"
        )
        return lower(
            Steps().eval(), (torch.ones(2),), backends=[partitioner], registry=registry
        )
    finally:
        logging.getLogger("delegraph.progress").removeHandler(slow)


def test_log_file_names_the_current_partition_at_intervals(echo_registry, monkeypatch):
    kept = io.StringIO()
    monkeypatch.setattr("sys.stderr", kept)
    monkeypatch.setattr(outcome, "INTERVAL", 0.05)
    with outcome.progress("lowering net.py"):
        assert len(lower_slowly(echo_registry).delegates) == 3
    lines = kept.getvalue().splitlines()
    for k in (1, 2, 3):
        assert any(
            line.startswith(f"lowering net.py: partition {k} of 3, echobackend, ")
            for line in lines
        ), lines

    assert all(line.endswith(" s ...") for line in lines)
    assert "\x1b" not in kept.getvalue()


def test_short_command_writes_no_progress_to_a_file(echo_registry, monkeypatch):
    kept = io.StringIO()
    monkeypatch.setattr("sys.stderr", kept)
    with outcome.progress("lowering net.py"):
        lower_slowly(echo_registry)
    assert kept.getvalue() == ""
    assert logging.getLogger("delegraph.progress").handlers == []


def test_a_terminal_shows_progress_in_one_line(echo_registry, monkeypatch):
    shown = Watched()
    monkeypatch.setattr("sys.stderr", shown)
    with outcome.progress("lowering net\x1b.py"):
        lower_slowly(echo_registry)
        time.sleep(1)

    assert shown.getvalue().startswith("lowering net\\x1b.py ...")
    assert (
        "\r\x1b[Klowering net\\x1b.py: partition 3 of 3, echobackend, 1 s ..."
        in shown.getvalue()
    )
    assert shown.getvalue().endswith("\r\x1b[K")
    assert "\n" not in shown.getvalue()


def test_progress_ends_when_lowering_fails(monkeypatch):
    monkeypatch.setattr("sys.stderr", io.StringIO())
    with pytest.raises(ValueError), outcome.progress("lowering"):
        raise ValueError
    assert logging.getLogger("delegraph.progress").handlers == []


def test_lowering_in_python_prints_nothing(echo_registry, capsys):
    lower_slowly(echo_registry)
    assert capsys.readouterr() == ("", "")
