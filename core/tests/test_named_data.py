"""``NamedDataStore``: stored entries, refused entries, and weights without a copy."""

import sys
from pathlib import Path

import delegraph
import pytest
import torch
from delegraph.backend import (
    BackendDetails,
    DataEntry,
    NamedDataStore,
    NamedDataStoreOutput,
    PreprocessResult,
    TensorLayout,
)
from delegraph.errors import ContractViolation, NamedDataError
from delegraph.partitioner import CapabilityPartitioner
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor


class Pieces:
    """A Blob of several bytes. ``says`` is a wrong length."""

    def __init__(self, *pieces, says=None):
        self.pieces = pieces
        self.says = says

    def __len__(self):
        return sum(map(len, self.pieces)) if self.says is None else self.says

    def write_to(self, file):
        for piece in self.pieces:
            file.write(piece)


def test_named_data_is_stored_once_by_content():
    store = NamedDataStore()
    store.add_named_data("a", b"same", alignment=4)
    store.add_named_data("b", b"same")
    store.add_named_data("c", b"other", external_tag="weights.ptd")
    out = store.get_named_data_store_output()

    assert out.buffers == [b"same", b"other"]
    assert out.pte_data["a"].buffer_index == out.pte_data["b"].buffer_index == 0
    assert list(out.external_data["weights.ptd"]) == ["c"]


def test_merged_stores_have_the_entries_of_both():
    one = NamedDataStore()
    two = NamedDataStore()
    one.add_named_data("a", b"x", alignment=2)
    two.add_named_data("a", b"x", alignment=3)
    two.add_named_data("b", b"y", external_tag="f")
    one.merge_named_data_store(two.get_named_data_store_output())
    out = one.get_named_data_store_output()

    assert out.pte_data["a"].alignment == 6
    assert "b" in out.external_data["f"]


@pytest.mark.parametrize("alignment", [0, -1, 1.5, True, "4", float("nan")])
def test_an_alignment_that_is_refused_changes_nothing(alignment):
    store = NamedDataStore()
    with pytest.raises(NamedDataError, match="'a' cannot be aligned"):
        store.add_named_data("a", b"x", alignment=alignment)
    assert store.get_named_data_store_output() == NamedDataStoreOutput()
    store.add_named_data("a", b"x", alignment=None)
    assert store.get_named_data_store_output().pte_data["a"].alignment == 1


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"key": 3, "data": b"x"}, "the key of named data is a str, not 3"),
        (
            {"key": "a", "data": b"x", "external_tag": ""},
            "goes to an external file by its name, not to ''",
        ),
        (
            {"key": "a", "data": b"x", "tensor_layout": (4,)},
            r"has a TensorLayout or none, not \(4,\)",
        ),
        ({"key": "a", "data": torch.ones(2, device="meta")}, "on the meta device"),
        (
            {"key": "a", "data": TwoTensor(torch.ones(2), torch.ones(2))},
            "the tensor is a TwoTensor",
        ),
        (
            {"key": "a", "data": Pieces},
            "'a' is type; bytes or a tensor are wanted, or a Blob",
        ),
        (
            {"key": "a", "data": Pieces(b"x", says=2)},
            r"Pieces.write_to wrote 1 bytes, and its len\(\) is 2",
        ),
    ],
)
def test_named_data_of_the_wrong_kind_changes_nothing(arguments, text):
    store = NamedDataStore()
    with pytest.raises(ContractViolation, match=text):
        store.add_named_data(**arguments)
    assert store.get_named_data_store_output() == NamedDataStoreOutput()


def test_a_merge_refuses_a_key_with_other_data():
    one = NamedDataStore()
    two = NamedDataStore()
    one.add_named_data("b", b"x", alignment=2)
    two.add_named_data("b", b"y")

    with pytest.raises(
        NamedDataError, match="'b' was added before with different data"
    ):
        one.merge_named_data_store(two.get_named_data_store_output())


@pytest.mark.parametrize(
    ("output", "text"),
    [
        (NamedDataStore(), "a NamedDataStore was given"),
        (None, "a NamedDataStoreOutput is wanted, not NoneType"),
        (
            NamedDataStoreOutput([], {"a": DataEntry(0, 1)}),
            "'a' has the entry .+, and there are 0 buffers",
        ),
        (
            NamedDataStoreOutput([b""], {"a": DataEntry(0, 0)}),
            "'a' has the alignment 0",
        ),
        (
            NamedDataStoreOutput(["text"], {"a": DataEntry(0, 1)}),
            "'a' is str; bytes or a tensor are wanted",
        ),
    ],
)
def test_only_outputs_of_stores_can_be_merged(output, text):
    with pytest.raises(ContractViolation, match=text):
        NamedDataStore().merge_named_data_store(output)


@pytest.mark.parametrize(
    "again",
    [
        b"some bytes",
        Pieces(b"some", b" bytes"),
        torch.tensor(list(b"some bytes")).byte(),
    ],
)
@pytest.mark.parametrize(
    "first",
    [
        b"some bytes",
        Pieces(b"some ", b"bytes"),
        torch.tensor(list(b"some bytes")).byte(),
    ],
)
def test_named_data_of_any_type_is_compared_by_content(first, again):
    layout = TensorLayout(torch.uint8, (10,))
    store = NamedDataStore()
    store.add_named_data("a", first, tensor_layout=layout)
    store.add_named_data("a", again, tensor_layout=layout)
    store.add_named_data("b", again)
    store.add_named_data("c", Pieces(b"some", b" bytez"))

    assert len(store.get_named_data_store_output().buffers) == 2
    with pytest.raises(
        NamedDataError, match="'a' was added before with different data"
    ):
        store.add_named_data("a", Pieces(b"some other"), tensor_layout=layout)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6.0).reshape(2, 3),
        torch.arange(6.0).reshape(2, 3).t(),
        torch.arange(12.0)[1::3],
        torch.ones(3).expand(400_000, 3),
        torch.tensor(3.5, dtype=torch.bfloat16),
        torch.ones(0, 3),
        torch.tensor([True, False]),
        torch.tensor([1 + 2j, 3 - 1j]).conj(),
        torch._neg_view(torch.ones(3)),
    ],
)
def test_a_tensor_is_named_data_by_reference_in_c_order(tensor):
    store = NamedDataStore()
    store.add_named_data("t", tensor)
    (data,) = store.get_named_data_store_output().buffers
    dense = tensor.resolve_conj().resolve_neg().contiguous().clone()
    assert bytes(data) == dense.reshape(-1).view(torch.uint8).numpy().tobytes()
    assert len(data) == len(bytes(data))


@pytest.mark.parametrize(
    "change",
    [lambda t: t.add_(1), lambda t: t.data.add_(1), lambda t: t.set_(torch.ones(5))],
)
def test_tensors_changed_after_adding_are_refused(change):
    tensor = torch.arange(5.0)
    store = NamedDataStore()
    store.add_named_data("t", tensor)
    change(tensor)

    with pytest.raises(
        ContractViolation,
        match=r"a tensor of shape \[5\] was changed after it was added",
    ):
        bytes(store.get_named_data_store_output().buffers[0])


class NamingBackend(BackendDetails):
    """Makes every weight named data."""

    @staticmethod
    def preprocess(edge_program, compile_specs):
        store = NamedDataStore()
        for name, tensor in edge_program.state_dict.items():
            store.add_named_data(name, tensor, alignment=16)
        return PreprocessResult(
            b"", data_store_output=store.get_named_data_store_output()
        )


class Twice(nn.Module):
    """Uses one weight before and after a sort."""

    def __init__(self, size):
        super().__init__()
        self.w = nn.Parameter(torch.ones(size), requires_grad=False)

    def forward(self, x):
        return torch.sort(x * self.w)[0] + self.w


@pytest.mark.skipif(
    sys.platform != "linux", reason="reads the peak resident set from /proc"
)
def test_a_weight_that_two_partitions_name_is_never_copied(tmp_path):
    megabyte = 1 << 20
    program = torch.export.export(
        Twice(137 * megabyte // 4), (torch.ones(137 * megabyte // 4),)
    )
    who = CapabilityPartitioner(
        lambda n: "a sort" if "sort" in str(n.target) else None, "NamingBackend"
    )

    def run(program):
        with delegraph.register(NamingBackend, partitioner=who, name="naming"):
            lowered = delegraph.lower(program, backends=["naming"])
        assert len(lowered.delegates) == 2
        (data,) = lowered.named_data.buffers
        with open(tmp_path / "data", "wb") as file:
            data.write_to(file)

    run(torch.export.export(Twice(3), (torch.ones(3),)))
    before = peak_after_reset()
    run(program)

    assert (tmp_path / "data").stat().st_size == 137 * megabyte
    assert peak() - before < 10 * megabyte


def peak_after_reset():
    Path("/proc/self/clear_refs").write_text("5")
    return peak()


def peak():
    """Return the largest memory of this process since the reset, in bytes."""
    (line,) = (
        x
        for x in Path("/proc/self/status").read_text().splitlines()
        if x.startswith("VmHWM")
    )
    return int(line.split()[1]) * 1024
