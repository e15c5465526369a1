"""The interface of compilers, for ``delegraph.lower(compiler=...)``.

A compiler makes a ``Session`` for each lowering. The session gets a ``Request`` for
each partition, and answers it with a ``Compiled``. ``compile_here`` compiles in this
process. Other compilers may call ``compile_here``, too, after they changed requests or
answered some of them by themselves. They can replace the backend's class,
``Request.backend.kind``, by one that sends the partition to another process.
"""

from __future__ import annotations

from .discovery.records import InstalledBackend
from .engine.compiler_interface import Compiled, Compiler, Refused, Request, Session
from .engine.contract_checks import check_result
from .engine.serial_compiler import (
    calls_of,
    compile_here,
    compiles_jointly,
    fingerprint_of,
)

__all__ = [
    "Compiled",
    "Compiler",
    "InstalledBackend",
    "Refused",
    "Request",
    "Session",
    "calls_of",
    "check_result",
    "compile_here",
    "compiles_jointly",
    "fingerprint_of",
]
