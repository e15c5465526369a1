"""Processes that share a cache's folder and are killed at random; entries that are
damaged at random.
"""

import os
import random
import subprocess
import sys

import pytest
import torch
from delegraph.backend import NamedDataStore, PreprocessResult
from delegraph.errors import FormatError
from delegraph.io.blob_pieces import TensorBlob, join
from delegraph_workers.entry_bytes import read_result, write_result
from delegraph_workers.forms import write

PROCESSES = """
import os, random, signal, sys, time, traceback
import delegraph, torch
from delegraph.backend import BackendDetails, PreprocessResult
from delegraph.discovery.registry import Registry
from delegraph.io.blob_pieces import join
from delegraph.partitioner import CapabilityPartitioner
from delegraph_programs import constant_tensor, placeholders
from delegraph_workers.entry_bytes import unpacked
from delegraph_workers import Cache, Compiler

class SharedBackend(BackendDetails):
    @staticmethod
    def fingerprint(compile_specs):
        return ""
    @staticmethod
    def preprocess(program, compile_specs):
        tensors = [constant_tensor(program, s) for _, s in placeholders(program) if s.target]
        return PreprocessResult(b"".join(bytes(t.detach().contiguous().numpy().tobytes()[::-1]) for t in tensors))

registry = Registry(discover=False)
registry.register(SharedBackend)
takes = CapabilityPartitioner(lambda node: "no cos" if "cos" in str(node.target) else None, "SharedBackend")

def program(k):
    torch.manual_seed(k)
    layers = [torch.nn.Linear(48, 48), torch.nn.Linear(48, 48)]
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList(layers)
        def forward(self, x):
            for layer in self.layers:
                x = layer(x).cos()
            return x
    return torch.export.export(Net().eval(), (torch.ones(1, 48),))

folder, rounds = sys.argv[1], int(sys.argv[2])
programs = [program(k) for k in range(6)]

def blobs(k, **options):
    found = delegraph.lower(programs[k], backends=[takes], registry=registry, **options)
    assert not any("is not used" in note for note in found.report.notes), found.report.notes
    return [join(d.blob) for d in found.delegates]

wanted = [blobs(k) for k in range(6)]
cache = Cache(folder)
known = set()

def child(seed):
    dice = random.Random(seed)
    try:
        while True:
            k = dice.randrange(6)
            if blobs(k, compiler=Compiler(cache=folder)) != wanted[k]:
                os._exit(7)
    except BaseException:
        traceback.print_exc()
        os._exit(8)

dice = random.Random(0)
for turn in range(rounds):
    cache.remove(sorted(known)[:3])  # so that there is something to write
    known -= set(sorted(known)[:3])
    children = []
    for n in range(8):
        pid = os.fork()
        if pid == 0:
            child(100 * turn + n)
        children.append(pid)
    for pid in dice.sample(children, 8):
        time.sleep(dice.uniform(0, 0.2))
        os.kill(pid, signal.SIGKILL)
    for pid in children:
        _, status = os.waitpid(pid, 0)
        assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, status
    now = {entry.key for entry in cache.entries()}
    assert known <= now, "complete entries were lost"
    known = now
    for entry in cache.entries():
        unpacked(entry.key, entry.path.read_bytes())  # raises if one is damaged
assert known
assert [blobs(k, compiler=Compiler(cache=folder)) for k in range(6)] == wanted
print(len(known), "entries", sorted(p for p in os.listdir(folder) if not p.endswith(".entry")))
"""


def share_cache_in_processes(folder, rounds):
    words = [sys.executable, "-W", "ignore", "-c", PROCESSES, str(folder), str(rounds)]
    completed = subprocess.run(
        words, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    assert completed.returncode == 0, completed.stderr
    assert completed.stdout.endswith(" entries []\n")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the processes are forks")
def test_eight_processes_that_are_killed_leave_whole_entries(tmp_path):
    share_cache_in_processes(tmp_path / "cache", 2)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the processes are forks")
def test_so_do_eight_processes_in_a_hundred_rounds(tmp_path):
    share_cache_in_processes(tmp_path / "cache", 100)


def damage(data, dice):
    """The bytes of an entry after an accident."""
    place = dice.randrange(len(data))
    kind = dice.randrange(5)
    if kind == 0:
        return data[:place]
    if kind == 1:
        return (
            data[:place]
            + bytes([data[place] ^ (1 << dice.randrange(8))])
            + data[place + 1 :]
        )
    if kind == 2:
        return data[:place] + dice.randbytes(dice.randrange(1, 9)) + data[place:]
    if kind == 3:
        return data[:place] + bytes(len(data) - place) if any(data[place:]) else b""
    return data + dice.randbytes(dice.randrange(1, 9))


def check_damages(count):
    layer = torch.nn.Linear(64, 64).eval()
    form = write(torch.export.export(layer, (torch.ones(1, 64),)))
    store = NamedDataStore()
    store.add_named_data("weight", layer.weight, 16)
    store.add_named_data("extra", b"more", 4, "elsewhere")
    given = PreprocessResult(
        TensorBlob(layer.weight),
        {1: (1,)},
        store.get_named_data_store_output(),
        {"a": (1.5, None)},
    )
    data = write_result("key", {"backend": "B"}, given, form)
    assert join(read_result("key", data, form).processed_bytes) == join(
        given.processed_bytes
    )
    dice = random.Random(0)
    for _ in range(count):
        with pytest.raises(FormatError):
            read_result("key", damage(data, dice), form)
    with pytest.raises(FormatError):
        read_result("another key", data, form)


def test_a_damaged_entry_is_never_read():
    check_damages(100)


@pytest.mark.slow
def test_nor_is_any_of_two_thousand():
    check_damages(2000)
