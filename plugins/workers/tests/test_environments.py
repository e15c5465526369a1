"""Backends in two Python environments serve one lowering.

Each needs another version of the same compiler, so one environment cannot have both.
"""

import json
import os
import site
import subprocess
import sys
import venv
import zipfile

import delegraph
import pytest
import torch
from delegraph.discovery.registry import Registry
from delegraph.host import FileFormat
from delegraph_workers import (
    Compiler,
    environments,
    plugin,
)
from torch import nn

BACKEND_MODULE = """
import json
import os

import acme_compiler
import torch
from delegraph.backend import BackendDetails, CompileSpec, PreprocessResult
from delegraph.partitioner import CapabilityPartitioner
from delegraph.runtime import BackendRuntime

SUPPORTED = torch.ops.aten.{operator}.default


class {name}Backend(BackendDetails):
    @staticmethod
    def fingerprint(compile_specs):
        return acme_compiler.VERSION

    @staticmethod
    def preprocess(edge_program, compile_specs):
        print("compiled by", acme_compiler.VERSION)
        if compile_specs[0].value == b"crash":
            os.abort()
        handles = tuple(
            node.meta["debug_handle"]
            for node in edge_program.graph.nodes
            if node.op == "call_function"
        )
        blob = acme_compiler.{function}(len(handles), "{operator}")
        facts = {{"compiler": acme_compiler.VERSION}}
        return PreprocessResult(blob, {{0: handles}}, facts=facts)


class {name}Partitioner(CapabilityPartitioner):
    def __init__(self, mode):
        def why_not(node):
            if node.target is SUPPORTED:
                return None
            return f"only {operator}, with {{acme_compiler.VERSION}}"

        specs = [CompileSpec("mode", mode.encode())]
        super().__init__(why_not, "{name}Backend", specs)


class {name}Runtime(BackendRuntime):
    @staticmethod
    def load(processed_bytes, compile_specs, named_data):
        count, function = json.loads(processed_bytes)

        def run(x):
            for _ in range(count):
                x = getattr(torch, function)(x)
            return (x,)

        return run
"""
QUANTIZER_MODULE = """
import acme_compiler
import torch
from torchao.quantization.pt2e import MinMaxObserver
from torchao.quantization.pt2e.quantizer import (
    QuantizationAnnotation,
    QuantizationSpec,
    Quantizer,
)


class {name}Quantizer(Quantizer):
    def annotate(self, model):
        observer = MinMaxObserver.with_args(eps=2.0**-9)
        spec = QuantizationSpec(
            torch.int8, observer, -128, 127, torch.per_tensor_affine
        )
        for node in model.graph.nodes:
            if node.target is torch.ops.aten.{operator}.default:
                annotation = QuantizationAnnotation({{node.args[0]: spec}}, spec)
                node.meta["quantization_annotation"] = annotation

    def validate(self, model):
        pass
"""
FORMAT_MODULE = """
import acme_compiler
from delegraph.formats import DelegateFormat


class {name}Format(DelegateFormat):
    backend_id = "{name}Backend"

    @staticmethod
    def inspect(path):
        return Summary()


class Summary:
    def to_json(self):
        return {{"version": acme_compiler.VERSION}}
"""
PLUGIN_MODULE = """
from delegraph.plugin import (
    BackendSpec,
    FormatSpec,
    OptionSpec,
    PartitionerSpec,
    QuantizerSpec,
    RuntimeSpec,
    hookimpl,
)

@hookimpl
def delegraph_backends():
    options = (OptionSpec("mode", str, "well", ("well", "crash")),)
    return [
        BackendSpec(
            "{low}",
            "{low}_backend:{name}Backend",
            "{name}Backend",
            1,
            "of acme",
            options=options,
        )
    ]

@hookimpl
def delegraph_partitioners():
    target = "{low}_backend:{name}Partitioner"
    return [PartitionerSpec("{low}", "{low}", target, default=True)]

@hookimpl
def delegraph_runtimes():
    return [RuntimeSpec("{low}", "{low}_backend:{name}Runtime")]

@hookimpl
def delegraph_quantizers():
    return [QuantizerSpec("{low}", "{low}_quantizer:{name}Quantizer")]

@hookimpl
def delegraph_formats():
    return [FormatSpec(".{low}", "{low}_format:{name}Format")]
"""
COMPILER_MODULE = """
import json

VERSION = '{version}'


def {function}(*arguments):
    return json.dumps(arguments).encode()
"""


def make_wheel(folder, name, version, modules, requirement=None, plugin=None):
    """Return the path of a wheel with these modules, by name.

    ``plugin`` is the name of its plugin for delegraph, if it has one.
    """
    stem = name.replace("-", "_")
    metadata = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    if requirement:
        metadata.append(f"Requires-Dist: {requirement}")
    info = {
        "METADATA": "\n".join(metadata) + "\n",
        "WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    if plugin:
        info["entry_points.txt"] = f"[delegraph]\n{plugin} = {plugin}_plugin\n"
    path = folder / f"{stem}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for module, text in modules.items():
            wheel.writestr(f"{module}.py", text)
        for file, text in info.items():
            wheel.writestr(f"{stem}-{version}.dist-info/{file}", text)
    return path


def make_environment(folder, low, operator, version, function):
    """Return the Python of a new environment with a backend and its compiler.

    ``low`` is the name of the backend, which supports one ``operator``. It calls a
    ``function`` that only this ``version`` of the compiler has. torch and delegraph
    come from the environment of the tests.
    """
    venv.create(folder, system_site_packages=True, with_pip=False)
    site_packages = next((folder / "lib").iterdir()) / "site-packages"
    names = {
        "low": low,
        "name": low.title(),
        "operator": operator,
        "version": version,
        "function": function,
    }
    compiler = make_wheel(
        folder,
        "acme-compiler",
        version,
        {"acme_compiler": COMPILER_MODULE.format(**names)},
    )
    backend = make_wheel(
        folder,
        f"acme-{low}",
        "3.1",
        {
            f"{low}_backend": BACKEND_MODULE.format(**names),
            f"{low}_plugin": PLUGIN_MODULE.format(**names),
            f"{low}_quantizer": QUANTIZER_MODULE.format(**names),
            f"{low}_format": FORMAT_MODULE.format(**names),
        },
        requirement=f"acme-compiler=={version}",
        plugin=low,
    )
    for wheel in (compiler, backend):
        # pip install --no-deps would do the same
        zipfile.ZipFile(wheel).extractall(site_packages)
    folders = [*site.getsitepackages(), *sys.path]
    ours = [path for path in folders if path.endswith("site-packages")]
    lines = [
        f"import site; site.addsitedir({path!r})\n" for path in dict.fromkeys(ours)
    ]
    (site_packages / "ours.pth").write_text("".join(lines))
    return folder / "bin" / "python"


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    """Return a file of settings that names two environments.

    Their backends are "one", and "two" with the name "second" in the settings.
    """
    folder = tmp_path_factory.mktemp("acme")
    one = make_environment(folder / "one", "one", "sin", "1.0", "old_name")
    two = make_environment(folder / "two", "two", "cos", "2.0", "new_name")
    path = folder / "delegraph.toml"
    path.write_text(
        f'[backends.one]\npython = "{one}"\n'
        f'[backends.second]\npython = "{two}"\nbackend = "two"\n'
    )
    return path


@pytest.fixture(scope="module")
def registry(settings):
    """Return a registry that follows ``settings``."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DELEGRAPH_CONFIG", str(settings))
        patch.setenv("XDG_CACHE_HOME", str(settings.parent / "cache"))
        plugin.described.cache_clear()
        registry = Registry()
        patch.setattr("delegraph.discovery.registry._default", registry)
        yield registry
        for name in ("one", "second"):
            environments.environment(name).close()
        environments._environment.cache_clear()
        plugin.described.cache_clear()


class Waves(nn.Module):
    """Two sines for the backend "one", then a cosine for "second"."""

    def forward(self, x):
        return torch.cos(torch.sin(torch.sin(x + 1)) * 2)


X = torch.linspace(-1, 1, 6)
REMOTE_MODULES = {
    "acme_compiler",
    "one_backend",
    "one_format",
    "one_plugin",
    "one_quantizer",
    "two_backend",
}


def test_backends_are_listed_with_their_environment(registry, settings):
    backends = {backend.name: backend for backend in registry.backends()}

    one = backends["one"]
    assert one.usable
    assert one.spec.summary == f"of acme (acme-one 3.1 in {settings.parent / 'one'})"
    assert one.has_quantizer
    assert one.formats == (".one", ".two")
    second = backends["second"]
    assert second.backend_id == "TwoBackend"
    assert second.has_runtime
    assert second.spec.options[0].choices == ("well", "crash")
    assert not REMOTE_MODULES & sys.modules.keys()


def test_descriptions_of_environments_are_kept(registry, settings):
    """Listing then starts no process."""
    registry.backends()

    files = sorted((settings.parent / "cache/delegraph/environments").iterdir())
    assert len(files) == 2
    assert json.loads(files[0].read_text())["description"]["protocol"] == 1


def lower_waves(registry, **arguments):
    """Lower ``Waves`` for the backends of both environments."""
    return delegraph.lower(
        Waves().eval(),
        (X,),
        backends=["one", "second"],
        registry=registry,
        **arguments,
    )


@pytest.fixture(scope="module")
def lowered(registry):
    return lower_waves(registry)


@pytest.mark.slow
def test_two_versions_of_a_compiler_serve_one_lowering(lowered, settings):
    first, second = lowered.report.delegates
    assert first.backend == "one"
    assert first.facts["compiler"] == "1.0"
    assert first.facts["environment"] == f"acme-one 3.1 in {settings.parent / 'one'}"
    assert first.output == "compiled by 1.0"
    assert second.backend == "second"
    assert second.facts["compiler"] == "2.0"
    assert second.output == "compiled by 2.0"
    assert not REMOTE_MODULES & sys.modules.keys()


@pytest.mark.slow
def test_programs_of_two_environments_compute_as_eager(lowered):
    torch.testing.assert_close(lowered(X), Waves()(X))
    assert lowered.verify(X).agrees()


@pytest.mark.slow
def test_reports_have_the_refusals_of_both_environments(lowered):
    report = str(lowered.report)

    assert "only sin, with 1.0" in report
    assert "only cos, with 2.0" in report


@pytest.mark.slow
def test_quantizers_of_environments_annotate_the_model(registry):
    quantized = delegraph.quantize(
        Waves().eval(), [(X,)], backend="one", registry=registry
    )

    targets = [str(node.target) for node in quantized.graph.nodes]
    # the input and the results of both sines are quantized and dequantized
    assert sum("quantize_per_tensor" in target for target in targets) == 3 * 2
    assert not REMOTE_MODULES & sys.modules.keys()


@pytest.mark.slow
def test_file_formats_of_environments_are_used(lowered, registry, tmp_path):
    delegate = lowered.delegates[0]
    path = tmp_path / "sines.one"

    delegate.save(path)

    assert path.read_bytes() == delegate.processed_bytes
    assert FileFormat(path, registry).inspect(path).to_json() == {"version": "1.0"}
    (result,) = delegraph.load(path, registry=registry)(X)
    torch.testing.assert_close(result, torch.sin(torch.sin(X)))
    assert not REMOTE_MODULES & sys.modules.keys()


@pytest.mark.slow
def test_a_crash_in_one_environment_loses_only_its_partition(registry):
    crashed = lower_waves(registry, options={"one": {"mode": "crash"}})

    assert "SIGABRT" in crashed.report.given_back[0].reason
    assert len(crashed.report.delegates) == 1


@pytest.mark.slow
def test_partitions_of_environments_are_cached(lowered, registry, tmp_path):
    expected = [delegate.processed_bytes for delegate in lowered.delegates]

    for origin in ("compiled", "from the cache"):
        with_cache = lower_waves(registry, compiler=Compiler(tmp_path))

        first, second = with_cache.delegates
        assert [first.processed_bytes, second.processed_bytes] == expected
        assert [row.compiled for row in with_cache.report.delegates] == [origin, origin]
        assert (first.producer, first.fingerprint) == ("acme-one 3.1", "1.0")
        assert (second.producer, second.fingerprint) == ("acme-two 3.1", "2.0")


def list_backends(folder, settings, *options):
    """Return what ``delegraph backends`` prints in a working directory."""
    environment = os.environ | {"XDG_CACHE_HOME": str(settings.parent / "cache")}
    environment.pop("DELEGRAPH_CONFIG", None)
    completed = subprocess.run(
        [sys.executable, "-m", "delegraph", "backends", *options],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        cwd=folder,
    )
    return completed.stdout


def test_the_command_takes_a_file_of_settings(settings, tmp_path):
    listed = list_backends(tmp_path, settings, "--config", str(settings))

    assert "acme-one 3.1" in listed


def test_settings_in_the_working_directory_are_not_read(settings, tmp_path):
    """They name executables, so a downloaded folder could run anything."""
    (tmp_path / "delegraph.toml").write_text(settings.read_text())

    assert "acme-one" not in list_backends(tmp_path, settings)
