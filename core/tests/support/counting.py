"""Work counted, not timed."""

import sys


def count_calls(function):
    """How many Python functions are called: a figure that does not depend on the
    machine.
    """
    count = 0

    def profile(frame, event, argument):
        nonlocal count
        count += event == "call"

    sys.setprofile(profile)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count
