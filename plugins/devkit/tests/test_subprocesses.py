"""Jobs in other processes answer with their result or their exception."""

import pytest
from delegraph_devkit.subprocesses import fork_server


@pytest.mark.parametrize(
    ("function", "arguments", "failure"),
    [
        ("os:times", [3], "raised TypeError"),
        ("builtins:max", [3], "raised TypeError"),
        ("no_such_module:f", [], "raised ModuleNotFoundError"),
        # jobs get a local function as their last argument, which cannot be pickled
        ("contextlib:nullcontext", [], "raised"),
    ],
)
def test_exceptions_of_jobs_are_in_the_answer(function, arguments, failure):
    answer = fork_server(1).run(function, *arguments, seconds=20)

    assert failure in answer.failure
