"""``externalize_pte_data``: named data moves to external files of a limited size."""

from __future__ import annotations

import copy

import pytest
from delegraph.backend import NamedDataStore
from delegraph.errors import NamedDataError
from delegraph_executorch.edge import externalize_pte_data


@pytest.mark.parametrize("cap", [0, -1, True, 1.5, "10", None])
def test_a_file_size_that_is_refused_changes_nothing(cap):
    store = NamedDataStore()
    store.add_named_data("a", b"x")
    with pytest.raises(NamedDataError, match="max_data_bytes must be a positive"):
        externalize_pte_data(store.get_named_data_store_output(), cap, "f")
    assert list(store.get_named_data_store_output().pte_data) == ["a"]


def test_external_files_never_overwrite_one_another():
    probe = NamedDataStore()
    probe.add_named_data("b", b"other")
    externalize_pte_data(probe.get_named_data_store_output(), 10, "f")
    (taken,) = probe.get_named_data_store_output().external_data
    store = NamedDataStore()
    store.add_named_data("first", b"x", external_tag=taken)
    store.add_named_data("a", b"1234567890")
    store.add_named_data("b", b"other")
    before = copy.deepcopy(store.get_named_data_store_output())
    with pytest.raises(
        NamedDataError, match=f"'b' would go to {taken}, which exists already"
    ):
        externalize_pte_data(store.get_named_data_store_output(), 10, "f")
    assert store.get_named_data_store_output() == before
    store.add_named_data("first", b"x", external_tag=taken)
