"""A remote cache in an object store, which is S3 as moto's server imitates it.

The tests need ``pip install "moto[server]" s3fs``.
"""

from typing import Any, NamedTuple
from urllib.request import Request, urlopen

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


class ObjectStore(NamedTuple):
    """A running S3 server with the bucket "team", and its file system."""

    server: Any
    files: Any


@pytest.fixture
def store(monkeypatch):
    moto_server = pytest.importorskip(
        "moto.server", reason='needs pip install "moto[server]"'
    )
    s3fs = pytest.importorskip("s3fs", reason="needs pip install s3fs")
    server = moto_server.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    # servers of one process share their buckets
    urlopen(Request(f"{url}/moto-api/reset", method="POST")).close()
    monkeypatch.setenv("AWS_ENDPOINT_URL", url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "none")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "none")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    s3fs.S3FileSystem.clear_instance_cache()
    files = s3fs.S3FileSystem()
    files.mkdir("team")
    yield ObjectStore(server, files)
    server.stop()
    s3fs.S3FileSystem.clear_instance_cache()


pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
URL = "s3://team/delegraph"


@pytest.fixture
def filled(store, registry, tmp_path):
    """Return the program whose two partitions one member of the team compiled."""
    return lower_with_cache(make_model(), registry, Cache(tmp_path / "one", remote=URL))


def names_in(store):
    """Return the names of the entries in the store."""
    paths = store.files.ls("team/delegraph", refresh=True)
    return sorted(path.rpartition("/")[2] for path in paths)


def test_the_store_has_the_entries_of_the_folder(filled, store, tmp_path):
    assert names_in(store) == [path.name for path in entries_in(tmp_path / "one")]


def test_teams_share_compiled_partitions(filled, registry, tmp_path):
    program = lower_with_cache(
        make_model(), registry, Cache(tmp_path / "two", remote=URL)
    )

    assert contents_of_delegates(program) == contents_of_delegates(filled)
    assert len(CountingBackend.calls) == 2
    assert [row.compiled for row in program.report.delegates] == ["from the cache"] * 2


def test_damaged_objects_are_compiled_again(filled, store, registry, tmp_path):
    for name in names_in(store):
        store.files.pipe_file(f"team/delegraph/{name}", b"damaged")

    program = lower_with_cache(
        make_model(), registry, Cache(tmp_path / "two", remote=URL)
    )

    assert contents_of_delegates(program) == contents_of_delegates(filled)
    assert len(CountingBackend.calls) == 2 + 2
    assert sum("remote cache entry" in note for note in cache_notes(program)) == 2


def test_a_missing_bucket_is_noted_once(store, registry, tmp_path):
    url = "s3://nobody/has/it"

    program = lower_with_cache(
        make_model(), registry, Cache(tmp_path / "two", remote=url)
    )

    _, note = cache_notes(program)
    assert f"the remote cache {url} is not used: " in note


def test_a_stopped_server_is_noted_once(filled, store, registry, tmp_path):
    store.server.stop()

    program = lower_with_cache(
        make_model(seed=5), registry, Cache(tmp_path / "two", remote=URL)
    )

    assert len(program.delegates) == 2
    notes = cache_notes(program)
    assert sum(f"the remote cache {URL} is not used: " in note for note in notes) == 1
