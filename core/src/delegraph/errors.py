"""Every error that delegraph raises, with a stable code.

Imports only the standard library, so that plugins and the command line can use it without torch.
A message says what went wrong, where (operator and the user's source line), why, and what to do about it.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "CODES",
    "BackendNotFound",
    "ContractViolation",
    "DelegraphError",
    "DelegraphWarning",
    "FormatError",
    "InputError",
    "InternalError",
    "NamedDataError",
    "NamedDataTypeError",
    "NoRuntime",
    "NotFullyDelegated",
    "OptionError",
    "PluginBroken",
    "PluginConflict",
    "PluginFailed",
    "PluginIncompatible",
    "PluginUnavailable",
    "UnknownMethod",
    "Unsupported",
    "UsageError",
    "WriteError",
]

CODES: dict[str, str] = {
    "backend-not-found": "No installed plugin offers a backend, partitioner or runtime of that name.",
    "format-not-found": "No installed plugin offers the file format that a suffix asks for.",
    "plugin-broken": "The plugin that was asked for could not be loaded.",
    "plugin-unavailable": "The plugin needs a module that is not installed.",
    "plugin-conflict": "Two distributions offer the name that was asked for.",
    "plugin-incompatible": "The plugin was written for another plugin API.",
    "plugin-failed": "A plugin raised an error of its own while it was at work; the message names both.",
    "plugin-crashed": "A plugin ended the process of a command while it was at work, by a crash or an exit.",
    "process-ended": "The process of a command ended before the command was done, and no plugin was at work.",
    "contract-violation": "A backend or partitioner broke the delegation contract.",
    "unsupported": "This program cannot be handed to this backend.",
    "not-fully-delegated": "require_full was asked for and operators were left to the host.",
    "option-invalid": "An option is unknown, has the wrong type or is out of range.",
    "input-invalid": "A program or its inputs are not of the form that was asked for.",
    "training-mode": "The module is in training mode.",
    "export-failed": "torch.export could not export the module.",
    "format-invalid": "A file is damaged, truncated or of another format.",
    "write-failed": "A file could not be written.",
    "no-runtime": "The backend has no runtime on this host.",
    "gate-failed": "Less is delegated, or in more delegates, than --min-delegated or --max-delegates accepts.",
    "verification-failed": "The lowered program's results differ from eager PyTorch's by more than was accepted.",
    "forked-at-work": "This process was forked while another thread was lowering or calling a program.",
    "usage-invalid": "The command line asks for something that is not there or does not fit together.",
    "requirement-missing": "A distribution that delegraph itself requires is not installed.",
    "internal": "A defect in delegraph or in a plugin; please report it.",
}
"""Stable code -> meaning. Codes of plugins carry the plugin's name as prefix (``tosa/...``)."""


class DelegraphWarning(UserWarning):
    """Something went wrong that delegraph can work without, such as an installed plugin that cannot be loaded."""


class DelegraphError(Exception):
    """An error with a stable ``code``, and where known the ``node``, the user's ``source`` line and a ``hint``.

    ``raised_by`` says which plugin raised it, and what it was doing; None if delegraph itself did.
    """

    raised_by: str | None = None

    def __init__(
        self, code: str, message: str, node: Any = None, source: object = None, hint: str | None = None
    ) -> None:
        super().__init__(message)
        self.code, self.message, self.node, self.source, self.hint = code, message, node, source, hint

    def __str__(self) -> str:
        where = f"\n  at {self.source}" if self.source else ""
        by = f"\n  raised by {self.raised_by}" if self.raised_by and self.raised_by not in self.message else ""
        return f"{self.message}{where}{by}" + (f"\n  hint: {self.hint}" if self.hint else "")


class BackendNotFound(DelegraphError, NotImplementedError):
    """No backend, partitioner or runtime of that name is installed."""


class FormatNotFound(DelegraphError, ValueError):
    """No plugin offers the file format that a suffix asks for; the hint names the distribution that would."""


class PluginBroken(DelegraphError):
    """The plugin that was asked for could not be loaded; ``__cause__`` is its error."""


class PluginUnavailable(PluginBroken):
    """The plugin that was asked for needs a module that is not installed."""


class PluginConflict(DelegraphError):
    """Two distributions provide the name that was asked for."""


class PluginIncompatible(DelegraphError):
    """The plugin's ``api`` is neither this version's nor the one before."""


class PluginFailed(DelegraphError, RuntimeError):
    """A plugin raised an error of its own while it was at work; ``__cause__`` is that error."""


class ContractViolation(DelegraphError, RuntimeError):
    """A backend or partitioner broke the delegation contract."""


class NamedDataError(ContractViolation, ValueError):
    """Named data that cannot be stored: its key has other data, or its alignment or size is out of range."""


class NamedDataTypeError(ContractViolation, TypeError):
    """Named data that is neither bytes nor a tensor."""


class Unsupported(DelegraphError, RuntimeError):
    """The program cannot be lowered for this target; the message says why, in the user's terms."""


class NotFullyDelegated(Unsupported):
    """``require_full`` was asked for and operators were left; the message lists all, and ``report`` is the report."""

    report: Any = None


class OptionError(DelegraphError, ValueError):
    """An option is unknown, of the wrong type or out of range."""


class InputError(DelegraphError, ValueError):
    """A program, or the inputs it is called with, do not have the expected form."""


class UnknownMethod(InputError, ContractViolation):
    """A partitioner or passes are given for a method that is not among the programs."""


class FormatError(DelegraphError, ValueError):
    """A file or blob is damaged, truncated or of another format."""


class WriteError(DelegraphError, OSError):
    """A file could not be written; nothing was left behind."""


class UsageError(DelegraphError):
    """The command line asks for something that is not there or does not fit together."""


class NoRuntime(DelegraphError):
    """The backend declares no runtime for this host."""


class InternalError(DelegraphError):
    """A defect in delegraph or in a plugin, with what is needed to report it."""
