"""Answers of jobs in other processes."""

from delegraph_devkit.subprocesses import fork_server


def test_answers_contain_how_a_job_ended():
    run = fork_server(1).run
    assert "raised TypeError" in run("os:times", 3, seconds=20).failure
    assert "raised ModuleNotFoundError" in run("no_such_module:f", seconds=20).failure
    assert run("builtins:max", 3, seconds=20).failure.startswith("raised TypeError")
    assert run("contextlib:nullcontext", seconds=20).failure.startswith("raised")
