"""A cache folder keeps compiled partitions and gives what a compile would give."""

import os
import sys
from concurrent.futures import ThreadPoolExecutor

import delegraph
import pytest
import torch
from delegraph.discovery.registry import Registry
from delegraph.errors import ContractViolation, OptionError, WriteError
from delegraph.io.blob_pieces import join
from delegraph.plugin import BackendSpec, BackendTraits
from delegraph.runtime import BackendRuntime
from delegraph_programs import constant_tensor, placeholders
from delegraph_workers import Cache, Compiler, installed
from delegraph_workers import cache as cache_module
from delegraph_workers.entry_bytes import unpacked
from torch import nn

from .support.caching import (
    Blocks,
    CountingBackend,
    Everything,
    X,
    cache_notes,
    contents_of_delegates,
    entries_in,
    lower_with_cache,
    make_model,
    registry,
    write_entry,
)

__all__ = ["registry"]


def test_the_second_lowering_compiles_nothing_and_gives_the_same(registry, tmp_path):
    first = lower_with_cache(make_model(), registry, tmp_path)
    assert len(CountingBackend.calls) == 2
    assert cache_notes(first) == [f"cache {tmp_path}: 0 partitions found, 2 stored"]
    second = lower_with_cache(make_model(), registry, tmp_path)
    assert len(CountingBackend.calls) == 2
    assert cache_notes(second) == [f"cache {tmp_path}: 2 partitions found, 0 stored"]
    assert contents_of_delegates(first) == contents_of_delegates(second)
    assert [str(delegate.inputs) for delegate in first.delegates] == [
        str(delegate.inputs) for delegate in second.delegates
    ]


def test_without_a_cache_backends_see_the_names_of_nodes(registry):
    delegraph.lower(make_model(), X, backends=[Everything()], registry=registry)

    assert "linear" in CountingBackend.calls[0]


def handles_of_nodes(delegate):
    """Return the debug handles of the delegate's nodes in the user's program."""
    return [node.meta["debug_handle"] for node in delegate.nodes]


def handles_in_map(delegate):
    """Return the debug handles in the delegate's map, which has one an operator."""
    debug_handle_map = delegate.module.meta["debug_handle_map"]
    return [handle for (handle,) in debug_handle_map.values()]


def test_debug_maps_have_the_handles_of_the_users_program(registry, tmp_path):
    for _ in range(2):  # compiled, and from the cache
        program = lower_with_cache(make_model(), registry, tmp_path)

        first, second = program.delegates
        assert handles_in_map(first) == handles_of_nodes(first)
        assert handles_in_map(second) == handles_of_nodes(second)
        assert handles_of_nodes(first) != handles_of_nodes(second)


def test_one_changed_weight_compiles_one_partition(registry, tmp_path):
    lower_with_cache(make_model(), registry, tmp_path)
    changed = make_model()
    with torch.no_grad():
        changed.layers[1].weight[3, 4] += 1
    lower_with_cache(changed, registry, tmp_path)
    assert len(CountingBackend.calls) == 3


def test_equal_partitions_compile_once_in_one_lowering(registry, tmp_path):
    for _ in range(2):  # compiled, and from the cache
        program = lower_with_cache(make_model(same=True), registry, tmp_path)

        assert len(CountingBackend.calls) == 1
        first, second = program.delegates
        assert join(first.module.blob) == join(second.module.blob)
        assert handles_in_map(first) == handles_of_nodes(first)
        assert handles_in_map(second) == handles_of_nodes(second)
        # the same object, so a file has it once
        assert first.blob is second.blob


def test_one_changed_weight_of_many_compiles_one_partition(registry, tmp_path):
    torch.manual_seed(0)
    model = Blocks(24).eval()
    lower_with_cache(model, registry, tmp_path)
    assert len(CountingBackend.calls) == 24
    with torch.no_grad():
        model.layers[17].weight[3, 4] += 1e-6

    program = lower_with_cache(model, registry, tmp_path)

    assert len(CountingBackend.calls) == 24 + 1
    compiled = [
        index
        for index, row in enumerate(program.report.delegates)
        if row.compiled == "compiled"
    ]
    assert compiled == [17]


def test_many_equal_partitions_compile_once_in_threads(registry, tmp_path):
    torch.manual_seed(0)
    model = Blocks(24).eval()
    for layer in model.layers:
        layer.load_state_dict(model.layers[0].state_dict())

    with ThreadPoolExecutor(4) as pool:
        program = lower_with_cache(model, registry, tmp_path, executor=pool)

    assert len(CountingBackend.calls) == 1
    assert {row.compiled for row in program.report.delegates} == {
        "compiled",
        "equal to lowered_module_0",
    }


def test_reports_without_a_cache_do_not_mention_compiles(registry):
    report = delegraph.lower(
        make_model(), X, backends=[Everything()], registry=registry
    ).report

    assert [row.compiled for row in report.delegates] == ["", ""]
    assert "compiled" not in str(report)


def test_reports_show_which_delegates_come_from_the_cache(registry, tmp_path):
    for origin in ("compiled", "from the cache"):
        report = lower_with_cache(make_model(same=True), registry, tmp_path).report

        origins = [origin, "equal to lowered_module_0"]
        assert [row.compiled for row in report.delegates] == origins
        assert f", {origin}\n" in str(report)
        rows = report.to_json()["delegates"]
        assert [row["compiled"] for row in rows] == origins


def test_a_partition_equal_to_a_refused_one_is_refused(registry, tmp_path):
    class TwoRefused(nn.Module):
        def forward(self, x):
            return torch.digamma(x).cos().digamma()

    program = lower_with_cache(TwoRefused().eval(), registry, tmp_path)

    assert not program.delegates
    assert len(program.report.given_back) == 2


def test_another_fingerprint_compiles_again(registry, tmp_path, monkeypatch):
    lower_with_cache(make_model(), registry, tmp_path)
    monkeypatch.setattr(CountingBackend, "version", "2")

    lower_with_cache(make_model(), registry, tmp_path)

    assert len(CountingBackend.calls) == 2 + 2


def test_other_sources_compile_again(registry, tmp_path, monkeypatch):
    lower_with_cache(make_model(), registry, tmp_path)
    monkeypatch.setattr(installed, "_sources", lambda package: "others")

    lower_with_cache(make_model(), registry, tmp_path)

    assert len(CountingBackend.calls) == 2 + 2


def registry_of_independent_backend(*independent_of):
    """Return a registry whose backend gives the same blobs with any version of these."""
    registry = Registry(discover=False)
    spec = BackendSpec(
        name="counting",
        target=f"{__name__}:CountingBackend",
        backend_id="CountingBackend",
        api=1,
        traits=BackendTraits(independent_of=independent_of),
    )
    registry.register(spec)
    CountingBackend.calls.clear()
    return registry


@pytest.mark.parametrize(
    ("independent_of", "compiles"),
    [((), 2 + 2), (("torch",), 2), (("torch", "delegraph"), 2)],
)
def test_another_torch_compiles_again_unless_the_backend_opts_out(
    independent_of, compiles, tmp_path, monkeypatch
):
    registry = registry_of_independent_backend(*independent_of)
    lower_with_cache(make_model(), registry, tmp_path)
    monkeypatch.setattr(torch, "__version__", "9.0")

    lower_with_cache(make_model(), registry, tmp_path)

    assert len(CountingBackend.calls) == compiles


@pytest.mark.parametrize(
    ("independent_of", "compiles"),
    [((), 2 + 2), (("torch",), 2 + 2), (("torch", "delegraph"), 2)],
)
def test_another_delegraph_compiles_again_unless_the_backend_opts_out(
    independent_of, compiles, tmp_path, monkeypatch
):
    registry = registry_of_independent_backend(*independent_of)
    lower_with_cache(make_model(), registry, tmp_path)
    sources_of = installed._sources
    monkeypatch.setattr(
        installed,
        "_sources",
        lambda package: (
            "others" if package == "delegraph_workers" else sources_of(package)
        ),
    )

    lower_with_cache(make_model(), registry, tmp_path)

    assert len(CountingBackend.calls) == compiles


@pytest.fixture
def keeps_names(monkeypatch):
    """Let the backend declare that its blobs contain names of nodes."""
    monkeypatch.setattr(CountingBackend, "keeps_names", True)


def test_blobs_with_names_are_those_without_a_cache(registry, keeps_names, tmp_path):
    expected = contents_of_delegates(
        delegraph.lower(make_model(), X, backends=[Everything()], registry=registry)
    )

    for _ in range(2):  # compiled, and from the cache
        program = lower_with_cache(make_model(), registry, tmp_path)
        assert contents_of_delegates(program) == expected


def test_equal_partitions_with_other_names_are_compiled_apart(
    registry, keeps_names, tmp_path
):
    lower_with_cache(make_model(same=True), registry, tmp_path)

    first, second = CountingBackend.calls
    assert "linear" in first
    assert "linear_1" in second


def test_equal_partitions_with_equal_names_are_found(registry, keeps_names, tmp_path):
    lower_with_cache(make_model(same=True), registry, tmp_path)
    # the first layer is equal in this model, the second one is not
    lower_with_cache(make_model(), registry, tmp_path)

    assert len(CountingBackend.calls) == 2 + 1


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Return the folder of an imported package ``sourced``."""
    folder = tmp_path / "sourced"
    folder.mkdir()
    (folder / "__init__.py").write_text("a = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    __import__("sourced")
    yield folder
    sys.modules.pop("sourced")


def hash_of_sources():
    return installed._sources.__wrapped__("sourced")  # without its own cache


def test_sources_are_hashed_by_content(package):
    before = hash_of_sources()
    assert hash_of_sources() == before

    (package / "__init__.py").write_text("a = 2\n")

    assert hash_of_sources() != before


def test_sources_that_cannot_be_read_change_the_hash(package):
    """An editor may replace a file just now."""
    before = hash_of_sources()

    (package / "gone.py").symlink_to(package / "nowhere")

    assert hash_of_sources() != before


def test_backends_without_fingerprint_are_not_cached_and_noted_once(
    registry, tmp_path, monkeypatch
):
    monkeypatch.setattr(CountingBackend, "version", None)

    program = lower_with_cache(make_model(), registry, tmp_path)

    assert [note for note in program.report.notes if "fingerprint" in note] == [
        "CountingBackend returns no fingerprint for its compile specs, so partitions"
        " with them are not cached"
    ]
    assert "linear" in CountingBackend.calls[0]
    assert list(tmp_path.iterdir()) == []


def test_results_that_json_cannot_express_are_not_stored(
    registry, tmp_path, monkeypatch
):
    compile_one = CountingBackend.preprocess

    def return_an_object(edge_program, compile_specs):
        result = compile_one(edge_program, compile_specs)
        result._delegate_info_meta = {"odd": object()}
        return result

    monkeypatch.setattr(CountingBackend, "preprocess", staticmethod(return_an_object))
    program = lower_with_cache(make_model(), registry, tmp_path)

    assert (
        "could not be stored in the cache: its result contains <object object"
        in cache_notes(program)[1]
    )
    assert len(program.delegates) == 2


def test_entries_do_not_hold_the_weights(registry, tmp_path):
    program = lower_with_cache(make_model(), registry, tmp_path)

    weight_bytes = 64 * 64 * 4
    assert all(
        len(delegate.module.blob) > weight_bytes for delegate in program.delegates
    )
    assert all(path.stat().st_size < 4_000 for path in entries_in(tmp_path))


def test_cached_blobs_refuse_weights_changed_later(registry, tmp_path):
    lower_with_cache(make_model(), registry, tmp_path)
    model = make_model()
    program = lower_with_cache(model, registry, tmp_path)

    with torch.no_grad():
        model.layers[0].weight.add_(1)

    with pytest.raises(
        ContractViolation, match="was changed after the program was lowered"
    ):
        join(program.delegates[0].module.blob)


def flip_bit(data, position):
    return data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]


def content_of_other_entry(path, data):
    other = next(entry for entry in entries_in(path.parent) if entry != path)
    return other.read_bytes()


HANDLES_OF_NO_NODE = (
    b'[{}, [[]], {"d": [["debug_handle_map", {"d": [[0, {"t": [99]}]]}]]}, null, null]'
)
DAMAGES = {
    "truncated": lambda path, data: data[: len(data) // 2],
    "empty": lambda path, data: b"",
    "foreign": lambda path, data: b"something else entirely",
    "a flipped bit": lambda path, data: flip_bit(data, 100),
    "another digest": lambda path, data: flip_bit(data, 20),
    "an unknown kind of piece": lambda path, data: write_entry(
        path, b'[{}, [["x"]], {}, null, null]'
    ),
    "no list": lambda path, data: write_entry(path, b"7"),
    "no JSON": lambda path, data: write_entry(path, b"["),
    "deep JSON": lambda path, data: write_entry(path, b"[" * 100_000),
    "a constant that the program lacks": lambda path, data: write_entry(
        path, b'[{}, [[[99, 0, 5000]]], {"d": []}, null, null]'
    ),
    "handles of no node": lambda path, data: write_entry(path, HANDLES_OF_NO_NODE),
    "the entry of another key": content_of_other_entry,
}
"""Damage -> a function from the path and content of an entry to its damaged content."""


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_entry_is_compiled_and_written_again(name, registry, tmp_path):
    expected = contents_of_delegates(lower_with_cache(make_model(), registry, tmp_path))
    paths = entries_in(tmp_path)
    damaged = [DAMAGES[name](path, path.read_bytes()) for path in paths]
    for path, data in zip(paths, damaged, strict=True):
        path.write_bytes(data)

    program = lower_with_cache(make_model(), registry, tmp_path)

    assert len(CountingBackend.calls) == 2 + 2
    assert contents_of_delegates(program) == expected
    assert sum("is not used: " in note for note in cache_notes(program)) == 2
    again = lower_with_cache(make_model(), registry, tmp_path)
    assert len(cache_notes(again)) == 1  # only the numbers of found and stored entries


SPECIAL_FILES = {
    "pipe": os.mkfifo if os.name == "posix" else None,
    "folder": os.mkdir,
    "link": lambda path: os.symlink(path.parent / "elsewhere", path),
    "device": lambda path: os.symlink("/dev/zero", path),
}
"""Kind -> a function that makes such a file at a path."""


@pytest.mark.skipif(
    os.name != "posix", reason="other systems have other kinds of files"
)
@pytest.mark.parametrize("kind", SPECIAL_FILES)
def test_pipes_devices_and_links_are_no_entries(kind, registry, tmp_path):
    """To read a pipe would wait forever, and to read a device would never end.

    A link could make the cache write to a file outside of its folder.
    """
    cache = Cache(tmp_path)
    expected = contents_of_delegates(lower_with_cache(make_model(), registry, cache))
    paths = entries_in(tmp_path)
    link_target = tmp_path / "elsewhere"
    valid_entry = paths[0].read_bytes()
    link_target.write_bytes(valid_entry)
    for path in paths:
        path.unlink()
        SPECIAL_FILES[kind](path)

    program = lower_with_cache(make_model(), registry, cache)

    assert contents_of_delegates(program) == expected
    notes = cache_notes(program)
    assert sum("is not used: it is no regular file" in note for note in notes) == 2
    assert sum("could not be stored" in note for note in notes) == 2
    assert list(cache.entries()) == []
    assert link_target.read_bytes() == valid_entry


def test_a_limit_that_cannot_be_kept_is_only_noted(registry, tmp_path, monkeypatch):
    def fail(self):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(cache_module.Cache, "make_room", fail)
    program = lower_with_cache(make_model(), registry, tmp_path)
    assert (
        cache_notes(program)[1]
        == "the limit of the cache could not be kept: Permission denied"
    )
    assert len(program.delegates) == 2


def test_an_entry_that_cannot_be_written_is_only_noted(registry, tmp_path, monkeypatch):
    def fail(path, content):
        raise WriteError("write-failed", "no space left")

    monkeypatch.setattr(cache_module, "write_whole", fail)
    program = lower_with_cache(make_model(), registry, tmp_path)
    assert (
        cache_notes(program)[1]
        == "a partition could not be stored in the cache: no space left"
    )
    assert len(program.delegates) == 2


POSIX_ONLY = pytest.mark.skipif(
    os.name != "posix", reason="only POSIX has modes of files"
)


@POSIX_ONLY
def test_new_cache_folders_are_private(registry, tmp_path):
    lower_with_cache(make_model(), registry, tmp_path / "new/folder")

    assert (tmp_path / "new/folder").stat().st_mode & 0o777 == 0o700


@POSIX_ONLY
def test_folders_writable_by_others_are_refused(registry, tmp_path):
    """Others could put blobs into it, which this user would run."""
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)

    with pytest.raises(OptionError, match="other users own it or can write to it"):
        lower_with_cache(make_model(), registry, tmp_path / "open")


@POSIX_ONLY
def test_shared_folders_may_be_writable_by_others(registry, tmp_path):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    cache = Cache(tmp_path / "open", shared=True)

    first = lower_with_cache(make_model(), registry, cache)
    second = lower_with_cache(make_model(), registry, cache)

    assert ": 0 partitions found" in cache_notes(first)[0]
    assert ": 2 partitions found" in cache_notes(second)[0]


def test_a_file_cannot_be_a_cache(registry, tmp_path):
    (tmp_path / "file").write_bytes(b"")

    with pytest.raises(OptionError, match="cannot be a cache"):
        lower_with_cache(make_model(), registry, tmp_path / "file")


def test_the_entries_used_least_recently_are_removed(tmp_path):
    cache = Cache(tmp_path, limit=250)
    first, second, third = (tmp_path / f"{k:064}.entry" for k in range(3))
    for path, last_use in ((second, 1), (third, 2), (first, 9)):
        path.write_bytes(bytes(100))
        os.utime(path, (last_use, last_use))
    not_an_entry = tmp_path / "other.entry"
    not_an_entry.write_bytes(bytes(1000))

    cache.make_room()

    assert entries_in(tmp_path) == [first, third, not_an_entry]


def test_refused_programs_are_not_cached(registry, tmp_path):
    class Refused(nn.Module):
        def forward(self, x):
            return torch.digamma(x.relu())

    program = lower_with_cache(Refused().eval(), registry, tmp_path)
    assert "no digamma here" in str(program.report)
    assert not program.delegates
    assert list(tmp_path.iterdir()) == []


def test_backends_that_change_the_weights_are_refused(registry, tmp_path, monkeypatch):
    compile_one = CountingBackend.preprocess

    def zero_weights(edge_program, compile_specs):
        for _, spec in placeholders(edge_program):
            if spec.target:
                constant_tensor(edge_program, spec).data.zero_()
        return compile_one(edge_program, compile_specs)

    monkeypatch.setattr(CountingBackend, "preprocess", staticmethod(zero_weights))

    with pytest.raises(ContractViolation, match="changed weights of partition"):
        lower_with_cache(make_model(), registry, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_lowerings_in_threads_share_a_folder(registry, tmp_path):
    expected = contents_of_delegates(
        lower_with_cache(make_model(), registry, tmp_path / "one")
    )

    with ThreadPoolExecutor(4) as pool:
        running = [
            pool.submit(lower_with_cache, make_model(), registry, tmp_path / "many")
            for _ in range(6)
        ]
        for future in running:
            assert contents_of_delegates(future.result()) == expected

    assert not list(tmp_path.rglob("*.part"))


def test_a_lowering_with_threads_gives_the_same(registry, tmp_path):
    expected = contents_of_delegates(
        lower_with_cache(make_model(), registry, tmp_path / "one")
    )

    with ThreadPoolExecutor(2) as pool:
        program = lower_with_cache(
            make_model(), registry, tmp_path / "executor", executor=pool
        )

    assert contents_of_delegates(program) == expected
    assert not list(tmp_path.rglob("*.part"))


def test_two_threads_lower_with_one_compiler(registry, tmp_path):
    models = [make_model(seed) for seed in range(4)]
    expected = [
        contents_of_delegates(lower_with_cache(one, registry, tmp_path / "alone"))
        for one in models
    ]
    compiler = Compiler(tmp_path / "shared")

    def lower_one(one):
        lowered = delegraph.lower(
            one, X, backends=[Everything()], registry=registry, compiler=compiler
        )
        return contents_of_delegates(lowered)

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(lower_one, models * 2)) == expected * 2
    assert len(entries_in(tmp_path / "shared")) == 8


def test_the_environment_variable_names_the_default_folder(
    registry, tmp_path, monkeypatch
):
    monkeypatch.setenv("DELEGRAPH_CACHE", str(tmp_path / "env"))

    lower_with_cache(make_model(), registry, None)
    assert len(entries_in(tmp_path / "env")) == 2
    lower_with_cache(make_model(), registry, tmp_path / "given")

    # the folder that was given is empty, so both partitions are compiled again
    assert len(CountingBackend.calls) == 2 + 2


def test_true_selects_the_users_folder(registry, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(cache_module.sys, "platform", "linux")

    lower_with_cache(make_model(), registry, True)

    assert len(entries_in(tmp_path / "delegraph")) == 2


def test_false_overrides_the_environment_variable(registry, tmp_path, monkeypatch):
    monkeypatch.setenv("DELEGRAPH_CACHE", str(tmp_path / "env"))

    assert not cache_notes(lower_with_cache(make_model(), registry, False))
    assert not (tmp_path / "env").exists()


def test_relative_user_folders_are_ignored(tmp_path, monkeypatch):
    """A cache in the working directory could run blobs of somebody else."""
    monkeypatch.setattr(cache_module.sys, "platform", "linux")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", ".")

    assert cache_module.user_folder() == tmp_path / "home/.cache/delegraph"


@pytest.mark.parametrize("wrong", [5, b"x", [1]])
def test_caches_of_wrong_types_are_refused(wrong, registry):
    with pytest.raises(OptionError):
        lower_with_cache(make_model(), registry, wrong)


@pytest.mark.parametrize("limit", [-1, 2.5, True])
def test_wrong_limits_are_refused(limit, tmp_path):
    with pytest.raises(OptionError, match="the limit of a cache is a number of bytes"):
        Cache(tmp_path, limit=limit)


def test_entries_have_their_size_and_their_origin(registry, tmp_path):
    cache = Cache(tmp_path)
    lower_with_cache(make_model(), registry, cache)

    first = sorted(cache.entries())[0]

    assert first.bytes == entries_in(tmp_path)[0].stat().st_size
    header, _ = unpacked(first.key, first.path.read_bytes())
    assert header[0] == {
        "backend": "CountingBackend",
        "producer": "in-process",
        "torch": torch.__version__,
    }


def test_entries_can_be_removed_by_key(registry, tmp_path):
    cache = Cache(tmp_path)
    lower_with_cache(make_model(), registry, cache)
    first, second = sorted(cache.entries())

    cache.remove([first.key])

    assert list(cache.entries()) == [second]


def test_the_limit_holds_after_a_lowering(registry, tmp_path):
    lower_with_cache(make_model(), registry, Cache(tmp_path, limit=0))
    assert not entries_in(tmp_path)


class RemoteStore(dict):
    """A remote store in memory; reading raises ``error``, if that is set."""

    name = "memory of ours"
    error = None

    def read(self, key):
        if self.error:
            raise self.error
        return self.get(key)

    def write(self, key, data):
        self[key] = data


def test_partitions_are_found_in_a_remote_store(registry, tmp_path):
    store = RemoteStore()
    one = Cache(tmp_path / "one", remote=store)
    two = Cache(tmp_path / "two", remote=store)
    expected = contents_of_delegates(lower_with_cache(make_model(), registry, one))

    program = lower_with_cache(make_model(), registry, two)

    assert len(CountingBackend.calls) == 2
    assert len(store) == 2
    assert contents_of_delegates(program) == expected
    assert [row.compiled for row in program.report.delegates] == ["from the cache"] * 2


def test_entries_of_a_remote_store_are_kept_in_the_folder(registry, tmp_path):
    store = RemoteStore()
    lower_with_cache(make_model(), registry, Cache(tmp_path / "one", remote=store))
    lower_with_cache(make_model(), registry, Cache(tmp_path / "two", remote=store))

    lower_with_cache(make_model(), registry, tmp_path / "two")  # without the store

    assert len(CountingBackend.calls) == 2
    names_in_one = [path.name for path in entries_in(tmp_path / "one")]
    names_in_two = [path.name for path in entries_in(tmp_path / "two")]
    assert names_in_one == names_in_two


def test_damaged_entries_of_a_remote_store_are_replaced(registry, tmp_path):
    store = RemoteStore()
    expected = contents_of_delegates(
        lower_with_cache(make_model(), registry, Cache(tmp_path / "one", remote=store))
    )
    for key, data in store.items():
        store[key] = data[:-1]

    program = lower_with_cache(
        make_model(), registry, Cache(tmp_path / "two", remote=store)
    )

    assert contents_of_delegates(program) == expected
    about_damage = [
        note
        for note in cache_notes(program)
        if "remote cache entry" in note and "is not used" in note
    ]
    assert len(about_damage) == 2
    assert len(CountingBackend.calls) == 2 + 2
    lower_with_cache(make_model(), registry, Cache(tmp_path / "three", remote=store))
    assert len(CountingBackend.calls) == 2 + 2  # the store has whole entries again


@pytest.mark.parametrize("answer", ["text", 7, [300], b"", memoryview(b"x" * 99)])
def test_wrong_answers_of_remote_stores_are_noted(
    answer, registry, tmp_path, monkeypatch
):
    monkeypatch.setattr(RemoteStore, "read", lambda self, key: answer)

    program = lower_with_cache(
        make_model(), registry, Cache(tmp_path, remote=RemoteStore())
    )

    assert len(program.delegates) == 2
    assert len(entries_in(tmp_path)) == 2
    assert any("is not used: " in note for note in cache_notes(program))


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (OSError(28, "its own"), "OSError (No space left on device)"),
        (ValueError("its own"), "ValueError"),
    ],
)
def test_remote_stores_are_not_used_after_an_error(error, shown, registry, tmp_path):
    """The text of the error may have a secret, so the note does not quote it."""
    store = RemoteStore()
    store.error = error

    program = lower_with_cache(make_model(), registry, Cache(tmp_path, remote=store))

    assert len(program.delegates) == 2
    assert len(entries_in(tmp_path)) == 2
    assert not store
    assert cache_notes(program)[1:] == [
        f"the remote cache memory of ours is not used: {shown}"
    ]


def test_entries_have_no_paths_and_no_environment(registry, tmp_path, monkeypatch):
    """Entries may be shared with others, so they must not reveal anything."""
    monkeypatch.setenv("TOKEN_OF_SOMETHING", "7c0ffee7")
    private = [b"7c0ffee7", b".py", os.getcwd().encode(), str(tmp_path).encode()]

    lower_with_cache(make_model(), registry, tmp_path)

    for path in entries_in(tmp_path):
        content = path.read_bytes()
        assert not any(text in content for text in private)


class DoublingRuntime(BackendRuntime):
    """Reports that the operator 0 takes half a second."""

    @staticmethod
    def load(processed_bytes, compile_specs, named_data):
        return lambda x: (x + x,)

    @staticmethod
    def profile(processed_bytes, compile_specs, named_data):
        return lambda x: ((x + x,), {0: {"seconds": 0.5}})


class Times:
    """A ``Timer`` that keeps the times of operators inside of delegates."""

    def __init__(self):
        self.of_operators = {}

    def begin(self, values): ...
    def see(self, node, value): ...
    def enter(self, owner, module, inputs): ...
    def leave(self): ...
    def inside(self, delegate, values): ...
    def end(self): ...

    def spent(self, delegate, seconds, read):
        for identifier, amounts in read().items():
            if isinstance(identifier, int):
                self.of_operators[identifier] = amounts


def test_delegates_from_the_cache_have_fingerprints_and_profiles(tmp_path):
    class Double(nn.Module):
        def forward(self, x):
            return x + x

    registry = Registry(discover=False)
    spec = BackendSpec(
        "counting", f"{__name__}:CountingBackend", "CountingBackend", api=1
    )
    registry.register(spec, runtime=DoublingRuntime, partitioner=Everything)
    CountingBackend.calls.clear()
    for _ in range(2):  # compiled, and from the cache
        lowered = delegraph.lower(
            Double().eval(),
            (torch.ones(2),),
            backends=["counting"],
            registry=registry,
            compiler=Compiler(tmp_path),
        )
    assert len(CountingBackend.calls) == 1

    times = Times()
    result = lowered.observe(times, torch.ones(2))

    assert lowered.delegates[0].fingerprint == CountingBackend.version
    assert torch.equal(result, torch.full((2,), 2.0))
    assert times.of_operators == {0: {"seconds": 0.5}}
