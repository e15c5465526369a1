"""All errors that delegraph raises, each with a stable code.

This module imports no torch, so that plugins and the command line can use it without
torch. A message has the fault, its place (operator and line of the user's program), the
reason, and advice.
"""

from __future__ import annotations

from typing import Any

from delegraph_programs.errors import DelegraphError, InputError, Unsupported

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
    "backend-not-found": (
        "No installed plugin offers a backend, partitioner or runtime of that name."
    ),
    "format-not-found": (
        "No installed plugin offers the file format that a suffix asks for."
    ),
    "plugin-broken": "The plugin that was asked for could not be loaded.",
    "plugin-unavailable": "The plugin needs a module that is not installed.",
    "plugin-conflict": "Two distributions offer the name that was asked for.",
    "plugin-incompatible": "The plugin was written for another plugin API.",
    "plugin-failed": (
        "A plugin raised an error other than DelegraphError; the message names both."
    ),
    "process-ended": "A process that kept an object for this one has ended.",
    "contract-violation": "A backend or partitioner broke the delegation contract.",
    "unsupported": "This program cannot be handed to this backend.",
    "not-fully-delegated": (
        "require_full was asked for and operators were left to the host."
    ),
    "option-invalid": "An option is unknown, has the wrong type or is out of range.",
    "input-invalid": "A program or its inputs are not of the form that was asked for.",
    "training-mode": "The module is in training mode.",
    "export-failed": "torch.export could not export the module.",
    "format-invalid": "A file is damaged, truncated or of another format.",
    "write-failed": "A file could not be written.",
    "no-runtime": "The backend has no runtime on this host.",
    "gate-failed": (
        "Less is delegated, or in more delegates, than --min-delegated or"
        " --max-delegates accepts."
    ),
    "verification-failed": (
        "The lowered program's results differ from eager PyTorch's by more than was"
        " accepted."
    ),
    "forked-at-work": (
        "This process was forked while another thread was lowering or calling a"
        " program."
    ),
    "usage-invalid": (
        "The command line asks for something that is not there or does not fit"
        " together."
    ),
    "requirement-missing": (
        "A distribution that delegraph itself requires is not installed."
    ),
    "internal": "A defect in delegraph or in a plugin; please report it.",
}
"""Stable code -> meaning. Codes of plugins carry the plugin's name as prefix
(``tosa/...``).
"""


class DelegraphWarning(UserWarning):
    """A problem that does not keep delegraph from working, such as an installed plugin
    that cannot be loaded.
    """


class BackendNotFound(DelegraphError, NotImplementedError):
    """No backend, partitioner or runtime of that name is installed."""


class FormatNotFound(DelegraphError, ValueError):
    """No plugin declares the file format of a suffix; the hint names the distribution
    to install, if that is known.
    """


class PluginBroken(DelegraphError):
    """A plugin that the user asked for could not be loaded; ``__cause__`` is its error."""


class PluginUnavailable(PluginBroken):
    """Something that the user asked for needs a module or a distribution that is not
    installed.
    """


class PluginConflict(DelegraphError):
    """Several distributions declare the name that the user asked for, or a name is
    taken.
    """


class PluginIncompatible(DelegraphError):
    """A plugin was written for a plugin API that this version does not support."""


class PluginFailed(DelegraphError, RuntimeError):
    """A plugin raised an error other than DelegraphError when it was called;
    ``__cause__`` is that error.
    """


class ContractViolation(DelegraphError, RuntimeError):
    """A backend or partitioner broke the delegation contract."""


class NamedDataError(ContractViolation, ValueError):
    """Named data cannot be stored: its key is taken by other data, or its alignment or
    size is out of range.
    """


class NamedDataTypeError(ContractViolation, TypeError):
    """Named data is neither bytes nor a tensor nor a Blob, or an argument about it has
    the wrong type.
    """


class NotFullyDelegated(Unsupported):
    """With ``require_full``, operators were left to the host: the message lists them,
    ``report`` is the Report.
    """

    report: Any = None


class OptionError(DelegraphError, ValueError):
    """An option is unknown, of the wrong type or out of range."""


class UnknownMethod(InputError, ContractViolation):
    """A partitioner or pass was given for a method that is not among the programs."""


class FormatError(DelegraphError, ValueError):
    """A file or blob is damaged, truncated or of another format."""


class WriteError(DelegraphError, OSError):
    """A file could not be written. The file is as before, unless it had to be written
    in place, because it is a device or a hard link.
    """


class UsageError(DelegraphError):
    """The command line asks for something that is not there or does not fit together."""


class NoRuntime(DelegraphError):
    """There is no runtime on this host for a backend or a file, or the runtime lacks a
    module or a device.
    """


class InternalError(DelegraphError):
    """A defect in delegraph or in a plugin; report the message as a bug."""
