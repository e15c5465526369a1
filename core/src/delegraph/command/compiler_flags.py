"""The flags of compilers, for commands that lower."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from ..discovery.first_party import provider_of
from ..discovery.registry import default_registry
from ..errors import PluginConflict, UsageError
from ..plugin import CompilerSpec, FlagSpec


def add_compiler_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of all installed compilers (``CompilerSpec.options``) to
    ``parser``.

    Raises PluginConflict if two distributions declare the same flag, or if the command
    itself has that flag.
    """
    # flag -> the distribution that declares it, with its version
    owners: dict[str, str] = {}
    for spec, record in default_registry().declared(CompilerSpec):
        for flag in spec.options:
            other = owners.setdefault(flag.name, record.owner)
            if other != record.owner:
                raise _conflict(flag, other, record.owner)
            try:
                _add_flag(parser, spec, flag)
            except argparse.ArgumentError:
                raise _conflict(flag, "the command itself", record.owner) from None


def chosen_compiler(args: argparse.Namespace) -> Any:
    """Return the compiler that the user's flags choose, for
    ``delegraph.lower(compiler=...)``.

    None if no flag of a compiler is given. Raises UsageError if the flags belong to
    several compilers, and the errors of the compiler for a wrong value.
    """
    chosen: list[tuple[str, dict[str, Any]]] = []  # full name, options
    for spec, record in default_registry().declared(CompilerSpec):
        options: dict[str, Any] = {}
        for flag in spec.options:
            value = getattr(args, _attribute(spec, flag))
            if value is not None:
                options[flag.name.replace("-", "_")] = value
        if options:
            chosen.append((f"{record.distribution}/{spec.name}", options))
    if not chosen:
        return None
    if len(chosen) > 1:
        names = " and ".join(name for name, _ in chosen)
        raise UsageError(
            "usage-invalid", f"these flags belong to different compilers: {names}"
        )
    name, options = chosen[0]
    return default_registry().get(CompilerSpec, name)(**options)


def refuse_flags_of_absent_compilers(words: Sequence[str]) -> None:
    """Raise UsageError if one of ``words`` is a flag of a compiler that is not
    installed. ``words``: those that a command does not know.
    """
    declared = default_registry().declared(CompilerSpec)
    installed = {flag.name for spec, _ in declared for flag in spec.options}
    for word in words:
        name = word.partition("=")[0].removeprefix("--")
        provider = provider_of("flags", name)
        if word.startswith("--") and provider is not None and name not in installed:
            raise UsageError(
                "usage-invalid",
                provider.not_installed(f"the flag --{name}"),
                hint=provider.hint,
            )


def _add_flag(
    parser: argparse.ArgumentParser, spec: CompilerSpec, flag: FlagSpec
) -> None:
    """Add ``flag`` to ``parser``. An absent flag has the value None. A flag without a
    value, such as ``--cache``, has the value ``flag.bare``.
    """
    # the keyword arguments of ``add_argument``, which formats the help with ``%``
    keywords: dict[str, Any] = {
        "dest": _attribute(spec, flag),
        "help": flag.help.replace("%", "%%"),
    }
    if flag.type is bool:
        keywords |= {"action": "store_true", "default": None}
    else:
        keywords |= {"type": _split if flag.type is list else flag.type}
        keywords |= {"metavar": flag.metavar or None, "choices": flag.choices or None}
    if flag.bare is not None:
        keywords |= {"nargs": "?", "const": flag.bare}
    parser.add_argument(f"--{flag.name}", **keywords)


def _attribute(spec: CompilerSpec, flag: FlagSpec) -> str:
    """Return the name of the attribute of the parsed arguments that has the flag's value.

    The name has a slash, so it differs from the names of the command's own arguments.
    """
    return f"{spec.name}/{flag.name}"


def _split(text: str) -> list[str]:
    return text.split(",")


def _conflict(flag: FlagSpec, owner: str, other: str) -> PluginConflict:
    """Return the error for a flag that two owners have."""
    return PluginConflict(
        "plugin-conflict",
        f"{owner} and {other} both have the flag --{flag.name}",
        hint="set DELEGRAPH_DISABLE_PLUGINS to one of the distributions",
    )
