"""Calls of lowered programs in the middle of what torch compiles or exports."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from ..errors import InputError

F = TypeVar("F", bound=Callable[..., Any])


def uncompiled(function: F) -> F:
    """Make torch.compile break its graph at calls of ``function``, and run them as they are.

    Dynamo would trace code that reads tables and runs engines. A call while torch.export traces raises InputError.
    """
    disabled: list[Callable[..., Any]] = []  # ``function``, in which Dynamo compiles nothing either; at most one

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_exporting() and _get_current_dispatch_mode_stack():
            text = "torch.export cannot export a model that calls a lowered program, whose delegates it cannot trace"
            raise InputError("input-invalid", text, hint="export the model without it; lower the result")
        # Dynamo is imported late, since that takes more than a second.
        if "torch._dynamo" in sys.modules:
            if not disabled:
                disabled.append(torch.compiler.disable(function))  # type: ignore[no-untyped-call]
            return disabled[0](*args, **kwargs)
        return function(*args, **kwargs)

    call._torchdynamo_disable = True  # type: ignore[attr-defined]  # Dynamo's mark: do not trace this function
    call._torchdynamo_disable_msg = "a lowered program runs outside of compiled code"  # type: ignore[attr-defined]
    return cast(F, call)
