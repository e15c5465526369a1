"""Equal layers are lowered once, and the file is the same as without that."""

import delegraph
import delegraph_tosa.backend
import pytest
import torch
from delegraph_tosa.lowering.interpret.layers import LEAST
from delegraph_tosa.validate import InvalidGraph
from torch import nn

COUNT = LEAST + 1


def lowered(module, *args, copies=True, monkeypatch=None, **options):
    """The lowered program, and for each partition whether layers were copied."""
    taken, original = [], delegraph_tosa.backend.with_copied_layers

    def noted(*arguments):
        graph = original(*arguments) if copies else None
        taken.append(graph is not None)
        return graph

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(delegraph_tosa.backend, "with_copied_layers", noted)
        return delegraph.lower(module, args, backends=["tosa"], options={"tosa": options}), taken


def check(module, *args, copied, **options):
    """As without copies: bytes, debug handles and results."""
    torch.manual_seed(0)
    module = module.eval()
    found, taken = lowered(module, *args, **options)
    wanted, _ = lowered(module, *args, copies=False, **options)
    assert [bytes(d.processed_bytes) for d in found.delegates] == [bytes(d.processed_bytes) for d in wanted.delegates]
    assert [d.debug_handle_map for d in found.delegates] == [d.debug_handle_map for d in wanted.delegates]
    assert taken == [copied] * len(found.delegates)
    assert found.verify(*args).agrees()


class Layers(nn.Module):
    """``COUNT`` layers, each of which is called with the result of the one before and with ``more``."""

    def __init__(self, make, count=COUNT):
        super().__init__()
        self.layers = nn.ModuleList([make(k) for k in range(count)])
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.3)

    def forward(self, x, *more):
        for layer in self.layers:
            x = layer(x, *more)
        return x.sum(-1)


class Attention(nn.Module):
    """With a norm, a mask and a sum around it, as in a decoder."""

    def __init__(self, width=16, heads=4):
        super().__init__()
        self.norm, self.heads = nn.RMSNorm(width), heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x, mask):
        n, length, width = x.shape
        y = self.norm(x)
        q, k, v = (f(y).view(n, length, self.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        y = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask * 2.0)
        return x + self.o(y.transpose(1, 2).reshape(n, length, width))


class Block(nn.Module):
    """Two convolutions with batch norms and a sum, channels first."""

    def __init__(self, channels=8, dilation=1):
        super().__init__()
        self.one = nn.Conv2d(channels, channels, 3, padding=dilation, dilation=dilation)
        self.two, self.norm = nn.Conv2d(channels, channels, 1), nn.BatchNorm2d(channels)

    def forward(self, x):
        return x + self.norm(self.two(torch.relu(self.one(x))))


X = torch.randn(1, 6, 16, generator=torch.Generator().manual_seed(0))
IMAGE = torch.randn(1, 8, 6, 6, generator=torch.Generator().manual_seed(0))


def test_attention():
    check(Layers(lambda k: Attention()), X, torch.ones(6, 6).tril().log(), copied=True)


def test_convolutions():
    check(Layers(lambda k: Block()), IMAGE, copied=True)


@pytest.mark.parametrize("options", [{"spec": "TOSA-1.0+FP"}, {"named_constants": True}], ids=str)
def test_options(options):
    check(Layers(lambda k: Block()), IMAGE, copied=True, **options)


def test_layers_without_own_constants():
    check(Layers(lambda k: Shared(nn.Identity())), X, copied=True)


class Shared(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        y = self.layer(x)
        y = torch.sigmoid(y) * y
        return (x + y.tanh()).mean(-1, keepdim=True) - torch.exp(-y.abs())


def test_one_layer_for_all():
    layer = nn.Linear(16, 16)
    check(Layers(lambda k: Shared(layer)), X, copied=True)


def test_a_layer_that_is_shared_by_some():
    layers = [nn.Linear(16, 16) for _ in range(COUNT)]
    layers[4] = layers[2]
    check(Layers(lambda k: Shared(layers[k])), X, copied=False)
    tied = [nn.Linear(16, 16) for _ in range(COUNT)]
    tied[4].weight = tied[2].weight
    check(Layers(lambda k: Shared(tied[k])), X, copied=False)


@pytest.mark.parametrize("odd", [1, 3, COUNT - 1])
def test_a_layer_with_another_attribute(odd):
    check(Layers(lambda k: Block(dilation=2 if k == odd else 1)), IMAGE, copied=False)


class Scaled(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor, self.layer = factor, nn.Linear(16, 16)

    def forward(self, x):
        return (torch.relu(self.layer(x)) * self.factor + x).tanh()


def test_numbers_that_compare_as_equal():
    check(Layers(lambda k: Scaled(-0.0 if k == 4 else 0.0)), X, copied=False)
    check(Layers(lambda k: Scaled(0.5)), X, copied=True)


class Multiplied(nn.Module):
    """By itself, by a parameter or by a number: one operator takes all of them."""

    def __init__(self, by):
        super().__init__()
        self.by, self.layer, self.factor = by, nn.Linear(16, 16), nn.Parameter(torch.ones(16))

    def forward(self, x):
        y = torch.relu(self.layer(x))
        return (y * {"itself": y, "parameter": self.factor, "number": 0.5}[self.by] + x).tanh() + self.factor


@pytest.mark.parametrize("odd", ["itself", "parameter", "number"])
def test_operands_of_another_kind(odd):
    check(Layers(lambda k: Multiplied(odd if k == 4 else "parameter")), X, copied=odd == "parameter")
    check(Layers(lambda k: Multiplied("itself" if k == 4 else odd)), X, copied=odd == "itself")


class Wired(nn.Module):
    """Subtracts one of two values that it has from the other."""

    def __init__(self, is_turned):
        super().__init__()
        self.is_turned, self.layer = is_turned, nn.Linear(16, 16)

    def forward(self, x, more):
        y = torch.relu(self.layer(x))
        return torch.tanh(y - x if self.is_turned else x - y) + more


class Masked(Layers):
    """The layer before the last reads another value that is computed before all layers."""

    def forward(self, x, mask):
        masks = mask.exp(), mask.sin()
        for k, layer in enumerate(self.layers):
            x = layer(x, masks[k == COUNT - 2])
        return x * masks[0] * masks[1]


def test_layers_that_read_other_places():
    check(Layers(lambda k: Wired(k == 3)), X, X + 1, copied=False)
    check(Masked(lambda k: Wired(False)), X, X + 1, copied=False)


class Alternating(nn.Module):
    """Turns a square, so that passes let every other layer work on the turned one."""

    def forward(self, x):
        return torch.exp(-torch.abs(torch.tanh(x.transpose(1, 2)) * 2 - 1))


class Rotating(nn.Module):
    """Moves three equal axes around."""

    def forward(self, x):
        return torch.exp(-torch.abs(torch.tanh(x.permute(1, 2, 0)) * 2 - 1))


@pytest.mark.parametrize("count", [COUNT, COUNT + 1])
def test_layouts_that_alternate(count):
    cube = torch.randn(5, 5, 5, generator=torch.Generator().manual_seed(0))
    check(Layers(lambda k: Alternating(), count), cube[:1], copied=False)
    check(Layers(lambda k: Rotating(), count), cube, copied=False)


def test_what_is_no_legal_graph_with_three_layers_is_lowered_whole(monkeypatch):
    def validate(graph, spec):
        seen.append(len(graph.operators))
        if len(seen) == 1:
            raise InvalidGraph([], spec)

    seen, module = [], Layers(lambda k: Scaled(0.5)).eval()
    monkeypatch.setattr(delegraph_tosa.backend, "validate", validate)
    found = delegraph.lower(module, (X,), backends=["tosa"])
    assert len(seen) == 2 and seen[0] < seen[1]
    assert found.verify(X).agrees()


class Picked(nn.Module):
    """Its index is a constant whose elements a rule reads: those that are negative need an operator more."""

    def __init__(self, index):
        super().__init__()
        self.layer = nn.Linear(16, 16)
        self.register_buffer("index", torch.tensor(index))

    def forward(self, x):
        return torch.tanh(self.layer(x)[:, self.index] + x)


def test_constants_that_a_rule_reads():
    rows = [0, 1, 2, 3, 4, 5]
    check(Layers(lambda k: Picked([-1, *rows[1:]] if k == 4 else rows)), X, copied=False)
    check(Layers(lambda k: Picked([-1, *rows[1:]])), X, copied=True)


class Stored(nn.Module):
    """Has a weight of int8."""

    def __init__(self):
        super().__init__()
        self.register_buffer("weight", torch.randint(-8, 8, (16, 16), dtype=torch.int8))
        self.scale, self.norm = nn.Parameter(torch.ones(16, 1)), nn.LayerNorm(16)

    def forward(self, x):
        return x + nn.functional.linear(self.norm(x), self.weight.to(torch.float32) * self.scale)


def test_weights_of_integers():
    check(Layers(lambda k: Stored()), X, copied=True)


class Placed(nn.Module):
    """Writes a row of its cache, as layers of a language model do: each computes the place for itself."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x, position, cache):
        cache, count = cache.clone(), position[0].clone()
        place = torch.arange(x.shape[1]) + count
        row = self.one(x).view(1, x.shape[1], 2, 8).transpose(1, 2)
        cache = cache.index_copy(2, place, row)
        found = nn.functional.scaled_dot_product_attention(row, cache, cache)
        return x + self.two(found.transpose(1, 2).reshape(x.shape)), cache


class Places(Layers):
    def forward(self, x, position, *caches):
        new = []
        for layer, cache in zip(self.layers, caches, strict=True):
            x, cache = layer(x, position, cache)
            new.append(cache)
        return (x * 2, *new)


class PlacesBefore(Places):
    """Clones all caches and counts before the first layer."""

    def forward(self, x, position, *caches):
        return super().forward(x, position, *[cache.clone() for cache in caches])


@pytest.mark.parametrize("kind", [Places, PlacesBefore])
def test_places_in_caches(kind):
    caches = torch.randn(COUNT, 1, 2, 9, 8, generator=torch.Generator().manual_seed(1)).unbind()
    check(kind(lambda k: Placed()), X[:, :2], torch.tensor([3]), *[c.contiguous() for c in caches], copied=True)


class Counting(nn.Module):
    """Passes an integer on, of which the next layer knows more than this one."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, x, count):
        return torch.tanh(self.layer(x)) + x * count.to(torch.float32), count + 1


class Counts(Layers):
    def forward(self, x, count):
        for layer in self.layers:
            x, count = layer(x, count)
        return x


class Sorting(nn.Module):
    """Returns the place of its largest element."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, x):
        y = torch.tanh(self.layer(x)) + x
        return y, y.argmax(-1)


class Found(Layers):
    def forward(self, x):
        found = []
        for layer in self.layers:
            x, place = layer(x)
            found.append(place)
        return (*found, x)


def test_integers_that_leave_a_layer():
    check(Counts(lambda k: Counting()), X, torch.tensor([3], dtype=torch.int32), copied=False)
    check(Found(lambda k: Sorting()), X, copied=False)


class Indexed(nn.Module):
    """Reads rows of a table at indices that are cast from floats once for all layers."""

    def __init__(self):
        super().__init__()
        self.table, self.layer = nn.Embedding(8, 16), nn.Linear(16, 16)

    def forward(self, x, index):
        return x + torch.relu(self.layer(x)) + self.table(index)


class Casts(Layers):
    def forward(self, x, index):
        return super().forward(x, torch.relu(index).to(torch.int64))


def test_casts_that_all_uses_bound():
    # the floats are clamped to the range that all layers together prove
    check(Casts(lambda k: Indexed()), X, torch.tensor([[0.0, 1.5, 7.0, 3.0, 2.0, 1.0]]), copied=False)


class Every(Layers):
    """Also returns what layers in between compute."""

    def forward(self, x, *more):
        kept = []
        for layer in self.layers:
            x = layer(x, *more)
            kept.append(x)
        return (*kept, x.sum())


def test_layers_that_are_returned():
    check(Every(lambda k: Scaled(0.5)), X[0], copied=True)


def test_views_that_are_returned():
    # the TRANSPOSE of each output is that of the first layer, so that nothing says of which layer it is
    check(Every(lambda k: Block()), IMAGE, copied=False)


class Backwards(Every):
    def forward(self, x, *more):
        return super().forward(x, *more)[::-1]


class Some(Every):
    def forward(self, x, *more):
        return super().forward(x, *more)[3:]


@pytest.mark.parametrize("kind", [Backwards, Some])
def test_other_orders_of_what_is_returned(kind):
    check(kind(lambda k: Block()), IMAGE, copied=False)


class Cached(nn.Module):
    """Reads a cache of its own and returns it with a row more."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x, cache):
        cache = torch.cat([cache[:, 1:], self.one(x)[:, :1]], 1)
        return x + self.two(cache * x.sigmoid()), cache


class Caches(Layers):
    def forward(self, x, *caches):
        new = []
        for layer, cache in zip(self.layers, caches, strict=True):
            x, cache = layer(x, cache)
            new.append(cache)
        return (x * 2, *new)


def test_a_cache_for_each_layer():
    caches = torch.randn(COUNT, 1, 6, 16, generator=torch.Generator().manual_seed(1)).unbind()
    check(Caches(lambda k: Cached()), X, *[c.contiguous() for c in caches], copied=True)
    order = ",".join(map(str, [*range(1, COUNT + 1), 0]))
    check(Caches(lambda k: Cached()), X, *[c.contiguous() for c in caches], copied=True, input_order=order)


class Skips(Layers):
    """Each layer reads the last three."""

    def forward(self, x):
        before = [x, x, x]
        for layer in self.layers:
            before = [*before[1:], layer(before[-1] + before[0].flip(-1))]
        return before[0].sum(-1) + before[-1].sum(-1)


def test_layers_that_read_more_than_the_one_before():
    check(Skips(lambda k: Block()), IMAGE, copied=False)


class Halved(nn.Module):
    """Passes on both results of one call."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, x, y):
        return torch.chunk(torch.tanh(self.layer(torch.cat([y, x], -1))), 2, -1)


def test_results_of_one_call_that_are_passed_on():
    x, y = X.chunk(2, -1)
    check(Pairs(lambda k: Halved()), x.contiguous(), y.contiguous(), copied=True)


class Turned(nn.Module):
    """Returns views, which passes carry over layers."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, x, y):
        return y.transpose(1, 2).transpose(1, 2), self.layer(x).relu().transpose(1, 2).contiguous().transpose(1, 2)


class Pairs(Layers):
    def forward(self, x, y):
        for layer in self.layers:
            x, y = layer(x, y)
        return x.sum(-1) * 2 + y.sum(-1)


def test_views_that_cross_layers():
    torch.manual_seed(0)
    module = Pairs(lambda k: Turned()).eval()
    found, _ = lowered(module, X, X + 1)
    wanted, _ = lowered(module, X, X + 1, copies=False)
    assert bytes(found.delegates[0].processed_bytes) == bytes(wanted.delegates[0].processed_bytes)
    assert found.verify(X, X + 1).agrees()


def test_quantized_layers_are_lowered_one_by_one():
    torch.manual_seed(0)
    module = Layers(lambda k: Block()).eval()
    program = delegraph.quantize(module, [(IMAGE,)], backend="tosa")
    found = delegraph.lower(program, backends=["tosa"])
    assert found.verify(IMAGE).agrees()


def test_few_layers_are_not_looked_at():
    check(Layers(lambda k: Block(), count=LEAST - 1), IMAGE, copied=False)


def test_a_refusal_names_the_call_of_the_program():
    class Refused(nn.Module):
        def forward(self, x):
            return torch.special.bessel_j0(x) + torch.tanh(x)

    program = torch.export.export(Layers(lambda k: Refused()).eval(), (X,))
    found = delegraph.lower(program, backends=["tosa"])
    assert found.verify(X).agrees()
    assert found.report.refusals[0].operator == "aten.special_bessel_j0.default"
