"""``quietly`` silences warnings and logs of its own thread, and restores them."""

from __future__ import annotations

import logging
import threading
import warnings

import pytest
from delegraph_engines import quietly


@pytest.fixture
def leave_other_thread():
    """Start a thread that is in ``quietly``; yield a function that lets it leave."""
    inside = threading.Event()
    leave = threading.Event()

    def work():
        with quietly():
            inside.set()
            leave.wait()

    other = threading.Thread(target=work)
    other.start()
    inside.wait()

    def end():
        leave.set()
        other.join()

    yield end
    end()


# In this project's test runs, a warning that is not silenced raises.


def test_warnings_are_silenced_only_inside_the_context():
    before = list(warnings.filters)

    with quietly():
        with quietly():
            warnings.warn("inner", stacklevel=1)
        warnings.warn("outer", stacklevel=1)

    with pytest.raises(UserWarning, match="after"):
        warnings.warn("after", stacklevel=1)
    assert list(warnings.filters) == before


@pytest.mark.usefixtures("leave_other_thread")
def test_a_quiet_thread_does_not_silence_other_threads():
    with pytest.raises(UserWarning, match="here"):
        warnings.warn("here", stacklevel=1)


def test_warnings_return_if_a_thread_leaves_during_catch_warnings(leave_other_thread):
    """Torch's tracers use ``catch_warnings``, which restores the filters at its end."""
    with warnings.catch_warnings():
        leave_other_thread()

    with pytest.raises(UserWarning, match="after"):
        warnings.warn("after", stacklevel=1)

    with quietly():
        pass
    with pytest.raises(UserWarning, match="later"):
        warnings.warn("later", stacklevel=1)


def test_the_last_thread_to_leave_restores_logging(leave_other_thread):
    torchao = logging.getLogger("torchao")
    root = logging.getLogger()
    handlers = list(root.handlers)

    with quietly():
        root.addHandler(logging.NullHandler())
        leave_other_thread()
        level_while_one_is_left = torchao.level

    assert level_while_one_is_left == logging.ERROR
    assert torchao.level == logging.NOTSET
    assert root.handlers == handlers
