"""An installed plugin with a backend and a program format of its own."""

import shutil
from pathlib import Path

import pytest

from .registries import registry_of

ZIP = Path(__file__).with_name("zip_format.py")
PLUGIN = """
from delegraph.plugin import BackendSpec, FormatSpec, PartitionerSpec, RuntimeSpec, hookimpl

@hookimpl
def delegraph_backends():
    return [BackendSpec("self", "zip_format:SelfContainedBackend", "SelfContainedBackend", 1)]

@hookimpl
def delegraph_partitioners():
    return [PartitionerSpec("self", "self", "zip_format:NoSort", default=True)]

@hookimpl
def delegraph_runtimes():
    return [RuntimeSpec("self", "zip_format:SelfContainedRuntime")]

@hookimpl
def delegraph_formats():
    return [FormatSpec(".zipped", "zip_format:ZipFormat", "a zip of blobs and a JSON")]
"""


@pytest.fixture
def zipped(site):
    """A registry with an installed plugin that has a backend and a program format."""
    shutil.copy(ZIP, site.folder)
    site.plugin("zip-vendor", PLUGIN, version="2.5")
    return registry_of("zip-vendor")
