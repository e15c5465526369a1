"""Quiet about others' warnings and logs, also in several threads: nobody else's
warnings go, and none go for good.
"""

from __future__ import annotations

import logging
import threading
import warnings
from contextlib import ExitStack

import pytest
from delegraph_engines import quietly


@pytest.fixture
def elsewhere():
    """A thread that enters ``quietly`` before the test, and leaves it when the test
    calls what it is given.
    """
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


def test_output_is_silenced_only_inside_the_context():
    before = list(warnings.filters)
    with quietly():
        with quietly():
            warnings.warn("inner", stacklevel=1)
        warnings.warn("outer", stacklevel=1)
    with pytest.raises(UserWarning, match="behind"):
        warnings.warn("behind", stacklevel=1)
    assert list(warnings.filters) == before


def test_another_thread_warns_as_ever(elsewhere):
    with pytest.raises(UserWarning, match="here"):
        warnings.warn("here", stacklevel=1)


def test_overlapping_threads_restore_the_original_warning_filters(elsewhere):
    """As torch's tracers do, another thread catches warnings meanwhile."""
    with warnings.catch_warnings():
        elsewhere()
    with pytest.raises(UserWarning, match="behind"):
        warnings.warn("behind", stacklevel=1)
    with quietly():
        pass
    with pytest.raises(UserWarning, match="later"):
        warnings.warn("later", stacklevel=1)


def test_levels_of_the_log_come_back_with_the_last_thread(elsewhere):
    torchao = logging.getLogger("torchao")
    root = logging.getLogger()
    handlers = list(root.handlers)
    with ExitStack() as stack:
        stack.enter_context(quietly())
        root.addHandler(logging.NullHandler())
        elsewhere()
        assert torchao.level == logging.ERROR
    assert torchao.level == logging.NOTSET
    assert root.handlers == handlers
