"""Settings of torch that belong to the user. If a plugin changes one, it is restored, and a warning names the plugin.

torch has one default dtype for all threads. If another thread changes it in the meantime, the plugin gets the blame.
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
    """A plugin begins to work in this thread: remember the settings. Costs half a microsecond."""
    try:
        _local.before.append(_settings())
    except AttributeError:
        _local.before = [_settings()]


def put_back(who: Any) -> None:
    """The plugin is done: restore the settings that it changed, with a warning that names ``who.text``."""
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
            if text not in _told:  # a runtime may do it in each call, and one warning is enough
                _told.add(text)
                warnings.warn(text, DelegraphWarning, stacklevel=3)


def _settings() -> Settings | None:
    """The settings now; None if torch is not imported."""
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    return torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_num_threads()
