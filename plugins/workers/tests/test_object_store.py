"""A remote cache in an object store: S3's protocol, spoken by moto's server (``pip
install "moto[server]" s3fs``).
"""

import pytest
from delegraph_workers import Cache

from .support.caching import (
    CountingBackend,
    cache_notes,
    contents_of_delegates,
    entries_in,
    lower_with_cache,
    make_model,
    registry,
)

__all__ = ["registry"]


@pytest.fixture
def store(monkeypatch):
    """An S3 server in this process, with the bucket "team"."""
    server = pytest.importorskip(
        "moto.server", reason='needs pip install "moto[server]"'
    )
    s3fs = pytest.importorskip("s3fs", reason="needs pip install s3fs")
    running = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    running.start()
    host, port = running.get_host_and_port()
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "none",
        "AWS_SECRET_ACCESS_KEY": "none",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()
    system = s3fs.S3FileSystem()
    system.mkdir("team")
    yield running, system
    running.stop()
    s3fs.S3FileSystem.clear_instance_cache()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_teams_share_compiled_partitions(store, registry, tmp_path):
    server, system = store
    url = "s3://team/delegraph"
    expected = contents_of_delegates(
        lower_with_cache(make_model(), registry, Cache(tmp_path / "one", remote=url))
    )
    names = sorted(
        path.rpartition("/")[2] for path in system.ls("team/delegraph", refresh=True)
    )
    assert names == [path.name for path in entries_in(tmp_path / "one")]
    program = lower_with_cache(
        make_model(), registry, Cache(tmp_path / "two", remote=url)
    )
    assert contents_of_delegates(program) == expected
    assert len(CountingBackend.calls) == 2
    assert [row.compiled for row in program.report.delegates] == ["from the cache"] * 2

    for name in names:  # damaged there
        system.pipe_file(f"team/delegraph/{name}", b"damaged")
    program = lower_with_cache(
        make_model(), registry, Cache(tmp_path / "three", remote=url)
    )
    assert contents_of_delegates(program) == expected
    assert len(CountingBackend.calls) == 4
    assert sum("remote cache entry" in note for note in cache_notes(program)) == 2

    program = lower_with_cache(
        make_model(), registry, Cache(tmp_path / "four", remote="s3://nobody/has/it")
    )
    assert (
        "the remote cache s3://nobody/has/it is not used: " in cache_notes(program)[1]
    )
    assert len(cache_notes(program)) == 2

    server.stop()  # and away
    program = lower_with_cache(
        make_model(seed=5), registry, Cache(tmp_path / "two", remote=url)
    )
    assert len(program.delegates) == 2
    assert (
        sum(
            "the remote cache s3://team/delegraph is not used: " in note
            for note in cache_notes(program)
        )
        == 1
    )
