"""Partitions as bytes, compiled from what was read back: the same blobs, maps and data
as from the partition itself.
"""

import importlib.util
from pathlib import Path

import delegraph
import pytest
import torch
from delegraph.compiler import compile_here
from delegraph.io.blob_pieces import join
from delegraph_workers import Compiler
from delegraph_workers.forms import read, write
from torch import nn
from torch.export import Dim

from core.tests.support.partitions import Branches, Counts, Sizes

ROOT = Path(__file__).parents[4]
DYNAMIC = {"tosa": {"spec": "TOSA-1.1+FP+INT+controlflow+shape"}}


def example(file, function, *arguments):
    spec = importlib.util.spec_from_file_location(file, ROOT / f"examples/{file}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return *getattr(module, function)(*arguments), {}


def model_of_sizes():
    rows = 2 * Dim("pairs", min=1, max=8)
    shapes = {"x": {0: rows}, "y": {0: rows}}
    return (
        Sizes().eval(),
        (torch.randn(4, 8), torch.randn(4, 4)),
        {"dynamic_shapes": shapes, "options": DYNAMIC},
    )


def quantized_model():
    layers = (
        nn.Conv2d(3, 8, 3),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, groups=8),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )
    image = torch.randn(1, 3, 16, 16)
    module = nn.Sequential(*layers, nn.Linear(8, 4)).eval()
    return delegraph.quantize(module, [(image,)], backend="tosa"), (image,), {}


MODELS = {
    "vision transformer": lambda: example("transformer", "vit_b16", 2, 64),
    "decoder": lambda: example("transformer", "llama_8", 2, 64, 16),
    "two partitions": lambda: example("two_partitions", "two_partitions"),
    "sizes": model_of_sizes,
    "state": lambda: (Counts().eval(), (torch.randn(3),), {}),
    "branches in host": lambda: (Branches().eval(), (torch.randn(2, 4),), {}),
    "branches inside": lambda: (
        Branches().eval(),
        (torch.randn(2, 4),),
        {"options": DYNAMIC},
    ),
    "quantized": quantized_model,
}
LARGE = {
    "MobileNetV2": lambda: example("mobilenet_v2", "mobilenet_v2"),
    "ResNet-18": lambda: example("resnet", "resnet18"),
    "BERT": lambda: example("transformer", "bert_base"),
    "Llama": lambda: example("transformer", "llama_8"),
}


class Noting:
    """A compiler, and its session, that compiles here and notes what it is given."""

    notes = ()

    def __init__(self):
        self.requests = []

    def session(self, registry, backends):
        return self

    def __enter__(self):
        return self

    def __exit__(self, *raised):
        pass

    def partition(self, partitioner, program):
        return partitioner(program)

    def compile(self, requests):
        self.requests += requests
        return compile_here(requests)


def partitions(model, backend):
    """The programs of a lowering's partitions as its backend is given them, with
    compile specs.
    """
    noting = Noting()
    module, inputs, options = model
    delegraph.lower(module, inputs, backends=[backend], compiler=noting, **options)
    return [
        (request.extract(), list(request.compile_specs)) for request in noting.requests
    ]


def compile_partition(backend, program, specs):
    result = delegraph.get_backend(backend).preprocess(program, specs)
    store = result.data_store_output
    named = (
        None if store is None else (store.pte_data, [join(b) for b in store.buffers])
    )
    return join(result.processed_bytes), result.debug_handle_map, named


def pack(form):
    table = {m.digest: b"".join(m.pieces()) for m in form.memories}
    return b"".join(form.pieces()), lambda digest, size: bytearray(table[digest])


def assert_partitions_survive(model, backend):
    torch.manual_seed(0)
    found = partitions(model, backend)
    assert found
    for program, specs in found:
        form = write(program)
        data, fetch = pack(form)
        assert compile_partition(
            backend, read(data, fetch, named=True), specs
        ) == compile_partition(backend, program, specs)
        bare = read(data, fetch)
        assert write(bare).key == form.key
        # what has no names compiles too, and always to the same
        assert compile_partition(backend, bare, specs) == compile_partition(
            backend, read(data, fetch), specs
        )


@pytest.mark.parametrize("name", MODELS)
def test_programs_read_back_compile_to_equal_bytes(name):
    assert_partitions_survive(MODELS[name](), "tosa")


def contents_of_delegates(program):
    told = ("debug_handle_map", "_delegate_info_meta")
    return [
        (
            join(delegate.module.blob),
            delegate.named_data,
            *(delegate.module.meta.get(key) for key in told),
        )
        for delegate in program.delegates
    ]


@pytest.mark.parametrize("name", MODELS)
def test_lowering_with_and_without_a_cache_is_equal(name, tmp_path):
    torch.manual_seed(0)
    module, inputs, options = MODELS[name]()
    expected = contents_of_delegates(
        delegraph.lower(module, inputs, backends=["tosa"], **options)
    )
    for found in (0, len(expected)):
        program = delegraph.lower(
            module,
            inputs,
            backends=["tosa"],
            compiler=Compiler(tmp_path / "cache"),
            **options,
        )
        assert contents_of_delegates(program) == expected
        (note,) = [n for n in program.report.notes if n.startswith("cache ")]
        assert f": {found} partition" in note
    assert program.verify(*inputs).relative_error < 1e-3 or name == "quantized"
    if name == "vision transformer":  # the weights are the model's
        assert (
            sum(path.stat().st_size for path in (tmp_path / "cache").iterdir())
            < len(expected[0][0]) / 2
        )


def test_with_source_lines_or_debug_files_nothing_is_cached(tmp_path):
    module = nn.Linear(2, 2).eval()
    inputs = (torch.ones(1, 2),)
    for option in (
        {"locations": True},
        {"debug_artifact_path": str(tmp_path / "debug")},
    ):
        options = {"tosa": {"spec": "TOSA-1.0+FP", **option}}
        compiler = Compiler(tmp_path / "cache")
        program = delegraph.lower(
            module, inputs, backends=["tosa"], options=options, compiler=compiler
        )
        assert "TOSABackend returns no fingerprint" in str(program.report.notes)
    assert not list((tmp_path / "cache").iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_so_do_large_models(name):
    assert_partitions_survive(LARGE[name](), "tosa")


@pytest.mark.slow
@pytest.mark.parametrize("name", [*MODELS, *LARGE])
@pytest.mark.parametrize("backend", ["xnnpack", "compiler-demo"])
def test_programs_read_back_compile_equally_on_other_backends(name, backend):
    if backend == "xnnpack":
        pytest.importorskip("executorch")
    model = (MODELS | LARGE)[name]()
    model[2].pop("options", None)
    try:
        assert_partitions_survive(model, backend)
    except AssertionError as e:
        if "assert []" not in str(e):
            raise
        pytest.skip(f"{backend} accepts no part of it")
