"""If a compiler raises, the smallest failing part is refused and the rest is delegated."""

import logging
from collections import Counter
from typing import ClassVar, NamedTuple

import delegraph
import pytest
import torch
from delegraph.backend import BackendDetails, PreprocessResult
from delegraph.cli import main
from delegraph.discovery.registry import Registry
from delegraph.errors import NotFullyDelegated, PluginFailed
from delegraph.partitioner import CapabilityPartitioner, Partitioner, PartitionResult
from delegraph.runtime import BackendRuntime
from delegraph_workers import Compiler
from torch import nn
from torch.export import Dim

MOST = 8
"""The most calls of a compiler after its first failure."""
COMPILED = {}


def names_of(program):
    calls = [node.target for node in program.graph.nodes if node.op == "call_function"]
    return [getattr(target, "overloadpacket", target).__name__ for target in calls]


def failing_backend(name, fails):
    """Return a backend that raises ``fails(names of operators)`` unless that is None."""

    class Made(BackendDetails):
        seen: ClassVar = []

        @staticmethod
        def preprocess(edge_program, compile_specs):
            names = names_of(edge_program)
            Made.seen.append(names)
            error = fails(names)
            if error is not None:
                raise error
            blob = f"{name} {len(COMPILED)}".encode()
            COMPILED[blob] = edge_program
            return PreprocessResult(blob)

    Made.__name__ = Made.__qualname__ = name
    return Made


class ProgramRuntime(BackendRuntime):
    @staticmethod
    def load(processed_bytes, compile_specs, named_data):
        module = COMPILED[processed_bytes].module()
        return lambda *args: tuple(module(*args))


def error_for(*operators, error=ValueError):
    """Return a function that makes an exception for programs with all of ``operators``."""
    return lambda names: (
        error(f"no luck with {operators}")
        if all(o in names for o in operators)
        else None
    )


def lower_for(module, inputs, *backends, why_not=lambda node: None, **more):
    registry = Registry(discover=False)
    for backend in backends:
        registry.register(backend, runtime=ProgramRuntime)
    partitioners = [CapabilityPartitioner(why_not, b.__name__) for b in backends]
    return delegraph.lower(
        module.eval(), inputs, backends=partitioners, registry=registry, **more
    )


class Program(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


def chain_with_a_sine(x):
    """Compute twelve operators. The eighth is a sine."""
    for _ in range(7):
        x = x.tanh()
    x = x.sin()
    for _ in range(4):
        x = x.sigmoid()
    return x


def two_branches(x):
    """Compute two branches. One of them has a sine between two operators."""
    left = x.tanh().sin().relu()
    right = x.sigmoid().exp()
    return left + right, right


def split_and_join(x):
    first, second = x.sin().chunk(2, dim=-1)
    return first.tanh() * second.relu()


class Constants(nn.Module):
    """Uses a table, computed from a constant, before and after a sine."""

    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.arange(4.0))

    def forward(self, x):
        table = self.table.exp()
        return ((x * table).sin() + table).tanh(), table


class Row(NamedTuple):
    """A module with sines, which fail to compile, and its other parts as delegates."""

    module: nn.Module
    sines: int
    delegates: int
    shape: tuple = (4,)


ROWS = {
    "in the middle": Row(Program(chain_with_a_sine), sines=1, delegates=2),
    "first": Row(Program(lambda x: x.sin().tanh().relu()), sines=1, delegates=1),
    "last": Row(Program(lambda x: x.tanh().relu().sin()), sines=1, delegates=1),
    "alone": Row(Program(lambda x: x.sin()), sines=1, delegates=0),
    "twice": Row(Program(lambda x: x.sin().tanh().sin().relu()), sines=2, delegates=2),
    "two branches": Row(Program(two_branches), sines=1, delegates=2),
    "constants": Row(Constants(), sines=1, delegates=2),
    "without elements": Row(
        Program(lambda x: x.tanh().sin().relu()), sines=1, delegates=2, shape=(0, 3)
    ),
}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_the_smallest_failing_part_is_refused(row):
    x = torch.randn(row.shape)
    backend = failing_backend("FailingBackend", error_for("sin"))
    program = lower_for(row.module, (x,), backend)

    torch.testing.assert_close(program(x), row.module(x))
    assert len(backend.seen) <= 1 + MOST
    assert len(program.delegates) == row.delegates

    refused = Counter()
    for part in program.report.given_back:
        refused.update(part.operators)
        assert part.reason.startswith("ValueError: no luck with")
    assert refused == {"aten.sin.default": row.sines}


def test_operators_that_fail_only_together_are_divided():
    module = Program(lambda x: x.sin().tanh().cos())
    x = torch.randn(4)
    backend = failing_backend("FailingBackend", error_for("sin", "cos"))
    program = lower_for(module, (x,), backend)

    torch.testing.assert_close(program(x), module(x))
    assert len(backend.seen) <= 1 + MOST
    assert len(program.delegates) == 2
    assert not program.report.given_back
    assert program.report.host_operators == 0
    assert any("compiles only as" in note for note in program.report.notes)


def test_a_failing_operator_may_have_several_results():
    module = Program(split_and_join)
    x = torch.randn(2, 4)
    backend = failing_backend("FailingBackend", error_for("split_with_sizes"))
    program = lower_for(module, (x,), backend)

    torch.testing.assert_close(program(x), module(x))
    assert len(backend.seen) <= 1 + MOST


def test_a_long_partition_loses_few_operators():
    def long(x):
        for _ in range(60):
            x = x.tanh().relu()
        x = x.sin()
        for _ in range(60):
            x = x.sigmoid().relu()
        return x

    x = torch.randn(3)
    backend = failing_backend("FailingBackend", error_for("sin"))
    program = lower_for(Program(long), (x,), backend)

    torch.testing.assert_close(program(x), long(x))
    assert len(backend.seen) <= 1 + MOST
    assert program.report.host_operators <= 4
    assert len(program.delegates) == 2


def test_the_next_backend_gets_the_failing_part():
    x = torch.randn(4)
    first = failing_backend("FirstBackend", error_for("sin"))
    second = failing_backend("SecondBackend", lambda names: None)
    program = lower_for(
        Program(chain_with_a_sine), (x,), first, second, require_full=True
    )

    assert second.seen == [["sin"]]
    assert [row.backend for row in program.report.given_back] == [
        "CapabilityPartitioner"
    ]
    torch.testing.assert_close(program(x), chain_with_a_sine(x))


class InvalidProgram(delegraph.errors.DelegraphError):
    """An error class of a plugin."""

    def __init__(self, text):
        super().__init__("npu/invalid-program", text)


def test_an_error_class_of_the_plugin_is_a_refusal():
    backend = failing_backend("OwnErrors", error_for("sin", error=InvalidProgram))
    program = lower_for(
        Program(lambda x: x.cos().sin().relu()), (torch.rand(3),), backend
    )
    assert program.report.host_operators == 1
    assert "no luck with" in str(program.report)


def test_two_methods_lose_their_failing_parts():
    x = torch.randn(4)
    backend = failing_backend("FailingBackend", error_for("sin"))
    modules = {"one": Program(chain_with_a_sine), "two": Program(two_branches)}
    registry = Registry(discover=False)
    registry.register(backend, runtime=ProgramRuntime)
    partitioner = CapabilityPartitioner(lambda node: None, "FailingBackend")
    program = delegraph.lower(
        modules, dict.fromkeys(modules, (x,)), backends=[partitioner], registry=registry
    )
    for method, module in modules.items():
        torch.testing.assert_close(program.method(method)(x), module(x))

    assert {row.method for row in program.report.given_back} == {"one", "two"}


def test_a_failing_joint_call_is_repeated_by_partition():
    base = failing_backend("JointBackend", error_for("sin"))

    class JointBackend(base):
        @classmethod
        def preprocess_multimethod(cls, edge_programs, compile_specs):
            return {
                m: [cls.preprocess(p, []) for p in listed]
                for m, listed in edge_programs.items()
            }

    x = torch.randn(4)
    registry = Registry(discover=False)
    registry.register(JointBackend, runtime=ProgramRuntime)
    partitioner = CapabilityPartitioner(lambda node: None, "JointBackend")
    modules = {
        "one": Program(lambda x: x.tanh().sin().relu()),
        "two": Program(lambda x: x.tanh().relu()),
    }
    program = delegraph.lower(
        modules, dict.fromkeys(modules, (x,)), backends=[partitioner], registry=registry
    )

    assert sorted(delegate.method for delegate in program.delegates) == [
        "one",
        "one",
        "two",
    ]
    for method, module in modules.items():
        torch.testing.assert_close(program.method(method)(x), module(x))


def test_results_after_a_failure_come_from_a_cache_as_well(tmp_path):
    x = torch.randn(4)
    backend = failing_backend("FailingBackend", error_for("sin"))
    backend.fingerprint = classmethod(lambda cls, specs: "1")
    for _ in range(2):
        program = lower_for(
            Program(chain_with_a_sine), (x,), backend, compiler=Compiler(str(tmp_path))
        )
        assert len(program.delegates) == 2
        torch.testing.assert_close(program(x), chain_with_a_sine(x))


def test_require_full_names_the_exception():
    backend = failing_backend("FailingBackend", error_for("sin"))
    with pytest.raises(NotFullyDelegated, match="ValueError: no luck with"):
        lower_for(
            Program(chain_with_a_sine), (torch.randn(4),), backend, require_full=True
        )


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_interrupts_and_exhausted_memory_end_the_lowering(error):
    backend = failing_backend("FailingBackend", error_for("sin", error=error))
    with pytest.raises((KeyboardInterrupt, PluginFailed)):
        lower_for(Program(chain_with_a_sine), (torch.randn(4),), backend)


def test_the_traceback_is_logged(caplog):
    backend = failing_backend("FailingBackend", error_for("sin"))
    with caplog.at_level(logging.INFO, "delegraph.failures"):
        program = lower_for(Program(lambda x: x.sin()), (torch.randn(4),), backend)
    [record] = [
        record for record in caplog.records if record.name == "delegraph.failures"
    ]
    text = logging.Formatter().format(record)

    assert "in preprocess" in text
    assert "ValueError: no luck with" in text
    assert "Traceback" in text
    assert "delegraph.failures" in str(program.report)


def raise_error(error):
    raise error


class Tagging(Partitioner):
    """Raises in ``partition`` or in ``ops_to_not_decompose``."""

    def __init__(self, place):
        super().__init__()
        self.place = place

    def partition(self, exported_program):
        if self.place == "partition":
            raise IndexError("no luck")
        return PartitionResult(exported_program, {})

    def ops_to_not_decompose(self, exported_program):
        if self.place == "ops":
            raise IndexError("no luck")
        return [torch.ops.aten.silu.default], lambda node: raise_error(
            IndexError("no luck")
        )


@pytest.mark.parametrize("place", ["partition", "ops", "filter"])
def test_a_partitioner_that_raises_delegates_nothing(place):
    module = Program(lambda x: nn.functional.silu(x).sin())
    x = torch.randn(3)
    second = failing_backend("SecondBackend", lambda names: None)
    registry = Registry(discover=False)
    registry.register(second, runtime=ProgramRuntime)
    partitioners = [
        Tagging(place),
        CapabilityPartitioner(lambda node: None, "SecondBackend"),
    ]
    program = delegraph.lower(module, (x,), backends=partitioners, registry=registry)

    assert program.report.host_operators == 0
    torch.testing.assert_close(program(x), module(x))


def test_a_support_check_that_raises_refuses_the_operator():
    def why_not(node):
        return (
            raise_error(KeyError("sin"))
            if node.target is torch.ops.aten.sin.default
            else None
        )

    x = torch.randn(4)
    backend = failing_backend("CheckedBackend", lambda names: None)
    program = lower_for(Program(chain_with_a_sine), (x,), backend, why_not=why_not)
    [row] = program.report.refusals

    assert row.operator == "aten.sin.default"
    assert "KeyError" in row.reason
    torch.testing.assert_close(program(x), chain_with_a_sine(x))


def last_values(x):
    return torch.stack([x, x * 2], 3).max(3).values.relu() + 1


def with_complex_numbers(x):
    return torch.view_as_real(torch.fft.rfft(x)).relu().sum(-1) + 1


def with_a_complex_number(x):
    return torch.view_as_real(x.relu() * (1 + 2j)).sum(-1).tanh()


class Dynamic(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(3, 4, 3)

    def forward(self, x):
        return self.conv(x.relu()).tanh()


BATCH_AND_LENGTH = {
    "x": {0: Dim("batch", min=1, max=8), 2: Dim("length", min=4, max=64)}
}
XNNPACK_ROWS = [
    ("maximum without keepdim", Program(last_values), (2, 3, 4), None),
    ("complex numbers", Program(with_complex_numbers), (2, 8), None),
    ("a complex number", Program(with_a_complex_number), (2, 8), None),
    ("conv1d of any batch and length", Dynamic(), (2, 3, 8), BATCH_AND_LENGTH),
]


@pytest.mark.parametrize(
    ("module", "shape", "sizes"),
    [r[1:] for r in XNNPACK_ROWS],
    ids=[r[0] for r in XNNPACK_ROWS],
)
def test_xnnpack_delegates_the_operators_that_compile(module, shape, sizes):
    pytest.importorskip("executorch")
    x = torch.randn(shape)
    program = delegraph.lower(
        module.eval(), (x,), backends=["xnnpack"], dynamic_shapes=sizes
    )
    assert program.delegates
    torch.testing.assert_close(program(x), module(x))


def test_xnnpack_leaves_int16_activations_to_the_host():
    pytest.importorskip("executorch")
    tosa = pytest.importorskip("delegraph_tosa.quantizer")
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    inputs = (torch.randn(2, 8),)
    module = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 4)).eval()
    quantizer = tosa.TOSAQuantizer(tosa.Precision(torch.int16))
    prepared = prepare_pt2e(torch.export.export(module, inputs).module(), quantizer)
    prepared(*inputs)
    exported = torch.export.export(convert_pt2e(prepared), inputs)
    program = delegraph.lower(exported, backends=["xnnpack"])

    torch.testing.assert_close(
        program(*inputs), exported.module()(*inputs), rtol=1e-3, atol=1e-3
    )


MODEL = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.stack([x, x * 2], 3).max(3).values

def model():
    return Model().eval(), (torch.randn(2, 3, 4),)
"""


@pytest.mark.parametrize(
    "flags", [[], ["--debug"]], ids=["without --debug", "with --debug"]
)
def test_the_command_line_shows_the_traceback_with_debug(flags, tmp_path, capfd):
    pytest.importorskip("executorch")
    (tmp_path / "net.py").write_text(MODEL)
    code = main(
        ["lower", f"{tmp_path / 'net.py'}:model", "--backend", "xnnpack", *flags]
    )
    captured = capfd.readouterr()

    assert code == 0
    assert "amax.default only supports keep_dim == True" in captured.out
    assert ("Traceback" in captured.err) is bool(flags)
