"""Named data: bytes with a key that are stored next to the blobs.

A row names the test of ExecuTorch that a test here repeats.
"""

import delegraph
import pytest
import torch
from delegraph.backend import (
    BackendDetails,
    NamedDataStore,
    PreprocessResult,
    TensorLayout,
)
from delegraph.errors import ContractViolation, NamedDataError, NamedDataTypeError
from delegraph_executorch.edge import (
    externalize_pte_data,
    merged_named_data,
    to_backend,
    to_edge,
)

from . import backends
from .backends import aten, export, partitioner_for

CODES = {
    op: bytes(k)
    for k, op in enumerate(
        (
            aten.sin.default,
            aten.add.Tensor,
            aten.sub.Tensor,
            aten.mul.Tensor,
            aten.div.Tensor,
        )
    )
}


class NamedBackend(BackendDetails):
    """Makes an empty blob. Each operator is an entry of named data."""

    @staticmethod
    def preprocess(edge_program, compile_specs):
        store = NamedDataStore()
        for node in edge_program.graph.nodes:
            if node.target in CODES:
                store.add_named_data(str(node.target), CODES[node.target])
        return PreprocessResult(b"", {}, store.get_named_data_store_output())


@pytest.fixture(autouse=True)
def installed():
    with backends.installed(NamedBackend):
        yield


def named_data_partitioner():
    return partitioner_for(*CODES, backend="NamedBackend")


def test_a_lowered_module_has_the_data_of_its_backend():
    """Row: named_data.test_lowered_backend_module_has_output"""
    program = to_edge(export(lambda s, x: x + x, torch.randn(1, 2))).exported_program()
    store = to_backend("NamedBackend", program, []).named_data_store_output
    assert store.buffers == [bytes(1)]
    assert list(store.pte_data) == ["aten.add.Tensor"]


def test_data_of_all_partitions_are_in_one_store():
    """Row: named_data.test_named_data_with_partitioner"""

    def function(s, x):
        y = torch.cos(x + x)
        y = torch.sin(y + y)
        return y - y

    edge = to_edge(export(function, torch.randn(1, 2))).to_backend(
        named_data_partitioner()
    )
    store = edge.named_data

    assert list(store.pte_data) == [
        "aten.add.Tensor",
        "aten.sin.default",
        "aten.sub.Tensor",
    ]
    assert store.buffers == [bytes(1), bytes(0), bytes(2)]


def test_data_of_branches_are_in_the_store():
    """Row: named_data.test_named_data_with_control_flow"""

    def function(s, x, y):
        z = x / y
        z = torch.cond(
            z.sum() > 0, lambda x: torch.sin(torch.cos(x * x)), torch.sin, [x]
        )
        return z - z

    edge = to_edge(export(function, torch.randn(1, 2), torch.randn(1, 2))).to_backend(
        named_data_partitioner()
    )
    names = [
        f"aten.{op}" for op in ("div.Tensor", "mul.Tensor", "sin.default", "sub.Tensor")
    ]

    assert sorted(edge.named_data.pte_data) == names
    assert len(edge.named_data.buffers) == 4


def test_data_of_all_methods_are_in_one_store():
    x = torch.randn(1, 2)
    programs = {
        "a": export(lambda s, x: x + x, x),
        "b": export(lambda s, x: (x + x) * x, x),
    }
    edge = to_edge(programs)
    store = edge.to_backend(named_data_partitioner()).named_data
    lowered = delegraph.lower(programs, backends=[named_data_partitioner()])

    assert lowered.named_data == store
    assert list(store.pte_data) == ["aten.add.Tensor", "aten.mul.Tensor"]
    assert len(store.buffers) == 2
    assert edge.named_data.buffers == []


def test_two_delegates_may_not_give_one_key_different_data(monkeypatch):
    x = torch.randn(1, 2)
    first = (
        to_edge(export(lambda s, x: x + x, x))
        .to_backend(named_data_partitioner())
        .exported_program()
    )
    monkeypatch.setitem(CODES, aten.add.Tensor, b"another")
    second = (
        to_edge(export(lambda s, x: x + x, x))
        .to_backend(named_data_partitioner())
        .exported_program()
    )

    assert len(merged_named_data([first, first]).buffers) == 1
    with pytest.raises(
        NamedDataError, match=r"'aten.add.Tensor' was added before with different data"
    ):
        merged_named_data([first, second])


# --- the store ------------------------------------------------------------------------


def fill_store(*entries):
    store = NamedDataStore()
    for entry in entries:
        store.add_named_data(**entry)
    return store, store.get_named_data_store_output()


def test_keys_with_equal_content_share_a_buffer():
    """The long entry ``c`` differs only in its last byte."""
    long = bytes(100)
    _, out = fill_store(
        {"key": "a", "data": long, "alignment": 4},
        {"key": "b", "data": long},
        {"key": "c", "data": long[:-1] + b"x", "external_tag": "f"},
        {"key": "d", "data": long, "external_tag": "f"},
    )

    assert out.buffers == [long, long[:-1] + b"x"]
    assert [out.pte_data[k].buffer_index for k in "ab"] == [0, 0]
    assert {k: e.buffer_index for k, e in out.external_data["f"].items()} == {
        "c": 1,
        "d": 0,
    }
    assert out.pte_data["a"].alignment == 4
    assert out.pte_data["b"].alignment == 1


def test_tensors_are_stored_in_c_order_with_their_layout():
    value = torch.arange(6, dtype=torch.int16).reshape(2, 3).t()
    _, out = fill_store(
        {"key": "t", "data": value},
        {"key": "half", "data": torch.ones(2, dtype=torch.bfloat16)},
    )

    assert out.pte_data["t"].tensor_layout == TensorLayout(torch.int16, (3, 2))
    assert out.buffers[0] == value.contiguous().numpy().tobytes()
    assert out.pte_data["half"].tensor_layout == TensorLayout(torch.bfloat16, (2,))
    assert len(out.buffers[1]) == 4


@pytest.mark.parametrize(
    ("entry", "kind", "text"),
    [
        (
            {"key": "a", "data": b"other"},
            ValueError,
            "'a' was added before with different data",
        ),
        (
            {"key": "b", "data": b"x", "alignment": 0},
            ValueError,
            "alignment 0 is not positive",
        ),
        (
            {"key": "b", "data": b"x", "alignment": -2},
            ValueError,
            "alignment -2 is not positive",
        ),
        (
            {"key": "b", "data": "text"},
            TypeError,
            "'b' is str; bytes or a tensor are wanted",
        ),
        (
            {
                "key": "b",
                "data": torch.ones(2),
                "tensor_layout": TensorLayout(torch.float32, (3,)),
            },
            ValueError,
            "tensor of layout",
        ),
        (
            {"key": "a", "data": b"x", "tensor_layout": TensorLayout(torch.int8, (1,))},
            ValueError,
            "with layout None",
        ),
    ],
)
def test_wrong_entries_are_refused_and_not_stored(entry, kind, text):
    store, out = fill_store({"key": "a", "data": b"x"})
    with pytest.raises(kind, match=text) as caught:
        store.add_named_data(**entry)
    assert isinstance(caught.value, (NamedDataError, NamedDataTypeError))
    assert isinstance(caught.value, ContractViolation)
    assert out.buffers == [b"x"]
    assert list(out.pte_data) == ["a"]
    assert not out.external_data


def test_external_files_are_filled_in_the_order_of_keys():
    """Keys that share a buffer stay in one file. The order of adding does not matter."""
    entries = [
        {"key": k, "data": bytes([n]) * 4}
        for k, n in (("d", 1), ("b", 2), ("a", 1), ("c", 3))
    ]
    stores = [fill_store(*order)[0] for order in (entries, entries[::-1])]
    for store in stores:
        externalize_pte_data(store.get_named_data_store_output(), 8, "weights")
    first, second = (s.get_named_data_store_output() for s in stores)

    assert [sorted(shard) for shard in first.external_data.values()] == [
        ["a", "b", "d"],
        ["c"],
    ]
    assert list(first.external_data) == list(second.external_data)
    assert not first.pte_data
    assert all(name.startswith("weights_") for name in first.external_data)
    with pytest.raises(NamedDataError, match="is in weights_"):
        stores[0].add_named_data("a", bytes([1]) * 4)


@pytest.mark.parametrize(("limit", "prefix"), [(0, "w"), (-1, "w"), (8, ""), (3, "w")])
def test_nothing_moves_if_a_file_cannot_be_made(limit, prefix):
    _, out = fill_store({"key": "a", "data": b"12"}, {"key": "b", "data": b"1234"})
    with pytest.raises(NamedDataError):
        externalize_pte_data(out, limit, prefix)
    assert list(out.pte_data) == ["a", "b"]
    assert not out.external_data


def test_alignment_of_a_repeated_key_is_the_least_common_multiple():
    """ExecuTorch documents this rule."""
    store, out = fill_store(
        {"key": "a", "data": b"x", "alignment": 4},
        {"key": "a", "data": b"x", "alignment": 6},
    )
    assert out.pte_data["a"].alignment == 12

    other = fill_store({"key": "a", "data": b"x", "alignment": 8})[1]
    store.merge_named_data_store(other)
    assert out.pte_data["a"].alignment == 24


@pytest.mark.parametrize(("first", "second"), [(None, "f"), ("f", None), ("f", "g")])
def test_a_key_cannot_move_to_another_file(first, second):
    """ExecuTorch keeps the key in its first file without an error."""
    store, out = fill_store({"key": "a", "data": b"x", "external_tag": first})
    with pytest.raises(NamedDataError, match="'a' is in (the program file|f) already"):
        store.add_named_data("a", b"x", external_tag=second)
    assert set(out.external_data) == ({first} - {None})
    assert bool(out.pte_data) == (first is None)
