"""Programs beyond 2 and 4 GB: written without a second copy of a weight, and read
without copying it.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from delegraph.errors import Unsupported
from torch import nn

from ..support.judge import emit, lower

STEPS = """
import sys, time, warnings
warnings.simplefilter("ignore")
from pathlib import Path
import delegraph, torch
from delegraph_executorch.format import PteFormat

folder, rows = Path(sys.argv[1]), 600_000
path = folder / "m.pte"

def megabytes(kind):
    "Of the memory of this process: RssAnon is its own, VmRSS has pages of mapped files in it as well."
    return next(int(line.split()[1]) >> 10 for line in open("/proc/self/status") if line.startswith(kind))

def weights(k):
    weight = torch.from_file(str(folder / f"{k}.bin"), shared=True, size=rows * 1024).view(rows, 1024)
    weight[0, :4], weight[-1, -4:] = torch.arange(4.0) + k, k + 1.0
    return weight

class Large(torch.nn.Module):
    def __init__(self):
        super().__init__()
        for k in range(2):
            self.register_buffer(f"table{k}", weights(k))

    def forward(self, ids):
        return sum(torch.nn.functional.embedding(ids, table) for table in (self.table0, self.table1))

def write(**options):
    before, start = megabytes("RssAnon"), time.process_time()
    lowered.save(path, **options)
    more, seconds = megabytes("RssAnon") - before, time.process_time() - start
    print(f"save: {sum(p.stat().st_size for p in folder.glob('m.*')):,} bytes, {more} MB raised, {seconds:.1f} s CPU")
    assert more < 64, more

def look():
    before, start = megabytes("VmRSS"), time.process_time()
    facts = PteFormat.inspect(path)
    more, seconds = megabytes("VmRSS") - before, time.process_time() - start
    print(f"inspect: {more} MB raised, {seconds:.3f} s CPU")
    assert more < 64, more
    return facts

def run(runtime, wanted):
    try:
        result = delegraph.load(path, runtime=runtime)(ids)
    except delegraph.errors.NoRuntime as e:
        return print(e.message)
    assert torch.equal(result, wanted), result
    print(f"{runtime or 'torch'}: equal to eager")

model, ids = Large().eval(), torch.tensor([0, rows - 1])
lowered = delegraph.lower(model, (ids,), backends=[])
write()
facts = look()
assert facts.bytes > 1 << 32 and facts.constant_bytes == 2 * rows * 4096 and facts.structure_bytes < 4096
run(None, model(ids))
run("executorch", model(ids))
write(external_constants="tables")
assert path.stat().st_size < 4096 and look().external_tensors == ("table0", "table1")
run(None, model(ids))
run("executorch", model(ids))
"""


@pytest.mark.slow
@pytest.mark.skipif(
    not sys.platform.startswith("linux"),
    reason="it reads the memory of its process from /proc",
)
def test_a_program_and_its_data_file_beyond_4_gb(tmp_path: Path) -> None:
    completed = subprocess.run(
        [sys.executable, "-c", STEPS, str(tmp_path)], capture_output=True, text=True
    )
    for file in tmp_path.iterdir():
        file.unlink()  # pytest keeps folders of tests
    print(completed.stdout)
    assert completed.returncode == 0, completed.stdout + completed.stderr


class Long(nn.Module):
    """More elements along a dimension than the file has bits for."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("zeros", torch.zeros(1, dtype=torch.uint8).expand(1 << 31))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.zeros[:2] + x


def test_a_size_beyond_31_bits_is_refused() -> None:
    lowered = lower(Long(), (torch.zeros(2, dtype=torch.uint8),))
    with pytest.raises(Unsupported, match=r"2147483648 elements in a dimension"):
        emit(lowered)
