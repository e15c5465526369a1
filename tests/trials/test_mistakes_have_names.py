"""Errors name the wrong argument, or the plugin that breaks its contract."""

import delegraph
import pytest
import torch
from delegraph import Registry
from delegraph.backend import BackendDetails, PreprocessResult
from delegraph.errors import BackendNotFound, ContractViolation, PluginBroken
from delegraph.partitioner import CapabilityPartitioner


class NpuBackend(BackendDetails):
    @staticmethod
    def preprocess(edge_program, compile_specs):
        return PreprocessResult(b"blob")


def lower_with(registry):
    return delegraph.lower(
        torch.nn.ReLU().eval(), (torch.ones(2),), backends=["npu"], registry=registry
    )


@pytest.mark.parametrize(
    ("function", "wrong", "meant"),
    [
        (delegraph.lower, "backend", "backends"),
        (delegraph.lower, "option", "options"),
        (delegraph.lower, "example_input", "example_inputs"),
        (delegraph.export, "dynamic_shape", "dynamic_shapes"),
        (delegraph.load, "run_time", "runtime"),
    ],
)
def test_a_wrong_argument_names_the_right_one(function, wrong, meant):
    with pytest.raises(
        TypeError, match=rf"has no argument '{wrong}'; did you mean '{meant}'\?"
    ):
        function("model", **{wrong: "tosa"})


@pytest.mark.parametrize("answer", [False, True, 3, ["a reason"]])
def test_a_support_check_without_a_reason_is_named(answer):
    registry = Registry(discover=False)
    registry.register(
        NpuBackend,
        name="npu",
        partitioner=CapabilityPartitioner(lambda node: answer, "NpuBackend"),
    )

    with pytest.raises(
        ContractViolation,
        match="the support check of NpuBackend returned .* for aten.relu.default",
    ):
        lower_with(registry)


def test_a_wrong_backend_id_is_named_as_doctor_names_it(monkeypatch, tmp_path):
    folder = tmp_path / "acme_npu-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: acme-npu\nVersion: 1.0\n"
    )
    (folder / "entry_points.txt").write_text(
        "[delegraph]\nacme_npu = acme_npu_plugin\n"
    )
    (tmp_path / "acme_npu_plugin.py").write_text(PLUGIN)
    (tmp_path / "acme_npu_code.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(
        PluginBroken, match="is called AcmeBackend, and backend_id says 'NpuBackend'"
    ):
        lower_with(Registry())


PLUGIN = """
from delegraph.plugin import BackendSpec, PartitionerSpec, hookimpl

@hookimpl
def delegraph_backends():
    return [BackendSpec(name="npu", backend_id="NpuBackend", target="acme_npu_code:AcmeBackend", api=1)]

@hookimpl
def delegraph_partitioners():
    return [PartitionerSpec(name="npu", backend="npu", target="acme_npu_code:AcmePartitioner", default=True)]
"""
CODE = """
from delegraph.backend import BackendDetails, PreprocessResult
from delegraph.partitioner import CapabilityPartitioner

class AcmeBackend(BackendDetails):
    @staticmethod
    def preprocess(edge_program, compile_specs):
        return PreprocessResult(b"blob")

class AcmePartitioner(CapabilityPartitioner):
    def __init__(self):
        super().__init__(lambda node: None, "AcmeBackend")
"""


def test_a_partition_for_an_unknown_backend_names_its_partitioner():
    registry = Registry(discover=False)
    registry.register(
        NpuBackend,
        name="npu",
        partitioner=CapabilityPartitioner(lambda node: None, "OtherBackend"),
    )

    with pytest.raises(BackendNotFound) as caught:
        lower_with(registry)
    assert "the partitioner of 'npu' gave the partition" in caught.value.hint


def test_the_scaffold_explains_refusals():
    from importlib.resources import files

    template = (
        files("delegraph_devkit")
        / "scaffold"
        / "template"
        / "src"
        / "acme_npu"
        / "backend.py"
    )
    text = " ".join(template.read_text().split())

    assert "ends the lowering" not in text
    assert "goes to the next backend or stays on the host" in text
