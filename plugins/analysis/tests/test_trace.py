"""``profile -o trace.json`` writes a trace for Perfetto."""

import contextlib
import io
import json
from itertools import pairwise
from typing import NamedTuple

import delegraph
import pytest
import torch
from delegraph.cli import main
from delegraph_analysis import perfetto_trace, profiling

MODEL = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

    def forward(self, x):
        y = torch.sin(self.first(x))
        z = torch.linalg.inv_ex(y)[0]
        return self.second(z)

def net():
    return Net().eval(), (torch.eye(8),)
"""


class Shown(NamedTuple):
    """An event with a start and an end, and the name of its track in Perfetto."""

    track: str
    event: dict

    @property
    def start(self):
        return self.event["ts"]

    @property
    def end(self):
        return self.event["ts"] + self.event["dur"]


def complete_events(content):
    """Return the events of a trace with a start and an end, in order."""
    tracks = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in content["traceEvents"]
        if event["name"] == "thread_name"
    }
    return [
        Shown(tracks[event["pid"], event["tid"]], event)
        for event in content["traceEvents"]
        if event["ph"] == "X"
    ]


@pytest.fixture(scope="module", params=["tosa", "compiler-demo"])
def content(request, tmp_path_factory):
    """Return the trace of two delegates and a host operator between them."""
    folder = tmp_path_factory.mktemp("trace")
    (folder / "net.py").write_text(MODEL)
    file = folder / "trace.json"
    words = ["profile", f"{folder / 'net.py'}:net", "--backend", request.param]
    with contextlib.redirect_stdout(io.StringIO()) as stdout:
        assert main([*words, "--repeats", "3", "-o", str(file)]) == 0
    assert "by line:" in stdout.getvalue()
    return json.loads(file.read_text())


@pytest.fixture(scope="module")
def events_on_host(content):
    return [event for event in complete_events(content) if event.track == "host"]


@pytest.fixture(scope="module")
def calls(content):
    """Return the events of calls of delegates."""
    events = complete_events(content)
    return [shown for shown in events if shown.event["cat"] == "delegate"]


@pytest.fixture(scope="module")
def kernels(content):
    """Return the events of operators in delegates."""
    events = complete_events(content)
    return [shown for shown in events if shown.event["cat"] == "kernel"]


def test_events_have_the_keys_of_torchs_own_profiler(content, tmp_path):
    with torch.profiler.profile(with_stack=True) as profiler:
        torch.sin(torch.ones(3))
    profiler.export_chrome_trace(str(tmp_path / "torch.json"))
    of_torch = json.loads((tmp_path / "torch.json").read_text())["traceEvents"]
    keys_of_event = set(next(event for event in of_torch if event["ph"] == "X"))
    keys_of_metadata = {
        event["name"]: set(event["args"]) for event in of_torch if event["ph"] == "M"
    }

    for event in content["traceEvents"]:
        if event["ph"] == "M":
            assert set(event["args"]) == keys_of_metadata[event["name"]]
        else:
            assert keys_of_event - set(event) <= {"args"}
            assert event["ts"] >= 0
            assert event["dur"] >= 0


def test_host_operators_follow_each_other(events_on_host):
    for before, after in pairwise(events_on_host):
        assert before.end <= after.start


def test_host_operators_show_their_line(events_on_host):
    [inverse] = [
        shown.event for shown in events_on_host if "inv_ex" in shown.event["name"]
    ]

    assert inverse["name"] == "aten.linalg_inv_ex.default (net.py:11)"
    assert "torch.linalg.inv_ex(y)" in inverse["args"]["lines"][0]


def test_calls_of_delegates_are_within_host_events(events_on_host, calls):
    on_host = [
        shown for shown in events_on_host if shown.event["name"] == "calling a delegate"
    ]

    names = [call.event["name"] for call in calls]
    assert names == ["lowered_module_0", "lowered_module_1"]
    for call, around in zip(calls, on_host, strict=True):
        assert around.start <= call.start
        assert call.end <= around.end


def test_kernels_are_within_the_call_of_their_delegate(calls, kernels):
    call_of = {call.event["name"]: call for call in calls}

    assert {kernel.track for kernel in kernels} == set(call_of)
    for kernel in kernels:
        call = call_of[kernel.track]
        assert call.start <= kernel.start
        assert kernel.end <= call.end + 0.001  # in microseconds: a rounding error


def test_kernels_have_measured_starts_and_lines(kernels):
    # an argument "start" would tell that the start was not measured
    assert not any("start" in kernel.event["args"] for kernel in kernels)
    lines = [kernel.event["args"].get("lines", [""])[0] for kernel in kernels]
    assert any("self.second(z)" in line for line in lines)


class Add(torch.nn.Module):
    def forward(self, x):
        return x.sin() + x


@pytest.fixture(scope="module")
def delegate():
    lowered = delegraph.lower(Add(), (torch.ones(3),), backends=["tosa"])
    return lowered.delegates[0]


SECOND = 1_000_000
"""A second in the microseconds of a trace."""


def trace_of_call(delegate, spent):
    """Return the events of a call of a delegate that took 1 second.

    ``spent`` is a function from the end of the call, by ``time.perf_counter()``, to the
    times of its operators.
    """
    seconds = 1.0
    clock = profiling._Clock()
    clock.begin({})
    # the clock began early enough to contain the call
    clock._begin -= 10 * seconds
    clock._since -= 10 * seconds
    end = profiling.time.perf_counter()
    clock.spent(delegate, seconds, lambda: spent(end))
    profile = profiling.ProgramProfile(
        method="forward",
        repeats=1,
        seconds=1.0,
        fastest=1.0,
        slowest=1.0,
        plain_seconds=1.0,
        watching=1.0,
        first_seconds=1.0,
        load=None,
        parts=tuple(clock.finish()),
        expected={},
    )
    content = json.loads(json.dumps(perfetto_trace([profile])))
    return complete_events(content)


def test_kernels_without_starts_follow_one_another_on_their_own_track(delegate):
    def spent(end):
        return {0: {"seconds": 0.25}, None: {"seconds": 0.125}, 1: {"seconds": 0.0}}

    call, first, second = trace_of_call(delegate, spent)

    assert call.track == call.event["name"] == "lowered_module_0"
    assert call.event["dur"] == SECOND
    for kernel in (first, second):
        assert kernel.track == "lowered_module_0, only durations"
        assert "not measured" in kernel.event["args"]["start"]
    assert first.start == call.start
    assert first.event["dur"] == 0.25 * SECOND
    assert second.start == first.end


def test_kernels_at_the_same_time_get_another_track(delegate):
    def spent(end):
        start = end - 1.0
        at_both_ends = [(start, start + 0.5), (end - 0.1, end)]
        in_the_middle = [(start + 0.25, start + 0.75)]
        return {
            0: {"seconds": 0.6, "intervals": at_both_ends},
            None: {"seconds": 0.5, "intervals": in_the_middle},
        }

    events = trace_of_call(delegate, spent)

    kernels = [shown for shown in events if shown.event["cat"] == "kernel"]
    assert [kernel.track for kernel in kernels] == [
        "lowered_module_0",
        "lowered_module_0, at the same time",
        "lowered_module_0",
    ]


@pytest.mark.parametrize("shift", [-100.0, 0.75])
def test_starts_outside_of_the_call_are_not_shown(shift, delegate):
    """They come from an engine with another clock."""

    def spent(end):
        start = end - 1.0 + shift
        return {0: {"seconds": 0.5, "intervals": [(start, start + 0.5)]}}

    _, kernel = trace_of_call(delegate, spent)

    assert kernel.track == "lowered_module_0, only durations"
    assert kernel.event["dur"] == 0.5 * SECOND


def test_saved_programs_can_be_traced(tmp_path):
    lowered = delegraph.lower(
        Add(),
        (torch.ones(3),),
        backends=["tosa"],
        options={"tosa": {"locations": True}},
    )
    lowered.save(tmp_path / "m.tosa")
    file = tmp_path / "trace.json"
    words = ["profile", str(tmp_path / "m.tosa"), "--repeats", "1", "-o", str(file)]
    assert main(words) == 0
    events = complete_events(json.loads(file.read_text()))
    assert any(shown.event["cat"] == "kernel" for shown in events)


@pytest.mark.parametrize("name", ["trace.html", "trace", "net.pte"])
def test_trace_files_without_the_suffix_json_are_refused(name, tmp_path, capsys):
    (tmp_path / "net.py").write_text(MODEL)
    words = ["profile", f"{tmp_path / 'net.py'}:net", "--backend", "tosa"]
    assert main([*words, "-o", str(tmp_path / name)]) == 2
    assert "must have the suffix .json" in capsys.readouterr().err
