"""States that Core AI keeps, and weights that delegates share."""

import copy
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version

import delegraph
import pytest
import torch
from delegraph.errors import FormatError
from delegraph.formats import join
from delegraph.runtime import BlobHeader
from delegraph_engines import Signature
from torch import nn

pytest.importorskip("coreai_torch")
from coreai.authoring.asset import AIModelAsset
from delegraph_coreai.names import MARK
from delegraph_coreai.runtime import CoreAIRuntime


class Cache(nn.Module):
    """Keys at the positions that the caller gives, a sum that does not begin with 0."""

    def __init__(self):
        super().__init__()
        self.register_buffer("keys", torch.zeros(1, 8, 4), persistent=False)
        self.register_buffer("total", torch.tensor([1.0, 2.0, 3.0, 4.0]))

    def forward(self, place, row):
        self.keys[:, place] = row
        self.total.add_(row)
        return torch.softmax(self.keys @ row, -1) + self.total.sum(), self.total


class Overwrites(nn.Module):
    def __init__(self, dtype=torch.float32):
        super().__init__()
        self.register_buffer("last", torch.ones(3, dtype=dtype))

    def forward(self, x):
        before = self.last.clone()
        self.last.copy_(x)
        return before


def steps(count=4):
    generator = torch.Generator().manual_seed(0)
    return [
        (torch.tensor([k]), torch.randn(4, generator=generator)) for k in range(count)
    ]


def lower(model, *args):
    return delegraph.lower(model.eval(), args, backends=["coreai"])


def check_steps(program, model, inputs):
    """Compare several calls with eager: each has the states of the calls before."""
    eager = copy.deepcopy(model)
    for args in inputs:
        torch.testing.assert_close(program(*args), eager(*args))


def test_a_delegate_keeps_its_states():
    model = Cache()
    lowered = lower(model, *steps()[0])
    (delegate,) = lowered.delegates
    assert sorted(delegate.module.state) == ["keys", "total"]
    assert not lowered.exported_program().graph_signature.buffers_to_mutate
    check_steps(lowered, model, steps())
    assert model.total.tolist() == [1, 2, 3, 4]


LISTS = {
    "none": lambda row: None,
    "a text": lambda row: "keys",
    "too few fields": lambda row: [row[:1]],
    "another name": lambda row: [["other", *row[1:]]],
    "a number as name": lambda row: [[3, *row[1:]]],
    "no buffer": lambda row: [[row[0], None, *row[2:]]],
    "another type": lambda row: [[*row[:2], "complex32", *row[3:]]],
    "no type": lambda row: [[*row[:2], "nn", *row[3:]]],
    "sizes of floats": lambda row: [[*row[:3], [3.0], None]],
    "negative sizes": lambda row: [[*row[:3], [-3, -1], None]],
    "large sizes": lambda row: [[*row[:3], [2**40], None]],
    "a size": lambda row: [[*row[:3], 3, None]],
    "a table as key": lambda row: [[*row[:4], {}]],
    "a missing key": lambda row: [[*row[:4], "other"]],
    "twice": lambda row: [row, row],
    "no states": lambda row: [],
}


@pytest.mark.parametrize("damage", LISTS)
def test_a_wrong_list_of_states_is_an_error(tmp_path, damage):
    (delegate,) = lower(Overwrites(), torch.ones(3)).delegates
    content, signature, facts = Signature.unseal(bytes(delegate.blob), MARK)
    facts["states"] = LISTS[damage](facts["states"][0])
    path = tmp_path / "main.mlirb"
    path.write_bytes(content)
    with pytest.raises(FormatError):
        CoreAIRuntime.load(signature.seal(path, MARK, **facts), [], {})


def test_a_state_may_have_the_name_of_an_input(tmp_path):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Overwrites()
            self.register_buffer("x", torch.zeros(3))

        def forward(self, x):
            self.x.add_(x)
            return self.inner(x * 2) + self.x

    model = Model()
    model.inner.last.zero_()
    x = torch.ones(3)
    lowered = lower(model, x)
    lowered.save(tmp_path / "net.aimodel")
    loaded = delegraph.load(tmp_path / "net.aimodel")
    summary = loaded.summary.methods[0]
    assert [tensor.name for tensor in summary.inputs] == ["x"]
    asset = AIModelAsset.load(tmp_path / "net.aimodel")
    states = sorted(name for name, _ in asset.summary().function_states("main"))
    assert states == ["inner_last", "x_state_0"]
    for _ in range(2):
        torch.testing.assert_close(loaded(x)[0], model(x))


WEIGHTS = {
    "a negative place": lambda row: [[-1, *row[1:]]],
    "a place after the end": lambda row: [[2**40, *row[1:]]],
    "another size": lambda row: [[row[0], row[1] - 4, row[2]]],
    "a text as size": lambda row: [[row[0], "4", row[2]]],
    "in the wrong order": lambda row: [row, [row[0] - 1, *row[1:]]],
    "none": lambda row: None,
}


@pytest.mark.parametrize("damage", WEIGHTS)
def test_a_wrong_list_of_weights_is_an_error(tmp_path, damage):
    lowered = lower(nn.Linear(64, 64), torch.randn(2, 64))
    (delegate,) = lowered.delegates
    content, signature, facts = Signature.unseal(bytes(delegate.blob), MARK)
    facts["weights"] = WEIGHTS[damage](facts["weights"][0])
    path = tmp_path / "main.mlirb"
    path.write_bytes(content)
    data = {
        key: bytes(join(delegate.named_data.buffers[entry.buffer_index]))
        for key, entry in delegate.named_data.pte_data.items()
    }
    with pytest.raises(FormatError):
        CoreAIRuntime.load(signature.seal(path, MARK, **facts), [], data)


def test_a_program_with_other_types_than_its_blob_is_an_error(tmp_path):
    (delegate,) = lower(nn.ReLU(), torch.ones(3)).delegates
    content, signature, facts = Signature.unseal(bytes(delegate.blob), MARK)
    path = tmp_path / "main.mlirb"
    for types in ([("float32", (4,))], [("int32", (3,))], []):
        path.write_bytes(content)
        other = Signature(tuple(types), signature.outputs)
        blob = other.seal(path, MARK, **facts)
        with pytest.raises(FormatError, match="does not fit the signature in its blob"):
            CoreAIRuntime.load(blob, [], {})


@pytest.mark.parametrize("least", [None, 3, [[0, 0]], [[0, 1, 1]], [[0, 0, "1"]]])
def test_a_wrong_list_of_sizes_is_an_error(tmp_path, least):
    lowered = delegraph.lower(
        nn.Linear(4, 4).eval(),
        (torch.randn(3, 4),),
        backends=["coreai"],
        dynamic_shapes=({0: torch.export.Dim.DYNAMIC},),
    )
    content, signature, facts = Signature.unseal(bytes(lowered.delegates[0].blob), MARK)
    # rows of input, dimension and least size
    assert facts["least"] == [[0, 0, 1]]
    path = tmp_path / "main.mlirb"
    path.write_bytes(content)
    blob = signature.seal(path, MARK, **{**facts, "least": least})
    with pytest.raises(FormatError, match="damaged list of sizes"):
        CoreAIRuntime.load(blob, [], {})


def test_a_blob_of_another_release_may_run():
    header = lambda release: BlobHeader(
        "CoreAIBackend", 0, b"", fingerprint=f"coreai-torch {release}"
    )
    verdict = lambda release: CoreAIRuntime.compatible(header(release), []).verdict
    assert verdict(version("coreai-torch")) == "runs"
    assert verdict("0.1.0") == "runs"
    assert verdict("99.0.0") != "runs"


def test_instances_and_comparisons_begin_with_the_first_values():
    model = Cache()
    lowered = lower(model, *steps()[0])
    check_steps(lowered, model, steps())
    check_steps(lowered.instance(), model, steps())
    assert lowered.verify(*steps()[0]).relative_error < 1e-6
    assert lowered.verify(*steps()[0]).relative_error < 1e-6


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.bool]
)
def test_a_state_may_become_an_input(dtype):
    model = Overwrites(dtype)
    inputs = [(torch.tensor([k, 0, 1]).to(dtype),) for k in range(3)]
    lowered = lower(model, *inputs[0])
    assert lowered.delegates[0].module.state == ("last",)
    check_steps(lowered, model, inputs)


def test_the_host_keeps_states_in_64_bits():
    model = Overwrites(torch.int64)
    inputs = [(torch.tensor([2**40 + k, 0, 1]),) for k in range(3)]
    lowered = lower(model, *inputs[0])
    assert not any(delegate.module.state for delegate in lowered.delegates)
    check_steps(lowered, model, inputs)


def test_the_host_keeps_states_of_two_delegates():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("total", torch.eye(3))

        def forward(self, x):
            inverse = torch.linalg.inv(x + self.total)
            self.total.add_(inverse)
            return inverse

    inputs = [(torch.eye(3) * k,) for k in range(3)]
    lowered = lower(Model(), *inputs[0])
    assert not any(delegate.module.state for delegate in lowered.delegates)
    check_steps(lowered, Model(), inputs)


def test_threads_change_a_state_one_after_the_other():
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("total", torch.zeros(1000))

        def forward(self, x):
            self.total.add_(x)
            return self.total.clone()

    lowered = lower(Counter(), torch.ones(1000))
    assert lowered.delegates[0].module.state == ("total",)
    lowered(torch.ones(1000))
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lowered, [torch.ones(1000)] * 40))
    assert sorted(float(r[0]) for r in results) == [*range(2, 42)]
    assert all((r == r[0]).all() for r in results)


# --- weights ------------------------------------------------------------------------


class Shared(nn.Module):
    """Two delegates with the host between them use one weight."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(128, 128)

    def forward(self, x):
        y = self.layer(x).to(torch.float64).sin()
        return self.layer(y.to(torch.float32))


def stored(lowered):
    """Return the named data of a program, by reference."""
    return lowered.named_data.buffers


def test_a_weight_of_two_delegates_is_stored_once():
    model = Shared()
    lowered = lower(model, torch.randn(128, 128))
    assert len(lowered.delegates) == 2
    assert [len(buffer) for buffer in stored(lowered)] == [128 * 128 * 4]
    for delegate in lowered.delegates:
        assert len(bytes(delegate.blob)) < 128 * 128 * 4
    x = torch.randn(128, 128)
    assert lowered.verify(x).relative_error < 1e-5


def test_weights_are_the_tensors_of_the_model():
    model = nn.Linear(64, 64).eval()
    lowered = lower(model, torch.randn(2, 64))
    (buffer,) = stored(lowered)
    assert buffer._tensor.data_ptr() == model.weight.data_ptr()


def test_equal_weights_and_zeros_are_restored():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Parameter(torch.zeros(4096))
            self.b = nn.Parameter(torch.zeros(2048))
            self.c = nn.Parameter(torch.randn(2048))
            self.d = nn.Parameter(self.c.detach().clone())
            self.e = nn.Parameter(torch.arange(4096.0))

        def forward(self, x):
            rows = x + self.a, x[:2048] + self.b, x[:2048] * self.c
            return *rows, x[2048:] * self.d, x * self.e, x * self.e.half()

    x = torch.randn(4096)
    lowered = lower(Model(), x)
    assert lowered.host_operators == 0 and len(stored(lowered)) == 2
    assert lowered.verify(x).relative_error < 1e-6


def loaded(lowered, change=lambda data: data):
    (delegate,) = lowered.delegates
    data = {
        key: bytes(join(delegate.named_data.buffers[entry.buffer_index]))
        for key, entry in delegate.named_data.pte_data.items()
    }
    return CoreAIRuntime.load(bytes(delegate.blob), [], change(data))


@pytest.mark.parametrize(
    "change", [lambda data: {}, lambda data: {k: v[1:] for k, v in data.items()}]
)
def test_missing_weights_are_an_error(change):
    lowered = lower(nn.Linear(64, 64), torch.randn(2, 64))
    x = torch.randn(2, 64)
    torch.testing.assert_close(loaded(lowered)(x)[0], lowered(x))
    with pytest.raises(FormatError, match="named data coreai/"):
        loaded(lowered, change)
