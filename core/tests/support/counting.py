"""Count function calls, because times vary."""

import sys


def count_calls(function):
    """Return how many Python functions ``work`` calls, a figure that is the same
    everywhere.
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
