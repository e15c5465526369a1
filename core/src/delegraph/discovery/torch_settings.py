"""Settings of torch that belong to the user: a plugin that leaves one changed is named, and the setting put back.

torch has one default dtype for all threads: whoever changes it in another one meanwhile is taken for the plugin.
"""

from __future__ import annotations

import sys
import threading
import warnings
from typing import Any

from ..errors import DelegraphWarning

Settings = tuple[Any, bool, int]
"""Default dtype, whether gradients are recorded, number of threads."""
_NAMES = ("default dtype", "recording of gradients", "number of threads")
_local = threading.local()
_told: set[str] = set()


def remember() -> None:
    """A plugin begins to work in this thread. Costs half a microsecond."""
    try:
        _local.before.append(_settings())
    except AttributeError:
        _local.before = [_settings()]


def put_back(who: Any) -> None:
    """The plugin is done: put back what it left changed, and warn of it, naming ``who.text``."""
    before = _local.before.pop()
    now = _settings()
    if now == before or now is None:
        return
    torch: Any = sys.modules["torch"]
    wanted = before or (torch.float32, True, now[2])  # as they are when torch is imported
    setters = torch.set_default_dtype, torch.set_grad_enabled, torch.set_num_threads
    for name, mine, theirs, set_again in zip(_NAMES, wanted, now, setters, strict=True):
        if mine != theirs:
            set_again(mine)
            text = f"{who.text}, changed torch's {name} from {mine} to {theirs}; it is {mine} again"
            if text not in _told:  # a runtime may do so with each call
                _told.add(text)
                warnings.warn(text, DelegraphWarning, stacklevel=3)


def _settings() -> Settings | None:
    """None before torch was imported."""
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    return torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_num_threads()
