"""A compiled model computes with the new values after its weights change."""

from __future__ import annotations

import copy
import gc
import io
import pickle

import pytest
import torch
import torch.nn.utils.prune
from delegraph.errors import InputError
from torch import nn

pytest.importorskip("delegraph_dynamo")
pytestmark = pytest.mark.filterwarnings("ignore")  # of torch


class Model(nn.Module):
    def __init__(self, has_buffer=False):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.register_buffer("factor", torch.ones(4) if has_buffer else None)

    def forward(self, x):
        y = self.second(torch.relu(self.first(x)))
        return y if self.factor is None else y * self.factor


class Doubled(nn.Module):
    def forward(self, weight):
        return weight * 2


@pytest.fixture(autouse=True)
def _anew():
    torch._dynamo.reset()
    torch.manual_seed(0)


def compile_model(has_buffer=False, **options):
    model = Model(has_buffer).eval()
    compiled = torch.compile(
        model,
        backend="delegraph",
        options={"backends": ["tosa"], **options},
        dynamic=False,
    )
    return model, compiled


def random_state(model):
    return {
        name: torch.randn_like(tensor) for name, tensor in model.state_dict().items()
    }


def through_bfloat16(model):
    model.bfloat16()
    model.float()


def through_double_with_other_values(model):
    model.double()
    with torch.no_grad():
        model.first.weight.add_(1)
    model.float()


def through_float16_and_freed_memory(model):
    model.half()
    gc.collect()
    model.float()


def from_a_vector(model):
    count = sum(p.numel() for p in model.parameters())
    nn.utils.vector_to_parameters(torch.randn(count), model.parameters())


def other_data(model):
    model.first.weight.data = torch.randn(4, 4)


def other_data_of_a_buffer(model):
    model.factor.data = torch.randn(4)


def transposed_data(model):
    model.first.weight.data = model.first.weight.data.t()


def a_view_of_other_rows(model):
    model.first.bias.data = torch.randn(8)[4:]


def exchanged_data(model):
    first = model.first.weight.data
    model.first.weight.data = model.second.weight.data
    model.second.weight.data = first


def set_to_other_memory(model):
    with torch.no_grad():
        model.first.weight.set_(torch.randn(4, 4))


def loaded(model):
    model.load_state_dict(random_state(model))


def loaded_by_assignment(model):
    model.load_state_dict(random_state(model), assign=True)


def tied(model):
    model.second.weight = model.first.weight


def parametrized(model):
    nn.utils.parametrize.register_parametrization(model.first, "weight", Doubled())


def normalized(model):
    nn.utils.parametrizations.weight_norm(model.first)
    with torch.no_grad():
        model.first.parametrizations.weight.original0.mul_(3)


def pruned(model):
    nn.utils.prune.l1_unstructured(model.first, "weight", amount=0.5)


def pruned_for_good(model):
    pruned(model)
    nn.utils.prune.remove(model.first, "weight")


def replaced_layer(model):
    model.first = nn.Linear(4, 4)


def replaced_buffer(model):
    model.factor = torch.randn(4)


def written_buffer(model):
    model.factor.mul_(3)


def written_view(model):
    with torch.no_grad():
        model.first.weight.view(-1)[0] = 9.0


def written_detached(model):
    model.first.weight.detach().fill_(2.0)


def initialized(model):
    nn.init.normal_(model.first.weight)


def moved_to_empty_memory(model):
    model.to_empty(device="cpu")
    for tensor in (*model.parameters(), *model.buffers()):
        nn.init.normal_(tensor)


def stepped(model):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()


def quantized_in_place(model):
    quantization = pytest.importorskip("torchao.quantization")
    quantization.quantize_(model, quantization.Int8WeightOnlyConfig())


WAYS = [
    through_bfloat16,
    through_double_with_other_values,
    through_float16_and_freed_memory,
    from_a_vector,
    other_data,
    other_data_of_a_buffer,
    transposed_data,
    a_view_of_other_rows,
    exchanged_data,
    set_to_other_memory,
    loaded,
    loaded_by_assignment,
    tied,
    parametrized,
    normalized,
    pruned,
    pruned_for_good,
    replaced_layer,
    replaced_buffer,
    written_buffer,
    written_view,
    written_detached,
    initialized,
    moved_to_empty_memory,
    stepped,
    quantized_in_place,
]


OF_BUFFERS = (other_data_of_a_buffer, replaced_buffer, written_buffer)
ONLY_ONCE = (
    pruned,
    pruned_for_good,
    tied,
    parametrized,
    normalized,
    quantized_in_place,
)
"""Changes that torch allows once, or that change nothing the second time."""


@pytest.mark.parametrize("way", WAYS)
def test_the_next_call_uses_changed_weights(way):
    model, compiled = compile_model(has_buffer=way in OF_BUFFERS)
    x = torch.randn(2, 4)
    with torch.no_grad():
        before = compiled(x)

    # the second change may reuse memory that the first one freed
    changes = 1 if way in ONLY_ONCE else 2
    for _ in range(changes):
        way(model)
        with torch.no_grad():
            expected = model(x)
            torch.testing.assert_close(compiled(x), expected, rtol=1e-4, atol=1e-5)

    if way is not transposed_data:  # transposed twice, the weight is as before
        assert not torch.equal(before, expected)


def test_new_weights_at_a_freed_address_are_noticed():
    model, compiled = compile_model()
    x = torch.randn(2, 4)
    with torch.no_grad():
        for _ in range(6):
            model.first.weight.data = torch.randn(4, 4)
            gc.collect()
            torch.testing.assert_close(compiled(x), model(x))


def written_data(model):
    model.first.weight.data.lerp_(torch.ones(4, 4), 0.5)


def merged(model):
    model.first.weight.data += torch.ones(4, 1) @ torch.ones(1, 4)


def written_by_numpy(model):
    model.first.weight.detach().numpy()[:] = 3


def fused_step(model):
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1, fused=True)
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()


@pytest.mark.parametrize("way", [written_data, merged, written_by_numpy, fused_step])
def test_writes_hidden_from_torch_can_be_reported(way):
    model, compiled = compile_model()
    x = torch.randn(2, 4)
    with torch.no_grad():
        compiled(x)
    way(model)
    torch.autograd.graph.increment_version(list(model.parameters()))
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x))


def changed_inside(model):
    weight = model.first.weight
    names, _ = weight.__tensor_flatten__()
    inner = getattr(weight, names[0])
    inner.copy_(inner.flip(0))


def other_inside(model):
    weight = model.first.weight
    names, _ = weight.__tensor_flatten__()
    setattr(weight, names[0], getattr(weight, names[0]).flip(0))


@pytest.mark.parametrize("way", [changed_inside, other_inside])
def test_changes_inside_of_quantized_weights_are_noticed(way):
    quantization = pytest.importorskip("torchao.quantization")
    model, compiled = compile_model()
    quantization.quantize_(model, quantization.Int8WeightOnlyConfig())
    x = torch.randn(2, 4)
    with torch.no_grad():
        before = compiled(x)
        way(model)
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
        assert not torch.equal(before, compiled(x))


def pickle_and_load(compiled):
    return pickle.loads(pickle.dumps(compiled))


def save_and_load(compiled):
    file = io.BytesIO()
    torch.save(compiled, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize(
    "copied", [pickle_and_load, save_and_load, copy.deepcopy, copy.copy]
)
def test_a_copy_of_a_called_model_computes_the_same(copied):
    model, compiled = compile_model()
    x = torch.randn(2, 4)
    with torch.no_grad():
        compiled(x)
        torch.testing.assert_close(copied(compiled)(x), model(x))


@pytest.mark.parametrize("copied", [pickle_and_load, save_and_load])
def test_pickling_a_called_graph_is_refused_with_a_reason(copied):
    graphs = []
    model, compiled = compile_model(graphs=graphs)
    x = torch.randn(2, 4)
    with torch.no_grad():
        compiled(x)
        with pytest.raises(InputError, match="graph 0, .* cannot be pickled"):
            copied(compiled)
        assert copy.copy(graphs[0]) is graphs[0]
        assert copy.deepcopy(graphs)[0] is graphs[0]
        graphs.clear()
        torch.testing.assert_close(copied(compiled)(x), model(x))
