"""Traces for Perfetto: starts are measured, or an argument says that they are not."""

import json
from itertools import pairwise

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


def shown(content):
    """Return the complete events of a trace as (track, event)."""
    names = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in content["traceEvents"]
        if event["name"] == "thread_name"
    }
    return [
        (names[event["pid"], event["tid"]], event)
        for event in content["traceEvents"]
        if event["ph"] == "X"
    ]


def keys_of_torch(folder):
    """Return the keys of complete events with categories of torch's own profiler."""
    with torch.profiler.profile(with_stack=True) as profiler:
        torch.sin(torch.ones(3))
    profiler.export_chrome_trace(str(folder / "torch.json"))
    content = json.loads((folder / "torch.json").read_text())
    found = [event for event in content["traceEvents"] if event["ph"] == "X"]
    metadata = [event for event in content["traceEvents"] if event["ph"] == "M"]
    return set(found[0]), {event["name"]: set(event["args"]) for event in metadata}


@pytest.mark.parametrize("backend", ["tosa", "compiler-demo"])
def test_the_command_writes_measured_events_with_lines(backend, tmp_path, capsys):
    (tmp_path / "net.py").write_text(MODEL)
    file = tmp_path / "trace.json"
    words = ["profile", f"{tmp_path / 'net.py'}:net", "--backend", backend]
    assert main([*words, "--repeats", "3", "-o", str(file)]) == 0
    assert "by line:" in capsys.readouterr().out
    content = json.loads(file.read_text())
    keys, metadata = keys_of_torch(tmp_path)
    for event in content["traceEvents"]:
        if event["ph"] == "M":
            assert set(event["args"]) == metadata[event["name"]]
        else:
            assert keys - set(event) <= {"args"} and event["dur"] >= 0 <= event["ts"]
    events = shown(content)
    host = [event for track, event in events if track == "host"]
    for before, after in pairwise(host):
        assert before["ts"] + before["dur"] <= after["ts"]
    [inverse] = [event for event in host if "inv_ex" in event["name"]]
    assert inverse["name"] == "aten.linalg_inv_ex.default (net.py:11)"
    assert "torch.linalg.inv_ex(y)" in inverse["args"]["lines"][0]
    calls = [event for _, event in events if event["cat"] == "delegate"]
    kernels = [(track, e) for track, e in events if e["cat"] == "kernel"]
    assert [call["name"] for call in calls] == ["lowered_module_0", "lowered_module_1"]
    assert {track for track, _ in kernels} == {call["name"] for call in calls}
    outer = [event for event in host if event["name"] == "calling a delegate"]
    for call, around in zip(calls, outer, strict=True):
        assert around["ts"] <= call["ts"]
        assert call["ts"] + call["dur"] <= around["ts"] + around["dur"]
    for track, kernel in kernels:
        [call] = [call for call in calls if call["name"] == track]
        assert call["ts"] <= kernel["ts"] and "start" not in kernel["args"]
        assert kernel["ts"] + kernel["dur"] <= call["ts"] + call["dur"] + 0.001
    assert any("self.second(z)" in e["args"].get("lines", [""])[0] for _, e in kernels)


class Add(torch.nn.Module):
    def forward(self, x):
        return x.sin() + x


@pytest.fixture(scope="module")
def delegate():
    lowered = delegraph.lower(Add(), (torch.ones(3),), backends=["tosa"])
    return lowered.delegates[0]


def traced(delegate, seconds, spent):
    """Return the events of a call of a delegate. ``spent`` gets the time of its end."""
    clock = profiling._Clock()
    clock.begin({})
    clock._begin -= 10 * seconds
    clock._since -= 10 * seconds
    end = profiling.time.perf_counter()
    clock.spent(delegate, seconds, lambda: spent(end))
    profile = profiling.ProgramProfile(
        "forward", 1, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, None, tuple(clock.finish()), {}
    )
    return shown(json.loads(json.dumps(perfetto_trace([profile]))))


def test_kernels_without_starts_follow_one_another_on_their_own_track(delegate):
    def spent(end):
        return {0: {"seconds": 0.25}, None: {"seconds": 0.125}, 1: {"seconds": 0.0}}

    [(track, call), first, second] = traced(delegate, 1.0, spent)
    assert track == call["name"] == "lowered_module_0" and call["dur"] == 1e6
    assert first[0] == second[0] == "lowered_module_0, only durations"
    assert all("not measured" in event["args"]["start"] for _, event in (first, second))
    assert first[1]["ts"] == call["ts"] and first[1]["dur"] == 250_000
    assert second[1]["ts"] == call["ts"] + 250_000


def test_kernels_at_the_same_time_get_another_track(delegate):
    def spent(end):
        begin = end - 1.0
        return {
            0: {"seconds": 0.6, "intervals": [(begin, begin + 0.5), (end - 0.1, end)]},
            None: {"seconds": 0.5, "intervals": [(begin + 0.25, begin + 0.75)]},
        }

    events = traced(delegate, 1.0, spent)
    assert [track for track, event in events if event["cat"] == "kernel"] == [
        "lowered_module_0",
        "lowered_module_0, at the same time",
        "lowered_module_0",
    ]


@pytest.mark.parametrize("shift", [-100.0, 0.75])
def test_starts_by_another_clock_are_not_shown(shift, delegate):
    def spent(end):
        start = end - 1.0 + shift
        return {0: {"seconds": 0.5, "intervals": [(start, start + 0.5)]}}

    [_, (track, event)] = traced(delegate, 1.0, spent)
    assert track == "lowered_module_0, only durations" and event["dur"] == 500_000


def test_saved_programs_have_traces(tmp_path):
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
    events = shown(json.loads(file.read_text()))
    assert any(event["cat"] == "kernel" for _, event in events)


@pytest.mark.parametrize("name", ["trace.html", "trace", "net.pte"])
def test_a_trace_has_the_suffix_json(name, tmp_path, capsys):
    (tmp_path / "net.py").write_text(MODEL)
    words = ["profile", f"{tmp_path / 'net.py'}:net", "--backend", "tosa"]
    assert main([*words, "-o", str(tmp_path / name)]) == 2
    assert "must have the suffix .json" in capsys.readouterr().err
