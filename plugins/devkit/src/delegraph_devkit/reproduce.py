"""A failure as Python: what follows the lines of its program, to lower it and show what
is wrong.
"""

from __future__ import annotations

import inspect

from .configured_backend import ConfiguredBackend
from .program_text import OTHER_INPUTS
from .programs import place_text


def lowering(backend: ConfiguredBackend) -> str:
    """Python that lowers ``model`` for the backend."""
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
    """Python that lowers ``model`` and compares with eager."""
    where = f", runtime={backend.where!r}" if backend.where else ""
    return lowering(backend) + (
        "" if backend.runtime is None else f"print(lowered.verify(*inputs{where}))\n"
    )


def observing(backend: ConfiguredBackend) -> str:
    """Python that lowers ``model`` and compares the values inside of its delegates."""
    return lowering(backend) + "print(lowered.verify(*inputs, per_operator=True))\n"


def profiling(backend: ConfiguredBackend) -> str:
    """Python that lowers ``model`` and shows what its operators took."""
    return (
        lowering(backend)
        + "print(lowered.verify(*inputs))\nprint(lowered.profile(*inputs, repeats=2))\n"
    )


def calling_again(backend: ConfiguredBackend) -> str:
    """Python that shows how the results of one call change with the next."""
    lines = [
        "first = lowered(*inputs)",
        "before = copy.deepcopy(first)",
        f"lowered(*{OTHER_INPUTS})",
    ]
    return (
        "import copy\n"
        + lowering(backend)
        + "\n".join([*lines, "print(before)", "print(first)", ""])
    )


def compiling_twice(backend: ConfiguredBackend) -> str:
    """Python that shows whether two lowerings give the same blobs, here and in
    processes with other hash seeds.
    """
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
    """How a backend gets into a registry that is not installed."""
    if backend.register is None:
        return ""
    made = "registry = delegraph.Registry(discover=False)\n"
    if not inspect.isfunction(backend.register):
        return f"{made}# register the backend with it, as the test does\n"
    return f"import runpy\n{made}{place_text(backend.register)}(registry)\n"
