"""``.pte`` files are saved, loaded and inspected, with data and debug files."""

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


@pytest.fixture
def saved_with_delegates(registry: delegraph.Registry, tmp_path: Path) -> Path:
    """A file of ``Net`` with delegates of the compiler demo."""
    path = tmp_path / "net.pte"
    _lower(registry, ["compiler-demo"]).save(path)
    return path


def test_inspection_shows_the_content_of_a_file(saved_with_delegates: Path) -> None:
    facts = PteFormat.inspect(saved_with_delegates)

    assert facts.bytes == saved_with_delegates.stat().st_size
    assert facts.backends == ("BackendWithCompilerDemo",)
    assert "aten::cumsum.out" in facts.kernels
    assert all(key.startswith("compiler-demo/") for key in facts.named_data)
    assert "delegate 0 (BackendWithCompilerDemo)" in str(facts)


def test_inspection_can_be_stored_as_json(saved_with_delegates: Path) -> None:
    data = PteFormat.inspect(saved_with_delegates).to_json()

    assert json.loads(json.dumps(data))["methods"][0]["name"] == "forward"


def test_a_summary_agrees_with_the_inspection(saved_with_delegates: Path) -> None:
    facts = PteFormat.inspect(saved_with_delegates)
    summary = PteFormat.summarize(saved_with_delegates)

    [method] = summary.methods
    assert method.delegates[0].producer == "in-process"
    assert [str(value) for value in method.inputs] == ["x: float32[3, 4]"]
    assert method.operators == facts.methods[0].kernels
    assert summary.needs["kernels"] == facts.kernels
    assert summary.constant_bytes == sum(c.bytes for c in summary.largest)
    assert summary.constant_bytes > 0


def test_the_page_of_a_file_shows_memory_and_kernels(
    saved_with_delegates: Path,
) -> None:
    page = PteFormat.page(saved_with_delegates)

    assert "<rect" in page
    assert "aten::cumsum.out" in page


def test_sample_inputs_have_the_shapes_of_the_file(saved_with_delegates: Path) -> None:
    [array] = PteFormat.sample(saved_with_delegates, 0)

    assert array.shape == X.shape


def test_verification_accepts_arguments_and_memory_plans(
    saved_with_delegates: Path,
) -> None:
    arguments, memory_plans, stock_runtime = PteFormat.verify(saved_with_delegates)

    assert arguments.accepted
    assert memory_plans.accepted is True
    # None if the stock runtime or the device half is not installed
    assert stock_runtime.accepted is not False


def test_weights_are_saved_in_a_data_file(
    registry: delegraph.Registry, tmp_path: Path
) -> None:
    path = tmp_path / "net.pte"

    _lower(registry).save(path, external_constants="weights")

    names = ("first.bias", "first.weight", "second.bias", "second.weight")
    assert PteFormat.inspect(path).external_tensors == names
    actual = delegraph.load(path, registry)(X)
    assert_equal(list(actual.values()), list(Net()(X).values()))


def test_a_data_file_cannot_be_part_of_serialized_bytes(
    registry: delegraph.Registry,
) -> None:
    with pytest.raises(OptionError, match=r"save\("):
        PteFormat.serialize(_lower(registry), {"external_constants": "weights"})


def test_a_missing_data_file_is_an_error(
    registry: delegraph.Registry, tmp_path: Path
) -> None:
    path = tmp_path / "net.pte"
    _lower(registry).save(path, external_constants="weights")

    (tmp_path / "net.weights.ptd").unlink()

    message = "the tensor .first.weight. is in another file"
    with pytest.raises(InputError, match=message):
        delegraph.load(path, registry)(X)


def test_the_stock_runtime_reads_data_files(
    registry: delegraph.Registry, tmp_path: Path
) -> None:
    stock_runtime()
    path = tmp_path / "net.pte"
    _lower(registry).save(path, external_constants="weights")

    actual = StockProgram(path, [tmp_path / "net.weights.ptd"])(X)

    assert_equal(list(actual.values()), list(Net()(X).values()))
    _, memory_plans, *_ = PteFormat.verify(path)
    assert memory_plans.accepted is True


def test_a_debug_file_has_the_line_of_each_host_operator(
    registry: delegraph.Registry, tmp_path: Path
) -> None:
    _lower(registry).save(tmp_path / "net.pte", debug_file=True)

    debug = DebugFile.read(tmp_path / "net.debug.json")

    count = PteFormat.inspect(tmp_path / "net.pte").methods[0].instructions
    places = [debug.operator_at("forward", number) for number in range(count)]
    assert any("cumsum" in place and Path(__file__).name in place for place in places)


def test_a_debug_file_has_the_operators_inside_delegates(
    registry: delegraph.Registry, tmp_path: Path
) -> None:
    module = p.Function(lambda x: (x * 2).cumsum(0))
    _lower(registry, ["tosa"], module).save(tmp_path / "net.pte", debug_file=True)

    debug = DebugFile.read(tmp_path / "net.debug.json")

    method = debug.methods["forward"]
    [handles_by_identifier] = method["delegates"]
    assert handles_by_identifier
    for identifier, handles in handles_by_identifier.items():
        assert handles
        assert all(str(handle) in method["operators"] for handle in handles)
        operators = debug.operators_in("forward", 0, identifier)
        assert operators[0].startswith("aten.")


def test_a_damaged_debug_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "net.debug.json"
    path.write_text("[]")

    with pytest.raises(FormatError, match=r"net\.debug\.json"):
        DebugFile.read(path)


def test_files_record_the_producers_of_delegates(
    registry: delegraph.Registry, saved_with_delegates: Path
) -> None:
    facts = PteFormat.inspect(saved_with_delegates)

    [producer] = {delegate.producer for delegate in facts.methods[0].delegates}
    parts = registry.entry("compiler-demo").producer
    assert producer == " ".join(part for part in parts if part)
    assert f"delegate 0: BackendWithCompilerDemo of {producer}, " in str(facts)


def test_files_record_source_lines(
    registry: delegraph.Registry, tmp_path: Path
) -> None:
    path = tmp_path / "net.pte"

    _lower(registry, ["compiler-demo"]).save(path, stack_traces=True)

    method = PteFormat.inspect(path).methods[0]
    with_line = [x for x in method.text.splitlines() if f"// {__file__}:" in x]
    assert len(with_line) >= method.instructions - 1
    actual = delegraph.load(path, registry)(X)
    assert_equal(list(actual.values()), list(Net()(X).values()))


@pytest.mark.slow  # ExecuTorch's tools for profiles bring pandas
@pytest.mark.filterwarnings("ignore")
def test_events_of_a_profile_have_their_source_lines(
    registry: delegraph.Registry, tmp_path: Path
) -> None:
    """The stock runtime writes the profile, and ExecuTorch's devtools read it."""
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
    calls = []
    for block in Inspector(etdump_path=str(profile)).event_blocks:
        for event in block.events:
            is_kernel = event.name.startswith("native_call_")
            if is_kernel and event._instruction_id is not None:
                calls.append(event)

    assert len(calls) == PteFormat.inspect(path).methods[0].instructions
    for event in calls:
        place = debug.operator_at("forward", event._instruction_id)
        assert Path(__file__).name in place, (event.name, place)


@pytest.mark.parametrize("alignment", [1, 16, 256])
def test_planned_tensors_are_aligned(
    registry: delegraph.Registry, alignment: int
) -> None:
    emitted = emit_program(_lower(registry), EmitOptions(alignment=alignment))

    plan = emitted.program.plans[0]
    tensors = [entry.value for entry in plan.values if isinstance(entry.value, Tensor)]
    allocations = [tensor.allocation for tensor in tensors if tensor.allocation]
    assert len(allocations) > 2
    assert all(place.offset % alignment == 0 for place in allocations)
    assert find_conflicts(plan, split_delegate_calls(plan)) == []


class WithConstantMethods:
    """A lowered program with more methods, which only return a constant."""

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
    emitted = emit_program(WithConstantMethods(_lower(registry), CONSTANTS))

    program = run_on_host(emitted)

    assert program.methods == ["forward", *CONSTANTS]
    for name, value in CONSTANTS.items():
        actual = program.method(name)()
        if isinstance(value, torch.Tensor):
            assert torch.equal(actual, value)
        else:
            assert actual == value


def test_the_stock_runtime_calls_constant_methods(
    registry: delegraph.Registry,
) -> None:
    emitted = emit_program(WithConstantMethods(_lower(registry), CONSTANTS))

    program = stock_runtime().load_program(emitted.file.join())

    assert program.load_method("vocabulary").execute([]) == [32]
    assert program.load_method("eos").execute([]) == [1, 2]
    assert torch.equal(program.load_method("table").execute([])[0], torch.arange(3))


@pytest.mark.parametrize(
    ("options", "message"),
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
    registry: delegraph.Registry, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    path = tmp_path / "net.pte"
    path.write_bytes(b"old")

    with pytest.raises(OptionError, match=message):
        _lower(registry).save(path, **options)

    assert path.read_bytes() == b"old"


def test_saving_refuses_operators_that_the_device_has_no_kernel_for(
    registry: delegraph.Registry, tmp_path: Path
) -> None:
    device_kernels = tmp_path / "acme.json"
    kernels = ["aten::addmm.out", "aten::relu.out"]
    device_kernels.write_text(json.dumps({"runtime": "acme 1.0", "kernels": kernels}))

    with pytest.raises(Unsupported) as raised:
        _lower(registry).save(tmp_path / "net.pte", kernels=str(device_kernels))

    text = str(raised.value)
    assert "acme 1.0 has no kernel that computes aten.cumsum.default" in text
    assert f"{Path(__file__).name}" in text
    assert "in forward" in text
    assert "option kernels" in text
    assert not (tmp_path / "net.pte").exists()


@pytest.fixture
def torch_decomposes_cells(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let torch decompose recurrent cells: its decomposition depends on sizes."""
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

    message = (
        r"(?s)decomposition of aten.gru_cell.default depends on sizes that .*at"
        r" .*test_format.py:\d+"
    )
    with pytest.raises(Unsupported, match=message):
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

    message = r"aten.gru_cell.default depends on sizes that (?s:.*)at module GRUCell"
    with pytest.raises(Unsupported, match=message):
        emit_program(lowered, EmitOptions())


def test_operators_without_kernel_are_refused_with_the_line(
    registry: delegraph.Registry,
) -> None:
    lowered = _lower(registry, (), p.Function(lambda x: torch.linalg.svd(x)))

    message = r"no kernel that computes aten\._linalg_svd"
    with pytest.raises(Unsupported, match=message) as raised:
        emit_program(lowered)

    assert raised.value.source is not None


SCRIPT_WITHOUT_EXECUTORCH = """
import sys
from pathlib import Path

sys.modules["executorch"] = None  # an import of it fails

import delegraph
import delegraph_demo.plugin
import delegraph_executorch.plugin
import torch
from delegraph_executorch.format import PteFormat

registry = delegraph.Registry(discover=False)
registry.register(delegraph_executorch.plugin)
registry.register(delegraph_demo.plugin)
torch.manual_seed(0)
net = torch.nn.Sequential(
    torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8), torch.nn.Softmax(-1)
).eval()
x = torch.ones(2, 4)
lowered = delegraph.lower(net, (x,), backends=["compiler-demo"], registry=registry)
lowered.save(sys.argv[1])
loaded = delegraph.load(sys.argv[1], registry)
assert torch.allclose(loaded(x), net(x), atol=1e-6)
PteFormat.inspect(Path(sys.argv[1]))
"""


def test_equal_bytes_in_any_process_without_executorch(tmp_path: Path) -> None:
    paths = [tmp_path / "1.pte", tmp_path / "2.pte"]
    for seed, path in enumerate(paths, 1):
        # the order of sets differs between the processes
        environment = {**os.environ, "PYTHONHASHSEED": str(seed)}
        command = [sys.executable, "-c", SCRIPT_WITHOUT_EXECUTORCH, str(path)]
        subprocess.run(command, check=True, env=environment)

    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_the_page_of_a_file_is_made_without_torch(
    registry: delegraph.Registry, tmp_path: Path
) -> None:
    _lower(registry).save(tmp_path / "net.pte")
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from delegraph_executorch.format import PteFormat\n"
        f"PteFormat.page(Path({str(tmp_path / 'net.pte')!r}))\n"
        "assert 'torch' not in sys.modules\n"
    )

    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_stock_runtime_is_selected_by_name(
    registry: delegraph.Registry, tmp_path: Path
) -> None:
    stock_runtime()
    lowered = _lower(registry)
    lowered.save(tmp_path / "net.pte")

    loaded = delegraph.load(tmp_path / "net.pte", registry, runtime="executorch")

    assert lowered.verify(X, runtime="executorch").relative_error < 1e-6
    assert_equal(list(loaded(X).values()), list(Net()(X).values()))


def test_a_backend_missing_in_the_stock_runtime_is_named(
    registry: delegraph.Registry, tmp_path: Path
) -> None:
    stock_runtime()
    path = tmp_path / "net.pte"
    _lower(registry, ["tosa"]).save(path)

    message = "this host does not have: TOSABackend"
    with pytest.raises(NoRuntime, match=message) as raised:
        StockProgram(path)(X)

    hint = "run it without runtime='executorch' (--runtime)"
    assert raised.value.hint.startswith(hint)
    assert stock.judge_loading(path).accepted is None


NOISY_RUNTIME = """
import logging, warnings

logging.getLogger('torchao').warning('Failed to load')
warnings.warn('old')

class Runtime:
    get = staticmethod(lambda: 'the runtime')
"""


def _forget_executorch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove ExecuTorch's imported modules until the end of the test."""
    imported = [n for n in sys.modules if n.partition(".")[0] == "executorch"]
    for name in {*imported, "executorch", "executorch.runtime"}:
        # at its end, monkeypatch also removes modules that the test imports
        monkeypatch.setitem(sys.modules, name, None)
        del sys.modules[name]


def test_messages_of_imported_packages_are_suppressed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "executorch").mkdir()
    (tmp_path / "executorch" / "runtime.py").write_text(NOISY_RUNTIME)
    _forget_executorch(monkeypatch)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "path_importer_cache", {})

    # without its cache; a warning would raise
    assert stock.stock_runtime.__wrapped__() == "the runtime"

    assert not caplog.records


def test_an_unknown_runtime_is_refused(registry: delegraph.Registry) -> None:
    with pytest.raises(NoRuntime, match=r"'npu-simulator' \(executorch\)"):
        _lower(registry).verify(X, runtime="npu-simulator")


@pytest.fixture
def executorch_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    _forget_executorch(monkeypatch)
    monkeypatch.setitem(sys.modules, "executorch", None)
    stock.stock_runtime.cache_clear()
    yield
    stock.stock_runtime.cache_clear()


@pytest.mark.usefixtures("executorch_is_not_installed")
def test_a_missing_stock_runtime_is_named_with_its_install_command(
    registry: delegraph.Registry,
) -> None:
    lowered = _lower(registry)

    with pytest.raises(NoRuntime) as raised:
        lowered.verify(X, runtime="executorch")

    assert raised.value.hint == 'pip install "delegraph-executorch[runtime]"'


MODEL_FILE = """
import torch

def net():
    return torch.nn.Linear(4, 2).eval(), (torch.ones(3, 4),)
"""
COMMAND = """
import sys
import delegraph
import delegraph_executorch.plugin
from delegraph.cli import main
from delegraph.discovery.registry import default_registry

try:
    default_registry().get_format("x.pte")
except delegraph.DelegraphError:  # the plugin is not installed
    delegraph.register(delegraph_executorch.plugin)
sys.exit(main(sys.argv[1:]))
"""
"""The program ``delegraph`` with this plugin, in an environment without it as well."""


def test_the_command_line_lowers_inspects_and_runs_a_file(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(MODEL_FILE)

    def run(*arguments: str) -> str:
        completed = subprocess.run(
            [sys.executable, "-c", COMMAND, *arguments],
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert completed.returncode == 0, completed.stderr
        return completed.stdout

    lowered = run("lower", "net.py", "-o", "net.pte", "--verify", "--host-only")
    assert "net.pte" in lowered
    assert "aten::addmm.out" in run("inspect", "net.pte")
    assert "[3, 2]" in run("run", "net.pte")
