"""The whole conformance kit."""

import pytest
from delegraph_devkit import GATE, BackendContract

pytest.importorskip("coreai_torch")


@pytest.mark.slow
class TestCoreAI(BackendContract):
    backend = "coreai"
    gate = GATE
