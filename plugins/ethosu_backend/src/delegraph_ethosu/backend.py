"""``EthosUBackend``: a partition becomes TOSA, and what Vela makes of that."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from io import BytesIO
from pathlib import Path
from typing import Any

import delegraph
from delegraph.backend import (
    BackendDetails,
    CompileSpec,
    NamedDataStore,
    PreprocessResult,
)
from delegraph.errors import OptionError, Unsupported
from delegraph_tosa import Operator
from torch.export import ExportedProgram

# makes the words of targets that the compile specs have
from . import partitioner  # noqa: F401
from .estimates import facts, figures
from .payload import pack
from .vela import run_vela

_KEYS = ("accelerator", "flags", "seconds", "tags", "keep_tosa")
TOSA_KEY = "ethosu/tosa/"
"""What the key of a TOSA file begins with that is kept; the SHA-256 of the payload
stands behind it.
"""


class EthosUBackend(BackendDetails):
    """Compiles with Vela, a process of its own.

    The compile specs are TOSA's, then ``ethosu_accelerator``, ``ethosu_flags`` (JSON, a
    list of arguments), ``ethosu_seconds``, ``ethosu_tags`` (JSON, block -> external
    tag) and ``ethosu_keep_tosa``.
    """

    thread_safe = True

    @staticmethod
    def fingerprint(compile_specs: list[CompileSpec]) -> str | None:
        """The version of Vela, and the digest of a configuration file that is not its
        own; None if TOSA has none.
        """
        tosa, settings = separated(compile_specs)
        if delegraph.get_backend("tosa").fingerprint(tosa) is None:
            return None
        path = Path(
            next(
                f for f in settings["flags"] if f.startswith("--config=")
            ).removeprefix("--config=")
        )
        own = (
            f" {hashlib.sha256(path.read_bytes()).hexdigest()[:16]}"
            if path.is_file()
            else ""
        )
        return f"ethos-u-vela {version('ethos-u-vela')}{own}"

    @staticmethod
    def preprocess(
        edge_program: ExportedProgram, compile_specs: list[CompileSpec]
    ) -> PreprocessResult:
        """The partition as a payload for ExecuTorch's Ethos-U delegate.

        Delegate debug identifiers are the numbers of operators in the TOSA file. Raises
        Unsupported, with the node where it is known, if Vela refuses the program,
        crashes or takes too long; OptionError for settings of Vela.
        """
        tosa, settings = separated(compile_specs)
        lowered = delegraph.get_backend("tosa").preprocess(edge_program, tosa)
        file: Any = lowered.processed_bytes
        handles = lowered.debug_handle_map or {}
        try:
            compiled = run_vela(file, settings["flags"], settings["seconds"])
        except Unsupported as refusal:
            refusal.node = _blamed(refusal.message, file.numbers, handles, edge_program)
            raise
        store = NamedDataStore()
        payload = pack(compiled.arrays, settings["tags"], store)
        if settings["keep_tosa"]:
            stream = BytesIO()
            file.write_to(stream)
            key = TOSA_KEY + hashlib.sha256(payload).hexdigest()
            store.add_named_data(key, stream.getvalue(), external_tag="delegraph_tosa")
        told = {
            **lowered.facts,
            **facts(compiled, file.numbers),
            "target": settings["accelerator"],
        }
        return replace(
            lowered,
            processed_bytes=payload,
            data_store_output=store.get_named_data_store_output(),
            facts=told,
            figures=figures(compiled, handles),
            output=(
                compiled.printed
                if any(flag.startswith("--verbose") for flag in settings["flags"])
                else ""
            ),
        )


def separated(
    compile_specs: Sequence[CompileSpec],
) -> tuple[list[CompileSpec], dict[str, Any]]:
    """The compile specs of TOSA, and the settings of Ethos-U. OptionError if one of
    these is missing or wrong.
    """
    given = {
        s.key.removeprefix("ethosu_"): s.value.decode()
        for s in compile_specs
        if s.key.startswith("ethosu_")
    }
    if given.keys() != set(_KEYS):
        wanted = ", ".join(f"ethosu_{key}" for key in _KEYS)
        raise OptionError(
            "option-invalid", f"the compile specs of EthosUBackend have {wanted}"
        )
    settings: dict[str, Any] = {
        **given,
        "seconds": int(given["seconds"]),
        "keep_tosa": given["keep_tosa"] == "true",
    }
    settings |= {key: json.loads(given[key]) for key in ("flags", "tags")}
    return (
        delegraph.get_backend("tosa").filter_tosa_compile_specs(compile_specs),  # type: ignore[attr-defined]
        settings,
    )


def _blamed(
    said: str,
    numbers: Mapping[Operator, int],
    handles: Mapping[Any, tuple[int, ...]],
    program: ExportedProgram,
) -> Any:
    """The node of the first operator of the kind that Vela's words name in parentheses;
    None if there is none.
    """
    kind = said.partition("(")[2].partition(")")[0].lower()
    for operator, number in numbers.items():
        name = operator.name.replace("_", "").lower()
        if (
            kind
            and kind
            in (
                name,
                name.removeprefix("logical"),
                name.removeprefix("bitwise"),
            )
            and number in handles
        ):
            return next(
                (
                    n
                    for n in program.graph.nodes
                    if n.meta.get("debug_handle") in handles[number]
                ),
                None,
            )
    return None
