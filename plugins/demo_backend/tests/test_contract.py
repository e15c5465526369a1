"""Both demo backends keep the rules of the conformance kit."""

import pytest
from delegraph_demo.backend import BackendWithDelegateMappingDemo
from delegraph_devkit import GATE, BackendContract


class TestDemo(BackendContract):
    backend = "demo"
    gate = 4
    example = staticmethod(BackendWithDelegateMappingDemo.get_test_model_and_inputs)


@pytest.mark.slow
class TestCompilerDemo(BackendContract):
    backend = "compiler-demo"
    gate = 12


@pytest.mark.slow
class TestCompilerDemoAtLength(BackendContract):
    backend = "compiler-demo"
    gate = GATE
