"""Errors about missing backends name the distribution, and suggest only similar names."""

import json
from importlib.metadata import distributions
from pathlib import Path

import delegraph
import delegraph.discovery.first_party as own
import pytest
import torch
from delegraph.discovery.nearest_name import nearest
from delegraph.discovery.registry import Registry
from delegraph.errors import BackendNotFound, DelegraphError, NoRuntime
from delegraph.host import FileFormat
from delegraph.plugin import (
    BackendSpec,
    CommandSpec,
    FormatSpec,
    ModelSpec,
    ReportSpec,
)

LISTED = json.loads(
    Path(own.__file__).with_name("our_distributions.json").read_text("utf-8")
)
BACKENDS = [
    (name, distribution)
    for distribution, described in LISTED.items()
    for pair in described.get("backends", {}).items()
    for name in pair
]


@pytest.fixture
def empty_registry():
    return Registry(discover=False)


@pytest.mark.parametrize(("name", "distribution"), BACKENDS)
def test_the_error_names_the_distribution_of_a_backend(
    name, distribution, empty_registry
):
    for asked in (name, f"{distribution}/{name}"):
        with pytest.raises(BackendNotFound) as found:
            empty_registry.spec(asked)
        assert (
            f"comes with {distribution}, which is not installed" in found.value.message
        )
        assert f"pip install {distribution}" in found.value.hint.replace('"', "")
        assert "did you mean" not in str(found.value)


def test_no_distribution_is_guessed_for_unknown_backends(empty_registry):
    with pytest.raises(BackendNotFound) as found:
        empty_registry.spec("acme/tosa")
    assert "comes with" not in str(found.value)


@pytest.mark.parametrize(
    ("name", "known", "meant"),
    [
        ("ethosu", ["tosa"], None),
        ("vgf", ["vela"], None),
        ("coreml", ["compiler-demo"], None),
        ("tsoa", ["tosa", "iree"], "tosa"),
        ("TOSA", ["tosa"], "tosa"),
        ("tosa80", ["tosa"], "tosa"),
        ("xnpack", ["xnnpack"], "xnnpack"),
        ("open-vino", ["openvino"], "openvino"),
        ("irre", ["iree", "tosa"], "iree"),
        ("xn", ["xnnpack"], None),
        ("", ["tosa"], None),
        ("demo", ["demo", "demon"], "demo"),
    ],
)
def test_only_similar_names_are_suggested(name, known, meant):
    assert nearest(name, known) == meant


def test_a_similar_name_that_is_not_installed_is_hinted(empty_registry):
    with pytest.raises(BackendNotFound) as found:
        empty_registry.spec("xnpack")
    assert "did you mean" not in found.value.message
    assert (
        found.value.hint
        == "if you mean 'xnnpack': pip install \"delegraph-executorch[runtime]\""
    )


def test_without_backends_the_hint_lists_distributions(empty_registry):
    with pytest.raises(BackendNotFound) as found:
        empty_registry.default_backends({})
    assert "delegraph-tosa" in found.value.hint
    assert "delegraph-openvino" in found.value.hint


def test_a_runtime_of_files_names_its_distribution(empty_registry):
    with pytest.raises(NoRuntime) as found:
        empty_registry.suffix_for("executorch")
    assert "delegraph-executorch" in str(found.value)


KINDS = {
    FormatSpec: "formats",
    ReportSpec: "reports",
    CommandSpec: "commands",
    ModelSpec: "models",
}
NAMES = [
    (kind, name, distribution)
    for kind, group in KINDS.items()
    for distribution, described in LISTED.items()
    for name in described.get(group, ())
]


@pytest.mark.parametrize(("kind", "name", "distribution"), NAMES)
def test_missing_plugins_are_named_with_their_distribution(
    kind, name, distribution, empty_registry
):
    with pytest.raises(DelegraphError) as found:
        empty_registry.find(kind, name)
    assert f"comes with {distribution}, which is not installed" in found.value.message
    assert f"pip install {distribution}" in found.value.hint.replace('"', "")


def test_a_file_names_the_distribution_of_its_format(empty_registry, tmp_path):
    for suffix in (".tosa", ".pte", ".vmfb", ".vgf"):
        with pytest.raises(DelegraphError, match="comes with delegraph-"):
            FileFormat(tmp_path / f"model{suffix}", empty_registry)


def test_all_declarations_of_our_distributions_are_listed():
    """A new declaration has to be added to the list of known names."""
    ours = {
        d.metadata["Name"]
        for d in distributions()
        if (d.metadata["Name"] or "").startswith("delegraph-")
    }
    groups = {BackendSpec: "backends", **KINDS}
    for record in delegraph.default_registry().plugins():
        if (
            record.distribution not in ours
            or record.distribution == "delegraph-workers"
        ):
            continue
        for spec in record.declarations:
            if type(spec) in groups:
                assert spec.key in LISTED[record.distribution].get(
                    groups[type(spec)], ()
                ), spec
            if isinstance(spec, BackendSpec):
                assert (
                    LISTED[record.distribution]["backends"][spec.name]
                    == spec.backend_id
                )


def test_lower_names_the_distribution(empty_registry):
    with pytest.raises(
        BackendNotFound, match="delegraph-ethosu, which is not installed"
    ) as found:
        delegraph.lower(
            torch.nn.ReLU(),
            (torch.ones(2),),
            backends=["ethosu"],
            registry=empty_registry,
        )
    assert found.value.hint == "pip install delegraph-ethosu"
