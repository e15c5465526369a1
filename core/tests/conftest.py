"""A backend for tests of the core: its blob names the program that it was given, its runtime runs exactly that."""

from __future__ import annotations

import pytest
import torch
from delegraph.backend import BackendDetails, PreprocessResult
from delegraph.registry import Registry
from delegraph.runtime import BackendRuntime

torch.set_num_threads(1)
COMPILED = {}


class EchoBackend(BackendDetails):
    @staticmethod
    def preprocess(edge_program, compile_specs):
        name = f"program {len(COMPILED)}".encode()
        COMPILED[name] = edge_program
        return PreprocessResult(name)


class EchoRuntime(BackendRuntime):
    @staticmethod
    def load(processed_bytes, compile_specs, named_data):
        module = COMPILED[processed_bytes].module(check_guards=False)
        return lambda *args: tuple(module(*args))


@pytest.fixture
def registry():
    made = Registry(discover=False)
    made.register(EchoBackend, runtime=EchoRuntime)
    yield made
    COMPILED.clear()


@pytest.fixture(scope="module")
def echo_registry():
    """For property tests, which share one fixture over all their examples."""
    made = Registry(discover=False)
    made.register(EchoBackend, runtime=EchoRuntime)
    return made
