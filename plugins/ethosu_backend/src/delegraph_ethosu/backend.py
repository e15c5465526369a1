"""``EthosUBackend``: compiles a partition to TOSA, and then with Vela."""

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

# registers the suffixes ``u55`` and ``u85`` of TOSA targets, which the specs contain
from . import partitioner  # noqa: F401
from .estimates import facts, figures
from .payload import pack
from .vela import run_vela

_KEYS = ("accelerator", "flags", "seconds", "tags", "keep_tosa")
TOSA_KEY = "ethosu/tosa/"
"""The beginning of the key of a kept TOSA file; the SHA-256 of the payload follows."""


class EthosUBackend(BackendDetails):
    """Compiles with Vela in a process of its own.

    The compile specs are TOSA's, then ``ethosu_accelerator``, ``ethosu_flags`` (JSON, a
    list of arguments), ``ethosu_seconds``, ``ethosu_tags`` (JSON, block -> external
    tag) and ``ethosu_keep_tosa``.
    """

    thread_safe = True

    @staticmethod
    def fingerprint(compile_specs: list[CompileSpec]) -> str | None:
        """Return Vela's version, with a digest of the user's configuration file.

        None if TOSA has no fingerprint.
        """
        tosa, settings = separated(compile_specs)
        if delegraph.get_backend("tosa").fingerprint(tosa) is None:
            return None
        release = f"ethos-u-vela {version('ethos-u-vela')}"
        prefix = "--config="
        config = next(flag for flag in settings["flags"] if flag.startswith(prefix))
        path = Path(config.removeprefix(prefix))
        if not path.is_file():  # one of Vela's own
            return release
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        return f"{release} {digest[:16]}"

    @staticmethod
    def preprocess(
        edge_program: ExportedProgram, compile_specs: list[CompileSpec]
    ) -> PreprocessResult:
        """Return the partition as a payload for ExecuTorch's Ethos-U delegate.

        Delegate debug identifiers are the numbers of operators in the TOSA file. Raises
        Unsupported, with the node if it is known, if Vela refuses the program, crashes
        or takes too long. Raises OptionError for settings of Vela.
        """
        tosa, settings = separated(compile_specs)
        lowered = delegraph.get_backend("tosa").preprocess(edge_program, tosa)
        file: Any = lowered.processed_bytes
        handles = lowered.debug_handle_map or {}
        try:
            compiled = run_vela(file, settings["flags"], settings["seconds"])
        except Unsupported as refusal:
            refusal.node = _node_in_message(
                refusal.message, file.numbers, handles, edge_program
            )
            raise
        store = NamedDataStore()
        payload = pack(compiled.arrays, settings["tags"], store)
        if settings["keep_tosa"]:
            stream = BytesIO()
            file.write_to(stream)
            key = TOSA_KEY + hashlib.sha256(payload).hexdigest()
            store.add_named_data(key, stream.getvalue(), external_tag="delegraph_tosa")
        all_facts = {
            **lowered.facts,
            **facts(compiled, file.numbers),
            "target": settings["accelerator"],
        }
        verbose = any(flag.startswith("--verbose") for flag in settings["flags"])
        return replace(
            lowered,
            processed_bytes=payload,
            data_store_output=store.get_named_data_store_output(),
            facts=all_facts,
            figures=figures(compiled, handles),
            output=compiled.printed if verbose else "",
        )


def separated(
    compile_specs: Sequence[CompileSpec],
) -> tuple[list[CompileSpec], dict[str, Any]]:
    """Return the compile specs of TOSA, and the settings of Ethos-U.

    Raises OptionError if a setting is missing or wrong.
    """
    given = {
        s.key.removeprefix("ethosu_"): s.value.decode()
        for s in compile_specs
        if s.key.startswith("ethosu_")
    }
    if given.keys() != set(_KEYS):
        wanted = ", ".join(f"ethosu_{key}" for key in _KEYS)
        raise OptionError(
            "option-invalid",
            f"EthosUBackend needs the compile specs {wanted}, and TOSA's; it was given"
            f" {', '.join(spec.key for spec in compile_specs) or 'none'}",
        )
    settings: dict[str, Any] = {
        **given,
        "seconds": int(given["seconds"]),
        "keep_tosa": given["keep_tosa"] == "true",
    }
    settings |= {key: json.loads(given[key]) for key in ("flags", "tags")}
    backend: Any = delegraph.get_backend("tosa")
    return backend.filter_tosa_compile_specs(compile_specs), settings


def _node_in_message(
    message: str,
    numbers: Mapping[Operator, int],
    handles: Mapping[Any, tuple[int, ...]],
    program: ExportedProgram,
) -> Any:
    """Return the node of the first operator of the kind that Vela's message names.

    Vela names the kind in parentheses, as in "operation (Gather) could not run on NPU".
    None if there is no such operator. ``numbers``: operator -> its number in the TOSA
    file. ``handles``: such a number -> debug handles of nodes.
    """
    kind = message.partition("(")[2].partition(")")[0].lower()
    if not kind:
        return None
    for operator, number in numbers.items():
        # Vela's names leave out underscores and some prefixes
        name = operator.name.replace("_", "").lower()
        names = (name, name.removeprefix("logical"), name.removeprefix("bitwise"))
        if kind in names and number in handles:
            for node in program.graph.nodes:
                if node.meta.get("debug_handle") in handles[number]:
                    return node
            return None
    return None
