"""A backend in another Python environment works like one of this environment.

The first part makes two environments, whose wheels need different versions of one
compiler. In the second part, the other environment is this process.
"""

import gc
import importlib.metadata
import inspect
import json
import os
import re
import site
import subprocess
import sys
import venv
import zipfile

import delegraph
import numpy as np
import pytest
import torch
from delegraph.backend import BackendDetails, CompileSpec, PreprocessResult
from delegraph.discovery.registry import Registry
from delegraph.errors import (
    DelegraphWarning,
    FormatError,
    InputError,
    PluginConflict,
    PluginUnavailable,
    Unsupported,
)
from delegraph.formats import Quantization, QuantizationParameters
from delegraph.host import FileFormat
from delegraph.partitioner import CapabilityPartitioner
from delegraph.runtime import BlobHeader
from delegraph_devkit.doctor.report import build_report
from delegraph_tosa.format import TosaFormat
from delegraph_tosa.quantizer import TOSAQuantizer
from delegraph_workers import (
    Compiler,
    annotations,
    arrays,
    config,
    describe,
    environments,
    execute,
    formats,
    kept,
    message,
    plugin,
    quantizer,
    serve,
    tensors,
    workers,
)
from delegraph_workers.forms import write
from torch import nn
from torchao.quantization.pt2e import MinMaxObserver
from torchao.quantization.pt2e.quantizer import QuantizationAnnotation, QuantizationSpec

from core.tests.support.registries import registry_of

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


@pytest.fixture
def registry(settings, monkeypatch):
    """Return a registry that follows ``settings``; their worker processes end later."""
    monkeypatch.setenv("DELEGRAPH_CONFIG", str(settings))
    monkeypatch.setenv("XDG_CACHE_HOME", str(settings.parent / "cache"))
    plugin.described.cache_clear()
    registry = Registry()
    monkeypatch.setattr("delegraph.discovery.registry._default", registry)
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


@pytest.mark.slow
def test_two_versions_of_a_compiler_serve_one_lowering(registry, settings):
    lowered = lower_waves(registry)

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
def test_programs_of_two_environments_compute_as_eager(registry):
    lowered = lower_waves(registry)

    torch.testing.assert_close(lowered(X), Waves()(X))
    assert lowered.verify(X).agrees()


@pytest.mark.slow
def test_reports_have_the_refusals_of_both_environments(registry):
    report = str(lower_waves(registry).report)

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
def test_file_formats_of_environments_are_used(registry, tmp_path):
    delegate = lower_waves(registry).delegates[0]
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
def test_partitions_of_environments_are_cached(registry, tmp_path):
    expected = [
        delegate.processed_bytes for delegate in lower_waves(registry).delegates
    ]

    for origin in ("compiled", "from the cache"):
        lowered = lower_waves(registry, compiler=Compiler(tmp_path))

        first, second = lowered.delegates
        assert [first.processed_bytes, second.processed_bytes] == expected
        assert [row.compiled for row in lowered.report.delegates] == [origin, origin]
        assert (first.producer, first.fingerprint) == ("acme-one 3.1", "1.0")
        assert (second.producer, second.fingerprint) == ("acme-two 3.1", "2.0")


def list_backends(folder, settings, *options):
    """Return what ``delegraph backends`` prints in a working directory."""
    completed = subprocess.run(
        [sys.executable, "-m", "delegraph", "backends", *options],
        env=os.environ | {"XDG_CACHE_HOME": str(settings.parent / "cache")},
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


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('[backends."a b"]\npython = "/bin/python"', "'a b'.* is ignored"),
        (
            '[[backends]]\npython = "/bin/python"',
            "backends is ignored, because it is a list",
        ),
        ('[backend.a]\npython = "/bin/python"', "table or key 'backend' is ignored"),
        ('backends = "a"', "backends is ignored, because it is a str"),
    ],
)
def test_settings_that_are_wrong_are_ignored_with_a_warning(text, why, tmp_path):
    with pytest.warns(DelegraphWarning, match=why):
        assert config.read_settings(text, tmp_path / "delegraph.toml") == []


def test_settings_that_are_no_toml_name_the_file(tmp_path):
    with pytest.raises(config.BadSettings, match="delegraph.toml: "):
        config.read_settings("[backends", tmp_path / "delegraph.toml")


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ('python = "python"', "the table needs python = "),
        ("python = 3", "the table needs python = "),
        ('python = "~/env/bin/python"', "the table needs python = "),
        ('python = "/bin/python"\nshell = "x"', "unknown key 'shell'"),
    ],
)
def test_wrong_table_disables_only_its_backend(
    table, why, tosa, registry_from_settings, monkeypatch
):
    real = config.description_of
    monkeypatch.setattr(
        plugin,
        "description_of",
        lambda setting: tosa if setting.name == "well" else real(setting),
    )
    monkeypatch.setattr(plugin, "is_installed", lambda distribution: False)
    registry, path = registry_from_settings(
        f'[backends.wrong]\n{table}\n[backends.well]\npython = "{sys.executable}"\n'
    )
    rows = {
        backend.name: backend
        for backend in registry.backends()
        if backend.name in ("wrong", "well")
    }
    assert rows["wrong"].status == "unavailable"
    assert why in rows["wrong"].error
    assert rows["wrong"].location.startswith(f"[backends.wrong] of {path}")
    assert rows["well"].status in ("ok", "conflict")  # TOSA is installed here, too


def test_settings_files_writable_by_others_are_refused(tmp_path, monkeypatch):
    path = tmp_path / "delegraph.toml"
    path.write_text("")
    path.chmod(0o666)
    monkeypatch.setenv("DELEGRAPH_CONFIG", str(path))
    with pytest.raises(
        config.BadSettings, match="other users own it or can write to it"
    ):
        config.settings()


@pytest.fixture
def registry_from_settings(tmp_path, monkeypatch):
    """What the declarations of a file of settings are in a registry, and the path of
    that file.
    """
    path = tmp_path / "delegraph.toml"
    monkeypatch.setenv("DELEGRAPH_CONFIG", str(path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def registry(text):
        path.write_text(text)
        plugin.described.cache_clear()
        return Registry(), path

    yield registry
    plugin.described.cache_clear()


def write_script(path, text):
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_an_environment_that_does_not_answer_is_an_unavailable_backend(
    registry_from_settings, tmp_path
):
    """The row of the backend says why, which environment it is, which line of the
    settings names it.
    """
    chatty = write_script(
        tmp_path / "chatty", f'echo hello; exec {sys.executable} -c "print([1])"'
    )
    registry, path = registry_from_settings(
        f'[backends.gone]\npython = "{tmp_path}/bin/python"\n[backends.bare]\npython ='
        f' "/bin/false"\n[backends.chatty]\npython = "{chatty}"\n'
    )
    for name, why in (
        ("gone", "No such file"),
        ("bare", "does not describe 'bare'"),
        ("chatty", r"\[1\]"),
    ):
        with pytest.raises(PluginUnavailable, match=why) as error:
            registry.get_backend(name)
        assert "another environment that cannot be used" in error.value.message
        assert (
            error.value.hint
            == f"mend that environment, or change or remove [backends.{name}] in {path}"
        )
        row = next(backend for backend in registry.backends() if backend.name == name)
        assert row.status == "unavailable"
        assert re.search(why, row.error)
        assert row.location.startswith(f"[backends.{name}] of {path}: ")


@pytest.fixture
def tosa():
    # before there are settings, which this process would follow
    return describe.describe("tosa")


def test_plugins_disabled_here_work_in_another_environment(
    registry_from_settings, tmp_path, monkeypatch
):
    """The way out of a conflict is to disable the plugin here; the variable is not
    about the other environment.
    """
    monkeypatch.setenv("DELEGRAPH_DISABLE_PLUGINS", "delegraph-tosa")
    monkeypatch.setenv("DELEGRAPH_PLUGINS", "delegraph-workers")
    seen = tmp_path / "seen"
    told = write_script(tmp_path / "python", f"env > {seen}; echo '{{}}'")
    registry, _ = registry_from_settings(
        f'[backends.far]\npython = "{told}"\nbackend = "tosa"\n'
    )
    assert (
        "in an unknown form"
        in next(
            backend for backend in registry.backends() if backend.name == "far"
        ).error
    )
    assert "DELEGRAPH_CONFIG" in seen.read_text()
    assert "PLUGINS" not in seen.read_text()


def test_backends_in_both_environments_are_a_conflict(
    tosa, registry_from_settings, monkeypatch
):
    monkeypatch.setattr(plugin, "description_of", lambda setting: tosa)
    registry, path = registry_from_settings(
        f'[backends.far]\npython = "{sys.executable}"\nbackend = "tosa"\n'
    )
    with pytest.raises(
        PluginConflict, match="2 plugins offer a backend 'TOSABackend'"
    ) as error:
        registry.get_backend("TOSABackend")
    row = next(backend for backend in registry.backends() if backend.name == "far")
    assert row.status == "conflict"
    assert row.error == error.value.message
    assert row.hint == error.value.hint
    assert (
        f"delegraph-workers 0.1.0 ([backends.far] of {path}: {sys.executable})"
        in error.value.message
    )
    assert error.value.hint.endswith(f"; or change or remove [backends.far] in {path}")
    # which the distribution here declares
    assert registry.get_format("a.tosa") is TosaFormat


# --- what is asked and answered, with a worker that is this process -------------------


class Here:
    """Does what a worker does, in this process."""

    def __init__(self, folder, python=None):
        self.pid = os.getpid()
        self.alive = True
        self.grown = 0

    def run(self, job, limits):
        return execute.execute(job), "printed"

    def close(self):
        pass


@pytest.fixture
def registry_with_far(monkeypatch):
    """A registry that has TOSA as ``far``, in an environment of its own that is this
    one.
    """
    told = describe.describe("tosa")
    monkeypatch.setattr(workers, "WorkerProcess", Here)
    monkeypatch.setattr(environments, "WorkerProcess", Here)
    known = {"far": (config.Setting("far", sys.executable, "tosa"), told)}
    for module in (plugin, environments, quantizer, formats):
        monkeypatch.setattr(module, "described", lambda: known)
    monkeypatch.setattr(plugin, "is_installed", lambda distribution: False)
    caches = (
        environments._environment,
        environments._backend,
        environments._partitioner,
        environments._runtime,
    )
    caches += quantizer._quantizer, formats._format
    yield registry_of("delegraph-workers")
    for each in caches:
        each.cache_clear()


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 24)
        self.norm = nn.LayerNorm(8)

    def forward(self, x):
        q, k, v = self.inner(self.norm(x)).chunk(3, -1)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return torch.linalg.cholesky_ex(mixed @ mixed.mT + torch.eye(4))[0] + x.sum()


CONVOLUTIONS = nn.Sequential(
    nn.Conv2d(3, 8, 3),
    nn.BatchNorm2d(8),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
)


@pytest.mark.parametrize(
    ("model", "x"),
    [(Attention(), torch.randn(1, 4, 8)), (CONVOLUTIONS, torch.randn(1, 3, 8, 8))],
)
def test_other_environments_compile_the_same_program(model, x, registry_with_far):
    model = model.eval()
    lowered = delegraph.lower(
        model,
        (x,),
        backends=["far"],
        registry=registry_with_far,
        options={"far": {"spec": "TOSA-1.0+FP"}},
    )
    expected = delegraph.lower(
        model, (x,), backends=["tosa"], options={"tosa": {"spec": "TOSA-1.0+FP"}}
    )
    assert [bytes(delegate.processed_bytes) for delegate in lowered.delegates] == [
        bytes(delegate.processed_bytes) for delegate in expected.delegates
    ]
    refusals = [
        [(r.operator, r.reason, c.hint) for c in report.causes for r in c.refusals]
        for report in (lowered.report, expected.report)
    ]
    assert refusals[0] == refusals[1]
    assert lowered.verify(x).agrees()


def test_cache_keys_use_the_versions_of_the_environment(
    registry_with_far, tmp_path, monkeypatch
):
    """A renamed model misses, since TOSA keeps names; another fingerprint, or other
    code there, misses as well.
    """
    small = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval()
    x = torch.randn(1, 4)

    def compiled(**choices):
        lowered = delegraph.lower(
            small,
            (x,),
            backends=["far"],
            registry=registry_with_far,
            compiler=Compiler(tmp_path, **choices),
        )
        (delegate,) = lowered.report.delegates
        return delegate.compiled, lowered

    cold, first = compiled()
    warm, second = compiled()
    assert cold == "compiled"
    assert warm == "from the cache"
    assert first.delegates[0].processed_bytes == second.delegates[0].processed_bytes
    assert (
        first.delegates[0].producer
        == f"delegraph-tosa {describe.describe('tosa')['version']}"
    )
    assert compiled(isolation="process")[0] == "from the cache"
    real = serve.about
    with monkeypatch.context() as patch:
        patch.setitem(
            serve.SERVICES,
            "about",
            lambda *a: ({**real(*a)[0], "installed": ["other code"]}, []),
        )
        assert compiled()[0] == "compiled"
    with monkeypatch.context() as patch:
        patch.setitem(
            serve.SERVICES,
            "about",
            lambda *a: ({**real(*a)[0], "fingerprint": None}, []),
        )
        lowered = compiled()[1]
        assert any("returns no fingerprint" in note for note in lowered.report.notes)
    assert compiled()[0] == "from the cache"


def test_doctor_names_the_environments(registry_with_far):
    records = [
        r for r in registry_with_far.plugins() if r.distribution == "delegraph-workers"
    ]
    (row,) = build_report(records, (), {}).plugins
    place = f"[backends.far] of {config.path_of_settings()}: {sys.executable}"
    assert row.environments == {"far": place}
    assert f"\n  far is in {place}" in str(row)


def test_unknown_jobs_are_refused():
    told, _ = message.unpack(execute.execute(message.pack({"do": "dance"})))
    assert "does not know the job 'dance'" in told["error"]["message"]


@pytest.mark.parametrize(
    ("protocol", "workers", "theirs"),
    [(2, {"workers": "9.0"}, "9.0"), (0, {}, "of an unknown version")],
)
def test_another_protocol_is_one_line_with_both_versions(
    protocol, workers, theirs, tmp_path, monkeypatch
):
    python = tmp_path / "python"
    python.write_text(
        "#!/bin/sh\necho"
        f" '{json.dumps({'protocol': protocol, 'path': [], **workers})}'\n"
    )
    python.chmod(0o700)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(
        plugin, "settings", lambda: [config.Setting("far", str(python), "far")]
    )
    plugin.described.cache_clear()
    made = registry_of("delegraph-workers")
    (row,) = made.backends()
    plugin.described.cache_clear()
    version = importlib.metadata.version("delegraph-workers")
    why = (
        f"{python}: its delegraph-workers {theirs} has protocol {protocol}, but"
        f" delegraph-workers {version} of this environment has protocol 1; install the"
        " same version in both environments"
    )
    assert not row.usable
    assert row.error.endswith(why)
    with pytest.raises(PluginUnavailable, match=f"has protocol {protocol}"):
        delegraph.lower(nn.ReLU(), (torch.ones(1),), backends=["far"], registry=made)


def test_compatibility_is_decided_by_the_environments_runtime(
    registry_with_far, monkeypatch
):
    runtime = registry_with_far.runtime_for("far")
    specs = [CompileSpec("tosa_spec", b"TOSA-1.0+FP")]
    header = BlobHeader("TOSABackend", 9, b"something", "delegraph-tosa 0.1.0")
    verdict = runtime.compatible(header, specs)
    assert verdict == delegraph.get_runtime("tosa").compatible(header, specs)
    assert verdict.verdict == "cannot"
    for wrong in ("perhaps", ["perhaps", "so"], [3]):
        monkeypatch.setitem(
            serve.SERVICES,
            "compatible",
            lambda *a, wrong=wrong: ({"verdict": wrong}, []),
        )
        with pytest.raises(FormatError, match="gave an invalid verdict"):
            runtime.compatible(header, specs)


@pytest.mark.parametrize(
    ("model", "x"),
    [(CONVOLUTIONS, torch.randn(2, 3, 8, 8)), (Attention(), torch.randn(1, 4, 8))],
)
def test_other_environments_quantize_to_the_same_program(model, x, registry_with_far):
    """Scales that are derived of others, layers that are written out, what stays in
    floats: the program is the same.
    """
    assert [backend.has_quantizer for backend in registry_with_far.backends()] == [True]
    batches = [(x,), (x * 2,)]
    there = delegraph.quantize(
        model.eval(), batches, backend="far", registry=registry_with_far
    )
    here = delegraph.quantize(model.eval(), batches, backend="tosa")
    assert "quantize_per_tensor" in str(there.graph)
    assert write(there).key == write(here).key


class OwnObserver(MinMaxObserver):
    pass


@pytest.mark.parametrize(
    ("method", "function", "why"),
    [
        (
            "annotate",
            lambda self, model: annotate_all(model, OwnObserver),
            "use observers of torchao, or of a plugin",
        ),
        (
            "annotate",
            lambda self, model: annotate_all(model, object()),
            "which cannot be sent",
        ),
        (
            "prepare_obs_or_fq_callback",
            lambda self, model, made: None,
            "changes observers",
        ),
        ("validate", lambda self, model: 1 / 0, "ZeroDivisionError|division by zero"),
    ],
)
def test_unusable_quantizers_of_environments_are_refused(
    method, function, why, registry_with_far, monkeypatch
):
    monkeypatch.setattr(TOSAQuantizer, method, function)
    with pytest.raises(delegraph.DelegraphError, match=why):
        delegraph.quantize(
            nn.ReLU().eval(),
            [(torch.randn(2, 2),)],
            backend="far",
            registry=registry_with_far,
        )


def annotate_all(model, observer):
    for node in (node for node in model.graph.nodes if node.op == "call_function"):
        node.meta["quantization_annotation"] = QuantizationAnnotation(
            {}, QuantizationSpec(torch.int8, observer)
        )


@pytest.mark.parametrize(
    "told",
    [
        3,
        [[["spec", "str", {"dict": []}]], []],
        [[["observer", "OwnObserver"]], []],
        [[["spec", "QuantizationSpec", {"row": 1}]], []],
        [[], [["nobody", {"dict": []}]]],
        [[], [["relu", {"dict": [["other", 1]]}]]],
    ],
)
def test_annotations_of_messages_are_not_trusted(told):
    graph = torch.export.export(nn.ReLU(), (torch.ones(1),)).graph
    with pytest.raises(
        FormatError, match="annotations from another environment are invalid"
    ):
        annotations.apply_annotations(graph, told, None)


@pytest.mark.parametrize(
    "name",
    [
        "os:system",
        "delegraph_tosa.nothing:Observer",
        "delegraph_tosa.quantizer.observer:BINS",
        "delegraph_tosa:x",
    ],
)
def test_messages_may_name_only_observers_of_plugins(name):
    graph = torch.export.export(nn.ReLU(), (torch.ones(1),)).graph
    with pytest.raises(
        Unsupported, match=f"the observer {name.replace(':', '.')}, but"
    ):
        annotations.apply_annotations(graph, [[["observer", name]], []], None)


def test_file_formats_of_environments_work_as_local_ones(
    registry_with_far, tmp_path, monkeypatch
):
    small = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval()
    x = torch.randn(1, 4)
    path = tmp_path / "model.tosa"
    other = tmp_path / "here.tosa"
    lowered = delegraph.lower(small, (x,), backends=["far"], registry=registry_with_far)
    lowered.save(path)
    here = delegraph.lower(small, (x,), backends=["tosa"])
    here.save(other)
    assert path.read_bytes() == other.read_bytes()
    loaded = delegraph.load(path, registry=registry_with_far)
    wanted = delegraph.load(other)
    torch.testing.assert_close(loaded(x), wanted(x), rtol=0, atol=0)
    sides = {"x": QuantizationParameters("int8", 0.1, 3)}, {"y": None}
    monkeypatch.setattr(
        TosaFormat, "quantization", staticmethod(lambda path: Quantization(*sides))
    )
    assert loaded.quantization == Quantization(*sides)
    assert loaded.summary == wanted.summary
    assert loaded.compatible().verdict == wanted.compatible().verdict == "runs"
    there = FileFormat(path, registry_with_far)
    kind = FileFormat(other, delegraph.default_registry())
    for ability in ("inspect", "page", "verify", "blobs"):
        ours = getattr(there, ability)(path)
        theirs = getattr(kind, ability)(path)
        assert str(ours) == str(theirs)
    assert there.inspect(path).to_json() == json.loads(
        json.dumps(kind.inspect(path).to_json())
    )
    inputs = there.sample(path, 3)
    assert [a.dtype for a in inputs] == [a.dtype for a in kind.sample(path, 3)]
    for (name, value), (as_here, expected) in zip(
        there.run(path, inputs), kind.run(path, inputs), strict=True
    ):
        assert name == as_here
        np.testing.assert_array_equal(value, expected)
    assert "max_iterations" in inspect.signature(there.kind.run).parameters
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(FormatError):
        there.inspect(path)
    with pytest.raises(InputError, match="one delegate and nothing of the host"):
        delegraph.lower(
            Attention().eval(),
            (torch.randn(1, 4, 8),),
            backends=["far"],
            registry=registry_with_far,
        ).save(path)


@pytest.mark.parametrize("answer", [{}, {"rows": 3}, {"rows": [["a"]]}])
def test_answers_of_formats_are_not_trusted(
    answer, registry_with_far, monkeypatch, tmp_path
):
    monkeypatch.setitem(serve.SERVICES, "format", lambda header, parts: (answer, [b""]))
    with pytest.raises(FormatError, match="gave an invalid answer"):
        FileFormat(tmp_path / "a.tosa", registry_with_far).blobs(tmp_path / "a.tosa")


@pytest.mark.parametrize(
    "rows", [[["object", [1]]], [["float32", [3]]], [["none", [1]]], [[]]]
)
def test_arrays_of_messages_are_not_trusted(rows):
    with pytest.raises(
        FormatError, match="array in a message of a worker process cannot be read"
    ):
        arrays.read_arrays(rows, [memoryview(bytes(8))])


def test_remote_backend_works_beside_a_local_one(registry_with_far):
    with registry_with_far.register(
        SinBackend, partitioner=CapabilityPartitioner(only_sin, "SinBackend")
    ):
        model = Waves().eval()
        x = torch.linspace(-1, 1, 6)
        lowered = delegraph.lower(
            model, (x,), backends=["sinbackend", "far"], registry=registry_with_far
        )
        assert sorted(delegate.backend_id for delegate in lowered.delegates) == [
            "SinBackend",
            "TOSABackend",
            "TOSABackend",
        ]


def only_sin(node):
    return None if node.target is torch.ops.aten.sin.default else "only sin"


class SinBackend(BackendDetails):
    @staticmethod
    def preprocess(edge_program, compile_specs):
        return PreprocessResult(b"sin")


@pytest.mark.parametrize(
    "answer",
    [{"tags": {"nobody": "a"}}, {"tags": {}, "marks": {}, "partitions": [["a"]]}, {}],
)
def test_answers_of_partitioners_are_not_trusted(
    answer, registry_with_far, monkeypatch
):
    monkeypatch.setitem(
        execute.SERVICES, "partition", lambda header, parts: (answer, [])
    )
    with pytest.raises(FormatError, match="gave an invalid answer"):
        delegraph.lower(
            Waves().eval(),
            (torch.ones(3),),
            backends=["far"],
            registry=registry_with_far,
        )


class Marking(CapabilityPartitioner):
    """Takes everything for TOSA, and leaves a mark for its backend."""

    def __init__(self, mark):
        super().__init__(lambda node: None, "TOSABackend")
        self.mark = mark

    def partition(self, exported_program):
        result = super().partition(exported_program)
        for node in exported_program.graph.nodes:
            node.meta |= {
                "mark": self.mark,
                "local:mark": object(),
                "torch_fn": object(),
            }
        return result


def test_marks_of_remote_partitioners_arrive_completely_or_are_refused(
    registry_with_far, monkeypatch
):
    """Some were left out without a word, and the backend then compiled something else."""
    mark = [0.5, (1, None), {"a": 2}]
    monkeypatch.setattr(serve, "_partitioner", lambda header: Marking(mark))
    program = torch.export.export(Waves().eval(), (torch.ones(3),))
    registry_with_far.get_partitioner("far").partition(program)
    found = [node.meta["mark"] for node in program.graph.nodes]
    assert found == [mark] * len(found)
    assert type(found[0][1]) is tuple
    assert not any("local:mark" in node.meta for node in program.graph.nodes)
    monkeypatch.setattr(serve, "_partitioner", lambda header: Marking(object()))
    program = torch.export.export(Waves().eval(), (torch.ones(3),))
    result = registry_with_far.get_partitioner("far").partition(program)
    assert not result.partition_tags
    assert len(result.refusals) == 5
    assert "the partitioner set on x cannot be sent" in result.refusals[0].reason


@pytest.mark.parametrize(
    "rows",
    [
        [["tensor", "float32", [3]]],
        [["tensor", "Tensor", [1]]],
        [["tensor", "float32", [1 << 70]]],
        [["plain", "text"]],
        [["float", "0x1p9999"]],
        3,
    ],
)
def test_values_of_messages_are_not_trusted(rows):
    with pytest.raises(FormatError, match="a message has an invalid value"):
        tensors.read_values(rows, [memoryview(bytes(8))])


def test_values_come_back():
    given = [
        torch.randn(2, 3).t(),
        torch.ones(0, 2),
        torch.tensor(float("nan")),
        3,
        -0.0,
        True,
        None,
    ]
    turned = torch.tensor([1 + 2j]).conj()
    given += [
        turned,
        turned.imag,
        torch.ones(2, dtype=torch.bfloat16),
        torch.tensor([True]),
    ]
    rows, parts = tensors.write_values(given)
    for was, value in zip(
        given,
        tensors.read_values(json.loads(json.dumps(rows)), list(map(memoryview, parts))),
        strict=True,
    ):
        assert type(was) is type(value)
        if isinstance(was, torch.Tensor):
            torch.testing.assert_close(was, value, rtol=0, atol=0, equal_nan=True)
        else:
            assert str(was) == str(value)


def test_no_two_backends_share_a_target(registry_with_far, monkeypatch):
    """``a-b`` was asked where ``a_b`` was meant."""
    names = ["a-b", "a_b", "a.b", "a+b", "ab", "a_2db"]
    assert len({plugin.identifier(name) for name in names}) == len(names)
    told = plugin.described()["far"][1]
    known = {
        name: (config.Setting(name, sys.executable, "tosa"), told) for name in names
    }
    for module in (plugin, environments):
        monkeypatch.setattr(module, "described", lambda: known)
    for spec in plugin.delegraph_partitioners():
        assert getattr(environments, spec.target.partition(":")[2]).name == spec.name
    kinds = [
        getattr(environments, spec.target.partition(":")[2])
        for spec in plugin.delegraph_runtimes()
    ]
    assert len(set(kinds)) == len(names)


def test_environments_of_one_backend_are_distinguished_by_name(
    registry_with_far, monkeypatch
):
    """The second one's partitions were compiled in the first one, which the report did
    not say.
    """
    told = plugin.described()["far"][1]
    names = ("older", "newer")
    asked = []
    known = {
        n: (config.Setting(n, f"/{n}/python", "tosa"), {**told, "prefix": f"/{n}"})
        for n in names
    }
    for module in (plugin, environments):
        monkeypatch.setattr(module, "described", lambda: known)

    class There(Here):
        def __init__(self, folder, python=None):
            super().__init__(folder)
            asked.append(python)

    for module in (workers, environments):
        monkeypatch.setattr(module, "WorkerProcess", There)
    both = registry_of("delegraph-workers")
    for name in names:
        asked.clear()
        chosen = [f"delegraph-workers/{name}"]
        lowered = delegraph.lower(
            nn.ReLU().eval(), (torch.ones(2),), backends=chosen, registry=both
        )
        lowered(torch.ones(2))
        (row,) = lowered.report.delegates
        assert row.facts["environment"].endswith(f" in /{name}")
        assert {*asked} == {f"/{name}/python"}


def test_unused_delegates_are_freed_in_the_environment(registry_with_far):
    """A process that lowers one model after the other kept all of their delegates."""
    before = len(kept._kept)
    for _ in range(3):
        lowered = delegraph.lower(
            nn.ReLU().eval(),
            (torch.ones(2),),
            backends=["far"],
            registry=registry_with_far,
        )
        lowered(torch.ones(2))
        assert len(kept._kept) <= before + 1
        del lowered
        gc.collect()
    environments.environment("far").run({"do": "about", "specs": None}, [])
    assert len(kept._kept) == before


def test_forks_start_their_own_worker_processes(registry_with_far, monkeypatch):
    """It shared the pipes of the process that it is of, and ended its workers when it
    ended.
    """
    mine = environments.environment("far")
    ended = []
    monkeypatch.setattr(mine.workers, "close", lambda: ended.append("workers"))
    with monkeypatch.context() as patch:
        patch.setattr(environments.os, "getpid", lambda: -7)
        theirs = environments.environment("far")
        assert theirs is not mine
        assert theirs.workers.path != mine.workers.path
        mine.close()
        assert ended == []
        theirs.close()
    mine.close()
    assert ended == ["workers"]
    assert environments.environment("far") is mine
