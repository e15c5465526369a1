"""A vendor's backend that wraps TOSA gets the same partitions as TOSA."""

import delegraph
import pytest
import torch
from delegraph.backend import BackendDetails, CompileSpec
from delegraph.errors import OptionError
from delegraph.partitioner import DelegationSpec, Partitioner, PartitionResult
from delegraph_engines import WrappingPartitioner, tag_constant_data
from delegraph_executorch.edge import DontPartition
from torch import nn

aten = torch.ops.aten


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.query, self.key, self.value, self.out = (
            nn.Linear(width, width) for _ in range(4)
        )
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)
        self.first = nn.LayerNorm(width)
        self.second = nn.LayerNorm(width)
        self.heads = heads

    def forward(self, x, mask):
        def split(y):
            return y.view(*y.shape[:2], self.heads, -1).transpose(1, 2)

        attended = nn.functional.scaled_dot_product_attention(
            split(self.query(x)), split(self.key(x)), split(self.value(x)), mask
        )
        x = self.first(x + self.out(attended.transpose(1, 2).reshape(x.shape)))
        return self.second(x + self.down(nn.functional.gelu(self.up(x))))


class Bert(nn.Module):
    """BERT with embeddings, a mask, two layers and a pooler. Embeddings and int64 stay
    on the host.
    """

    def __init__(self, width=16):
        super().__init__()
        self.words = nn.Embedding(20, width)
        self.positions = nn.Embedding(8, width)
        self.norm = nn.LayerNorm(width)
        self.pool = nn.Linear(width, width)
        self.layers = nn.ModuleList(Layer(width, 2) for _ in range(2))
        self.register_buffer("numbers", torch.arange(8)[None])

    def forward(self, tokens, attended):
        mask = (
            attended[:, None, None, :].to(torch.bool).expand(-1, 1, tokens.shape[1], -1)
        )
        x = self.norm(
            self.words(tokens) + self.positions(self.numbers[:, : tokens.shape[1]])
        )
        for layer in self.layers:
            x = layer(x, mask)
        return x, torch.tanh(self.pool(x[:, 0]))


class OwnBackend(BackendDetails):
    """Compiles TOSA, but removes the last compile spec, which is its own."""

    @staticmethod
    def preprocess(edge_program, compile_specs):
        assert compile_specs[-1] == SPEED
        return delegraph.get_backend("tosa").preprocess(
            edge_program, list(compile_specs[:-1])
        )


class OwnRuntime(delegraph.get_runtime("tosa")):
    @staticmethod
    def load(processed_bytes, compile_specs, named_data):
        return delegraph.get_runtime("tosa").load(
            processed_bytes, compile_specs[:-1], named_data
        )


SPEED = CompileSpec("own_speed", b"9")


@pytest.fixture(scope="module")
def bert():
    torch.manual_seed(0)
    return torch.export.export(
        Bert().eval(), (torch.randint(20, (1, 6)), torch.ones(1, 6, dtype=torch.int64))
    )


def register_own_backend(inner):
    made = WrappingPartitioner(inner, OwnBackend.__name__, [SPEED])
    return delegraph.register(
        OwnBackend, partitioner=made, runtime=OwnRuntime, name="own"
    )


def test_a_wrapped_partitioner_gives_a_transformer_the_same_partitions(bert):
    alone = delegraph.lower(bert, backends=["tosa"])
    with register_own_backend(delegraph.get_partitioner("tosa")):
        wrapped = delegraph.lower(bert, backends=["own"])
        assert wrapped.verify(*bert.example_inputs[0]).relative_error < 1e-5

    [delegate] = alone.delegates
    [wrapped_delegate] = wrapped.delegates
    assert wrapped_delegate.backend_id == "OwnBackend"
    assert wrapped_delegate.processed_bytes == delegate.processed_bytes

    inner = delegate.module.compile_specs
    assert wrapped_delegate.module.compile_specs == [*inner, SPEED]


def test_a_wrapper_may_be_wrapped(bert):
    twice = WrappingPartitioner(
        delegraph.get_partitioner("tosa", spec="TOSA-1.0+FP"), "MiddleBackend", []
    )
    with register_own_backend(twice):
        assert len(delegraph.lower(bert, backends=["own"]).delegates) == 1


def test_additional_checks_reach_the_wrapped_partitioner(bert):
    with register_own_backend(delegraph.get_partitioner("tosa")):
        partitioner = delegraph.get_partitioner("own")
        partitioner.additional_checks = [
            *partitioner.additional_checks,
            DontPartition(aten.gelu.default),
        ]
        lowered = delegraph.lower(bert, backends=[partitioner])

    assert len(lowered.delegates) == 3
    assert lowered.report.host["forward"]["aten.gelu.default"] == 2


class KeepsLinear(Partitioner):
    """Tags the calls of linear, and asks to keep them whole."""

    def partition(self, exported_program):
        tags = {}
        for node in exported_program.graph.nodes:
            if node.target is aten.linear.default:
                tag = f"linear_{len(tags)}"
                node.meta["delegation_tag"] = tag
                tags[tag] = DelegationSpec("TOSABackend", self.spec["specs"])
        tag_constant_data(exported_program)
        return PartitionResult(exported_program, tags)

    def ops_to_not_decompose(self, exported_program):
        return [aten.linear.default], None


def test_a_wrapped_tagging_partitioner_keeps_operators_whole(bert):
    specs = delegraph.get_partitioner("tosa").delegation_spec.compile_specs
    with register_own_backend(KeepsLinear({"specs": specs})):
        lowered = delegraph.lower(bert, backends=["own"])
    layers, linears_of_a_layer, pooler = 2, 6, 1
    delegates = lowered.report.delegates

    assert len(delegates) == layers * linears_of_a_layer + pooler
    for delegate in delegates:
        assert delegate.operators == {"aten.linear.default": 1}


def test_a_wrapper_has_the_settings_of_its_partitioner():
    inner = delegraph.get_partitioner("tosa")
    assert WrappingPartitioner(inner, "A").spec == inner.spec


def test_wrapping_a_name_instead_of_a_partitioner_is_refused():
    with pytest.raises(
        OptionError, match=r"wraps a partitioner, not 'tosa'.*\n.*get_partitioner"
    ):
        WrappingPartitioner("tosa", "OwnBackend")


def test_the_runtime_of_a_backend_is_found_by_its_names():
    assert delegraph.get_runtime("tosa") is delegraph.get_runtime("TOSABackend")


def test_a_missing_runtime_or_backend_is_named():
    with (
        delegraph.register(OwnBackend, name="own"),
        pytest.raises(delegraph.errors.NoRuntime, match="'own'"),
    ):
        delegraph.get_runtime("own")
    with pytest.raises(delegraph.errors.BackendNotFound):
        delegraph.get_runtime("unknown")
