"""Files that we write, in the Python tools that ExecuTorch's wheel has: its
deserializers and its devtools.
"""

from __future__ import annotations

import gc
import threading
from pathlib import Path
from typing import Any

import delegraph
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

pytestmark = pytest.mark.filterwarnings("ignore")  # theirs, of what they import


class Net(torch.nn.Module):
    """A delegate, and the host before and behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sort(self.linear(x.erf()))[0] + 1


X = torch.linspace(-1, 1, 12).view(3, 4)
KINDS = {"host": [], "compiler-demo": ["compiler-demo"], "xnnpack": ["xnnpack"]}


@pytest.fixture(params=KINDS)
def saved(request: Any, tmp_path: Path) -> tuple[torch.nn.Module, Path]:
    """A file with delegates of a kind: without any, with a blob, with a blob and named
    data.
    """
    pytest.importorskip(
        "executorch",
        reason="the stock runtime is not installed (pip install executorch==1.5.1)",
    )
    torch.manual_seed(0)
    net = Net().eval()
    lowered = lower(net, (X,), backends=KINDS[request.param])
    assert {delegate.backend_id for delegate in lowered.delegates} == {
        "host": set(),
        "compiler-demo": {"BackendWithCompilerDemo"},
        "xnnpack": {"XnnpackBackend"},
    }[request.param]
    load_device_halves_or_skip(lowered)
    lowered.save(tmp_path / "net.pte")
    return net, tmp_path / "net.pte"


def test_deserializer_of_executorch_reads_our_files(
    saved: tuple[torch.nn.Module, Path],
) -> None:
    from executorch.exir._serialize._program import deserialize_pte_binary
    from executorch.exir.print_program import pretty_print

    file = deserialize_pte_binary(saved[1].read_bytes())
    (plan,) = file.program.execution_plan
    for delegate in plan.delegates:
        assert file.program.backend_delegate_data[delegate.processed.index].data
    pretty_print(file.program, out=open("/dev/null", "w"))


def test_the_deserializer_of_state_and_constant_methods(tmp_path: Path) -> None:
    pytest.importorskip("executorch")
    from executorch.exir._serialize._program import deserialize_pte_binary

    edge = to_edge(
        torch.export.export(Counter().eval(), (torch.randn(3),)),
        constant_methods={"size": 3},
    )
    file = deserialize_pte_binary(edge.to_executorch().buffer)
    assert [plan.name for plan in file.program.execution_plan] == ["forward", "size"]
    assert len(file.mutable_data or ()) == 3  # the first is none


def test_the_deserializer_of_data_files(tmp_path: Path) -> None:
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


def test_executorch_verifies_our_file_in_a_bundle(
    saved: tuple[torch.nn.Module, Path], tmp_path: Path
) -> None:
    """A file bundled with a test case, verified by ExecuTorch's runtime."""
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

    net, path = saved
    suites = [
        MethodTestSuite(
            "forward", [MethodTestCase(inputs=[X], expected_outputs=[net(X).detach()])]
        )
    ]
    bundled = BundledProgram(None, suites, pte_file_path=str(path))
    content = serialize_from_bundled_program_to_flatbuffer(bundled)
    assert (
        deserialize_from_flatbuffer_to_bundled_program(content).program
        == path.read_bytes()
    )
    _load_bundled_program_from_buffer(
        content
    ).verify_result_with_bundled_expected_output("forward", 0)


def test_diff_pte_shows_only_the_changed_weight(tmp_path: Path) -> None:
    """What tells two files apart is the weight that differs, and nothing else."""
    pytest.importorskip("executorch")
    from executorch.devtools.pte_tool.diff_pte import diff_pte, format_diff_result

    net = Net().eval()
    one = to_edge(torch.export.export(net, (X,))).to_executorch().buffer
    with torch.no_grad():
        net.linear.bias[0] += 1
    other = to_edge(torch.export.export(net, (X,))).to_executorch().buffer
    assert diff_pte(one, one).bitwise_equal
    text = format_diff_result(diff_pte(one, other))
    assert "rror" not in text, text


def test_the_inspector_times_each_delegate(
    saved: tuple[torch.nn.Module, Path], tmp_path: Path
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
    assert ("DELEGATE_CALL" in names) == bool(
        read_program(path.read_bytes()).program.plans[0].delegates
    )


def test_buffers_stay_alive_while_the_runtime_reads_them() -> None:
    runtime = stock_runtime()
    net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 4)).eval()
    manager = to_edge(torch.export.export(net, (torch.ones(2, 64),))).to_executorch()
    addresses = set[int]()
    threads = [
        threading.Thread(target=lambda: addresses.add(id(manager.buffer)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert addresses == {id(manager.buffer)}
    program = runtime.load_program(manager.buffer)
    gc.collect()
    # where freed bytes would have been
    rubbish = [bytes([255]) * len(manager.buffer) for _ in range(200)]
    assert_equal(
        program.load_method("forward").execute([torch.ones(2, 64)]),
        [net(torch.ones(2, 64)).detach()],
    )
    assert len(rubbish) == 200
    assert delegraph.__version__
