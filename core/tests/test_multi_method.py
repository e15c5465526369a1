"""Programs of several methods: one joint compilation a backend; the acceptance rows ``multi_method.*`` by name."""

import delegraph
import pytest
import torch
from delegraph.backend import BackendDetails, CompileSpec, PreprocessResult
from delegraph.lowering import MethodProgramsPartitionerSpec, to_backend
from delegraph.partitioner import CapabilityPartitioner, DelegationSpec, Partitioner, PartitionResult
from torch import nn

aten = torch.ops.aten
_CALL = torch.ops.higher_order.executorch_call_delegate


def joint(name):
    """A backend whose blobs say which of its calls they come from, their place in it, and their own operators."""

    def preprocess(program, specs):
        raise AssertionError("programs are compiled together")

    def preprocess_multimethod(cls, programs, specs):
        total = sum(len(listed) for listed in programs.values())
        cls.calls += 1
        return {
            m: [cls.blob(p, s, total) for p, s in zip(listed, specs[m], strict=True)] for m, listed in programs.items()
        }

    def blob(program, specs, total):
        operators = [str(n.target) for n in program.graph.nodes if n.op == "call_function"]
        given = [f"{s.key}:{s.value.decode()}" for s in specs]
        return PreprocessResult(f"{name}#{total}#{','.join(operators)}#{','.join(given)}".encode())

    members = {"preprocess": staticmethod(preprocess), "preprocess_multimethod": classmethod(preprocess_multimethod)}
    return type(name, (BackendDetails,), {**members, "blob": staticmethod(blob), "calls": 0})


@pytest.fixture
def backends():
    first, second = joint("FirstBackend"), joint("SecondBackend")
    with delegraph.register(first), delegraph.register(second):
        yield first, second


class Placed(Partitioner):
    """Makes a partition of every call of these operators: {operator: (backend id, compile-spec value)}."""

    def __init__(self, places):
        super().__init__()
        self.places = places

    def partition(self, exported_program):
        tags = {}
        for node in exported_program.graph.nodes:
            if node.target in self.places:
                backend, value = self.places[node.target]
                node.meta["delegation_tag"] = tag = f"tag{len(tags)}"
                tags[tag] = DelegationSpec(backend, [CompileSpec("max_value", value)])
        return PartitionResult(exported_program, tags)


def program(function, *inputs):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.arange(3.0))

        def forward(self, *inputs):
            return function(self, *inputs)

    return torch.export.export(Model().eval(), inputs or (torch.randn(3),))


def lowered(programs, partitioners):
    return to_backend(MethodProgramsPartitionerSpec(programs, partitioners))


def blobs(made):
    """Blobs of a method's delegates in the order of its graph."""
    calls = [n for n in made.graph.nodes if n.target is _CALL]
    return [getattr(made.graph_module, c.args[0].target).processed_bytes.decode() for c in calls]


def everything(backend="FirstBackend"):
    return CapabilityPartitioner(lambda n: None, backend, [CompileSpec("max_value", b"1")])


def sine(s, x):
    return torch.sin(x)


def cosine(s, x):
    return torch.cos(x)


def both(s, x):
    return torch.cos(torch.sin(x).neg())


def test_single_method(backends):
    """multi_method.single_method"""
    made = lowered({"forward": program(sine)}, {"forward": everything()})
    assert blobs(made["forward"]) == ["FirstBackend#1#aten.sin.default#max_value:1"]


def test_two_methods(backends):
    """multi_method.two_methods"""
    made = lowered({"a": program(sine), "b": program(cosine)}, {"a": everything(), "b": everything()})
    assert blobs(made["a"]) == ["FirstBackend#2#aten.sin.default#max_value:1"]
    assert blobs(made["b"]) == ["FirstBackend#2#aten.cos.default#max_value:1"]
    assert backends[0].calls == 1


def test_two_methods_multiple_partitions(backends):
    """multi_method.two_methods_multiple_partitions"""
    places = Placed({aten.sin.default: ("FirstBackend", b"1"), aten.cos.default: ("FirstBackend", b"1")})
    made = lowered({"a": program(both), "b": program(both)}, {"a": places, "b": places})
    wanted = [f"FirstBackend#4#aten.{op}.default#max_value:1" for op in ("sin", "cos")]
    assert blobs(made["a"]) == wanted and blobs(made["b"]) == wanted


def test_two_methods_different_partitions(backends):
    """multi_method.two_methods_different_partitions: each partition with its own specs."""
    places = Placed({aten.sin.default: ("FirstBackend", b"s"), aten.cos.default: ("FirstBackend", b"c")})
    turned = program(lambda s, x: torch.sin(torch.cos(x).neg()))
    made = lowered({"a": program(both), "b": turned}, {"a": places, "b": places})
    assert [b.split("#", 2)[2] for b in blobs(made["a"])] == [
        "aten.sin.default#max_value:s",
        "aten.cos.default#max_value:c",
    ]
    assert [b.split("#", 2)[2] for b in blobs(made["b"])] == [
        "aten.cos.default#max_value:c",
        "aten.sin.default#max_value:s",
    ]


def test_two_methods_different_backends(backends):
    """multi_method.two_methods_different_backends: each is called once; delegates in the order of the graph."""
    places = Placed({aten.sin.default: ("SecondBackend", b"1"), aten.cos.default: ("FirstBackend", b"1")})
    made = lowered({"a": program(both), "b": program(both)}, {"a": places, "b": places})
    assert [b.split("#")[:2] for b in blobs(made["b"])] == [["SecondBackend", "2"], ["FirstBackend", "2"]]
    assert [backend.calls for backend in backends] == [1, 1]


def test_sequential_delegates(backends):
    """multi_method.sequential_delegates: the second uses results of the first and of the break between them."""
    source = program(lambda s, x: torch.cos(torch.sin(x) + torch.sin(x).neg()))
    made = lowered({"forward": source}, {"forward": Placed({op: ("FirstBackend", b"1") for op in TWO})})["forward"]
    assert len(blobs(made)) == 3
    x = torch.randn(3)
    torch.testing.assert_close(made.module(check_guards=False)(x), source.module(check_guards=False)(x))


TWO = (aten.sin.default, aten.cos.default)


def test_constants(backends):
    """multi_method.constants: a constant of a partition and of the host is in both, and is one tensor."""
    source = program(lambda s, x: (x + s.w) * s.w)
    places = CapabilityPartitioner(lambda n: None if n.target is aten.add.Tensor else "no", "FirstBackend")
    made = lowered({"forward": source}, {"forward": places})["forward"]
    module = made.graph_module.lowered_module_0
    assert list(module.original_module.state_dict) == ["w"] == list(made.state_dict)
    assert module.original_module.state_dict["w"].data_ptr() == source.state_dict["w"].data_ptr()


def test_not_found():
    """multi_method.not_found"""
    with pytest.raises(NotImplementedError, match="Invalid"):
        lowered({"forward": program(sine)}, {"forward": everything("Invalid")})


def test_end_to_end(registry):
    """multi_method.end_to_end: both methods run through the backend's runtime and agree with eager."""
    from delegraph import api

    source, x = program(both), torch.randn(3)
    backend = CapabilityPartitioner(lambda n: None, "EchoBackend")
    made = api.lower({"a": source, "b": source}, backends=[backend], registry=registry)
    for method in "ab":
        assert made.verify(x, method=method).relative_error == 0
