"""``add_by_content``: keys of weights by their elements."""

from __future__ import annotations

import pytest
import torch
from delegraph.backend import NamedDataStore
from delegraph.errors import NamedDataError
from delegraph_engines import add_by_content


def test_different_tensors_with_one_fingerprint_get_different_keys(monkeypatch):
    monkeypatch.setattr(
        "delegraph_engines.named_weights.fingerprint", lambda tensor: "f"
    )
    store = NamedDataStore()
    keys = [
        add_by_content(store, "w/", tensor)
        for tensor in (torch.ones(3), torch.zeros(3), torch.ones(3))
    ]
    assert keys[0] == keys[2] == "w/f"
    assert keys[1].startswith("w/f")
    assert keys[1] != "w/f"
    assert [len(data) for data in store.get_named_data_store_output().buffers] == [
        12,
        12,
    ]
    with pytest.raises(NamedDataError, match="meta"):
        add_by_content(store, "w/", torch.ones(3, device="meta"))
