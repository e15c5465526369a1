"""An error of a plugin names the plugin, its method, and the line of the user."""

from __future__ import annotations

import ctypes
import signal
from pathlib import Path

import delegraph
import pytest
import torch
from delegraph.backend import BackendDetails
from delegraph.discovery.registry import Registry
from delegraph.engine.pipeline import lower_programs
from delegraph.errors import CODES, InputError, PluginBroken, PluginFailed
from delegraph.partitioner import (
    CapabilityPartitioner,
    Partitioner,
)
from delegraph.runtime import BackendRuntime
from delegraph_engines import WrappingPartitioner

from ..conftest import EchoBackend, EchoRuntime

HERE = __file__


class Net(torch.nn.Module):
    def forward(self, x):
        return torch.relu(torch.nn.functional.silu(x))  # the user's line


LINE = next(
    k
    for k, text in enumerate(Path(HERE).read_text().split("\n"), 1)
    if "the user's line" in text and "silu" in text
)


def plugin_class_doing(act):
    """Return a backend that calls ``act`` before it compiles."""

    def backend(edge_program, compile_specs):
        act()
        return EchoBackend.preprocess(edge_program, compile_specs)

    return type(
        "ActingBackend",
        (BackendDetails,),
        {"preprocess": staticmethod(backend), "__module__": __name__},
    )


def leave():
    raise SystemExit(0)


def raise_error(error):
    def act():
        raise error

    return act


def partitioner_for_all(backend_id="ActingBackend"):
    return CapabilityPartitioner(lambda node: None, backend_id)


def lower_net(backend, partitioner=None, runtime=EchoRuntime, **options):
    registry = Registry(discover=False)
    registry.register(backend, runtime=runtime)
    partitioner = partitioner or partitioner_for_all(backend.__name__)
    return delegraph.lower(
        Net().eval(),
        (torch.ones(2),),
        backends=[partitioner],
        registry=registry,
        **options,
    )


def lower_or_raise(backend, partitioner=None):
    """Lower without a report. An exception of the backend is then an error, not a
    refusal.
    """
    registry = Registry(discover=False)
    registry.register(backend, runtime=EchoRuntime)
    partitioner = partitioner or partitioner_for_all(backend.__name__)
    program = torch.export.export(Net().eval(), (torch.ones(2),))
    return lower_programs(
        {"forward": program},
        [{"forward": partitioner}],
        core_aten=(),
        registry=registry,
    )


@pytest.mark.parametrize("error", [SystemExit(0), MemoryError(), BaseException("odd")])
def test_interrupts_from_a_compiler_end_the_lowering(error):
    with pytest.raises(PluginFailed) as caught:
        lower_net(plugin_class_doing(raise_error(error)))
    assert caught.value.__cause__ is error


@pytest.mark.parametrize(
    "error",
    [ValueError("bad weights"), SystemExit(0), MemoryError(), BaseException("odd")],
)
def test_errors_of_preprocess_name_the_plugin(error):
    with pytest.raises(PluginFailed) as caught:
        lower_or_raise(plugin_class_doing(raise_error(error)))
    failed = caught.value
    text = (
        f"preprocess of ActingBackend ({HERE}), at partition ActingBackend_0 of method"
        " forward, raised "
    )

    assert failed.message.startswith(text + type(error).__name__)
    assert str(error) in failed.message
    assert f"{HERE}:" in failed.message.removeprefix(text)
    assert failed.__cause__ is error
    assert failed.code == "plugin-failed"
    assert failed.code in CODES
    assert isinstance(failed, RuntimeError)
    assert failed.source.file == HERE
    assert failed.source.line == LINE


def test_errors_of_delegraph_keep_their_class_and_name_the_plugin():
    error = InputError("toy/no", "no luck")
    with pytest.raises(InputError) as caught:
        lower_net(plugin_class_doing(raise_error(error)))
    assert caught.value is error
    assert error.code == "toy/no"
    assert error.message == "no luck"
    assert str(error).endswith(
        f"raised by preprocess of ActingBackend ({HERE}),"
        f" {error.raised_by.partition(', ')[2]}"
    )


def test_interrupts_and_signal_handlers_pass_through():
    with pytest.raises(KeyboardInterrupt):
        lower_net(plugin_class_doing(raise_error(KeyboardInterrupt())))

    def handler(number, frame):
        raise SystemExit(3)

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises(SystemExit):
            lower_net(plugin_class_doing(lambda: signal.raise_signal(signal.SIGUSR1)))
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_support_check_names_the_operator():
    def why_not(node):
        return {}["table"] if node.target is torch.ops.aten.relu.default else None

    with pytest.raises(
        PluginFailed, match="raised KeyError.*at relu \\(aten.relu.default\\)"
    ) as caught:
        lower_or_raise(EchoBackend, CapabilityPartitioner(why_not, "EchoBackend"))
    assert caught.value.node.name == "relu"
    assert caught.value.source.line == LINE


class Failing(Partitioner):
    def __init__(self, place):
        super().__init__()
        self.place = place

    def check_settings(self, programs):
        assert list(programs) == ["forward"]
        if self.place == "settings":
            raise ValueError("no such input")

    def partition(self, exported_program):
        if self.place == "partition":
            raise SystemExit(0)
        return partitioner_for_all("EchoBackend").partition(exported_program)

    def ops_to_not_decompose(self, exported_program):
        def wanted(node):
            raise IndexError("wanted")

        if self.place == "ops":
            raise TypeError("ops")
        return [torch.ops.aten.silu.default], wanted if self.place == "filter" else None


@pytest.mark.parametrize(
    "wrap", [lambda p: p, lambda p: WrappingPartitioner(p, "EchoBackend")]
)
@pytest.mark.parametrize(
    ("place", "text"),
    [
        ("settings", "raised ValueError: no such input"),
        ("partition", "raised SystemExit: 0"),
        ("ops", "raised TypeError: ops"),
        ("filter", "raised IndexError: wanted"),
    ],
)
def test_errors_of_partitioners_name_the_partitioner(place, text, wrap):
    """The wrapped partitioner is named, not the wrapper."""
    with pytest.raises(PluginFailed, match=rf"of Failing \(.*{text}"):
        lower_or_raise(EchoBackend, wrap(Failing(place)))


@pytest.mark.parametrize("place", ["load", "run"])
def test_errors_of_runtimes_name_the_runtime(place):
    class FailingRuntime(BackendRuntime):
        @staticmethod
        def load(processed_bytes, compile_specs, named_data):
            if place == "load":
                raise SystemExit(0)
            return lambda *args: leave()

    program = lower_net(EchoBackend, partitioner_for_all("EchoBackend"), FailingRuntime)
    text = (
        r"of FailingRuntime \(.*partition EchoBackend_0 of method forward, raised"
        r" SystemExit: 0"
    )

    with pytest.raises(PluginFailed, match=text) as caught:
        program(torch.ones(2))
    assert caught.value.source.line == LINE


PLUGIN = """
import ctypes
from delegraph.backend import BackendDetails
from delegraph.partitioner import CapabilityPartitioner
from delegraph.plugin import BackendSpec, OptionSpec, PartitionerSpec, hookimpl

class NativeBackend(BackendDetails):
    @staticmethod
    def preprocess(edge_program, compile_specs):
        ctypes.CDLL("libabsent.so")  # fails

class NativePartitioner(CapabilityPartitioner):
    def __init__(self, level=1):
        [][level]
        super().__init__(lambda node: None, "NativeBackend")

class Willing(CapabilityPartitioner):
    def __init__(self):
        super().__init__(lambda node: None, "NativeBackend")

@hookimpl
def delegraph_backends():
    level = OptionSpec("level", int, 1)
    return [BackendSpec("native", "acme_native:NativeBackend", "NativeBackend", 1, options=(level,))]

@hookimpl
def delegraph_partitioners():
    return [
        PartitionerSpec("native", "native", "acme_native:NativePartitioner", default=True),
        PartitionerSpec("absent", "native", "acme_absent:Anything"),
    ]
"""


@pytest.fixture
def acme(site):
    """Install a plugin, and return the registry that found it."""
    site.plugin("acme-native", PLUGIN, version="2.1")
    (site.folder / "acme_absent.py").write_text(
        "import ctypes\nctypes.CDLL('libabsent.so')\n"
    )
    return Registry()


def test_error_names_version_and_line_of_the_plugin(acme, site):
    from acme_native import Willing

    program = torch.export.export(Net().eval(), (torch.ones(2),))
    with pytest.raises(PluginFailed) as caught:
        lower_programs(
            {"forward": program},
            [{"forward": Willing()}],
            core_aten=(),
            registry=acme,
        )

    message = caught.value.message
    file = site.folder / "acme_native.py"
    assert (
        "preprocess of NativeBackend (acme-native 2.1), at partition NativeBackend_0 of"
        " method forward" in message
    )

    line = next(
        k
        for k, text in enumerate(file.read_text().splitlines(), 1)
        if "# fails" in text
    )
    assert f"({file}:{line})" in message
    assert ctypes.__file__ not in message
    assert "tell the authors of acme-native 2.1" in caught.value.hint


def test_errors_of_a_constructor_name_the_plugin(acme):
    with pytest.raises(
        PluginFailed,
        match=(
            r"constructor of NativePartitioner \(acme-native 2.1\), raised IndexError"
        ),
    ):
        delegraph.lower(
            Net().eval(), (torch.ones(2),), backends=["native"], registry=acme
        )


def test_failing_target_is_shown_with_its_line(acme, site):
    with pytest.raises(PluginBroken) as caught:
        acme.get_partitioner("absent")
    assert f"({site.folder / 'acme_absent.py'}:2)" in caught.value.message
    assert ctypes.__file__ not in str(caught.value)


def test_failing_light_module_is_shown_with_its_line(site):
    site.plugin("acme-light", "import ctypes\nctypes.CDLL('libabsent.so')\n")
    with pytest.warns(delegraph.DelegraphWarning, match="acme-light"):
        [record] = [r for r in Registry().plugins() if r.distribution == "acme-light"]
    assert f"({site.folder / 'acme_light.py'}:2)" in record.error


TWO_CLASSES = """
from delegraph.plugin import BackendSpec, PartitionerSpec, hookimpl

class Foo: pass
class FooPartitioner: pass

@hookimpl
def delegraph_{kind}s():
    return [{declaration}]
"""


def test_a_class_belongs_to_the_plugin_with_its_exact_name(site):
    """Two distributions share a module. One declares Foo, the other FooPartitioner."""
    for distribution, kind, declaration in (
        ("vendor-a", "backend", "BackendSpec('foo', 'shared:Foo', 'Foo', 1)"),
        (
            "vendor-b",
            "partitioner",
            "PartitionerSpec('f', 'foo', 'shared:FooPartitioner')",
        ),
    ):
        source = TWO_CLASSES.format(kind=kind, declaration=declaration)
        site.plugin(distribution, source)
    (site.folder / "shared.py").write_text(
        "class Foo: pass\nclass FooPartitioner: pass\n"
    )
    import shared

    registry = Registry()
    assert registry.owner(shared.Foo).distribution == "vendor-a"
    assert registry.owner(shared.FooPartitioner).distribution == "vendor-b"
