"""The classes that backend authors use: BackendDetails, DelegationSpec,
DelegateMappingBuilder.
"""

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


def test_shared_base_and_inheritance():
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


def test_default_multimethod_keeps_order():
    results = Counting.preprocess_multimethod(
        {"a": [1, 2], "b": [3]}, {"a": [[], ["s"]], "b": [[]]}
    )
    assert {m: [r.processed_bytes for r in rs] for m, rs in results.items()} == {
        "a": [b"1[]", b"2['s']"],
        "b": [b"3[]"],
    }


@pytest.mark.parametrize("specs", [{}, {"a": [[]]}, {"a": [[], [], []]}])
def test_default_multimethod_counts_specs(specs):
    with pytest.raises(
        ContractViolation,
        match="method 'a' has 2 partitions and . lists of compile specs",
    ):
        Counting.preprocess_multimethod({"a": [1, 2]}, specs)


def nodes_with_handles(*handles):
    graph = torch.fx.Graph()
    made = [graph.placeholder(f"x{k}") for k in range(len(handles))]
    for node, handle in zip(made, handles, strict=True):
        node.meta["debug_handle"] = handle
    return made


def test_generated_identifiers_map_nodes_and_handles():
    builder = DelegateMappingBuilder(generated_identifiers=True)
    assert builder.insert_delegate_mapping_entry(nodes_with_handles(3, 1)) == 0
    assert builder.insert_delegate_mapping_entry(nodes_with_handles(7)[0]) == 1
    assert builder.insert_delegate_mapping_entry(handles=[9, None, 4]) == 2
    assert builder.get_delegate_mapping() == {0: (1, 3), 1: (7,), 2: (4, 9)}


@pytest.mark.parametrize("identifier", [22, "22"])
def test_manual_identifier_is_used_once(identifier):
    builder = DelegateMappingBuilder()
    assert (
        builder.insert_delegate_mapping_entry(handles=5, identifier=identifier)
        == identifier
    )
    with pytest.raises(ContractViolation, match="used already"):
        builder.insert_delegate_mapping_entry(handles=6, identifier=identifier)


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
    assert (
        (backend_id, specs)
        == (spec[0], spec[1])
        == (spec.backend_id, spec.compile_specs)
    )
    assert spec._replace(backend_id="C") == DelegationSpec("C", specs)
    assert isinstance(spec._replace(), DelegationSpec)
    assert pickle.loads(pickle.dumps(spec)) == copy.deepcopy(spec) == spec


def test_backends_cannot_be_instantiated():
    with pytest.raises(TypeError, match="abstract"):
        BackendDetails()
    assert BackendDetails.preprocess.__enforcedmethod__ is True
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
