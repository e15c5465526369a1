"""The classes for backend authors: BackendDetails, DelegationSpec and others."""

import copy
import pickle

import delegraph
import pytest
import torch
from delegraph.backend import (
    BackendDetails,
    CompileSpec,
    DelegateMappingBuilder,
    PreprocessResult,
)
from delegraph.errors import ContractViolation, DelegraphError
from delegraph.partitioner import CapabilityPartitioner, DelegationSpec, Partitioner


def test_concrete_backend_needs_preprocess():
    with pytest.raises(
        ContractViolation, match="backend Half does not define preprocess"
    ):
        type("Half", (BackendDetails,), {})


def test_backends_may_derive_from_an_abstract_base():
    class Base(BackendDetails, abstract=True):
        pass

    class Whole(Base):
        @staticmethod
        def preprocess(edge_program, compile_specs):
            return PreprocessResult(b"x")

    class Derived(Whole):
        pass

    assert Derived.preprocess(None, []).processed_bytes == b"x"


class Counting(BackendDetails):
    @staticmethod
    def preprocess(edge_program, compile_specs):
        return PreprocessResult(f"{edge_program}{compile_specs}".encode())


def test_default_multimethod_keeps_the_order_of_programs():
    results = Counting.preprocess_multimethod(
        {"a": [1, 2], "b": [3]}, {"a": [[], ["s"]], "b": [[]]}
    )
    assert list(results) == ["a", "b"]
    assert [result.processed_bytes for result in results["a"]] == [b"1[]", b"2['s']"]
    assert [result.processed_bytes for result in results["b"]] == [b"3[]"]


def nodes_with_handles(*handles):
    graph = torch.fx.Graph()
    made = [graph.placeholder(f"x{k}") for k in range(len(handles))]
    for node, handle in zip(made, handles, strict=True):
        node.meta["debug_handle"] = handle
    return made


def test_mapping_entries_are_checked():
    generated = DelegateMappingBuilder(generated_identifiers=True)
    manual = DelegateMappingBuilder()
    bad = [
        (generated, {"handles": 1, "identifier": 3}, "generates its identifiers"),
        (manual, {"handles": 1}, "needs an identifier"),
        (manual, {"identifier": 1}, "nodes or handles"),
        (
            manual,
            {"handles": 1, "nodes": nodes_with_handles(1), "identifier": 1},
            "nodes or handles",
        ),
        (manual, {"handles": [None], "identifier": 1}, "at least one debug handle"),
        (
            manual,
            {"nodes": nodes_with_handles(None), "identifier": 1},
            "at least one debug handle",
        ),
    ]
    for builder, arguments, message in bad:
        with pytest.raises(ContractViolation, match=message):
            builder.insert_delegate_mapping_entry(**arguments)


class Tags(Partitioner):
    def partition(self, exported_program):
        raise NotImplementedError


def test_partitioner_spec_is_read_only():
    partitioner = Tags({"k": 1})
    assert partitioner.spec["k"] == 1
    with pytest.raises(TypeError):
        partitioner.spec["k"] = 2
    with pytest.raises(AttributeError):
        partitioner.spec = {}


def test_delegation_specs_of_lists_and_tuples_hash_equally():
    assert hash(DelegationSpec("B", [CompileSpec("k", b"v")])) == hash(
        DelegationSpec("B", (CompileSpec("k", b"v"),))
    )


def test_error_text_has_source_and_hint():
    error = DelegraphError(
        "unsupported", "no sine", source="model.py:3", hint="take cosine"
    )
    assert str(error) == "no sine\n  at model.py:3\n  hint: take cosine"


def test_a_delegation_spec_is_a_named_tuple():
    spec = DelegationSpec("B", [CompileSpec("k", b"v")])
    backend_id, specs = spec
    assert (backend_id, specs) == (spec.backend_id, spec.compile_specs)
    assert spec[0] == backend_id
    assert spec[1] == specs
    assert spec._replace(backend_id="C") == DelegationSpec("C", specs)
    assert isinstance(spec._replace(), DelegationSpec)
    assert pickle.loads(pickle.dumps(spec)) == spec
    assert copy.deepcopy(spec) == spec


def test_backends_cannot_be_instantiated():
    with pytest.raises(TypeError, match="abstract"):
        BackendDetails()
    assert BackendDetails.preprocess.__enforcedmethod__ is True


def test_partitioners_keep_no_operators_by_default():
    assert Tags().ops_to_not_decompose(ep=None) == ([], None)


def test_partitions_name_their_method_and_tag(registry):
    seen = []

    class Asking(BackendDetails):
        @staticmethod
        def preprocess(edge_program, compile_specs):
            meta = edge_program.graph_module.meta
            seen.append((meta["method"], meta["partition"]))
            return PreprocessResult(b"x")

    takes_relu = CapabilityPartitioner(
        lambda node: None if "relu" in str(node.target) else "no", "Asking"
    )
    model = torch.nn.Sequential(
        torch.nn.ReLU(), torch.nn.Tanh(), torch.nn.ReLU()
    ).eval()
    with registry.register(Asking):
        methods = {"encode": model, "decode": torch.nn.ReLU().eval()}
        inputs = dict.fromkeys(methods, (torch.ones(2),))
        lowered = delegraph.lower(
            methods, inputs, backends=[takes_relu], registry=registry
        )

    assert sorted(seen) == [
        ("decode", "Asking_0"),
        ("encode", "Asking_0"),
        ("encode", "Asking_1"),
    ]
    assert [delegate.method for delegate in lowered.delegates] == [
        "encode",
        "encode",
        "decode",
    ]
