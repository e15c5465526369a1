"""The public names of ``delegraph_tosa`` suffice to build a plugin on it."""

from __future__ import annotations

import subprocess
import sys

import delegraph
import delegraph_tosa as tosa
import pytest
import torch
from delegraph.backend import BackendDetails, PreprocessResult
from delegraph.errors import OptionError, Unsupported
from delegraph.io.blob_pieces import join
from delegraph.runtime import BackendRuntime
from delegraph_engines import WrappingPartitioner
from delegraph_tosa.plugin import OPTIONS
from torch import nn

LIGHT = """
import sys
import delegraph_tosa
loaded = {name for name in sys.modules if name.startswith("delegraph_tosa.")}
assert not loaded, loaded
for name in set(delegraph_tosa.__all__) - {"compile_program", "DevicePartitioner", "run_compiler", "split_flags"}:
    getattr(delegraph_tosa, name)
assert "torch" not in sys.modules
assert delegraph_tosa.compile_program.__module__ == "delegraph_tosa.backend"
assert set(delegraph_tosa.__all__) <= set(dir(delegraph_tosa))
"""


def test_public_names_are_imported_on_first_use():
    completed = subprocess.run(
        [sys.executable, "-W", "error", "-c", LIGHT],
        capture_output=True,
        text=True,
        check=False,
    )
    assert completed.returncode == 0, completed.stderr


def test_unknown_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="no attribute 'reed'"):
        tosa.reed  # noqa: B018 - a name that is misspelt


def why_not_acme(operator):
    """A device without SIN and COS, whose convolutions have kernels of at most 3 by 3."""
    if isinstance(operator, (tosa.operators.SIN, tosa.operators.COS)):
        return "Acme has no trigonometry"
    if (
        isinstance(operator, tosa.operators.CONV2D)
        and max(operator.weight.shape[1:3]) > 3
    ):
        return "Acme has kernels of at most 3 by 3"
    return None


tosa.narrow("acmelite", why_not_acme)


class AcmePartitioner(WrappingPartitioner):
    """Partitions for the device; the other options are those of TOSA."""

    def __init__(self, spec="TOSA-1.0+FP+acmelite", **options):
        super().__init__(
            delegraph.get_partitioner("tosa", spec=spec, **options), "AcmeBackend"
        )


class AcmeBackend(BackendDetails):
    """Compiles to the text form of a TOSA graph."""

    @staticmethod
    def preprocess(edge_program, compile_specs):
        blob = (
            delegraph.get_backend("tosa")
            .preprocess(edge_program, list(compile_specs))
            .processed_bytes
        )
        return PreprocessResult(tosa.render(tosa.read(join(blob))).encode())


class AcmeRuntime(BackendRuntime):
    """Runs the text form on the host."""

    @staticmethod
    def load(processed_bytes, compile_specs, named_data):
        program = tosa.Program(tosa.parse(processed_bytes.decode()))
        return lambda *args: tuple(
            torch.from_numpy(y.copy()) for y in program([x.numpy() for x in args])
        )


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.small = nn.Conv2d(3, 4, 3)
        self.large = nn.Conv2d(4, 2, 5)

    def forward(self, x):
        return self.large(self.small(x).relu().sin()) * 2


def test_plugins_can_narrow_the_target_and_run_graphs():
    x = torch.randn(1, 3, 12, 12)
    with delegraph.register(
        AcmeBackend,
        partitioner=AcmePartitioner,
        runtime=AcmeRuntime,
        name="acme",
        options=OPTIONS,
    ):
        lowered = delegraph.lower(
            Net().eval(),
            (x,),
            backends=["acme"],
            options={"acme": {"spec": "TOSA-1.0+FP+acmelite"}},
        )
        assert lowered.verify(x).relative_error < 1e-5
    target = "; the target is TOSA-1.0+FP+acmelite"
    assert {row.operator: row.reason for row in lowered.report.refusals} == {
        "aten.conv2d.default": (
            f"TOSA CONV2D: Acme has kernels of at most 3 by 3{target}"
        ),
        "aten.sin.default": f"TOSA SIN: Acme has no trigonometry{target}",
    }
    graphs = [
        tosa.parse(delegate.processed_bytes.decode()) for delegate in lowered.delegates
    ]
    assert [
        op.name for g in graphs for op in g.operators if op.name in ("CONV2D", "MUL")
    ] == ["CONV2D", "MUL"]


def test_narrowed_targets_parse_validate_and_compile():
    program = torch.export.export(Net().eval(), (torch.randn(1, 3, 12, 12),))
    spec = tosa.TosaSpec.parse("TOSA-1.0+FP")
    narrow = tosa.TosaSpec.parse("tosa-1.0+ACMELITE+fp")
    assert str(narrow) == "TOSA-1.0+FP+acmelite"
    assert tosa.TosaSpec.parse(str(narrow)) == narrow != spec
    graph = tosa.compile_program(program, spec)
    assert tosa.violations(graph, spec) == []
    assert [v.problem.split(";")[0] for v in tosa.violations(graph, narrow)] == [
        "TOSA SIN: Acme has no trigonometry",
        "TOSA CONV2D: Acme has kernels of at most 3 by 3",
    ]
    with pytest.raises(
        Unsupported, match=r"aten.sin.default: TOSA SIN: Acme has no trigonometry"
    ):
        tosa.compile_program(program, narrow)


def test_public_names_write_and_read_graphs():
    program = torch.export.export(nn.Linear(3, 2), (torch.randn(1, 3),))
    graph = tosa.compile_program(program, tosa.TosaSpec.parse("TOSA-1.0+FP"))
    again = tosa.read(tosa.TosaFile(graph, tosa.TosaSpec.parse("TOSA-1.0+FP")).join())
    assert tosa.render(again) == tosa.render(tosa.parse(tosa.render(again)))
    elements = [
        sorted(tosa.materialize(value).ravel().tolist()) for value in again.constants()
    ]
    assert sorted(program.state_dict["weight"].ravel().tolist()) in elements
    (result,) = again.outputs
    assert isinstance(result, tosa.Value)
    assert isinstance(result.producer, tosa.Operator)
    assert result.type == tosa.Type((1, 2), tosa.DType.FP32)
    assert isinstance(again, tosa.Graph)


@pytest.mark.parametrize("name", ["fp", "bf16", "8k", "cf", "Acme", "a-c", ""])
def test_reserved_and_malformed_device_names_are_refused(name):
    with pytest.raises(ValueError, match="cannot be the name of a device"):
        tosa.narrow(name, why_not_acme)


def test_device_may_be_registered_again_with_the_same_function():
    tosa.narrow("acmelite", why_not_acme)


def test_device_may_not_be_registered_with_another_function():
    with pytest.raises(ValueError, match="'acmelite' already names another device"):
        tosa.narrow("acmelite", lambda operator: None)


def test_unknown_devices_are_refused():
    with pytest.raises(OptionError, match="unknown extension acme2"):
        tosa.TosaSpec.parse("TOSA-1.0+FP+acme2")
