"""Write Python that repeats a failure, to append to the lines of its program."""

from __future__ import annotations

import inspect

from .configured_backend import ConfiguredBackend
from .program_text import OTHER_INPUTS
from .programs import place_text


def lowering(backend: ConfiguredBackend) -> str:
    """Return Python that lowers ``model`` for the backend."""
    given = [f"backends=[{backend.name!r}]"]
    if backend.options:
        given.append(f"options={ {backend.name: dict(backend.options)}!r}")
    registered = _registered(backend)
    if registered:
        given.append("registry=registry")
    text = (
        f"import delegraph\n{registered}\nlowered = delegraph.lower(model, inputs,"
        f" {', '.join(given)})\n"
    )
    if backend.runtime is None:
        text += "lowered = lowered.with_missing_runtime('eager')\n"
    return text


def verifying(backend: ConfiguredBackend) -> str:
    """Return Python that lowers ``model`` and compares with eager."""
    if backend.runtime is None:
        return lowering(backend)
    where = f", runtime={backend.where!r}" if backend.where else ""
    return f"{lowering(backend)}print(lowered.verify(*inputs{where}))\n"


def observing(backend: ConfiguredBackend) -> str:
    """Return Python that lowers ``model`` and compares values inside its delegates."""
    return lowering(backend) + "print(lowered.verify(*inputs, per_operator=True))\n"


def profiling(backend: ConfiguredBackend) -> str:
    """Return Python that lowers ``model`` and prints the times of its operators."""
    return (
        lowering(backend)
        + "print(lowered.verify(*inputs))\nprint(lowered.profile(*inputs, repeats=2))\n"
    )


def calling_again(backend: ConfiguredBackend) -> str:
    """Return Python that shows how a second call changes the results of the first."""
    lines = [
        "first = lowered(*inputs)",
        "before = copy.deepcopy(first)",
        f"lowered(*{OTHER_INPUTS})",
        "print(before)",
        "print(first)",
        "",
    ]
    return "import copy\n" + lowering(backend) + "\n".join(lines)


def compiling_twice(backend: ConfiguredBackend) -> str:
    """Return Python that prints the hashes of blobs of two lowerings."""
    before, _, lower = lowering(backend).rpartition("lowered = ")
    shown = (
        "print([hashlib.sha256(d.processed_bytes).hexdigest() for d in"
        " lowered.delegates])"
    )
    seeds = (
        "# two equal lines, and the same ones with PYTHONHASHSEED=1 and"
        " PYTHONHASHSEED=2"
    )
    return (
        f"import hashlib\n{before}for _ in range(2):\n    lowered = {lower}   "
        f" {shown}\n{seeds}\n"
    )


def _registered(backend: ConfiguredBackend) -> str:
    """Return Python that registers a backend that is not installed."""
    if backend.register is None:
        return ""
    made = "registry = delegraph.Registry(discover=False)\n"
    if not inspect.isfunction(backend.register):
        return f"{made}# register the backend in it, as in the test\n"
    return f"import runpy\n{made}{place_text(backend.register)}(registry)\n"
