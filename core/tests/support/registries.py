"""Registries with some of the installed plugins."""

import pytest
from delegraph.discovery.registry import Registry


def registry_of(*plugins):
    """A registry that has loaded these plugins only: names as in DELEGRAPH_PLUGINS."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DELEGRAPH_PLUGINS", ",".join(plugins))
        registry = Registry()
        registry.read()
    return registry
