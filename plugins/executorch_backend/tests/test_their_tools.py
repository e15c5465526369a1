"""ExecuTorch's deserializers and devtools read the files that delegraph writes."""

from __future__ import annotations

import gc
import io
import threading
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from delegraph_executorch.edge import to_edge
from delegraph_executorch.serialize.reader import read_program

from .support.judge import (
    assert_equal,
    load_device_halves_or_skip,
    lower,
    stock_runtime,
)
from .support.programs import Counter

pytestmark = pytest.mark.filterwarnings("ignore")  # ExecuTorch's imports warn


class Net(torch.nn.Module):
    """A network in which the host sorts values between delegated calls."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sort(self.linear(x.erf()))[0] + 1


X = torch.linspace(-1, 1, 12).view(3, 4)
BACKEND_IDS = {"compiler-demo": "BackendWithCompilerDemo", "xnnpack": "XnnpackBackend"}
"""Backend -> its identifier in files. XNNPACK's delegates also have named data."""


class Saved(NamedTuple):
    """A network and its saved file."""

    net: torch.nn.Module
    path: Path


@pytest.fixture(params=[None, *BACKEND_IDS])
def saved(request: Any, tmp_path: Path) -> Saved:
    """A network in a file without delegates, or with a delegate of one backend."""
    pytest.importorskip(
        "executorch",
        reason="the stock runtime is not installed (pip install executorch==1.5.1)",
    )
    torch.manual_seed(0)
    net = Net().eval()
    backends = [] if request.param is None else [request.param]
    lowered = lower(net, (X,), backends=backends)
    delegated_to = {delegate.backend_id for delegate in lowered.delegates}
    assert delegated_to == {BACKEND_IDS[backend] for backend in backends}
    load_device_halves_or_skip(lowered)
    lowered.save(tmp_path / "net.pte")
    return Saved(net, tmp_path / "net.pte")


def test_executorchs_deserializer_reads_programs(saved: Saved) -> None:
    from executorch.exir._serialize._program import deserialize_pte_binary
    from executorch.exir.print_program import pretty_print

    file = deserialize_pte_binary(saved.path.read_bytes())

    (plan,) = file.program.execution_plan
    for delegate in plan.delegates:
        assert file.program.backend_delegate_data[delegate.processed.index].data
    pretty_print(file.program, out=io.StringIO())


def test_executorchs_deserializer_reads_state_and_constant_methods() -> None:
    pytest.importorskip("executorch")
    from executorch.exir._serialize._program import deserialize_pte_binary

    edge = to_edge(
        torch.export.export(Counter().eval(), (torch.randn(3),)),
        constant_methods={"size": 3},
    )

    file = deserialize_pte_binary(edge.to_executorch().buffer)

    assert [plan.name for plan in file.program.execution_plan] == ["forward", "size"]
    # two buffers, after an empty entry that the format requires
    assert len(file.mutable_data or ()) == 1 + 2


def test_executorchs_deserializer_reads_data_files(tmp_path: Path) -> None:
    pytest.importorskip("executorch")
    from executorch.exir._serialize._cord import Cord
    from executorch.extension.flat_tensor.serialize.serialize import (
        FlatTensorSerializer,
    )

    net = Net().eval()
    lower(net, (X,)).save(tmp_path / "net.pte", external_constants="weights")

    data = FlatTensorSerializer().deserialize(
        Cord((tmp_path / "net.weights.ptd").read_bytes())
    )

    assert set(data.named_data) == {"linear.weight", "linear.bias"}
    entry = data.named_data["linear.weight"]
    stored = torch.frombuffer(
        bytearray(data.buffers[entry.buffer_index]), dtype=torch.float32
    )
    assert torch.equal(stored.view(4, 4), net.linear.weight)


def test_executorchs_runtime_verifies_a_file_with_a_test_case(saved: Saved) -> None:
    """ExecuTorch calls a file with test cases a bundled program."""
    from executorch.devtools import BundledProgram
    from executorch.devtools.bundled_program.config import (
        MethodTestCase,
        MethodTestSuite,
    )
    from executorch.devtools.bundled_program.serialize import (
        deserialize_from_flatbuffer_to_bundled_program,
        serialize_from_bundled_program_to_flatbuffer,
    )
    from executorch.extension.pybindings.portable_lib import (
        _load_bundled_program_from_buffer,
    )

    case = MethodTestCase(inputs=[X], expected_outputs=[saved.net(X).detach()])
    suites = [MethodTestSuite("forward", [case])]
    bundled = BundledProgram(None, suites, pte_file_path=str(saved.path))

    content = serialize_from_bundled_program_to_flatbuffer(bundled)

    read = deserialize_from_flatbuffer_to_bundled_program(content)
    assert read.program == saved.path.read_bytes()
    program = _load_bundled_program_from_buffer(content)
    # raises if the results differ from those of the test case
    program.verify_result_with_bundled_expected_output("forward", 0)


def test_executorchs_diff_tool_compares_files() -> None:
    pytest.importorskip("executorch")
    from executorch.devtools.pte_tool.diff_pte import diff_pte, format_diff_result

    net = Net().eval()
    original = to_edge(torch.export.export(net, (X,))).to_executorch().buffer
    with torch.no_grad():
        net.linear.bias[0] += 1
    changed = to_edge(torch.export.export(net, (X,))).to_executorch().buffer

    assert diff_pte(original, original).bitwise_equal
    text = format_diff_result(diff_pte(original, changed))
    assert "error" not in text.lower(), text


def test_executorchs_inspector_times_host_operators_and_delegates(
    saved: Saved, tmp_path: Path
) -> None:
    from executorch.devtools import Inspector

    net, path = saved
    program = stock_runtime().load_program(path.read_bytes(), enable_etdump=True)
    assert_equal(program.load_method("forward").execute([X]), [net(X).detach()])
    program.write_etdump_result_to_file(
        str(tmp_path / "dump.etdp"), str(tmp_path / "dump.bin")
    )

    blocks = Inspector(etdump_path=str(tmp_path / "dump.etdp")).event_blocks
    names = [event.name for block in blocks for event in block.events]
    assert any("erf" in name for name in names), names
    has_delegates = bool(read_program(path.read_bytes()).program.plans[0].delegates)
    assert ("DELEGATE_CALL" in names) == has_delegates


def test_the_buffer_of_a_program_is_made_once_for_all_threads() -> None:
    manager = to_edge(
        torch.export.export(Net().eval(), (torch.ones(2, 4),))
    ).to_executorch()
    identities = set[int]()

    def get_buffer() -> None:
        identities.add(id(manager.buffer))

    threads = [threading.Thread(target=get_buffer) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert identities == {id(manager.buffer)}


def test_the_buffer_of_a_program_stays_alive_for_the_runtime() -> None:
    """ExecuTorch's runtime reads the memory of the buffer without keeping the object."""
    runtime = stock_runtime()
    net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 4)).eval()
    manager = to_edge(torch.export.export(net, (torch.ones(2, 64),))).to_executorch()
    program = runtime.load_program(manager.buffer)

    gc.collect()
    # if the buffer was freed, these bytes overwrite its memory
    overwriting = [bytes([255]) * len(manager.buffer) for _ in range(200)]

    results = program.load_method("forward").execute([torch.ones(2, 64)])
    assert_equal(results, [net(torch.ones(2, 64)).detach()])
    del overwriting
