"""Program formats of plugins: save, load, inspect and run, and errors that name the
plugin.
"""

import io
import subprocess
import sys

import delegraph
import pytest
import torch
from delegraph import errors
from delegraph.backend import BackendDetails, NamedDataStore, PreprocessResult
from delegraph.discovery.registry import Registry
from delegraph.formats import DelegateFormat, ProgramFormat
from delegraph.host.files import FileFormat
from delegraph.partitioner import CapabilityPartitioner
from delegraph.plugin import FormatSpec, hookimpl
from delegraph_executorch.edge import to_edge, to_edge_transform_and_lower

from .conftest import EchoBackend, EchoRuntime
from .support.registries import registry_of
from .support.zip_plugin import ZIP

FRESH = """
import delegraph, numpy, sys, torch
file, x, y = sys.argv[1:]
loaded = delegraph.load(file)
assert loaded.methods == ["forward"], loaded.methods
results = loaded(torch.from_numpy(numpy.load(x)), flip=torch.ones(1))
numpy.savez(y, **{name: value.detach().numpy() for name, value in results.items()})
"""


class TwoPartitions(torch.nn.Module):
    """Two delegates around a sort, and a buffer that is read and added to."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(4, 6)
        self.second = torch.nn.Linear(6, 2)

    def forward(self, x, *, flip):
        ordered = torch.sort(torch.relu(self.first(x)))[0]
        return {"y": self.second(ordered) + flip, "z": torch.tanh(self.second(ordered))}


def lower_with_keywords(registry):
    torch.manual_seed(0)
    model = TwoPartitions().eval()
    x = torch.randn(3, 4)
    kwargs = {"flip": torch.ones(1)}
    return (
        model,
        x,
        delegraph.lower(
            model, (x,), example_kwargs=kwargs, backends=["self"], registry=registry
        ),
    )


def test_a_program_of_two_partitions_runs_in_a_fresh_process(zipped, site, tmp_path):
    import numpy

    model, x, lowered = lower_with_keywords(zipped)
    assert len(lowered.delegates) == 2
    assert lowered.host_operators == 1

    lowered.save(tmp_path / "net.zipped")
    numpy.save(tmp_path / "x.npy", x.numpy())
    files = [str(tmp_path / name) for name in ("net.zipped", "x.npy", "y.npz")]
    path = {"PYTHONPATH": ":".join([str(site.folder), *filter(None, sys.path)])}
    completed = subprocess.run(
        [sys.executable, "-c", FRESH, *files],
        env=path,
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert completed.returncode == 0, completed.stderr

    results = numpy.load(tmp_path / "y.npz")
    for name, expected in model(x, flip=torch.ones(1)).items():
        torch.testing.assert_close(torch.from_numpy(results[name]), expected.detach())


def test_a_format_defines_its_own_options(zipped, tmp_path):
    _, _, lowered = lower_with_keywords(zipped)
    lowered.save(tmp_path / "small.zipped", compress=True)
    lowered.save(tmp_path / "large.zipped")

    assert (tmp_path / "small.zipped").stat().st_size < (
        tmp_path / "large.zipped"
    ).stat().st_size
    with pytest.raises(errors.OptionError, match="no option 'fast'") as caught:
        lowered.save(tmp_path / "other.zipped", fast=True)
    assert "serialize of ZipFormat (zip-vendor 2.5)" in str(caught.value)
    assert not (tmp_path / "other.zipped").exists()


def test_a_damaged_file_names_the_plugin_that_refuses_it(zipped, tmp_path):
    (tmp_path / "net.zipped").write_bytes(b"no zip")
    with pytest.raises(errors.FormatError, match="is no zip") as caught:
        delegraph.load(tmp_path / "net.zipped", registry=zipped)
    assert (
        caught.value.raised_by
        == f"read of ZipFormat (zip-vendor 2.5), at {tmp_path / 'net.zipped'}"
    )
    with pytest.raises(errors.InputError, match="No such file"):
        delegraph.load(tmp_path / "absent.zipped", registry=zipped)


# --- what a program may hold that a format may not ------------------------------------


class Plain(torch.nn.Module):
    """Has a keyword argument, returns an input, and returns a dictionary."""

    def forward(self, x, *, scale):
        return {"y": torch.relu(x * scale), "x": x}


class Counting(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x):
        self.seen += x.sum(0)
        return torch.relu(x)


class Holding(Counting):
    def forward(self, x):
        return torch.relu(x), self.seen


class Sized(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x), 2 * x.shape[0]


@pytest.fixture
def stepping(registry, monkeypatch):
    """Return a registry with a format that stores nothing of the host."""
    monkeypatch.syspath_prepend(str(ZIP.parent))
    monkeypatch.delitem(sys.modules, "steps_format", raising=False)
    registry.register(
        plugin_with_formats(FormatSpec(".steps", "steps_format:StepsFormat")),
        name="steps",
    )
    yield registry
    sys.modules.pop("steps_format", None)


def lower_with_echo(model, *args, registry, **kwargs):
    def why_not(node):
        return (
            None
            if isinstance(node.meta["val"], torch.Tensor)
            else "it computes tensors only"
        )

    chosen = [CapabilityPartitioner(why_not, "EchoBackend")]
    return delegraph.lower(
        model.eval(), args, backends=chosen, registry=registry, **kwargs
    )


def test_loaded_step_files_are_called_like_the_method(stepping, tmp_path):
    x = torch.randn(3, 4)
    scale = torch.tensor(2.0)
    path = tmp_path / "net.steps"
    lower_with_echo(
        Plain(), x, example_kwargs={"scale": scale}, registry=stepping
    ).save(path)
    results = delegraph.load(path, registry=stepping)(x, scale=scale)

    assert list(results) == ["y", "x"]
    assert torch.equal(results["y"], torch.relu(x * scale))
    with pytest.raises(errors.InputError, match="scale"):
        delegraph.load(path, registry=stepping)(x)
    for damaged in (
        path.read_bytes()[:-9],
        b"[]",
        path.read_bytes().replace(b'"blob": "', b'"blob": "zz'),
    ):
        path.write_bytes(damaged)
        with pytest.raises(
            errors.FormatError, match="no .steps file, or a damaged one"
        ):
            delegraph.load(path, registry=stepping)


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (Counting, "keeps no state, and forward writes seen"),
        (Holding, "no constants of the host"),
        (Sized, "sym_size"),
    ],
)
def test_formats_refuse_programs_without_a_representation(
    model, why, stepping, tmp_path
):
    sizes = (
        {"dynamic_shapes": {"x": {0: torch.export.Dim("rows", min=2, max=9)}}}
        if model is Sized
        else {}
    )
    lowered = lower_with_echo(model(), torch.randn(3, 4), registry=stepping, **sizes)

    with pytest.raises(errors.InputError, match=why):
        lowered.save(tmp_path / "net.steps")
    assert not (tmp_path / "net.steps").exists()


# --- which format it is ---------------------------------------------------------------


def plugin_with_formats(*specs):
    class Formats:
        @hookimpl
        def delegraph_formats(self):
            return list(specs)

    return Formats()


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("net.pte", "pip install delegraph-executorch"),
        ("NET.TOSA", "pip install delegraph-tosa"),
        ("net.bin", "no plugin has it; `delegraph backends` lists broken plugins"),
    ],
)
def test_unknown_suffixes_name_the_package_to_install(name, hint):
    registry = Registry(discover=False)
    registry.register(plugin_with_formats(FormatSpec(".mine", "x:Y")))
    with pytest.raises(
        errors.FormatNotFound, match=r"comes with delegraph-|\(file formats: \.mine\)"
    ) as caught:
        registry.get_format(name)
    assert caught.value.code == "format-not-found"
    assert caught.value.hint == hint


def test_installed_broken_plugins_are_reported_as_broken(site, monkeypatch):
    for name in [
        n for n in sys.modules if n.partition(".")[0] == "delegraph_executorch"
    ]:  # the real one, if it is there
        monkeypatch.delitem(sys.modules, name)
    site.plugin("delegraph-executorch", "raise ValueError('no luck')")

    with pytest.warns(errors.DelegraphWarning):
        registry = registry_of("delegraph-executorch")
    with (
        pytest.raises(errors.PluginBroken, match="no luck"),
    ):
        registry.get_format("net.pte")


def test_two_plugins_with_one_suffix_are_a_conflict(site):
    for name in ("one", "two"):
        site.backend(f"vendor-{name}", f"npu{name}", formats=[".Npu"])
    registry = registry_of("vendor-one", "vendor-two")

    with pytest.raises(
        errors.PluginConflict,
        match=(
            r"2 plugins offer the file format \.(N|n)pu: vendor-one 1\.0 .* vendor-two"
        ),
    ):
        registry.get_format("a.npu")


def test_the_longest_suffix_counts():
    registry = Registry(discover=False)
    specs = [
        FormatSpec(".json", f"{__name__}:Outer"),
        FormatSpec(".npu.json", f"{__name__}:Inner"),
    ]
    registry.register(plugin_with_formats(*specs))

    assert registry.get_format("a.npu.json") == Inner
    assert registry.get_format("a.json") == Outer


def test_the_longest_matching_suffix_selects_the_format(tmp_path):
    """The text after the last dot is not enough."""
    registry = Registry(discover=False)
    specs = [
        FormatSpec(".json", f"{__name__}:Outer"),
        FormatSpec(".Sum.json", f"{__name__}:Ran", runtimes=("sim",)),
    ]
    registry.register(plugin_with_formats(*specs))
    for name in ("a.Sum.json", "B.SUM.JSON", "c.d.sum.json"):
        (tmp_path / name).touch()
        file = FileFormat(tmp_path / name, registry)
        assert file.suffix == registry.suffix_for("sim") == ".Sum.json"
        assert file.load("sim").method("forward")() == 1
        with pytest.raises(
            errors.OptionError,
            match=r"the format of \.Sum\.json files has no summarize",
        ):
            file.summarize(tmp_path / name)
    (tmp_path / "A.JSON").touch()

    with pytest.raises(errors.NoRuntime, match=r"'sim' does not execute \.json files"):
        FileFormat(tmp_path / "A.JSON", registry).load("sim")


class Outer(ProgramFormat):
    pass


class Ran(ProgramFormat):
    @staticmethod
    def load_in(runtime, path):
        return {"forward": lambda: 1}


class Inner(ProgramFormat):
    pass


@pytest.mark.parametrize(
    ("spec", "error", "text"),
    [
        (
            FormatSpec(
                ".x", "a:B", requires=["no_such"], install_hint="pip install it"
            ),
            errors.PluginUnavailable,
            "pip",
        ),
        (
            FormatSpec(".x", f"{__name__}:plugin_with_formats"),
            errors.PluginBroken,
            "no subclass of delegraph.formats.ProgramFor",
        ),
        (
            FormatSpec(".x", f"{__name__}:Absent"),
            errors.PluginBroken,
            "has no 'Absent'",
        ),
    ],
)
def test_an_unusable_format_raises_its_reason(spec, error, text):
    registry = Registry(discover=False)
    registry.register(plugin_with_formats(spec))
    with pytest.raises(error, match=text):
        registry.get_format("a.x")


def test_a_plugin_that_declares_a_suffix_twice_is_broken():
    with pytest.raises(Exception, match=r"declares file format \.x twice"):
        Registry(discover=False).register(
            plugin_with_formats(FormatSpec(".x", "a:B"), FormatSpec(".X", "a:C"))
        )


# --- formats that misbehave -----------------------------------------------------------


class FailingBlob:
    def __init__(self, error):
        self.error = error

    def __len__(self):
        return 4

    def write_to(self, file):
        file.write(b"ab")
        raise self.error


class Hostile(ProgramFormat):
    content = b"content"
    methods = None

    @classmethod
    def serialize(cls, program, options):
        if isinstance(cls.content, BaseException):
            raise cls.content
        return cls.content

    @classmethod
    def read(cls, path, load_delegate):
        return cls.methods


@pytest.fixture
def hostile(monkeypatch):
    registry = Registry(discover=False)
    registry.register(EchoBackend, runtime=EchoRuntime)
    registry.register(
        plugin_with_formats(FormatSpec(".hostile", f"{__name__}:Hostile"))
    )
    lowered = delegraph.lower(
        torch.nn.Identity().eval(), (torch.ones(2),), backends=[], registry=registry
    )
    yield (
        lambda **fields: (
            [monkeypatch.setattr(Hostile, k, v) for k, v in fields.items()] and lowered
        )
    )


@pytest.mark.parametrize(
    ("content", "error", "text"),
    [
        (
            ValueError("no luck"),
            errors.PluginFailed,
            "serialize of Hostile .*ValueError: no luck",
        ),
        (SystemExit(3), errors.PluginFailed, "serialize of Hostile .*SystemExit"),
        ("text", errors.ContractViolation, "returned str, not bytes or a Blob"),
        (
            FailingBlob(ValueError("no luck")),
            errors.PluginFailed,
            "write_to of Hostile .*ValueError: no luck",
        ),
        (FailingBlob(OSError(28, "disk full")), errors.WriteError, "disk full"),
    ],
)
def test_faulty_formats_are_named_and_old_files_kept(
    hostile, tmp_path, content, error, text
):
    (tmp_path / "net.hostile").write_bytes(b"old")
    with pytest.raises(error, match=text):
        hostile(content=content).save(tmp_path / "net.hostile")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
        "net.hostile": b"old"
    }


@pytest.mark.parametrize("methods", [None, {}, [1], {"forward": 3}])
def test_formats_must_return_methods_from_read(hostile, tmp_path, methods):
    hostile(methods=methods).save(tmp_path / "net.hostile")
    with pytest.raises(
        errors.ContractViolation, match=r"Hostile\.read returned .* not the methods"
    ):
        delegraph.load(
            tmp_path / "net.hostile", registry=hostile(methods=methods)._registry
        )


def test_a_loaded_method_that_fails_names_the_format(hostile, tmp_path):
    lowered = hostile(methods={"forward": lambda x: 1 // x, "other": lambda x: x})
    lowered.save(tmp_path / "net.hostile")
    loaded = delegraph.load(tmp_path / "net.hostile", registry=lowered._registry)

    assert loaded(1) == 1
    assert loaded.method("other")(3) == 3
    with pytest.raises(
        errors.PluginFailed, match="call of Hostile .*ZeroDivisionError"
    ):
        loaded(0)
    with pytest.raises(
        errors.InputError, match=r"no method 'more'; methods: \['forward', 'other'\]"
    ):
        loaded.method("more")


# --- one delegate, and to_executorch --------------------------------------------------


class EchoFormat(DelegateFormat):
    backend_id = "EchoBackend"


@pytest.fixture
def echo(registry):
    registry.register(
        plugin_with_formats(FormatSpec(".echo", f"{__name__}:EchoFormat"))
    )
    return registry


def test_a_file_of_one_delegate_is_read_back(echo, tmp_path):
    x = torch.linspace(-1, 1, 5)
    lowered = delegraph.lower(
        torch.nn.Tanh().eval(),
        (x,),
        backends=[CapabilityPartitioner(lambda node: None, "EchoBackend")],
        registry=echo,
    )
    lowered.save(tmp_path / "net.echo")
    assert (tmp_path / "net.echo").read_bytes() == lowered.delegates[0].processed_bytes

    (result,) = delegraph.load(tmp_path / "net.echo", registry=echo)(x)
    torch.testing.assert_close(result, torch.tanh(x))
    with pytest.raises(errors.OptionError, match="takes no options, such as 'level'"):
        lowered.save(tmp_path / "net.echo", level=1)


class BesideBackend(BackendDetails):
    """Has an empty blob. All of its content is named data."""

    @staticmethod
    def preprocess(edge_program, compile_specs):
        store = NamedDataStore()
        store.add_named_data("beside/weights", b"weights")
        return PreprocessResult(
            b"", data_store_output=store.get_named_data_store_output()
        )


class BesideFormat(DelegateFormat):
    backend_id = "BesideBackend"


def test_named_data_that_a_file_would_lose_is_refused(registry, tmp_path):
    registry.register(
        plugin_with_formats(FormatSpec(".beside", f"{__name__}:BesideFormat"))
    )
    registry.register(
        BesideBackend,
        partitioner=CapabilityPartitioner(lambda node: None, "BesideBackend"),
        name="beside",
    )
    lowered = delegraph.lower(
        torch.nn.Tanh().eval(), (torch.ones(5),), backends=["beside"], registry=registry
    )

    with pytest.raises(
        errors.InputError,
        match="named data, such as 'beside/weights', which would be lost",
    ):
        lowered.save(tmp_path / "net.beside")
    assert not (tmp_path / "net.beside").exists()


class KeepingFormat(ProgramFormat):
    """Remembers the arguments of ``to_executorch``."""

    @classmethod
    def serialize(cls, program, options):
        cls.seen = [
            list(program.methods),
            dict(program.constant_methods),
            [
                (
                    delegate.method,
                    delegate.name,
                    delegate.backend_id,
                    [str(value) for value in delegate.inputs],
                )
                for delegate in program.delegates
            ],
            program.host_operators,
            dict(options),
        ]
        return b"program"


def test_to_executorch_writes_the_file_of_the_plugin(registry, monkeypatch, tmp_path):
    registry.register(
        plugin_with_formats(FormatSpec(".pte", f"{__name__}:KeepingFormat"))
    )
    monkeypatch.setattr(
        "delegraph_executorch.edge.manager.default_registry", lambda: registry
    )
    program = torch.export.export(
        TwoPartitions(), (torch.ones(3, 4),), {"flip": torch.ones(1)}
    )
    edge = to_edge_transform_and_lower(
        program,
        partitioner=CapabilityPartitioner(lambda node: None, "EchoBackend"),
        constant_methods={"size": 3},
    )
    made = edge.to_executorch({"alignment": 16})
    file = io.BytesIO()
    made.write_to_file(file)
    made.save(tmp_path / "net.pte")
    # runtimes read it in place for as long as they live
    assert made.buffer is made.buffer
    assert (
        made.buffer
        == file.getvalue()
        == (tmp_path / "net.pte").read_bytes()
        == b"program"
    )
    with pytest.raises(
        errors.OptionError,
        match=r"to_executorch writes \.pte files; the file name is net\.pt",
    ):
        made.save(tmp_path / "net.pt")

    methods, constants, delegates, host, options = KeepingFormat.seen
    assert methods == ["forward"]
    assert constants == {"size": 3}
    assert host == 0
    assert options == {"alignment": 16}
    assert [d[:3] for d in delegates] == [
        ("forward", "lowered_module_0", "EchoBackend")
    ]
    assert to_edge(program).host_operators > 0
    assert not to_edge(program).delegates
