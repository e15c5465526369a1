"""Read the options of the backend. Imports no ONNX Runtime."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from delegraph.backend import CompileSpec
from delegraph.errors import OptionError
from delegraph_engines import from_specs, read_properties

PREFIX = "onnx_"
"""The beginning of the keys of compile specs; an option's name follows."""
DEFAULTS = {
    "ep": "cpu",
    "ep_options": "",
    "soc": "",
    "htp_arch": "",
    "threads": "0",
    "session": "",
}


class Chip(NamedTuple):
    """A Snapdragon: the number of its model, and the version of its Hexagon NPU."""

    soc_model: int
    htp_arch: int


CHIPS = {
    "SM8350": Chip(30, 68),
    "SM8450": Chip(36, 69),
    "SM8550": Chip(43, 73),
    "SM8650": Chip(57, 75),
    "SM8750": Chip(69, 79),
}
"""Names of chips -> their numbers in Qualcomm's compiler."""
ARCHITECTURES = frozenset({68, 69, 73, 75, 79, 81})
"""Versions of Hexagon NPUs for which Qualcomm's compiler has code."""
SESSION = frozenset(
    "execution_mode graph_optimization_level inter_op_num_threads "
    "session.dynamic_block_base session.intra_op.allow_spinning "
    "session.inter_op.allow_spinning session.set_denormal_as_zero "
    "session.x64quantprecision session.disable_prepacking "
    "session.disable_quant_qdq session.enable_quant_qdq_cleanup "
    "session.qdqisint8allowed session.qdq_matmulnbits_accuracy_level "
    "optimization.enable_gelu_approximation "
    "mlas.enable_gemm_fastmath_arm64_bfloat16".split()
)
"""Session options that a program may set. Others name files."""
_NAMES_A_FILE = re.compile("path|dir|file|folder|librar|prefix|share", re.IGNORECASE)
_LEVELS = ("disable_all", "basic", "extended", "layout", "all")
_MODES = ("sequential", "parallel")


class Settings(NamedTuple):
    """The options of a program, checked."""

    ep: str
    """The execution provider in lower case, such as ``cpu`` or ``qnn``."""
    ep_options: Mapping[str, str]
    """Options of the provider by name, as its own documentation has them."""
    threads: int
    """Threads of one call; 0: ONNX Runtime chooses."""
    session: Mapping[str, str]
    """Session options by name."""


def read_settings(compile_specs: Sequence[CompileSpec]) -> Settings:
    """Return the settings in compile specs. Raises OptionError for unknown ones."""
    text, _ = from_specs(compile_specs, PREFIX, DEFAULTS, only=True)
    return check_settings(text)


def check_settings(text: Mapping[str, str]) -> Settings:
    """Return the settings of options as text. Raises OptionError for wrong ones."""
    options = {**DEFAULTS, **text}
    if not re.fullmatch(r"[a-z][a-z0-9_-]{0,30}", options["ep"]):
        raise OptionError(
            "option-invalid",
            f"option 'ep' is the name of an execution provider, such as cpu or qnn,"
            f" not {options['ep']!r:.40}",
        )
    if not options["threads"].isdecimal():
        raise OptionError(
            "option-invalid",
            f"option 'threads' is a number, 0 or more; not {options['threads']!r:.40}",
        )
    return Settings(
        ep=options["ep"],
        ep_options={
            **_chip_options(options),
            **_provider_options(options["ep_options"]),
        },
        threads=int(options["threads"]),
        session=_session_options(options["session"]),
    )


def _chip_options(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options of the provider that name the chip."""
    soc = options["soc"].upper()
    arch = options["htp_arch"].lower().removeprefix("v")
    if not soc and not arch:
        return {}
    if options["ep"] != "qnn":
        raise OptionError(
            "option-invalid",
            "options 'soc' and 'htp_arch' belong to ep=qnn, Qualcomm's provider;"
            f" this one is {options['ep']!r}",
        )
    chosen = {}
    if soc in CHIPS:
        chosen["soc_model"] = str(CHIPS[soc].soc_model)
        arch = arch or str(CHIPS[soc].htp_arch)
    elif soc.isdecimal():
        chosen["soc_model"] = soc
    elif soc:
        raise OptionError(
            "option-invalid",
            f"option 'soc': there is no chip {soc!r:.40}",
            hint=f"one of {', '.join(CHIPS)}, or the number of a model in Qualcomm's"
            " documentation, with htp_arch",
        )
    if arch:
        if not arch.isdecimal() or int(arch) not in ARCHITECTURES:
            known = ", ".join(str(number) for number in sorted(ARCHITECTURES))
            raise OptionError(
                "option-invalid",
                f"option 'htp_arch': {arch!r:.40} is none of {known}",
            )
        chosen["htp_arch"] = arch
    return chosen


def _provider_options(text: str) -> dict[str, str]:
    """Return options of a provider. Those that name files are refused.

    A program can be a file of another person. It must not choose the libraries
    that this machine loads, nor the files that it writes.
    """
    names = {pair.partition("=")[0].strip() for pair in text.split(",")}
    allowed = {name for name in names if not _NAMES_A_FILE.search(name)}
    return read_properties("ep_options", text, allowed)


def _session_options(text: str) -> dict[str, str]:
    """Return session options by name."""
    options = read_properties("session", text, SESSION)
    expected = {"graph_optimization_level": _LEVELS, "execution_mode": _MODES}
    for name, choices in expected.items():
        if options.get(name, choices[0]) not in choices:
            raise OptionError(
                "option-invalid",
                f"option 'session': {name} is one of {', '.join(choices)}, not"
                f" {options[name]!r:.40}",
            )
    threads = options.get("inter_op_num_threads", "0")
    if not threads.isdecimal():
        raise OptionError(
            "option-invalid",
            "option 'session': inter_op_num_threads must be a number, not"
            f" {threads!r:.40}",
        )
    return options
