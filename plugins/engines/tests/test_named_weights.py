"""``add_by_content`` stores a weight under a key that depends on its elements."""

from __future__ import annotations

import pytest
import torch
from delegraph.backend import NamedDataStore
from delegraph.errors import NamedDataError
from delegraph_engines import add_by_content


@pytest.fixture
def equal_fingerprints(monkeypatch):
    """Give all tensors the same fingerprint."""
    monkeypatch.setattr(
        "delegraph_engines.named_weights.fingerprint", lambda tensor: "f"
    )


@pytest.mark.usefixtures("equal_fingerprints")
def test_different_tensors_with_one_fingerprint_get_different_keys():
    store = NamedDataStore()

    ones = add_by_content(store, "w/", torch.ones(3))
    zeros = add_by_content(store, "w/", torch.zeros(3))
    ones_again = add_by_content(store, "w/", torch.ones(3))

    assert ones == ones_again == "w/f"
    assert zeros.startswith("w/f")
    assert zeros != "w/f"
    sizes = [len(data) for data in store.get_named_data_store_output().buffers]
    assert sizes == [3 * 4, 3 * 4]  # three floats of 4 bytes each


@pytest.mark.usefixtures("equal_fingerprints")
def test_a_tensor_without_elements_in_memory_is_refused():
    with pytest.raises(NamedDataError, match="meta"):
        add_by_content(NamedDataStore(), "w/", torch.ones(3, device="meta"))
