"""``.pte`` files through delegraph's own doors: saved, loaded, inspected; with data
files, debug files, and options.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import delegraph
import delegraph_demo.plugin
import delegraph_executorch.plugin
import delegraph_tosa.plugin
import pytest
import torch
from delegraph.errors import (
    FormatError,
    InputError,
    NoRuntime,
    OptionError,
    Unsupported,
)
from delegraph_executorch.debug import DebugFile
from delegraph_executorch.emit import EmitOptions, emit_program
from delegraph_executorch.format import PteFormat
from delegraph_executorch.memory.verify import find_conflicts
from delegraph_executorch.program.pte_tables import Tensor
from delegraph_executorch.run import stock
from delegraph_executorch.run.calls import split_delegate_calls
from delegraph_executorch.run.stock import StockProgram
from delegraph_programs.decompose import decomposition_tables as tables
from torch import nn

from .support import programs as p
from .support.judge import assert_equal, run_on_host, stock_runtime


@pytest.fixture
def registry() -> delegraph.Registry:
    """The plugins of this repository, installed or not."""
    registry = delegraph.Registry(discover=False)
    for plugin in (
        delegraph_executorch.plugin,
        delegraph_demo.plugin,
        delegraph_tosa.plugin,
    ):
        registry.register(plugin)
    return registry


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(4, 32)
        self.second = nn.Linear(32, 4)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden = self.first(x).relu()
        return {"y": self.second(hidden).cumsum(0), "hidden": hidden}


X = torch.linspace(-1, 1, 12).view(3, 4)


def _lower(
    registry: delegraph.Registry, backends: Any = (), module: nn.Module | None = None
) -> Any:
    return delegraph.lower(
        (module or Net()).eval(), (X,), backends=list(backends), registry=registry
    )


@pytest.mark.parametrize(
    "backends", [[], ["compiler-demo"], ["tosa", "compiler-demo"]], ids=str
)
def test_loaded_file_computes_as_the_lowered_program(
    registry: delegraph.Registry, tmp_path: Path, backends: list[str]
) -> None:
    lowered = _lower(registry, backends)
    lowered.save(tmp_path / "net.pte")
    loaded = delegraph.load(tmp_path / "net.pte", registry)
    assert loaded.methods == ["forward"]
    actual = loaded(X)
    expected = lowered(X)
    assert list(actual) == list(expected)
    assert_equal(list(actual.values()), list(expected.values()))


def test_inspection_shows_the_content_of_a_file(
    registry: delegraph.Registry, tmp_path: Path
) -> None:
    path = tmp_path / "net.pte"
    _lower(registry, ["compiler-demo"]).save(path)
    facts = PteFormat.inspect(path)
    assert facts.bytes == path.stat().st_size
    assert facts.backends == ("BackendWithCompilerDemo",)
    assert "aten::cumsum.out" in facts.kernels
    assert all(key.startswith("compiler-demo/") for key in facts.named_data)
    assert "delegate 0 (BackendWithCompilerDemo)" in str(facts)
    assert json.loads(json.dumps(facts.to_json()))["methods"][0]["name"] == "forward"
    summary = PteFormat.summarize(path)
    assert summary.methods[0].delegates[0].producer == "in-process"
    assert [str(value) for value in summary.methods[0].inputs] == ["x: float32[3, 4]"]
    assert summary.needs["kernels"] == facts.kernels
    assert summary.methods[0].operators == facts.methods[0].kernels
    assert summary.constant_bytes == sum(c.bytes for c in summary.largest) > 0
    page = PteFormat.page(path)
    assert "<rect" in page
    assert "aten::cumsum.out" in page
    [array] = PteFormat.sample(path, 0)
    assert array.shape == (3, 4)
    arguments, plans, stock = PteFormat.verify(path)
    assert arguments.accepted
    assert plans.accepted is True
    # it runs in the device half, or there is no runtime here
    assert stock.accepted is not False


def test_weights_in_a_data_file(registry: delegraph.Registry, tmp_path: Path) -> None:
    path = tmp_path / "net.pte"
    lowered = _lower(registry)
    lowered.save(path, external_constants="weights")
    facts = PteFormat.inspect(path)
    assert facts.external_tensors == (
        "first.bias",
        "first.weight",
        "second.bias",
        "second.weight",
    )
    assert_equal(
        list(delegraph.load(path, registry)(X).values()), list(Net()(X).values())
    )
    with pytest.raises(OptionError, match=r"save\("):
        PteFormat.serialize(lowered, {"external_constants": "weights"})
    (tmp_path / "net.weights.ptd").unlink()
    with pytest.raises(
        InputError, match="the tensor .first.weight. is in another file"
    ):
        delegraph.load(path, registry)(X)


def test_data_files_in_the_stock_runtime(
    registry: delegraph.Registry, tmp_path: Path
) -> None:
    stock_runtime()
    path = tmp_path / "net.pte"
    _lower(registry).save(path, external_constants="weights")
    actual = StockProgram(path, [tmp_path / "net.weights.ptd"])(X)
    assert_equal(list(actual.values()), list(Net()(X).values()))
    assert PteFormat.verify(path)[1].accepted is True


def test_instructions_lead_back_to_lines(
    registry: delegraph.Registry, tmp_path: Path
) -> None:
    path = tmp_path / "net.pte"
    lowered = _lower(registry, ["tosa"], p.Function(lambda x: (x * 2).cumsum(0)))
    lowered.save(path, debug_file=True)
    debug = DebugFile.read(tmp_path / "net.debug.json")
    calls = [
        debug.operator_at("forward", k)
        for k in range(PteFormat.inspect(path).methods[0].instructions)
    ]
    assert (
        any("cumsum" in text and f"{Path(__file__).name}" in text for text in calls)
        or lowered.delegates
    )
    handles = [
        h
        for of in debug.methods["forward"]["delegates"]
        for hs in of.values()
        for h in hs
    ]
    assert handles
    assert all(str(h) in debug.methods["forward"]["operators"] for h in handles)
    identifier = next(iter(debug.methods["forward"]["delegates"][0]))
    assert debug.operators_in("forward", 0, identifier)[0].startswith("aten.")
    (tmp_path / "net.debug.json").write_text("[]")
    with pytest.raises(FormatError, match=r"net\.debug\.json"):
        DebugFile.read(tmp_path / "net.debug.json")


def test_files_record_producers_and_source_lines(
    registry: delegraph.Registry, tmp_path: Path
) -> None:
    path = tmp_path / "net.pte"
    _lower(registry, ["compiler-demo"]).save(path, stack_traces=True)
    facts = PteFormat.inspect(path)
    [made] = {delegate.producer for delegate in facts.methods[0].delegates}
    assert made == " ".join(filter(None, registry.entry("compiler-demo").producer))
    assert f"delegate 0: BackendWithCompilerDemo of {made}, " in str(facts)
    lines = facts.methods[0].text.splitlines()
    assert (
        len([line for line in lines if f"// {__file__}:" in line])
        >= facts.methods[0].instructions - 1
    )
    assert_equal(
        list(delegraph.load(path, registry)(X).values()), list(Net()(X).values())
    )


@pytest.mark.slow  # ExecuTorch's tools for profiles bring pandas
@pytest.mark.filterwarnings("ignore")
def test_a_profile_leads_back_to_lines(
    registry: delegraph.Registry, tmp_path: Path
) -> None:
    """The stock runtime writes a profile, ExecuTorch's own reader gives its events, the
    side file says their lines.
    """
    stock_runtime()
    from executorch.devtools import Inspector
    from executorch.extension.pybindings.portable_lib import (
        _load_for_executorch_from_buffer as load,
    )

    path = tmp_path / "net.pte"
    profile = tmp_path / "net.etdp"
    _lower(registry).save(path, debug_file=True, stack_traces=True)
    module = load(path.read_bytes(), enable_etdump=True)
    module.run_method("forward", [X])
    module.write_etdump_result_to_file(str(profile))
    debug = DebugFile.read(tmp_path / "net.debug.json")
    events = [
        e
        for block in Inspector(etdump_path=str(profile)).event_blocks
        for e in block.events
    ]
    calls = [
        e
        for e in events
        if e.name.startswith("native_call_") and e._instruction_id is not None
    ]
    assert len(calls) == PteFormat.inspect(path).methods[0].instructions
    for event in calls:
        place = debug.operator_at("forward", event._instruction_id)
        assert Path(__file__).name in place, (event.name, place)


def test_alignment_of_planned_tensors(registry: delegraph.Registry) -> None:
    for alignment in (1, 16, 256):
        emitted = emit_program(_lower(registry), EmitOptions(alignment=alignment))
        plan = emitted.program.plans[0]
        places = [
            value.value.allocation
            for value in plan.values
            if isinstance(value.value, Tensor) and value.value.allocation
        ]
        assert len(places) > 2
        assert all(place.offset % alignment == 0 for place in places)
        assert find_conflicts(plan, split_delegate_calls(plan)) == []


class Contents:
    """A program with methods that only return a constant."""

    def __init__(self, lowered: Any, constant_methods: Mapping[str, Any]) -> None:
        self._lowered = lowered
        self.constant_methods = constant_methods

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lowered, name)


CONSTANTS = {
    "vocabulary": 32,
    "scale": 0.5,
    "causal": True,
    "name": "x",
    "eos": [1, 2],
    "table": torch.arange(3),
}


def test_methods_that_return_a_constant(registry: delegraph.Registry) -> None:
    emitted = emit_program(Contents(_lower(registry), CONSTANTS))
    program = run_on_host(emitted)
    assert program.methods == ["forward", *CONSTANTS]
    for name, value in CONSTANTS.items():
        actual = program.method(name)()
        assert (
            torch.equal(actual, value)
            if isinstance(value, torch.Tensor)
            else actual == value
        )


def test_constant_methods_in_the_stock_runtime(registry: delegraph.Registry) -> None:
    program = stock_runtime().load_program(
        emit_program(Contents(_lower(registry), CONSTANTS)).file.join()
    )
    assert program.load_method("vocabulary").execute([]) == [32]
    assert program.load_method("eos").execute([]) == [1, 2]
    assert torch.equal(program.load_method("table").execute([])[0], torch.arange(3))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"kernel": "x"},
            "external_constants, memory_of, alignment, stack_traces, .*, debug_file",
        ),
        ({"plan_inputs": 1}, "plan_inputs must be True or False"),
        ({"alignment": 24}, "alignment must be a power of two, not 24"),
        ({"external_constants": "../x"}, "file name"),
        ({"kernels": "missing.json"}, "missing.json cannot be read"),
    ],
)
def test_wrong_options_leave_the_old_file(
    registry: delegraph.Registry, tmp_path: Path, options: dict[str, Any], said: str
) -> None:
    path = tmp_path / "net.pte"
    path.write_bytes(b"old")
    with pytest.raises(OptionError, match=said):
        _lower(registry).save(path, **options)
    assert path.read_bytes() == b"old"


def test_a_kernel_that_the_device_lacks_is_found_here(
    registry: delegraph.Registry, tmp_path: Path
) -> None:
    selective = tmp_path / "acme.json"
    selective.write_text(
        json.dumps(
            {"runtime": "acme 1.0", "kernels": ["aten::addmm.out", "aten::relu.out"]}
        )
    )
    with pytest.raises(Unsupported) as raised:
        _lower(registry).save(tmp_path / "net.pte", kernels=str(selective))
    text = str(raised.value)
    assert "acme 1.0 has no kernel that computes aten.cumsum.default" in text
    assert f"{Path(__file__).name}" in text
    assert "in forward" in text
    assert "option kernels" in text
    assert not (tmp_path / "net.pte").exists()


@pytest.fixture
def torch_decomposes_cells(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Cells are decomposed as torch does it, which depends on sizes."""
    monkeypatch.delitem(tables._ADDED_TO_CORE, torch.ops.aten.gru_cell.default)
    tables.to_core.cache_clear()
    yield
    tables.to_core.cache_clear()


@pytest.mark.usefixtures("torch_decomposes_cells")
def test_size_dependent_decompositions_are_refused_with_the_line(
    registry: delegraph.Registry,
) -> None:
    class Cell(nn.Module):
        def forward(self, x, state):
            weight = torch.ones(12, 4)
            return torch.gru_cell(x, state, weight, weight)

    rows = {0: torch.export.Dim("rows", max=8)}
    given = (torch.ones(2, 4), torch.ones(2, 4))
    lowered = delegraph.lower(
        Cell(), given, dynamic_shapes=(rows, rows), backends=[], registry=registry
    )
    text = (
        r"(?s)decomposition of aten.gru_cell.default depends on sizes that .*at"
        r" .*test_format.py:\d+"
    )
    with pytest.raises(Unsupported, match=text):
        emit_program(lowered, EmitOptions())


@pytest.mark.usefixtures("torch_decomposes_cells")
def test_refusals_inside_torch_modules_name_the_module(
    registry: delegraph.Registry,
) -> None:
    rows = {0: torch.export.Dim("rows", max=8)}
    given = (torch.ones(2, 4), torch.ones(2, 4))
    cell = nn.GRUCell(4, 4).eval()
    lowered = delegraph.lower(
        cell, given, dynamic_shapes=(rows, rows), backends=[], registry=registry
    )
    with pytest.raises(
        Unsupported,
        match=r"aten.gru_cell.default depends on sizes that (?s:.*)at module GRUCell",
    ):
        emit_program(lowered, EmitOptions())


def test_operators_without_kernel_are_refused_with_the_line(
    registry: delegraph.Registry,
) -> None:
    lowered = _lower(registry, (), p.Function(lambda x: torch.linalg.svd(x)))
    with pytest.raises(
        Unsupported, match=r"no kernel that computes aten\._linalg_svd"
    ) as raised:
        emit_program(lowered)
    assert raised.value.source is not None


SCRIPT = """
import sys, hashlib, torch, delegraph
sys.modules["executorch"] = None
import delegraph_executorch.plugin, delegraph_demo.plugin
registry = delegraph.Registry(discover=False)
registry.register(delegraph_executorch.plugin), registry.register(delegraph_demo.plugin)
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8), torch.nn.Softmax(-1)).eval()
lowered = delegraph.lower(net, (torch.ones(2, 4),), backends=["compiler-demo"], registry=registry)
lowered.save(sys.argv[1])
loaded = delegraph.load(sys.argv[1], registry)
assert torch.allclose(loaded(torch.ones(2, 4)), net(torch.ones(2, 4)), atol=1e-6)
from delegraph_executorch.format import PteFormat
PteFormat.inspect(__import__("pathlib").Path(sys.argv[1]))
"""


def test_equal_bytes_in_any_process_without_executorch(tmp_path: Path) -> None:
    paths = [tmp_path / "1.pte", tmp_path / "2.pte"]
    for seed, path in enumerate(paths, 1):
        environment = {**os.environ, "PYTHONHASHSEED": str(seed)}
        subprocess.run(
            [sys.executable, "-c", SCRIPT, str(path)],
            check=True,
            env=environment,
        )
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_looking_at_a_file_imports_no_torch(
    registry: delegraph.Registry, tmp_path: Path
) -> None:
    _lower(registry).save(tmp_path / "net.pte")
    code = (
        "import sys; from pathlib import Path; from delegraph_executorch.format import"
        " PteFormat as F\n"
    )
    code += (
        f"F.page(Path({str(tmp_path / 'net.pte')!r})); assert 'torch' not in"
        " sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_in_the_stock_runtime_by_its_name(
    registry: delegraph.Registry, tmp_path: Path
) -> None:
    stock_runtime()
    lowered = _lower(registry)
    assert lowered.verify(X, runtime="executorch").relative_error < 1e-6
    lowered.save(tmp_path / "net.pte")
    assert_equal(
        list(
            delegraph.load(tmp_path / "net.pte", registry, runtime="executorch")(
                X
            ).values()
        ),
        list(Net()(X).values()),
    )


def test_backend_missing_in_the_stock_runtime_is_named(
    registry: delegraph.Registry, tmp_path: Path
) -> None:
    stock_runtime()
    path = tmp_path / "net.pte"
    _lower(registry, ["tosa"]).save(path)
    with pytest.raises(
        NoRuntime, match="this host does not have: TOSABackend"
    ) as raised:
        StockProgram(path)(X)
    assert raised.value.hint.startswith(
        "run it without runtime='executorch' (--runtime)"
    )
    assert stock.judge_loading(path).accepted is None


def test_messages_of_imported_packages_are_suppressed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "executorch").mkdir()
    says = (
        "import logging, warnings\nlogging.getLogger('torchao').warning('Failed to"
        " load')\nwarnings.warn('old')\n"
    )
    (tmp_path / "executorch" / "runtime.py").write_text(
        says + "class Runtime:\n    get = staticmethod(lambda: 'it')\n"
    )
    known = [n for n in sys.modules if n.partition(".")[0] == "executorch"]
    for name in {*known, "executorch", "executorch.runtime"}:
        # what was there is back afterwards, also if that was nothing
        monkeypatch.setitem(sys.modules, name, None)
        del sys.modules[name]
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "path_importer_cache", {})
    assert stock.stock_runtime.__wrapped__() == "it"
    assert not caplog.records


def test_unknown_runtimes_are_refused(
    registry: delegraph.Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lowered = _lower(registry)
    with pytest.raises(NoRuntime, match=r"'npu-simulator' \(executorch\)"):
        lowered.verify(X, runtime="npu-simulator")
    for name in [n for n in sys.modules if n.partition(".")[0] == "executorch"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "executorch", None)
    stock.stock_runtime.cache_clear()
    with pytest.raises(NoRuntime) as raised:
        lowered.verify(X, runtime="executorch")
    stock.stock_runtime.cache_clear()
    assert raised.value.hint == 'pip install "delegraph-executorch[runtime]"'


def test_the_command_line(tmp_path: Path) -> None:
    """In a process of its own, with this plugin and a backend registered as if they
    were installed.
    """
    model = tmp_path / "net.py"
    model.write_text(
        "import torch\ndef net():\n    return torch.nn.Linear(4, 2).eval(),"
        " (torch.ones(3, 4),)\n"
    )
    code = (
        "import sys, delegraph, delegraph.cli.lowering, delegraph_executorch.plugin as"
        " plugin\n"
    )
    code += (
        "from delegraph.discovery.registry import default_registry\nfrom delegraph.cli"
        " import main\n"
    )
    code += (
        "try: default_registry().get_format('x.pte')\nexcept delegraph.DelegraphError:"
        " delegraph.register(plugin)\n"
    )
    code += "sys.exit(main(sys.argv[1:]))"

    def run(*arguments: str) -> str:
        completed = subprocess.run(
            [sys.executable, "-c", code, *arguments],
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert completed.returncode == 0, completed.stderr
        return completed.stdout

    assert "net.pte" in run(
        "lower", str(model), "-o", "net.pte", "--verify", "--host-only"
    )
    assert "aten::addmm.out" in run("inspect", "net.pte")
    assert "[3, 2]" in run("run", "net.pte")
