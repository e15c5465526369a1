"""Both demo backends keep the rules of the conformance kit."""

from delegraph.testing import BackendContract
from delegraph_demo.backend import BackendWithDelegateMappingDemo


class TestDemo(BackendContract):
    backend = "demo"
    example = staticmethod(BackendWithDelegateMappingDemo.get_test_model_and_inputs)


class TestCompilerDemo(BackendContract):
    backend = "compiler-demo"
