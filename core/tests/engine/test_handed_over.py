"""Wrong results and forbidden changes of partitioners and backends are named."""

import copy
import re

import delegraph
import pytest
import torch
from delegraph.backend import (
    BackendDetails,
    Blob,
    CompileSpec,
    DataEntry,
    NamedDataStore,
    NamedDataStoreOutput,
    PreprocessResult,
)
from delegraph.errors import ContractViolation, InputError
from delegraph.partitioner import (
    CapabilityPartitioner,
    DelegationSpec,
    Partitioner,
    PartitionResult,
)
from delegraph.runtime import BackendRuntime
from delegraph_engines import tag_mutated_buffer
from delegraph_executorch.edge import to_backend
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

from ..conftest import EchoBackend

X = torch.ones(3)


class Branches(nn.Module):
    """A weight, and a branch with bodies that must not be edited."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(1000, 3), requires_grad=False)

    def forward(self, x):
        y = (x * self.w).sum(0)
        return torch.cond(
            y.sum() > 0, lambda v: v.sin().clamp(0, 1), lambda v: v.cos(), (y,)
        )


def edit_body(program):
    call = next(node for node in program.graph.nodes if "cond" in str(node.target))
    body = getattr(program.graph_module, call.args[1].target)
    node = next(
        node for node in body.graph.nodes if node.target is torch.ops.aten.clamp.default
    )
    node.args = (node.args[0], 0.5, 0.75)


def first_weight(program):
    return next(iter(program.state_dict.values()))


EDITS = {
    "body": (edit_body, "true_graph_0"),
    "weight": (lambda p: first_weight(p).mul_(2), "'?w'?"),
    "weight through data": (lambda p: first_weight(p).data.mul_(2), "'?w'?"),
    "weight through numpy": (
        lambda p: first_weight(p).detach().numpy().fill(0),
        "'?w'?",
    ),
}


class Editing(Partitioner):
    """Tags all calls, and then changes the program with ``edit``."""

    def __init__(self, edit):
        super().__init__()
        self.edit = edit

    def partition(self, exported_program):
        result = CapabilityPartitioner(lambda n: None, "EchoBackend")(exported_program)
        self.edit(exported_program)
        return result


@pytest.mark.parametrize(("edit", "name"), EDITS.values(), ids=EDITS)
def test_a_partitioner_that_edits_the_program_is_named(edit, name, registry):
    with pytest.raises(
        ContractViolation,
        match=f"partitioner Editing changed the (graph of|tensor) {name}",
    ):
        delegraph.lower(
            Branches().eval(), (X,), backends=[Editing(edit)], registry=registry
        )


@pytest.mark.parametrize(("edit", "name"), EDITS.values(), ids=EDITS)
def test_backend_that_edits_shared_objects_is_named(edit, name):
    class Edits(BackendDetails):
        @staticmethod
        def preprocess(edge_program, compile_specs):
            edit(edge_program)
            return PreprocessResult(b"")

    with (
        pytest.raises(
            ContractViolation,
            match=r"Edits\.preprocess changed .+ partition Edits_0, .+",
        ),
        registered_as_mine(Edits),
    ):
        lower(Branches())
    with pytest.raises(ContractViolation, match=name), registered_as_mine(Edits):
        lower(Branches())


def test_a_backend_may_rewrite_copies_of_bodies_and_tensor_tables():
    class Copies(BackendDetails):
        @staticmethod
        def preprocess(edge_program, compile_specs):
            module = edge_program.graph_module
            for name, body in list(module.named_children()):
                setattr(module, name, copy.deepcopy(body))
            edit_body(edge_program)
            edge_program.state_dict["w"] = torch.zeros(1000, 3)
            return PreprocessResult(b"")

    with registered_as_mine(Copies):
        program = lower(Branches()).exported_program()
    torch.testing.assert_close(program.module()(X), Branches()(X))


def registered_as_mine(backend):
    who = CapabilityPartitioner(lambda n: None, backend.__name__)
    return delegraph.register(backend, partitioner=who, name="mine")


def lower(module, inputs=(X,)):
    return delegraph.lower(module.eval(), inputs, backends=["mine"])


class Sine(nn.Module):
    def forward(self, x):
        return torch.sin(x)


class Hands(Partitioner):
    """Tags every call, and returns ``make(exported_program)``."""

    def __init__(self, make, tag="t"):
        super().__init__()
        self.make = make
        self.tag = tag

    def partition(self, exported_program):
        for node in exported_program.graph.nodes:
            if node.op == "call_function":
                node.meta["delegation_tag"] = self.tag
        return self.make(exported_program)


def one_partition(spec, tag="t", **more):
    return lambda program: PartitionResult(program, {tag: spec}, **more)


ECHO = DelegationSpec("EchoBackend")


@pytest.mark.parametrize(
    ("make", "tag", "text"),
    [
        (lambda p: None, "t", " returned NoneType, not a PartitionResult"),
        (
            one_partition(("EchoBackend", ())),
            "t",
            " returned tuple for tag 't'; a DelegationSpec is wanted",
        ),
        (one_partition(ECHO, 3), 3, " returned the tag 3 (int); a tag is a str"),
        (one_partition(ECHO), 3, ": sin has the tag 3 (int); a tag is a str"),
        (one_partition(ECHO), 0, ": sin has the tag 0 (int); a tag is a str"),
        (
            one_partition(ECHO),
            ("t", 1),
            ": sin has the tag ('t', 1) (tuple); a tag is a str",
        ),
        (one_partition(DelegationSpec(EchoBackend)), "t", " returned <class"),
        (
            one_partition(DelegationSpec("")),
            "t",
            (
                " returned '' (str) as backend_id of tag 't'; the name of a backend is"
                " wanted"
            ),
        ),
        (
            one_partition(DelegationSpec("EchoBackend", None)),
            "t",
            " returned None (NoneType) as compile_specs of tag 't'",
        ),
        (
            one_partition(DelegationSpec("EchoBackend", ["k"])),
            "t",
            " returned 'k' (str) among the compile_specs of tag 't'; a",
        ),
        (
            one_partition(DelegationSpec("EchoBackend", [CompileSpec(3, b"")])),
            "t",
            " returned CompileSpec(key=3, value=b'')",
        ),
        (
            one_partition(ECHO, boundary_types={"x": "int32"}),
            "t",
            " returned 'int32' (str) as boundary type of 'x'",
        ),
        (
            one_partition(ECHO, boundary_types=[]),
            "t",
            " returned [] (list) as boundary_types; a dict",
        ),
        (
            one_partition(ECHO, refusals=["sin"]),
            "t",
            " returned 'sin' (str) among its refusals; a Refusal",
        ),
        (
            one_partition(ECHO, refusals=None),
            "t",
            " returned None (NoneType) as refusals; a list of Refusal is wanted",
        ),
    ],
)
def test_results_of_partitioners_are_checked(make, tag, text, registry):
    with pytest.raises(ContractViolation, match=re.escape(f"partitioner Hands{text}")):
        delegraph.lower(
            Sine().eval(), (X,), backends=[Hands(make, tag)], registry=registry
        )


def result_with_data(data):
    return PreprocessResult(b"", data_store_output=data)


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (None, "None for partition Made_0; a PreprocessResult with bytes"),
        (b"blob", "b'blob' for partition Made_0; a PreprocessResult with bytes"),
        (
            PreprocessResult("text"),
            "str for partition Made_0; a PreprocessResult with bytes",
        ),
        (
            PreprocessResult(Blob),
            "_ProtocolMeta for partition Made_0; a PreprocessResult with bytes",
        ),
        (
            PreprocessResult(b"", [1]),
            "a debug_handle_map that is a list for partition Made_0",
        ),
        (
            PreprocessResult(b"", {1.5: (1,)}),
            "a debug_handle_map with the identifier 1.5",
        ),
        (
            PreprocessResult(b"", {True: (1,)}),
            "a debug_handle_map with the identifier True",
        ),
        (
            PreprocessResult(b"", {0: 1}),
            "a debug_handle_map with 1 as the handles of 0",
        ),
        (
            PreprocessResult(b"", {0: (1, 99)}),
            "a debug_handle_map with debug handle 99 for 0, which no node",
        ),
        (
            PreprocessResult(b"", {0: ("1",)}),
            "a debug_handle_map with debug handle '1' for 0",
        ),
        (
            result_with_data(NamedDataStore()),
            ("unusable named data for partition Made_0; a NamedDataStore was given"),
        ),
        (
            result_with_data({}),
            (
                "unusable named data for partition Made_0; a NamedDataStoreOutput is"
                " wanted, not dict"
            ),
        ),
        (
            result_with_data(NamedDataStoreOutput([b""], {"k": DataEntry(1, 1)})),
            "unusable named data for partition Made_0; named",
        ),
    ],
)
def test_results_of_backends_are_checked(result, text):
    class Made(BackendDetails):
        @staticmethod
        def preprocess(edge_program, compile_specs):
            return result

    with (
        pytest.raises(
            ContractViolation, match=re.escape(f"Made.preprocess returned {text}")
        ),
        registered_as_mine(Made),
    ):
        lower(Sine())


def preprocess_with_self(self, edge_program, compile_specs):
    raise NotImplementedError


def load_with_self(self, processed_bytes, compile_specs, named_data):
    raise NotImplementedError


@pytest.mark.parametrize(
    ("base", "name", "method"),
    [
        (BackendDetails, "preprocess", preprocess_with_self),
        (BackendRuntime, "load", load_with_self),
    ],
)
def test_a_forgotten_staticmethod_is_refused_when_the_class_is_made(base, name, method):
    text = (
        rf"(?s)Mine\.{name} cannot be called on the class with .+@staticmethod missing"
    )
    with pytest.raises(ContractViolation, match=text):
        type("Mine", (base,), {name: method})


class Steps(nn.Module):
    """Uses a weight that contains other tensors."""

    def __init__(self, weight):
        super().__init__()
        self.w = nn.Parameter(weight, requires_grad=False)

    def forward(self, x):
        return torch.sin(x) + torch.sin(x + self.w)


def test_a_weight_without_bytes_is_refused_with_line_and_hint(registry):
    module = Steps(TwoTensor(torch.ones(3), torch.zeros(3))).eval()
    echo = CapabilityPartitioner(lambda n: None, "EchoBackend")
    with pytest.raises(
        InputError,
        match="w is a TwoTensor, and torch.export has not traced the tensors in it",
    ) as refused:
        delegraph.lower(module, (X,), backends=[echo], registry=registry)
    assert "torch.sin(x + self.w)" in str(refused.value)
    assert "unwrap_tensor_subclass_parameters" in refused.value.hint


def test_weights_of_inference_mode_are_lowered(registry):
    with torch.inference_mode():
        module = Steps(torch.ones(3)).eval()
    echo = CapabilityPartitioner(lambda n: None, "EchoBackend")
    lowered = delegraph.lower(module, (X,), backends=[echo], registry=registry)
    torch.testing.assert_close(lowered(X), module(X).clone())


class Counts(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(3), requires_grad=False)

    def forward(self, x):
        self.w.add_(x)
        return self.w * 2


class Keeps(CapabilityPartitioner):
    def __init__(self):
        super().__init__(lambda n: None, "EchoBackend")

    def partition(self, exported_program):
        result = super().partition(exported_program)
        tag_mutated_buffer(exported_program)
        return result


def test_a_delegate_may_keep_a_written_parameter(registry):
    module = Counts().eval()
    reference = Counts().eval()
    lowered = delegraph.lower(module, (X,), backends=[Keeps()], registry=registry)
    inner = lowered.delegates[0].module
    assert inner.state == ("w",)
    assert isinstance(inner.original_module.state_dict["w"], nn.Parameter)

    kept = inner.original_module.module()
    for _ in range(3):
        torch.testing.assert_close(kept(X)[0], reference(X))
    assert module.w.tolist() == [0, 0, 0], "the caller's parameter was written"


def test_every_get_attr_has_a_type(registry):
    class Seen(BackendDetails):
        @staticmethod
        def preprocess(edge_program, compile_specs):
            fetching = [
                node for node in edge_program.graph.nodes if node.op == "get_attr"
            ]
            assert fetching
            assert all(n.meta["val"] is None for n in fetching)
            return PreprocessResult(b"")

    class Wrapped(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, x):
            return self.inner(x) + 1

    with registered_as_mine(Seen), delegraph.register(EchoBackend, name="inner"):
        inner = to_backend("EchoBackend", torch.export.export(Sine(), (X,)))
        lower_whole = to_backend("Seen", torch.export.export(Wrapped(inner), (X,)))
        lower(Branches())

    assert lower_whole.backend_id == "Seen"


# --- recorded types -------------------------------------------------------------------


def partitioner_changing_values(change):
    """Return a partitioner that changes the recorded values of all nodes."""

    class Changing(CapabilityPartitioner):
        def __init__(self):
            super().__init__(lambda node: None, "EchoBackend")

        def partition(self, exported_program):
            result = super().partition(exported_program)
            for node in exported_program.graph.nodes:
                if "val" in node.meta:
                    change(node.meta)
            return result

    return Changing()


CHANGED = {
    "none": lambda meta: meta.update(val=None),
    "gone": lambda meta: meta.pop("val"),
    "dtype": lambda meta: meta.update(val=meta["val"].to(torch.float64)),
    "rank": lambda meta: meta.update(val=meta["val"].unsqueeze(0)),
}


@pytest.mark.parametrize("change", CHANGED.values(), ids=CHANGED)
def test_lower_names_a_partitioner_that_removes_recorded_types(registry, change):
    with pytest.raises(
        ContractViolation,
        match=(
            r"partitioner Changing changed the recorded type of input \(meta\['val'\]\)"
        ),
    ):
        delegraph.lower(
            nn.ReLU().eval(),
            (X,),
            backends=[partitioner_changing_values(change)],
            registry=registry,
        )


def test_partitioner_may_recompute_recorded_values(registry):
    """Passes that analyse a graph do so. The program keeps its own values."""
    again = partitioner_changing_values(
        lambda meta: meta.update(val=meta["val"].clone())
    )
    lowered = delegraph.lower(
        nn.ReLU().eval(), (X,), backends=[again], registry=registry
    )

    assert torch.equal(lowered(-X), torch.zeros(3))
    assert len(lowered.delegates) == 1
