"""Tests of ``delegraph.lower(compiler=...)`` and of the default compiler."""

from __future__ import annotations

import argparse

import delegraph
import pytest
import torch
from delegraph.backend import BackendDetails, PreprocessResult
from delegraph.command import add_compiler_flags, chosen_compiler, compiler_flags
from delegraph.compiler import Compiled, Refused, compile_here
from delegraph.discovery.records import PluginRecord
from delegraph.discovery.registry import Registry
from delegraph.errors import (
    ContractViolation,
    OptionError,
    PluginConflict,
    PluginUnavailable,
    Unsupported,
    UsageError,
)
from delegraph.partitioner import CapabilityPartitioner
from delegraph.plugin import (
    BackendSpec,
    BackendTraits,
    CompilerSpec,
    FlagSpec,
    hookimpl,
)
from delegraph_executorch.edge import to_backend


class TextBackend(BackendDetails):
    @staticmethod
    def preprocess(edge_program, compile_specs):
        return PreprocessResult(str(edge_program.graph).encode())


class Steps(torch.nn.Module):
    def forward(self, x):
        return ((x + 1).sin() + 2).sin()


class Here:
    """A compiler that compiles in this process. It is its own session."""

    def __init__(self):
        self.requests = []
        self.notes = ["this one compiles here"]
        self.open = 0

    def session(self, registry, backends):
        self.asked = list(backends)
        return self

    def __enter__(self):
        self.open += 1
        return self

    def __exit__(self, *raised):
        self.open -= 1

    def partition(self, partitioner, program):
        assert self.open
        return partitioner(program)

    def compile(self, requests):
        assert self.open
        self.requests += requests
        return compile_here(requests)


class RefusingTheFirst(Here):
    def compile(self, requests):
        answers = super().compile(requests)
        return [
            Compiled(Refused(Unsupported("unsupported", "not today"))),
            *answers[1:],
        ]


class AnsweringOne(Here):
    def compile(self, requests):
        return super().compile(requests)[:1]


def partitioner_for_additions():
    return CapabilityPartitioner(
        lambda n: None if "add" in str(n.target) else "no", "TextBackend"
    )


@pytest.fixture
def registry():
    registry = Registry(discover=False)
    registry.register(TextBackend, partitioner=partitioner_for_additions(), name="text")
    return registry


def lower_steps(registry, compiler=None, backends=None):
    used = backends or [partitioner_for_additions()]
    return delegraph.lower(
        Steps().eval(),
        (torch.ones(2),),
        backends=used,
        registry=registry,
        compiler=compiler,
    )


def blobs_of(result):
    return [delegate.processed_bytes for delegate in result.delegates]


def test_registered_compiler_gets_each_partition(registry):
    here = Here()
    result = lower_steps(registry, here, ["text"])
    assert blobs_of(result) == blobs_of(lower_steps(registry))
    assert here.asked == ["text"]
    assert here.open == 0
    assert [r.tag for r in here.requests] == ["TextBackend_0", "TextBackend_1"]
    assert {(r.method, r.backend.kind, r.backend.full_name) for r in here.requests} == {
        ("forward", TextBackend, "in-process/text")
    }
    assert "this one compiles here" in result.report.notes


def test_partitions_that_a_compiler_refuses_stay_on_the_host(registry):
    result = lower_steps(registry, RefusingTheFirst())
    assert len(result.delegates) == 1
    assert [row.reason for row in result.report.given_back] == ["not today"]
    assert "add" in str(result.exported_program().graph)


def test_a_compiler_must_answer_every_request(registry):
    with pytest.raises(
        ContractViolation, match="AnsweringOne returned 1 answers for 2 requests"
    ):
        lower_steps(registry, AnsweringOne())


@pytest.mark.parametrize("wrong", ["process", 3, Here])
def test_objects_without_a_session_are_refused(registry, wrong):
    with pytest.raises(
        OptionError, match="compiler is an object with a method session"
    ):
        lower_steps(registry, wrong)


def test_extract_gives_a_fresh_program_each_time(registry):
    class Rewriting(Here):
        def compile(self, requests):
            for request in requests:
                first = request.extract()
                for node in first.graph.nodes:
                    node.name = f"changed_{node.name}"
                assert "changed" not in str(request.extract().graph)
            return super().compile(requests)

    result = lower_steps(registry, Rewriting())
    assert blobs_of(result) == blobs_of(lower_steps(registry))
    assert all(
        "changed" not in str(delegate.module.original_module.graph)
        for delegate in result.delegates
    )


def test_to_backend_raises_a_refusal_of_the_compiler(registry):
    """It returns no report that could list the refusal."""

    class TextBackend(BackendDetails):
        @staticmethod
        def preprocess(edge_program, compile_specs):
            raise Unsupported("unsupported", "no room")

    with delegraph.register(TextBackend), pytest.raises(Unsupported, match="no room"):
        to_backend(
            torch.export.export(Steps(), (torch.ones(2),)), partitioner_for_additions()
        )


# --- the default


@pytest.fixture
def no_compilers(monkeypatch):
    """Let no distribution declare a compiler."""
    monkeypatch.setattr(Registry, "declared", lambda self, kind: [])


def test_a_note_mentions_a_cache_without_its_compiler(
    registry, no_compilers, monkeypatch, tmp_path
):
    monkeypatch.setenv("DELEGRAPH_CACHE", str(tmp_path / "kept"))
    result = lower_steps(registry)
    note = (
        "the cache of DELEGRAPH_CACHE comes with delegraph-workers, which is not"
        " installed"
    )

    assert f"{note}: pip install delegraph-workers" in result.report.notes
    assert len(result.delegates) == 2
    assert not (tmp_path / "kept").exists()


def isolated():
    registry = Registry(discover=False)
    registry.register(
        BackendSpec(
            "text",
            f"{__name__}:TextBackend",
            "TextBackend",
            1,
            traits=BackendTraits(isolated=True),
        )
    )
    return registry


def test_an_isolated_backend_needs_a_compiler_that_isolates(no_compilers):
    with pytest.raises(
        PluginUnavailable, match="comes with delegraph-workers"
    ) as error:
        lower_steps(isolated())
    assert error.value.hint == "pip install delegraph-workers"


class OffersCompiler:
    """A plugin that declares the default compiler."""

    made = None

    @hookimpl
    def delegraph_compilers(self):
        return [CompilerSpec("here", f"{__name__}:make_here", default=True)]


def make_here(**options):
    OffersCompiler.made = Here()
    return OffersCompiler.made


def test_the_default_compiler_gets_isolated_backends(monkeypatch):
    registry = isolated()
    registry.register(OffersCompiler())
    assert blobs_of(lower_steps(registry)) == blobs_of(lower_steps(registry, Here()))
    assert len(OffersCompiler.made.requests) == 2
    assert OffersCompiler.made.open == 0


def test_the_default_compiler_is_used_if_a_cache_is_set(registry, monkeypatch):
    registry.register(OffersCompiler())
    OffersCompiler.made = None
    lower_steps(registry)
    assert OffersCompiler.made is None
    monkeypatch.setenv("DELEGRAPH_CACHE", "somewhere")
    lower_steps(registry)
    assert len(OffersCompiler.made.requests) == 2


# --- flags


def declarations_of(*owners, target="make_here"):
    flag = FlagSpec("speed", int, help="how fast", metavar="N")
    spec = CompilerSpec(
        "here", f"{__name__}:{target}", (flag, FlagSpec("near", bare="yes"))
    )
    return [(spec, PluginRecord(name, name, "1.0", f"{name}.py")) for name in owners]


def parser_with_flags(monkeypatch, *owners):
    """Return a parser with the flags of compilers, and the dict of options it will
    fill.
    """
    actual = {}

    class Found(Registry):
        def declared(self, kind):
            return declarations_of(*owners)

        def get(self, kind, asked):
            return lambda **options: actual.update(options) or asked

    found = Found(discover=False)
    monkeypatch.setattr(compiler_flags, "default_registry", lambda: found)
    parser = argparse.ArgumentParser()
    add_compiler_flags(parser)
    return parser, actual


def test_flags_of_a_compiler_become_its_options(monkeypatch):
    parser, actual = parser_with_flags(monkeypatch, "acme")
    assert chosen_compiler(parser.parse_args([])) is None
    assert chosen_compiler(parser.parse_args(["--speed", "3", "--near"])) == "acme/here"
    assert actual == {"speed": 3, "near": "yes"}


def test_a_conflict_of_flags_names_both_distributions(monkeypatch):
    with pytest.raises(
        PluginConflict, match=r"acme 1.0 and other 1.0 both have the flag --speed"
    ):
        parser_with_flags(monkeypatch, "acme", "other")


def test_flag_of_a_missing_distribution_names_it(monkeypatch):
    parser_with_flags(monkeypatch)
    with pytest.raises(
        UsageError, match="the flag --isolation comes with delegraph-workers"
    ) as error:
        compiler_flags.refuse_flags_of_absent_compilers(["--isolation", "process"])
    assert error.value.hint == "pip install delegraph-workers"
    compiler_flags.refuse_flags_of_absent_compilers(["--unknown", "x"])
