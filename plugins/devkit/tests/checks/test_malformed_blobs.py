"""Damaged copies of a blob."""

from delegraph_devkit.checks.malformed_blobs import _copies

from ..support import bad_backends as backends
from ..support.kit import backend_under_test


def test_no_byte_is_changed_without_a_checksum():
    module = (
        backend_under_test(backends.register_good)
        .lowered[0]
        .lowered.delegates[0]
        .module
    )
    tried = [copy.text for copy in _copies(module, checksum=False)]
    assert any("without named data" in text for text in tried)
    assert any("the first 8 of" in text for text in tried)
    assert not any(text.startswith("a copy with byte") for text in tried)
