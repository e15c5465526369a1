"""A runtime refuses a blob of another version, and names both versions.

A row names the test of ExecuTorch that a test here repeats.
"""

import pytest
import torch
from delegraph.backend import CompileSpec
from delegraph.errors import FormatError
from delegraph_executorch.edge import to_backend, to_edge

from . import backends
from .backends import (
    assert_close,
    export,
    lowered_modules,
    partitioner_for_all,
    run_on_host,
)

SPECS = [CompileSpec("max_value", bytes([1]))]


@pytest.fixture(autouse=True)
def installed():
    with backends.installed():
        yield


def sine():
    return to_edge(export(lambda s, x: torch.sin(x), torch.ones(1)))


def assert_blob_needs_its_version(inner, run):
    """Check that the blob runs, and that it is refused with another version number."""
    x = torch.ones(1)
    assert_close(run(x), torch.sin(x))
    assert inner.processed_bytes.startswith(b"1 ")
    inner.blob = b"2 " + inner.processed_bytes[2:]
    with pytest.raises(
        FormatError, match="of version '2'; this runtime reads version 1"
    ):
        run(x)


def test_runtime_refuses_blobs_of_another_version():
    """Row: compat.test_compatibility_in_runtime"""
    lowered = to_backend("CompilerBackend", sine().exported_program(), SPECS)
    assert_blob_needs_its_version(
        lowered, lambda x: run_on_host(backends.export_wrapped(lowered, x), x)
    )


def test_delegates_of_a_manager_refuse_another_version():
    """Row: compat.test_compatibility_in_runtime_edge_program_manager"""
    program = sine().to_backend(partitioner_for_all(specs=SPECS)).exported_program()
    assert_blob_needs_its_version(
        *lowered_modules(program), lambda x: run_on_host(program, x)
    )
