"""Reports, errors and tracebacks show no password or token of a remote cache's URL."""

import errno
import traceback

import delegraph
import pytest
import torch
from delegraph.errors import OptionError
from delegraph_workers import Cache, Compiler
from delegraph_workers.remote_cache import RemoteFolder, RemoteFolderError
from delegraph_workers.store_errors import kind_and_status

SHOWN = [
    ("s3://bucket/folder", "s3://bucket/folder"),
    ("memory://name", "memory://name"),
    ("file:///srv/cache", "file:///srv/cache"),
    ("/srv/cache", "/srv/cache"),
    ("https://user:7c0ffee7@host:8443/folder", "https://host:8443/folder"),
    ("https://host/folder?token=7c0ffee7", "https://host/folder"),
    ("https://host/folder#7c0ffee7", "https://host/folder"),
    (
        "https://user:7c0ffee7@host/folder?token=7c0ffee7#7c0ffee7",
        "https://host/folder",
    ),
    # forms in which no part is certain to be harmless
    ("https://user:sec/7c0ffee7@host/folder", "https://..."),
    ("https://user:7c0ffee7?x@host/folder", "https://..."),
    ("https://user:7c0ffee7#x@host/folder", "https://..."),
    ("https://user:12/7c0ffee7@host/folder", "https://..."),
    ("https://user@mail:7c0ffee7@host/folder", "https://..."),
    ("https://user:x@host/folder?token=a@7c0ffee7", "https://..."),
    ("https://host/a%2F7c0ffee7/b", "https://..."),
    ("https://host/folder/../7c0ffee7", "https://..."),
    ("https://host/folder;token=7c0ffee7", "https://..."),
    ("https:/user:7c0ffee7@host/folder", "at a URL without a scheme"),
    ("https:user:7c0ffee7@host/folder", "at a URL without a scheme"),
    ("user:7c0ffee7@host/folder", "at a URL without a scheme"),
    ("simplecache::s3://key:7c0ffee7@bucket/folder", "at a URL without a scheme"),
]


@pytest.mark.parametrize(("url", "shown"), SHOWN)
def test_the_name_of_a_folder_shows_no_secret(url, shown):
    assert RemoteFolder(url).name == shown
    assert "7c0ffee7" not in repr(RemoteFolder(url)) or "7c0ffee7" in shown


class StatusError(Exception):
    status = 403


class Response:
    status_code = 401


class ResponseError(Exception):
    response = Response()


class BotoError(Exception):
    response = {  # noqa: RUF012
        "ResponseMetadata": {"HTTPStatusCode": 404},
        "Error": {"Message": "7c0ffee7"},
    }


ERRORS = [
    (StatusError, "StatusError (status 403)"),
    (ResponseError, "ResponseError (status 401)"),
    (BotoError, "BotoError (status 404)"),
    (lambda text: OSError(errno.ENOSPC, text), "OSError (No space left on device)"),
    (
        lambda text: PermissionError(errno.EACCES, text, "7c0ffee7"),
        "PermissionError (Permission denied)",
    ),
    (ValueError, "ValueError"),
    (
        lambda text: ModuleNotFoundError(text, name="s3fs"),
        "the package s3fs is not installed",
    ),
]
FORMS = [
    "https://user:7c0ffee7@host/folder/x.entry",
    "https://user%3A7c0ffee7%40host%2Ffolder",
    "https:/user:7c0ffee7@host/folder",
    "/folder/../7c0ffee7#7c0ffee7",
    "b'7c0ffee7'",
]


def failing_folder(error, monkeypatch):
    """Return a remote folder that raises ``error``."""

    def fail(self):
        raise error

    monkeypatch.setattr(RemoteFolder, "_open", fail)
    return RemoteFolder("https://user:7c0ffee7@host/folder")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("make", "shown"), ERRORS)
def test_errors_of_libraries_show_no_secret(make, shown, form, monkeypatch):
    for call in (lambda f: f.read("key"), lambda f: f.write("key", b"")):
        with pytest.raises(RemoteFolderError) as found:
            call(failing_folder(make(form), monkeypatch))
        assert str(found.value) == shown
        assert "7c0ffee7" not in "".join(traceback.format_exception(found.value))


def test_an_unknown_scheme_is_named():
    with pytest.raises(
        RemoteFolderError, match="^fsspec does not know the scheme 'nosuch'$"
    ):
        RemoteFolder("nosuch://user:7c0ffee7@host/folder").read("key")


class Store:
    """A store of a user. Its errors contain the address."""

    name = "the team's store"

    def read(self, key):
        raise StatusError("https://user:7c0ffee7@host")

    write = read


def test_errors_of_remote_stores_are_reported_without_their_text(tmp_path):
    cache = Cache(tmp_path / "cache", remote=Store())
    lowered = delegraph.lower(
        torch.nn.ReLU(), (torch.ones(2),), backends=["tosa"], compiler=Compiler(cache)
    )

    assert (
        "the remote cache the team's store is not used: StatusError (status 403)"
        in str(lowered.report)
    )
    assert "7c0ffee7" not in str(lowered.report) + str(lowered.report.to_json())


@pytest.mark.parametrize(
    "url",
    [
        "s3://user:7c0ffee7@bucket/x",
        "https:/user:7c0ffee7@host",
        "simplecache::s3://k:7c0ffee7@b",
    ],
)
def test_a_url_as_cache_folder_is_refused_without_showing_it(
    url, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OptionError) as found:
        Cache(url)
    assert "7c0ffee7" not in str(found.value)
    assert "--cache-remote" in found.value.hint
    assert list(tmp_path.iterdir()) == []


def test_the_kind_of_an_error_has_no_text():
    assert kind_and_status(RuntimeError("7c0ffee7")) == "RuntimeError"
