"""The whole conformance kit."""

import pytest
from delegraph_devkit import GATE, BackendContract

pytest.importorskip("coreai_torch")


@pytest.mark.slow
# Core AI's log has no setting that disables it
@pytest.mark.filterwarnings("ignore:coreai. lowering and running prints")
class TestCoreAI(BackendContract):
    backend = "coreai"
    gate = GATE
