"""Killed processes and random damage never make the cache return a wrong entry."""

import os
import random
import subprocess
import sys
from typing import NamedTuple

import pytest
import torch
from delegraph.backend import NamedDataStore, PreprocessResult
from delegraph.errors import FormatError
from delegraph.io.blob_pieces import TensorBlob, join
from delegraph_workers.entry_bytes import read_result, write_result
from delegraph_workers.forms import Form, write

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


NEEDS_FORK = pytest.mark.skipif(
    not hasattr(os, "fork"), reason="the processes are forks"
)


@NEEDS_FORK
@pytest.mark.parametrize(
    "rounds", [2, pytest.param(100, marks=pytest.mark.slow)], ids="{} rounds".format
)
def test_killed_processes_leave_whole_entries(rounds, tmp_path):
    """In each round, eight processes fill one cache until they are killed.

    The script checks all entries after each round. It prints other files in the folder.
    """
    command = [sys.executable, "-W", "ignore", "-c", PROCESSES]
    completed = subprocess.run(
        [*command, str(tmp_path / "cache"), str(rounds)],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )

    assert completed.returncode == 0, completed.stderr
    assert completed.stdout.endswith(" entries []\n")


def truncate(data, place, dice):
    return data[:place]


def flip_a_bit(data, place, dice):
    flipped = data[place] ^ (1 << dice.randrange(8))
    return data[:place] + bytes([flipped]) + data[place + 1 :]


def insert_bytes(data, place, dice):
    return data[:place] + dice.randbytes(dice.randrange(1, 9)) + data[place:]


def zero_the_rest(data, place, dice):
    if not any(data[place:]):
        return b""  # zeros would be no damage
    return data[:place] + bytes(len(data) - place)


def append_bytes(data, place, dice):
    return data + dice.randbytes(dice.randrange(1, 9))


DAMAGES = [truncate, flip_a_bit, insert_bytes, zero_the_rest, append_bytes]


class Entry(NamedTuple):
    """An entry of a cache with the key ``"key"``, and the program that it belongs to."""

    data: bytes
    form: Form
    result: PreprocessResult


@pytest.fixture(scope="module")
def entry():
    layer = torch.nn.Linear(64, 64).eval()
    form = write(torch.export.export(layer, (torch.ones(1, 64),)))
    store = NamedDataStore()
    store.add_named_data("weight", layer.weight, 16)
    store.add_named_data("extra", b"more", 4, "elsewhere")
    result = PreprocessResult(
        TensorBlob(layer.weight),
        {1: (1,)},
        store.get_named_data_store_output(),
        {"a": (1.5, None)},
    )
    return Entry(write_result("key", {"backend": "B"}, result, form), form, result)


def test_a_whole_entry_is_read(entry):
    found = read_result("key", entry.data, entry.form)

    assert join(found.processed_bytes) == join(entry.result.processed_bytes)


def test_an_entry_of_another_key_is_refused(entry):
    with pytest.raises(FormatError):
        read_result("another key", entry.data, entry.form)


@pytest.mark.parametrize("count", [100, pytest.param(2000, marks=pytest.mark.slow)])
def test_damaged_entries_are_refused(count, entry):
    dice = random.Random(0)

    for _ in range(count):
        damage = dice.choice(DAMAGES)
        place = dice.randrange(len(entry.data))
        with pytest.raises(FormatError):
            read_result("key", damage(entry.data, place, dice), entry.form)
