"""Errors for authors who declare or register a backend, and its current state."""

import json
import pickle
from dataclasses import replace

import delegraph
import pytest
from delegraph.cli import main
from delegraph.discovery.registry import Registry
from delegraph.errors import BackendNotFound, NoRuntime, PluginBroken, PluginConflict
from delegraph.partitioner import CapabilityPartitioner
from delegraph.plugin import BackendSpec
from delegraph.runtime import BackendRuntime

from core.tests.conftest import EchoBackend, EchoRuntime


def test_a_declaration_refuses_unknown_fields_and_can_be_copied():
    with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):
        BackendSpec("a", "a:A", "A", 1, colour="red")
    spec = BackendSpec("a", "a:A", "A", 1)
    assert pickle.loads(pickle.dumps(spec)) == spec == replace(spec)


def make_partitioner():
    return CapabilityPartitioner(lambda node: None, "EchoBackend")


def test_factory_without_arguments_is_refused_with_advice():
    for factory in (make_partitioner, lambda: None):
        with pytest.raises(
            PluginBroken, match="a partitioner is a class or an instance of one"
        ) as error:
            Registry(discover=False).register(EchoBackend, partitioner=factory)
        assert "call it and register its result" in error.value.hint
    Registry(discover=False).register(EchoBackend, partitioner=make_partitioner())


def runtime_with_availability(available):
    class Runtime(BackendRuntime):
        @staticmethod
        def is_available():
            if isinstance(available, Exception):
                raise available
            return available

    return Runtime


@pytest.mark.parametrize(
    "made, said",
    [
        (EchoRuntime, ""),
        (runtime_with_availability(True), ""),
        (runtime_with_availability(False), "Runtime says that it is not available"),
        (
            runtime_with_availability(NoRuntime("no-runtime", "no device is attached")),
            "no device is attached",
        ),
        (runtime_with_availability(ValueError("a defect")), "a defect"),
        (None, "declares no runtime for this host"),
    ],
)
def test_backends_lists_whether_each_can_be_used(made, said, monkeypatch, capsys):
    registry = Registry(discover=False)
    registry.register(EchoBackend, runtime=made)
    monkeypatch.setattr("delegraph.discovery.registry._default", registry)
    assert main(["backends", "--available", "--json"]) == 0

    (row,) = json.loads(capsys.readouterr().out)["backends"]
    assert said in row["available"]
    assert bool(said) == bool(row["available"])
    assert main(["backends", "--available"]) == 0
    assert (said or "can run programs") in capsys.readouterr().out
    assert main(["backends", "--json"]) == 0
    assert "available" not in json.loads(capsys.readouterr().out)["backends"][0]
    assert delegraph.default_registry() is registry


def test_a_backend_that_cannot_be_loaded_is_not_offered(site):
    site.backend("vendor-one", "npu")
    site.backend("vendor-two", "npu", requires=("no_such_compiler",))
    with pytest.raises(PluginConflict) as error:
        Registry().get_backend("npu")
    assert (
        "vendor-two/npu cannot be used: backend 'npu' needs 'no_such_compiler'"
        in error.value.message
    )
    assert "'vendor-one/npu'" in error.value.hint
    assert "vendor-two/npu" not in error.value.hint
    with pytest.raises(BackendNotFound) as missing:
        site.backend("vendor-three", "gpux", requires=("no_such_compiler",))
        Registry().get_backend("gpuy")
    assert "did you mean 'gpux'" not in str(missing.value)
