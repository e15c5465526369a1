"""How a job in another process ends."""

from delegraph_devkit.subprocesses import worker


def test_a_worker_tells_how_a_job_ended():
    run = worker(1).run
    assert "raised TypeError" in run("os:times", 3, seconds=20).failure
    assert "raised ModuleNotFoundError" in run("no_such_module:f", seconds=20).failure
    assert run("builtins:max", 3, seconds=20).failure.startswith("raised TypeError")
    assert run("contextlib:nullcontext", seconds=20).failure.startswith("raised")
