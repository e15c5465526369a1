"""A backend's fingerprint of what its results depend on, kept with each delegate and part of the keys of a cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..backend import check_called_on_class
from ..discovery.attribution import AtWork
from ..errors import ContractViolation
from .partition import Work

if TYPE_CHECKING:
    from ..discovery.registry import Registry


def fingerprint_of(item: Work, registry: Registry) -> str | None:
    """The backend's fingerprint for the compile specs of a partition; None if it gives none.

    Raises ContractViolation for anything but a text or None.
    """
    spec = item.partition.spec
    backend = registry.get_backend(spec.backend_id)
    check_called_on_class(backend, "fingerprint", ("compile_specs",))
    place = f"partition {item.partition.tag} of method {item.method}"
    with AtWork(backend, "fingerprint", place, item.partition.nodes, registry):
        fingerprint = backend.fingerprint(list(spec.compile_specs))
    if not isinstance(fingerprint, str | None):
        text = f"{backend.__name__}.fingerprint returned {fingerprint!r:.80}, not a text or None"
        raise ContractViolation("contract-violation", text)
    return fingerprint
