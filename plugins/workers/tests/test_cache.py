"""Compiled partitions in a folder: what is there is not compiled again, and gives what
a compile would give.
"""

import os
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


def test_without_a_cache_backends_get_the_program_with_its_names(registry):
    delegraph.lower(make_model(), X, backends=[Everything()], registry=registry)
    assert "linear" in CountingBackend.calls[0]


def test_debug_maps_have_the_handles_of_the_users_program(registry, tmp_path):
    for _ in range(2):
        program = lower_with_cache(make_model(), registry, tmp_path)
        maps = [
            delegate.module.meta["debug_handle_map"] for delegate in program.delegates
        ]
        own = [
            [node.meta["debug_handle"] for node in delegate.nodes]
            for delegate in program.delegates
        ]
        assert [[h for (h,) in given.values()] for given in maps] == own
        assert own[0] != own[1]


def test_one_changed_weight_compiles_one_partition(registry, tmp_path):
    lower_with_cache(make_model(), registry, tmp_path)
    changed = make_model()
    with torch.no_grad():
        changed.layers[1].weight[3, 4] += 1
    lower_with_cache(changed, registry, tmp_path)
    assert len(CountingBackend.calls) == 3


def test_equal_partitions_compile_once_in_one_lowering(registry, tmp_path):
    for _ in range(2):
        program = lower_with_cache(make_model(same=True), registry, tmp_path)
        assert len(CountingBackend.calls) == 1
        first, second = contents_of_delegates(program)
        assert first[0] == second[0]
        assert [[h for (h,) in given[1].values()] for given in (first, second)] == [
            [node.meta["debug_handle"] for node in delegate.nodes]
            for delegate in program.delegates
        ]
        # and a file has it once
        assert program.delegates[0].blob is program.delegates[1].blob


def test_one_of_many_changed_and_many_equal_ones_compile_one(registry, tmp_path):
    torch.manual_seed(0)
    module = Blocks(24).eval()
    lower_with_cache(module, registry, tmp_path)
    assert len(CountingBackend.calls) == 24
    with torch.no_grad():
        module.layers[17].weight[3, 4] += 1e-6
    program = lower_with_cache(module, registry, tmp_path)
    assert len(CountingBackend.calls) == 25
    whence = [row.compiled for row in program.report.delegates]
    assert [k for k, told in enumerate(whence) if told == "compiled"] == [17]
    for layer in module.layers:
        layer.load_state_dict(module.layers[17].state_dict())
    with ThreadPoolExecutor(4) as pool:
        program = lower_with_cache(module, registry, tmp_path / "other", executor=pool)
    assert len(CountingBackend.calls) == 26
    assert {row.compiled for row in program.report.delegates} == {
        "compiled",
        "equal to lowered_module_0",
    }


def test_reports_show_which_delegates_come_from_the_cache(registry, tmp_path):
    bare = delegraph.lower(
        make_model(), X, backends=[Everything()], registry=registry
    ).report
    assert [row.compiled for row in bare.delegates] == ["", ""]
    assert "compiled" not in str(bare)
    for whence in ("compiled", "from the cache"):
        report = lower_with_cache(make_model(same=True), registry, tmp_path).report
        assert [row.compiled for row in report.delegates] == [
            whence,
            "equal to lowered_module_0",
        ]
        assert f", {whence}\n" in str(report)
        assert [row["compiled"] for row in report.to_json()["delegates"]] == [
            whence,
            "equal to lowered_module_0",
        ]


def test_an_equal_of_one_that_is_refused_is_refused_too(registry, tmp_path):
    class Refused(nn.Module):
        def forward(self, x):
            return torch.digamma(x).cos().digamma()

    program = lower_with_cache(Refused().eval(), registry, tmp_path)
    assert not program.delegates
    assert len(program.report.given_back) == 2


def test_changed_fingerprints_and_sources_compile_again(
    registry, tmp_path, monkeypatch
):
    lower_with_cache(make_model(), registry, tmp_path)
    monkeypatch.setattr(CountingBackend, "version", "2")
    lower_with_cache(make_model(), registry, tmp_path)
    assert len(CountingBackend.calls) == 4
    monkeypatch.setattr(installed, "_sources", lambda package: "others")
    lower_with_cache(make_model(), registry, tmp_path)
    assert len(CountingBackend.calls) == 6


@pytest.mark.parametrize("independent", [(), ("torch",), ("torch", "delegraph")])
def test_entries_depend_on_versions_unless_the_backend_opts_out(
    independent, tmp_path, monkeypatch
):
    registry = Registry(discover=False)
    target = f"{__name__}:CountingBackend"
    registry.register(
        BackendSpec(
            "counting",
            target,
            "CountingBackend",
            1,
            traits=BackendTraits(independent_of=independent),
        )
    )
    CountingBackend.calls.clear()
    lower_with_cache(make_model(), registry, tmp_path)
    real = installed._sources
    with monkeypatch.context() as patch:
        patch.setattr(torch, "__version__", "9.0")
        lower_with_cache(make_model(), registry, tmp_path)
        assert (len(CountingBackend.calls) == 2) == ("torch" in independent)
    CountingBackend.calls.clear()
    monkeypatch.setattr(
        installed,
        "_sources",
        lambda package: "others" if package == "delegraph_workers" else real(package),
    )
    lower_with_cache(make_model(), registry, tmp_path)
    assert (not CountingBackend.calls) == ("delegraph" in independent)


def test_names_matter_to_a_backend_that_keeps_them(registry, tmp_path, monkeypatch):
    monkeypatch.setattr(CountingBackend, "keeps_names", True)
    plain = contents_of_delegates(
        delegraph.lower(make_model(), X, backends=[Everything()], registry=registry)
    )
    assert (
        contents_of_delegates(
            lower_with_cache(make_model(same=True), registry, tmp_path)
        )
        != plain
    )
    assert len(CountingBackend.calls) == 4  # equal partitions have other names
    for _ in range(2):
        assert (
            contents_of_delegates(lower_with_cache(make_model(), registry, tmp_path))
            == plain
        )
    assert len(CountingBackend.calls) == 5  # one of the two is that of the other model
    assert (
        "linear" in CountingBackend.calls[-2] or "linear_1" in CountingBackend.calls[-1]
    )


def test_sources_are_hashed_by_content(tmp_path, monkeypatch):
    (tmp_path / "sourced").mkdir()
    code = tmp_path / "sourced/__init__.py"
    code.write_text("a = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    __import__("sourced")
    before = installed._sources.__wrapped__("sourced")
    assert installed._sources.__wrapped__("sourced") == before
    code.write_text("a = 2\n")
    changed = installed._sources.__wrapped__("sourced")
    assert changed != before
    # an editor replaces it just now
    (tmp_path / "sourced/gone.py").symlink_to(tmp_path / "nowhere")
    assert installed._sources.__wrapped__("sourced") not in (before, changed)


def test_backends_without_fingerprint_are_not_cached_and_noted_once(
    registry, tmp_path, monkeypatch
):
    monkeypatch.setattr(CountingBackend, "version", None)
    program = lower_with_cache(make_model(), registry, tmp_path)
    text = (
        "CountingBackend returns no fingerprint for its compile specs, so partitions"
        " with them are not cached"
    )
    assert [n for n in program.report.notes if "fingerprint" in n] == [text]
    assert "linear" in CountingBackend.calls[0]
    assert list(tmp_path.iterdir()) == []


def test_results_that_json_cannot_express_are_not_stored(
    registry, tmp_path, monkeypatch
):
    compile_one = CountingBackend.preprocess

    def preprocess(edge_program, compile_specs):
        result = compile_one(edge_program, compile_specs)
        result._delegate_info_meta = {"odd": object()}
        return result

    monkeypatch.setattr(CountingBackend, "preprocess", staticmethod(preprocess))
    program = lower_with_cache(make_model(), registry, tmp_path)
    assert (
        "could not be stored in the cache: its result contains <object object"
        in cache_notes(program)[1]
    )
    assert len(program.delegates) == 2


def test_entries_do_not_hold_the_weights(registry, tmp_path):
    program = lower_with_cache(make_model(), registry, tmp_path)
    assert all(len(delegate.module.blob) > 16_000 for delegate in program.delegates)
    assert all(path.stat().st_size < 4_000 for path in entries_in(tmp_path))


def test_cached_blobs_refuse_weights_changed_later(registry, tmp_path):
    lower_with_cache(make_model(), registry, tmp_path)
    module = make_model()
    program = lower_with_cache(module, registry, tmp_path)
    with torch.no_grad():
        module.layers[0].weight.add_(1)
    with pytest.raises(
        ContractViolation, match="was changed after the program was lowered"
    ):
        join(program.delegates[0].module.blob)


DAMAGES = {
    "truncated": lambda path, data: data[: len(data) // 2],
    "empty": lambda path, data: b"",
    "foreign": lambda path, data: b"something else entirely",
    "a flipped bit": lambda path, data: (
        data[:100] + bytes([data[100] ^ 1]) + data[101:]
    ),
    "another digest": lambda path, data: data[:20] + bytes([data[20] ^ 1]) + data[21:],
    "nonsense": lambda path, data: write_entry(path, b'[{}, [["x"]], {}, null, null]'),
    "no list": lambda path, data: write_entry(path, b"7"),
    "no JSON": lambda path, data: write_entry(path, b"["),
    "deep JSON": lambda path, data: write_entry(path, b"[" * 100_000),
    "another constant": lambda path, data: write_entry(
        path, b'[{}, [[[99, 0, 5000]]], {"d": []}, null, null]'
    ),
    "no handles": lambda path, data: write_entry(
        path,
        b'[{}, [[]], {"d": [["debug_handle_map", {"d": [[0, {"t": [99]}]]}]]}, null,'
        b" null]",
    ),
    "that of another key": (
        lambda path, data: next(
            p for p in entries_in(path.parent) if p != path
        ).read_bytes()
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_entry_is_a_miss_and_a_note(name, registry, tmp_path):
    expected = contents_of_delegates(lower_with_cache(make_model(), registry, tmp_path))
    damaged = [DAMAGES[name](path, path.read_bytes()) for path in entries_in(tmp_path)]
    for path, data in zip(entries_in(tmp_path), damaged, strict=True):
        path.write_bytes(data)
    program = lower_with_cache(make_model(), registry, tmp_path)
    assert len(CountingBackend.calls) == 4
    assert contents_of_delegates(program) == expected
    assert sum("is not used: " in note for note in cache_notes(program)) == 2
    # they were written anew
    assert len(cache_notes(lower_with_cache(make_model(), registry, tmp_path))) == 1


MADE = {
    "pipe": os.mkfifo if os.name == "posix" else None,
    "folder": os.mkdir,
    "link": lambda path: os.symlink(path.parent / "elsewhere", path),
    "device": lambda path: os.symlink("/dev/zero", path),
}


@pytest.mark.skipif(
    os.name != "posix", reason="other systems have other kinds of files"
)
@pytest.mark.parametrize("kind", MADE)
def test_pipes_devices_and_links_are_no_entries(kind, registry, tmp_path):
    """A pipe was waited for, a device read without end, and a link followed."""
    kept = Cache(tmp_path)
    expected = contents_of_delegates(lower_with_cache(make_model(), registry, kept))
    listed = entries_in(tmp_path)
    elsewhere = tmp_path / "elsewhere"
    data = listed[0].read_bytes()
    elsewhere.write_bytes(data)
    for path in listed:
        path.unlink()
        MADE[kind](path)
    program = lower_with_cache(make_model(), registry, kept)
    assert contents_of_delegates(program) == expected
    assert (
        sum(
            "is not used: it is no regular file" in note
            for note in cache_notes(program)
        )
        == 2
    )
    assert sum("could not be stored" in note for note in cache_notes(program)) == 2
    assert list(kept.entries()) == []
    assert elsewhere.read_bytes() == data


def test_a_limit_that_cannot_be_kept_is_a_note(registry, tmp_path, monkeypatch):
    def fail(self):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(cache_module.Cache, "make_room", fail)
    program = lower_with_cache(make_model(), registry, tmp_path)
    assert (
        cache_notes(program)[1]
        == "the limit of the cache could not be kept: Permission denied"
    )
    assert len(program.delegates) == 2


def test_an_entry_that_cannot_be_written_is_a_note(registry, tmp_path, monkeypatch):
    def fail(path, content):
        raise WriteError("write-failed", "no space left")

    monkeypatch.setattr(cache_module, "write_whole", fail)
    program = lower_with_cache(make_model(), registry, tmp_path)
    assert (
        cache_notes(program)[1]
        == "a partition could not be stored in the cache: no space left"
    )
    assert len(program.delegates) == 2


@pytest.mark.skipif(os.name != "posix", reason="modes are POSIX's")
def test_folders_writable_by_others_are_refused(registry, tmp_path):
    lower_with_cache(make_model(), registry, tmp_path / "new/folder")
    assert (tmp_path / "new/folder").stat().st_mode & 0o777 == 0o700
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(OptionError, match="other users own it or can write to it"):
        lower_with_cache(make_model(), registry, tmp_path / "open")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OptionError, match="cannot be a cache"):
        lower_with_cache(make_model(), registry, tmp_path / "file")


def test_the_entries_used_least_recently_go(tmp_path):
    store = cache_module.Cache(tmp_path, limit=250)
    for k in range(3):
        path = tmp_path / f"{k:064}.entry"
        path.write_bytes(bytes(100))
        os.utime(path, (k, k))
    os.utime(tmp_path / f"{0:064}.entry", (9, 9))
    (tmp_path / "other.entry").write_bytes(bytes(1000))  # somebody else's
    store.make_room()
    assert [path.stem[-1] for path in entries_in(tmp_path)] == ["0", "2", "r"]


def test_refused_programs_are_not_cached(registry, tmp_path):
    class Refused(nn.Module):
        def forward(self, x):
            return torch.digamma(x.relu())

    program = lower_with_cache(Refused().eval(), registry, tmp_path)
    assert "no digamma here" in str(program.report)
    assert not program.delegates
    assert list(tmp_path.iterdir()) == []


def test_backends_that_change_the_weights_are_refused(registry, tmp_path, monkeypatch):
    compiled = CountingBackend.preprocess

    def zeroes(edge_program, compile_specs):
        for _, spec in placeholders(edge_program):
            if spec.target:
                constant_tensor(edge_program, spec).data.zero_()
        return compiled(edge_program, compile_specs)

    monkeypatch.setattr(CountingBackend, "preprocess", staticmethod(zeroes))
    with pytest.raises(ContractViolation, match="changed weights of partition"):
        lower_with_cache(make_model(), registry, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_threads_and_lowerings_side_by_side_give_the_same(registry, tmp_path):
    expected = contents_of_delegates(
        lower_with_cache(make_model(), registry, tmp_path / "one")
    )
    with ThreadPoolExecutor(4) as pool:
        made = [
            pool.submit(lower_with_cache, make_model(), registry, tmp_path / "many")
            for _ in range(6)
        ]
        assert all(
            contents_of_delegates(program.result()) == expected for program in made
        )
    with ThreadPoolExecutor(2) as pool:
        assert (
            contents_of_delegates(
                lower_with_cache(
                    make_model(), registry, tmp_path / "executor", executor=pool
                )
            )
            == expected
        )
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
    assert len(CountingBackend.calls) == 4


def test_true_selects_the_users_folder_and_false_none(registry, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(cache_module.sys, "platform", "linux")
    lower_with_cache(make_model(), registry, True)
    assert len(entries_in(tmp_path / "delegraph")) == 2
    monkeypatch.setenv("DELEGRAPH_CACHE", str(tmp_path / "env"))
    assert not cache_notes(lower_with_cache(make_model(), registry, False))
    assert not (tmp_path / "env").exists()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    # no absolute path, and not the working directory: its blobs would run
    monkeypatch.setenv("XDG_CACHE_HOME", ".")
    assert cache_module.user_folder() == tmp_path / "home/.cache/delegraph"
    for wrong in (5, b"x", [1]):
        with pytest.raises(OptionError):
            lower_with_cache(make_model(), registry, wrong)
    for limit in (-1, 2.5, True):
        with pytest.raises(
            OptionError, match="the limit of a cache is a number of bytes"
        ):
            Cache(tmp_path, limit=limit)


@pytest.mark.skipif(os.name != "posix", reason="modes are POSIX's")
def test_shared_folders_may_be_writable_by_others(registry, tmp_path):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    for found in (0, 2):
        program = lower_with_cache(
            make_model(), registry, Cache(tmp_path / "open", shared=True)
        )
        assert f": {found} partitions found" in cache_notes(program)[0]


def test_a_cache_lists_checks_and_removes_its_entries(registry, tmp_path):
    kept = Cache(tmp_path)
    lower_with_cache(make_model(), registry, kept)
    one, other = sorted(kept.entries())
    assert one.bytes == entries_in(tmp_path)[0].stat().st_size
    told = {
        "backend": "CountingBackend",
        "producer": "in-process",
        "torch": torch.__version__,
    }
    assert unpacked(one.key, one.path.read_bytes())[0][0] == told
    kept.remove([one.key])
    assert list(kept.entries()) == [other]


def test_the_limit_holds_after_a_lowering(registry, tmp_path):
    lower_with_cache(make_model(), registry, Cache(tmp_path, limit=0))
    assert not entries_in(tmp_path)


class Elsewhere(dict):
    """A store in memory; ``why`` makes it fail."""

    why = None
    name = "memory of ours"

    def read(self, key):
        if self.why:
            raise self.why
        return self.get(key)

    def write(self, key, data):
        self[key] = data


def test_a_remote_store_is_read_through_and_written_back(registry, tmp_path):
    store = Elsewhere()
    expected = contents_of_delegates(
        lower_with_cache(make_model(), registry, Cache(tmp_path / "one", remote=store))
    )
    program = lower_with_cache(
        make_model(), registry, Cache(tmp_path / "two", remote=store)
    )
    assert len(CountingBackend.calls) == len(store) == 2
    assert contents_of_delegates(program) == expected
    assert [row.compiled for row in program.report.delegates] == ["from the cache"] * 2
    assert [p.name for p in entries_in(tmp_path / "one")] == [
        p.name for p in entries_in(tmp_path / "two")
    ]
    lower_with_cache(make_model(), registry, tmp_path / "two")
    assert len(CountingBackend.calls) == 2


def test_entries_of_a_remote_store_are_checked(registry, tmp_path):
    store = Elsewhere()
    expected = contents_of_delegates(
        lower_with_cache(make_model(), registry, Cache(tmp_path / "one", remote=store))
    )
    store.update({key: data[:-1] for key, data in store.items()})
    program = lower_with_cache(
        make_model(), registry, Cache(tmp_path / "two", remote=store)
    )
    assert contents_of_delegates(program) == expected
    assert (
        sum(
            "remote cache entry" in note and "is not used" in note
            for note in cache_notes(program)
        )
        == 2
    )
    assert len(CountingBackend.calls) == 4
    lower_with_cache(make_model(), registry, Cache(tmp_path / "three", remote=store))
    assert len(CountingBackend.calls) == 4  # they were written anew


@pytest.mark.parametrize("answer", ["text", 7, [300], b"", memoryview(b"x" * 99)])
def test_wrong_answers_of_remote_stores_are_noted(
    answer, registry, tmp_path, monkeypatch
):
    monkeypatch.setattr(Elsewhere, "read", lambda self, key: answer)
    program = lower_with_cache(
        make_model(), registry, Cache(tmp_path, remote=Elsewhere())
    )
    assert len(program.delegates) == len(entries_in(tmp_path)) == 2
    assert any("is not used: " in note for note in cache_notes(program))


@pytest.mark.parametrize(
    ("why", "shown"),
    [
        (OSError(28, "its own"), "OSError (No space left on device)"),
        (ValueError("its own"), "ValueError"),
    ],
)
def test_failing_remote_stores_are_noted_and_used_no_more(
    why, shown, registry, tmp_path
):
    store = Elsewhere()
    store.why = why
    program = lower_with_cache(make_model(), registry, Cache(tmp_path, remote=store))
    assert len(program.delegates) == len(entries_in(tmp_path)) == 2
    assert not store
    assert cache_notes(program)[1:] == [
        f"the remote cache memory of ours is not used: {shown}"
    ]


def test_entries_have_no_paths_and_no_environment(registry, tmp_path, monkeypatch):
    monkeypatch.setenv("TOKEN_OF_SOMETHING", "7c0ffee7")
    lower_with_cache(make_model(), registry, tmp_path)
    for path in entries_in(tmp_path):
        data = path.read_bytes()
        assert not any(
            word in data
            for word in (
                b"7c0ffee7",
                b".py",
                os.getcwd().encode(),
                str(tmp_path).encode(),
            )
        )


class DoublingRuntime(BackendRuntime):
    @staticmethod
    def load(processed_bytes, compile_specs, named_data):
        return lambda x: (x + x,)

    @staticmethod
    def profile(processed_bytes, compile_specs, named_data):
        return lambda x: ((x + x,), {0: {"seconds": 0.5}})


class Times:
    """A ``Timer`` that keeps the times of operators inside of delegates."""

    def __init__(self):
        self.found = {}

    def begin(self, values): ...
    def see(self, node, value): ...
    def enter(self, owner, module, inputs): ...
    def leave(self): ...
    def inside(self, delegate, values): ...
    def end(self): ...

    def spent(self, delegate, seconds, read):
        self.found |= {k: v for k, v in read().items() if isinstance(k, int)}


def test_plugins_with_the_current_api_are_cached_and_profiled(tmp_path):
    class Double(nn.Module):
        def forward(self, x):
            return x + x

    registry = Registry(discover=False)
    spec = BackendSpec(
        "counting", f"{__name__}:CountingBackend", "CountingBackend", api=1
    )
    registry.register(spec, runtime=DoublingRuntime, partitioner=Everything)
    CountingBackend.calls.clear()
    for _ in range(2):
        lowered = delegraph.lower(
            Double().eval(),
            (torch.ones(2),),
            backends=["counting"],
            registry=registry,
            compiler=Compiler(tmp_path),
        )
    assert len(CountingBackend.calls) == 1
    assert lowered.delegates[0].fingerprint == CountingBackend.version
    timer = Times()
    assert torch.equal(lowered.observe(timer, torch.ones(2)), torch.full((2,), 2.0))
    assert timer.found == {0: {"seconds": 0.5}}
