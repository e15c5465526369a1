"""A backend's fingerprint of what its results depend on.

It is kept with each delegate, and is part of the keys of a cache.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..backend import CompileSpec, check_called_on_class
from ..discovery.attribution import AtWork
from ..discovery.registry import InstalledBackend
from ..errors import ContractViolation


def fingerprint_of(
    backend: InstalledBackend, compile_specs: Sequence[CompileSpec]
) -> str | None:
    """The backend's fingerprint for ``compile_specs``; None if it gives none.

    Raises ContractViolation for anything but a text or None.
    """
    kind = backend.kind
    check_called_on_class(kind, "fingerprint", ("compile_specs",))
    with AtWork(kind, "fingerprint", registry=backend):
        fingerprint = kind.fingerprint(list(compile_specs))
    if not isinstance(fingerprint, str | None):
        text = (
            f"{kind.__name__}.fingerprint returned {fingerprint!r:.80}, not a text or"
            " None"
        )
        raise ContractViolation("contract-violation", text)
    return fingerprint
