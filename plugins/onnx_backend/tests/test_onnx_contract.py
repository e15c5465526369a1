"""The whole conformance kit."""

import pytest
from delegraph_devkit import GATE, BackendContract


@pytest.mark.slow
class TestOnnx(BackendContract):
    backend = "onnx"
    gate = GATE
