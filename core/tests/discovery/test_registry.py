"""The registry finds backends by name, or explains why not. Registrations can be
undone.
"""

import subprocess
import sys
import threading

import delegraph
import pytest
import torch
from delegraph.backend import BackendDetails, PreprocessResult
from delegraph.discovery.records import Status
from delegraph.discovery.registry import Registry
from delegraph.errors import (
    BackendNotFound,
    DelegraphWarning,
    FormatNotFound,
    NoRuntime,
    OptionError,
    PluginBroken,
    PluginConflict,
    PluginIncompatible,
    PluginUnavailable,
)
from delegraph.partitioner import Partitioner
from delegraph.plugin import BackendSpec, OptionSpec, ReportSpec, hookimpl
from delegraph.runtime import BackendRuntime


class Chip(BackendDetails):
    @staticmethod
    def preprocess(edge_program, compile_specs):
        return PreprocessResult(b"")


class Other(BackendDetails):
    @staticmethod
    def preprocess(edge_program, compile_specs):
        return PreprocessResult(b"")


class ChipPartitioner(Partitioner):
    def __init__(self, level=None, fast=False):
        super().__init__({"level": level, "fast": fast})

    def partition(self, exported_program):
        raise NotImplementedError


class ChipRuntime(BackendRuntime):
    pass


OPTIONS = (OptionSpec("level", int, 2, choices=(1, 2, 3)), OptionSpec("fast", bool))


@pytest.fixture
def hermetic():
    return Registry(discover=False)


def test_a_backend_is_found_by_all_of_its_names(site):
    site.backend("Some_Vendor", "npu")
    registry = Registry()
    found = registry.get_backend("npu")
    assert found.__name__ == "NpuBackend"

    for name in (
        "NpuBackend",
        "Some_Vendor/npu",
        "some-vendor/npu",
        "some.vendor/NpuBackend",
    ):
        assert registry.get_backend(name) is found
    assert registry.entry("npu").producer == ("some-vendor", "1.0")
    assert registry.entry("NpuBackend").full_name == "some-vendor/npu"


def test_backends_are_sorted_and_described(site):
    site.backend("zebra", "z", summary="last")
    site.backend("ape", "a", summary="first")
    rows = [
        backend
        for backend in Registry().backends()
        if backend.distribution in ("zebra", "ape")
    ]

    assert [
        (b.name, b.spec.summary, b.status, b.version, b.has_runtime) for b in rows
    ] == [
        ("a", "first", Status.OK, "1.0", False),
        ("z", "last", Status.OK, "1.0", False),
    ]


def test_wrong_name_gets_a_suggestion_and_installed_names(hermetic):
    hermetic.register(Chip)
    with pytest.raises(
        BackendNotFound,
        match=r"Backend chipp was not found; did you mean 'chip'\? \(installed: chip\)",
    ):
        hermetic.get_backend("chipp")
    with pytest.raises(NotImplementedError):
        hermetic.get_backend("nothing like it")


def test_without_usable_backends_there_is_no_default(hermetic):
    text = "no backend is installed that can be used\n  hint"
    with pytest.raises(BackendNotFound, match=text) as caught:
        hermetic.default_backends()
    assert "--host-only" in caught.value.hint

    hermetic.register(
        BackendSpec("absent", "nobody:Absent", "Absent", 1, requires=("nobody_has_it",))
    )
    text = r"used; absent \(.*\) is unavailable: .*nobody_has_it.*\n"
    with pytest.raises(BackendNotFound, match=text):
        hermetic.default_backends()


def test_the_only_usable_backend_is_the_default(hermetic):
    hermetic.register(
        BackendSpec("absent", "nobody:Absent", "Absent", 1, requires=("nobody_has_it",))
    )
    hermetic.register(Chip)
    names, note = hermetic.default_backends()
    assert names == ["chip"]
    assert note == "no backend was named; chip is the only one"


def test_several_backends_have_a_default_if_only_one_suits(hermetic):
    hermetic.register(Chip)
    hermetic.register(Other)

    text = "no backend is named, and there are several: chip, other"
    with pytest.raises(OptionError, match=text):
        hermetic.default_backends()
    with pytest.raises(OptionError, match="chip, other"):
        hermetic.default_backends(suits=lambda info: False)

    names, note = hermetic.default_backends(suits=lambda info: info.name == "other")
    assert names == ["other"]
    assert note == "no backend was named; other is the only one that suits"
    assert hermetic.default_backends(["other", "chip"]).names == ["other", "chip"]


def test_a_plugin_may_declare_its_backend_the_default(hermetic):
    hermetic.register(Chip)
    hermetic.register(BackendSpec("npu", f"{__name__}:Other", "Npu", 1, default=True))
    assert hermetic.default_backends() == (
        ["npu"],
        "no backend was named; npu is the default (others: chip)",
    )
    assert hermetic.default_backends(suits=lambda info: info.name == "chip").names == [
        "chip"
    ]

    hermetic.register(BackendSpec("gpu", f"{__name__}:Other", "Gpu", 1, default=True))
    with pytest.raises(OptionError, match="there are several: gpu, npu"):
        hermetic.default_backends()


def test_broken_plugin_does_not_disturb_default_backends(site, monkeypatch):
    monkeypatch.setenv("DELEGRAPH_PLUGINS", "vendor-good,vendor-bad")
    site.backend("vendor-good", "npu")
    site.plugin("vendor-bad", "raise ValueError('bad wheel')")
    registry = Registry()
    with pytest.warns(DelegraphWarning, match="vendor-bad 1.0 is broken"):
        assert registry.default_backends().names == ["npu"]

    monkeypatch.setenv("DELEGRAPH_PLUGINS", "vendor-bad")
    with pytest.raises(
        BackendNotFound,
        match=r"npu \(vendor-good 1.0\) is disabled: .*vendor-bad .* is broken: ",
    ):
        Registry().default_backends()


def test_a_name_of_two_providers_is_a_conflict(site):
    site.backend("vendor-a", "npu")
    site.backend("vendor-b", "npu", requires=("nobody_has_it",))
    site.backend("vendor-c", "good")
    registry = Registry()
    for ask in (
        registry.get_backend,
        registry.spec,
        registry.get_partitioner,
        registry.runtime_for,
        registry.entry,
    ):
        for name in ("npu", "NpuBackend"):
            with pytest.raises(
                PluginConflict,
                match=(
                    r"vendor-a 1.0 \(.+vendor_a.py\) and vendor-b 1.0 \(.+vendor_b.py\)"
                ),
            ) as caught:
                ask(name)
            # the other cannot be loaded
            assert "ask for 'vendor-a/npu', or set" in caught.value.hint
            assert (
                "vendor-b/npu cannot be used: backend 'npu' needs 'nobody_has_it'"
                in caught.value.message
            )
    assert registry.get_backend("vendor-a/npu").__module__ == "vendor_a"
    assert registry.get_backend("good").__module__ == "vendor_c"

    statuses = {
        backend.distribution: backend.status
        for backend in registry.backends()
        if backend.name in ("npu", "good")
    }
    assert statuses == {
        "vendor-a": Status.CONFLICT,
        "vendor-b": Status.CONFLICT,
        "vendor-c": Status.OK,
    }


PARTITIONED = """
from delegraph.backend import BackendDetails, PreprocessResult
from delegraph.partitioner import CapabilityPartitioner
from delegraph.plugin import BackendSpec, PartitionerSpec, hookimpl

class NpuBackend(BackendDetails):
    @staticmethod
    def preprocess(edge_program, compile_specs):
        return PreprocessResult(b"MODULE")

class Everything(CapabilityPartitioner):
    def __init__(self):
        super().__init__(lambda node: None, "NpuBackend")

@hookimpl
def delegraph_backends():
    return [BackendSpec("npu", "MODULE:NpuBackend", "NpuBackend", 1)]

@hookimpl
def delegraph_partitioners():
    return [PartitionerSpec("npu", "npu", "MODULE:Everything")]
"""


def test_lowering_for_one_of_two_providers_of_a_name(site):
    for module in ("vendor_a", "vendor_b"):
        site.plugin(module.replace("_", "-"), PARTITIONED.replace("MODULE", module))
    program = torch.nn.ReLU().eval()
    inputs = (torch.randn(3),)
    registry = Registry()
    for name, blob, producer in (
        ("vendor-a/npu", b"vendor_a", "vendor-a 1.0"),
        ("vendor-b/NpuBackend", b"vendor_b", "vendor-b 1.0"),
    ):
        lowered = delegraph.lower(program, inputs, backends=[name], registry=registry)
        assert lowered.delegates[0].processed_bytes == blob
        assert lowered.report.delegates[0].producer == producer

    with pytest.raises(PluginConflict, match=r"vendor-a 1.0 \(.+\) and vendor-b 1.0"):
        delegraph.lower(program, inputs, backends=["npu"], registry=registry)
    with pytest.raises(PluginConflict, match="are both 'npu'"):
        delegraph.lower(
            program,
            inputs,
            backends=["vendor-a/npu", "vendor-b/npu"],
            registry=registry,
        )


def test_a_preferred_backend_hides_others_of_its_name(site):
    for module in ("vendor_a", "vendor_b"):
        site.plugin(module.replace("_", "-"), PARTITIONED.replace("MODULE", module))
    site.backend("vendor-c", "other")
    chosen = Registry().preferring(["vendor-b/npu"])
    found = [
        backend
        for backend in chosen.backends()
        if backend.distribution.startswith("vendor-")
    ]

    assert [(b.full_name, b.status) for b in found] == [
        ("vendor-b/npu", Status.OK),
        ("vendor-c/other", Status.OK),
    ]
    assert chosen.get_backend("npu").__module__ == "vendor_b"
    assert type(chosen.get_partitioner("npu")).__module__ == "vendor_b"
    assert {r.distribution: r.status for r in chosen.plugins()}["vendor-b"] is Status.OK


def test_disabling_one_of_two_resolves_the_conflict(site, monkeypatch):
    site.backend("vendor-a", "npu")
    site.backend("vendor-b", "npu")
    monkeypatch.setenv("DELEGRAPH_DISABLE_PLUGINS", "vendor-a")
    assert Registry().get_backend("npu").__module__ == "vendor_b"


def test_unusable_backend_raises_its_reason(site):
    site.backend("old-one", "old", api=99)
    site.backend(
        "poor-one", "poor", requires=("nobody_has_it",), install_hint="pip install it"
    )
    registry = Registry()

    with pytest.warns(DelegraphWarning, match="old of old-one 1.0 is incompatible"):
        registry.backends()
    with pytest.raises(PluginIncompatible, match="written for plugin API 99"):
        registry.get_backend("old")
    with pytest.raises(PluginUnavailable, match="needs 'nobody_has_it'") as caught:
        registry.get_backend("PoorBackend")
    assert caught.value.hint == "pip install it"
    assert registry.spec("poor").install_hint == "pip install it"


def test_broken_plugin_warns_once_and_fails_when_used(site):
    site.plugin("bad-one", "raise ValueError('no luck')", name="bad")
    site.backend("good-one", "good")
    with pytest.warns(
        DelegraphWarning, match="bad of bad-one 1.0 is broken: ValueError: no luck"
    ) as caught:
        assert Registry().get_backend("good")
    assert len(caught) == 1

    again = Registry()
    assert again.get_backend("good")

    for name in ("bad", "bad-one", "bad-one/bad"):
        with pytest.raises(PluginBroken, match="no luck") as error:
            again.get_backend(name)
        assert isinstance(error.value.__cause__, ValueError)
    with pytest.raises(
        BackendNotFound, match="bad could not be loaded, see `delegraph backends`"
    ):
        again.get_backend("something")


def test_disabled_plugin_is_named_when_used(site, monkeypatch):
    site.plugin("exiter", "import os; os._exit(3)")
    monkeypatch.setenv("DELEGRAPH_DISABLE_PLUGINS", "exiter")
    with pytest.raises(
        BackendNotFound,
        match="exiter 1.0 is disabled: DELEGRAPH_DISABLE_PLUGINS names it",
    ):
        Registry().get_backend("exiter")


TARGETS = {
    "no_such_module:X": "No module named 'no_such_module'",
    "chip_plugin:Absent": "chip_plugin.py) has no 'Absent'",
    "collections:OrderedDict": "no subclass of delegraph.backend.BackendDetails",
    "os:getcwd": "no subclass of delegraph.backend.BackendDetails",
    "leaves:Chip": "SystemExit: 4",
    "renamed:Renamed": "is called Renamed, and backend_id says 'NpuBackend'",
}


@pytest.mark.parametrize("target", TARGETS)
def test_missing_or_wrong_targets_are_refused(site, target):
    (site.folder / "leaves.py").write_text("raise SystemExit(4)")
    (site.folder / "renamed.py").write_text(
        "from delegraph.backend import BackendDetails\n"
        "class Renamed(BackendDetails):\n"
        "    @staticmethod\n"
        "    def preprocess(edge_program, compile_specs): ...\n"
    )
    site.backend("chip-plugin", "npu", target=target)
    registry = Registry()

    assert registry.spec("npu").target == target
    with pytest.raises(PluginBroken) as caught:
        registry.get_backend("npu")
    assert TARGETS[target] in str(caught.value)
    assert "chip-plugin 1.0" in str(caught.value)


def test_targets_are_imported_when_they_are_first_used(site):
    (site.folder / "heavy_part.py").write_text(
        "from delegraph.backend import BackendDetails\n"
        "class NpuBackend(BackendDetails):\n"
        "    @staticmethod\n"
        "    def preprocess(edge_program, compile_specs): ...\n"
    )
    site.backend("lazy-one", "npu", target="heavy_part:NpuBackend")
    registry = Registry()

    assert registry.backends()
    assert "heavy_part" not in sys.modules
    assert registry.get_backend("npu") is sys.modules["heavy_part"].NpuBackend


def test_registering_a_class(hermetic):
    with hermetic.register(
        Chip, partitioner=ChipPartitioner, runtime=ChipRuntime, options=OPTIONS
    ):
        assert hermetic.get_backend("chip") is Chip
        assert hermetic.get_backend("Chip") is Chip
        assert hermetic.get_backend("in-process/chip") is Chip
        assert hermetic.runtime_for("Chip") is ChipRuntime
        assert hermetic.entry("chip").producer == ("in-process", "")
        assert hermetic.get_partitioner("chip", fast=True).spec == {
            "level": 2,
            "fast": True,
        }

    assert hermetic.backends() == []
    with pytest.raises(BackendNotFound):
        hermetic.get_backend("chip")


def test_registering_a_spec_and_a_ready_partitioner(hermetic):
    ready = ChipPartitioner()
    spec = BackendSpec("npu", f"{__name__}:Chip", "Chip", 1)
    hermetic.register(spec, partitioner=ready)

    assert hermetic.get_partitioner("npu") is ready
    with pytest.raises(OptionError, match="has no option 'level'"):
        hermetic.get_partitioner("npu", level=1)
    with pytest.raises(PluginBroken, match="ready made"):
        Registry(discover=False).register(Chip, partitioner=ready, options=OPTIONS)


@pytest.mark.parametrize(
    "what",
    [3, "npu", ReportSpec(".x", "m:f", "a report")],
    ids=["number", "text", "report"],
)
def test_object_without_declarations_cannot_be_registered(hermetic, what):
    with pytest.raises(PluginBroken, match="declares nothing"):
        hermetic.register(what)


class ChipHooks:
    """A plugin object whose hooks declare Chip."""

    @hookimpl
    def delegraph_backends(self):
        return [BackendSpec("hooked", f"{__name__}:Chip", "Chip", 1)]


@pytest.mark.parametrize(
    "given",
    [{"partitioner": ChipPartitioner}, {"runtime": ChipRuntime}, {"options": OPTIONS}],
)
def test_an_object_with_hooks_takes_no_other_arguments(hermetic, given):
    with pytest.raises(
        PluginBroken, match=f"an object with hooks declares its own {next(iter(given))}"
    ):
        hermetic.register(ChipHooks(), **given)
    assert hermetic.backends() == []
    hermetic.register(ChipHooks(), name="chips")
    assert [backend.name for backend in hermetic.backends()] == ["hooked"]


def test_registrations_stack_and_unregister_in_any_order_and_twice(hermetic):
    first = hermetic.register(Chip)
    second = hermetic.register(Other, name="second")
    third = hermetic.register(BackendSpec("third", "a:Third", "Third", 1))
    first.unregister()
    first.unregister()
    assert [backend.name for backend in hermetic.backends()] == ["second", "third"]

    again = hermetic.register(Chip)
    for handle in (third, second, again):
        handle.unregister()
    assert hermetic.backends() == []


@pytest.mark.parametrize("name", ["chip", None])
def test_a_name_that_exists_is_a_conflict(hermetic, name):
    hermetic.register(Chip)
    with pytest.raises(PluginConflict, match="exists already"):
        hermetic.register(Chip if name is None else Other, name=name or "another")
    assert [backend.name for backend in hermetic.backends()] == ["chip"]


def test_object_that_is_no_backend_is_refused_at_once(hermetic):
    with pytest.raises(
        PluginBroken, match="no subclass of delegraph.backend.BackendDetails"
    ):
        hermetic.register(dict)
    with pytest.raises(
        PluginBroken, match=r"no subclass of delegraph\.partitioner.*Partitioner"
    ):
        hermetic.register(Chip, partitioner=ChipRuntime)
    assert hermetic.backends() == []


def test_the_registry_of_the_process(site):
    with delegraph.register(Chip):
        assert delegraph.get_backend("chip") is Chip
        assert "chip" in [backend.name for backend in delegraph.backends()]
    assert "chip" not in [backend.name for backend in delegraph.backends()]


def test_registering_from_many_threads(hermetic):
    def work(k):
        for n in range(20):
            with hermetic.register(BackendSpec(f"b{k}-{n}", "a:B", f"B{k}_{n}", 1)):
                assert hermetic.spec(f"b{k}-{n}").backend_id == f"B{k}_{n}"

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert hermetic.backends() == []


def test_missing_runtime_raises_with_advice(hermetic):
    hermetic.register(Chip)
    with pytest.raises(NoRuntime, match="declares no runtime for this host") as caught:
        hermetic.runtime_for("chip")
    assert "with_missing_runtime" in caught.value.hint


def test_a_backend_without_partitioner(hermetic):
    hermetic.register(Chip)
    with pytest.raises(PluginBroken, match="declares no partitioner"):
        hermetic.get_partitioner("chip")


def test_undeclared_partitioner_options_are_a_defect_of_the_plugin(hermetic):
    hermetic.register(
        Chip, partitioner=ChipPartitioner, options=(OptionSpec("other", int, 1),)
    )
    with pytest.raises(
        PluginBroken, match="does not take the options that are declared"
    ):
        hermetic.get_partitioner("chip")


def test_a_runtime_may_come_from_another_distribution(site):
    site.backend("vendor-a", "npu")
    site.plugin(
        "simulator",
        """
        from delegraph.plugin import RuntimeSpec, hookimpl
        from delegraph.runtime import BackendRuntime
        class Simulator(BackendRuntime): pass
        @hookimpl
        def delegraph_runtimes(): return [RuntimeSpec("npu", "simulator:Simulator")]
        """,
    )

    assert Registry().runtime_for("NpuBackend").__name__ == "Simulator"


def test_a_light_module_must_not_use_the_registry(site):
    site.plugin(
        "nosy",
        "import delegraph; delegraph.discovery.registry.default_registry().backends();"
        " delegraph.Registry().backends()",
    )

    with pytest.warns(DelegraphWarning, match="nosy of nosy 1.0 is broken"):
        records = Registry().plugins()
    assert next(r for r in records if r.name == "nosy").status is Status.BROKEN


def test_files_without_a_format_are_refused(hermetic):
    with pytest.raises(FormatNotFound, match="there is no file format for 'x.bin'"):
        hermetic.get_format("x.bin")


def test_importing_and_listing_import_neither_torch_nor_numpy():
    program = (
        "import sys, delegraph; delegraph.backends(); delegraph.Registry().plugins(); "
        "assert not {'torch', 'numpy'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_public_names():
    for name in delegraph.__all__:
        assert getattr(delegraph, name) is not None
        assert name in dir(delegraph)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = delegraph.nonsense
