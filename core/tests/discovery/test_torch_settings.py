"""Settings of torch that a plugin changes are restored, and the plugin is named."""

from __future__ import annotations

import delegraph
import pytest
import torch
from delegraph.backend import BackendDetails, PreprocessResult
from delegraph.discovery import torch_settings
from delegraph.discovery.registry import Registry
from delegraph.partitioner import CapabilityPartitioner
from delegraph.runtime import BackendRuntime

from ..support.processes import run_python

CHANGES = {
    "default dtype from torch.float32 to torch.float64": lambda: (
        torch.set_default_dtype(torch.float64)
    ),
    "recording of gradients from True to False": lambda: torch.set_grad_enabled(False),
    "number of threads from 1 to 3": lambda: torch.set_num_threads(3),
}


def current_settings():
    return torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_num_threads()


@pytest.fixture(autouse=True)
def as_before(monkeypatch):
    monkeypatch.setattr(torch_settings, "_warned", set())
    before = current_settings()
    yield
    assert current_settings() == before


def lower_and_call(act):
    """Lower and call a program whose plugin calls ``act`` with the name of each step."""

    class OddBackend(BackendDetails):
        @staticmethod
        def preprocess(edge_program, compile_specs):
            act("preprocess")
            return PreprocessResult(b"")

    class OddRuntime(BackendRuntime):
        @staticmethod
        def load(processed_bytes, compile_specs, named_data):
            act("load")
            return lambda x: (act("delegate"), x.relu())[1:]

    class OddPartitioner(CapabilityPartitioner):
        def __init__(self):
            super().__init__(lambda node: None, "OddBackend")

        def partition(self, exported_program):
            act("partition")
            return super().partition(exported_program)

    registry = Registry(discover=False)
    registry.register(OddBackend, runtime=OddRuntime)
    program = delegraph.lower(
        torch.nn.ReLU().eval(),
        (torch.ones(3),),
        backends=[OddPartitioner()],
        registry=registry,
    )
    assert torch.equal(program(-torch.ones(3)), torch.zeros(3))
    return program


@pytest.mark.parametrize("when", ["partition", "preprocess", "load", "delegate"])
@pytest.mark.parametrize("said", CHANGES)
def test_plugins_that_change_settings_are_named_and_undone(said, when):
    said_here = (
        said.replace("from True to False", "from False to False")
        if when in ("load", "delegate")
        else said
    )
    if said_here != said:  # calls record no gradients anyway
        lower_and_call(lambda now: CHANGES[said]() if now == when else None)
        return
    with pytest.warns(delegraph.DelegraphWarning) as told:
        lower_and_call(lambda now: CHANGES[said]() if now == when else None)

    [text] = {str(w.message) for w in told}
    assert text.startswith(f"{when} of Odd")
    assert f", changed torch's {said}; it is " in text


def test_runtime_that_changes_settings_is_named_once():
    with pytest.warns(delegraph.DelegraphWarning) as told:
        program = lower_and_call(
            lambda now: torch.set_num_threads(3) if now == "delegate" else None
        )
        program(torch.ones(3))
    assert len(told) == 1


def test_a_plugin_that_raises_is_also_named_for_its_settings():
    def act(now):
        torch.set_num_threads(3)
        raise ValueError("no luck")

    with pytest.warns(delegraph.DelegraphWarning, match="number of threads"):
        program = lower_and_call(act)
    assert "ValueError: no luck" in program.report.refusals[0].reason


TARGET = """
import torch
torch.set_default_dtype(torch.float64)
torch.set_grad_enabled(False)
from delegraph.backend import BackendDetails

class OddBackend(BackendDetails):
    @staticmethod
    def preprocess(edge_program, compile_specs): ...
"""
LIGHT = """
from delegraph.plugin import BackendSpec, hookimpl

@hookimpl
def delegraph_backends():
    return [BackendSpec("odd", "odd_target:OddBackend", "OddBackend", 1)]
"""


@pytest.mark.parametrize(
    "first", ["", "import torch;"], ids=["which imports torch", "after torch"]
)
def test_settings_changed_by_an_import_are_restored(site, first):
    site.plugin("odd-one", LIGHT)
    (site.folder / "odd_target.py").write_text(TARGET)
    program = f"{first}import delegraph; delegraph.get_backend('odd'); import torch; "
    program += "print(torch.get_default_dtype(), torch.is_grad_enabled())"
    completed = run_python("-c", program, path=site.folder, DELEGRAPH_PLUGINS="odd-one")

    assert completed.stdout == "torch.float32 True\n", completed.stderr
    assert (
        "importing backend 'odd_target:OddBackend' of odd-one 1.0, changed torch's"
        " default dtype from" in completed.stderr
    )
