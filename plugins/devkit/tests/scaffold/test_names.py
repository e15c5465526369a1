"""Names of a new backend: normal forms, refusals, and taken names."""

import pytest
from delegraph import Registry
from delegraph_devkit.scaffold import Names, taken, why_not

NAMES = {
    "my-npu": ("my-npu", "my_npu", "MyNpuBackend"),
    "My_NPU": ("my-npu", "my_npu", "MyNpuBackend"),
    "acme.x86--2": ("acme-x86-2", "acme_x86_2", "AcmeX862Backend"),
    "my-backend": ("my-backend", "my_backend", "MyBackend"),
    "npu": ("npu", "npu", "NpuBackend"),
    "acme-npu-acme": ("acme-npu-acme", "acme_npu_acme", "AcmeNpuAcmeBackend"),
}
REFUSED = {
    "": "begins with a letter",
    "2fast": "begins with a letter",
    "my npu": "letters, digits",
    "npu-": "ends with a letter or digit",
    "../npu": "letters, digits",
    "größe": "letters, digits",
    "n" * 41: "at most 40 characters; this one has 41",
    "delegraph": "'delegraph' is reserved",
    "Tests": "'tests' is reserved",
    "lambda": "a keyword of Python",
    "json": "the package would hide the module 'json' of Python's standard library",
}
BACKEND = """
from delegraph.plugin import BackendSpec, hookimpl

@hookimpl
def delegraph_backends():
    return [BackendSpec(name="npu2", backend_id="FastNpuBackend", target="acme_tools:FastNpuBackend", api=1)]
"""


@pytest.mark.parametrize("text", NAMES)
def test_names_are_normalized(text):
    names = Names.of(text)
    assert (names.backend, names.package, names.backend_id) == NAMES[text]
    assert why_not(text) is None


@pytest.mark.parametrize("text", REFUSED)
def test_invalid_names_are_refused_with_the_reason(text):
    assert REFUSED[text] in why_not(text)


def test_taken_names_are_refused_with_their_owner(site):
    site.plugin("acme-tools", BACKEND)
    registry = Registry()
    assert "acme-tools 1.0 is installed and offers 'npu2'" in taken(
        Names.of("npu2"), registry
    )
    assert "FastNpuBackend" in taken(Names.of("fast-npu"), registry)
    assert "the distribution acme-tools 1.0 is installed" in taken(
        Names.of("acme-tools"), registry
    )
    (site.folder / "alone.py").write_text("raise SystemExit")
    assert str(site.folder / "alone.py") in taken(Names.of("alone"), registry)
    (site.folder / "only_a_folder").mkdir()
    assert taken(Names.of("only-a-folder"), registry) is None
    assert taken(Names.of("nobody-has-this"), registry) is None
    assert taken(Names.of("delegraph-alone", "alone"), registry) is None
    assert "the distribution acme-tools 1.0 is installed" in taken(
        Names.of("acme-tools", "free"), registry
    )
    assert "offers 'npu2'" in taken(Names.of("delegraph-npu2", "npu2"), registry)
