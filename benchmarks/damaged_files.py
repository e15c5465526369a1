"""Program files that are damaged on purpose, through load, inspect and run: what ends
the process, raises, or grows.

    python benchmarks/damaged_files.py [--count 40000] [--seed 1] [--runtime executorch]
        [--keep FOLDER]

Run it with an interpreter that has delegraph's plugins, delegraph-devkit and
`executorch==1.5.1`. The files to damage are those of the executorch plugin's tests,
ExecuTorch's own among them, one for each operator of PyTorch's samples that a program
file holds, and a few large ones. Half of the damage is to bytes; the other half is to
what they mean: a field of a table gets another value, an instruction another kernel, a
value another kind, and the file is written anew.

Each case runs in a child process with a limit on its memory and its time. *dead* are
cases that ended the process,
*native* those that did so inside of ExecuTorch's library, *foreign* those that raised
something other than a DelegraphError, *grown* those that took more memory than 16 times
the file, what it states, and SLACK. ``--runtime executorch`` loads and runs the files
in ExecuTorch's own runtime instead. ``--keep`` gets the files of all of these.
"""

from __future__ import annotations

import argparse
import dataclasses
import io
import json
import os
import random
import resource
import select
import signal
import struct
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parents[1] / "plugins" / "executorch_backend"))

SLACK = 48 << 20
"""Bytes that a case may take beside what its file accounts for: modules that are
imported late, and caches of torch.
"""
MEMORY = 64 << 20
"""Bytes of planned memory that a program may have in the cases."""
ITERATIONS = 200
SECONDS = 30
"""After which a case counts as one that hangs."""
ADDRESSES = 8 << 30
"""Bytes of address space that a child may add."""
BATCH = 400
"""Cases of one child process."""


class Seed(NamedTuple):
    """A file to damage."""

    name: str
    content: bytes


def main() -> None:
    """Damage and try the files; print what happened."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=40_000)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runtime", choices=["executorch"])
    parser.add_argument("--keep", type=Path)
    parser.add_argument(
        "--seeds",
        type=Path,
        help="folder that keeps the files to damage from run to run",
    )
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    import torch

    torch.set_num_threads(1)
    seeds = collect_seeds(arguments.seeds)
    _warm_up(seeds, arguments)
    print(
        f"{len(seeds)} files to damage, {sum(len(s.content) for s in seeds):,} bytes",
        flush=True,
    )
    outcomes: Counter[str] = Counter()
    faults: dict[str, list[int]] = {}
    start = time.time()
    peak = (0, -1)
    for outcome in run_cases(seeds, arguments):
        for kind in outcome["kinds"]:
            outcomes[kind] += 1
        if outcome["grown"] > peak[0]:
            peak = outcome["grown"], outcome["number"]
        for fault in outcome["faults"]:
            first = fault not in faults
            faults.setdefault(fault, []).append(outcome["number"])
            if first:
                print(
                    f"case {outcome['number']} ({outcome['seed']}): {fault}", flush=True
                )
            if arguments.keep:
                arguments.keep.mkdir(parents=True, exist_ok=True)
                content = case(seeds, arguments.seed, outcome["number"])[1]
                (arguments.keep / f"{outcome['number']}.pte").write_bytes(content)
    print(f"{arguments.count} cases in {time.time() - start:.0f} s")
    print(", ".join(f"{count} {kind}" for kind, count in sorted(outcomes.items())))
    print(
        f"most memory: {peak[0]:,} bytes beyond what the file accounts for, in case"
        f" {peak[1]}"
    )
    for fault, numbers in sorted(faults.items(), key=lambda item: -len(item[1])):
        print(f"{len(numbers):5} x {fault}; cases {', '.join(map(str, numbers[:5]))}")


# --- files ----------------------------------------------------------------------------


def collect_seeds(folder: Path | None) -> list[Seed]:
    """The files to damage; those that take a while to make are kept in ``folder``."""
    if folder is not None and folder.is_dir():
        return [
            Seed(path.stem, path.read_bytes()) for path in sorted(folder.glob("*.pte"))
        ]
    seeds = list(_make_seeds())
    if folder is not None:
        folder.mkdir(parents=True)
        for seed in seeds:
            (folder / f"{seed.name}.pte").write_bytes(seed.content)
    return sorted(seeds)


def _make_seeds() -> Iterator[Seed]:
    import delegraph
    import torch
    from delegraph.errors import DelegraphError
    from delegraph_devkit import opinfo
    from delegraph_executorch.emit import emit_program
    from tests.support.cases import DYNAMIC, STATIC
    from tests.support.fixtures import FIXTURES, FOLDER

    def emitted(
        name: str,
        module: Any,
        call: Any,
        shapes: Any = None,
        backends: Sequence[str] = (),
    ) -> Iterator[Seed]:
        try:
            lowered = delegraph.lower(
                module, call, dynamic_shapes=shapes, backends=list(backends)
            )
            content = emit_program(lowered).file.join()
        except (DelegraphError, RuntimeError, ValueError) as e:
            print(f"no file of {name}: {str(e)[:100]}", file=sys.stderr)
            return
        yield Seed(name.replace("/", "-"), content)

    for name in FIXTURES:
        yield Seed(f"fixture {name}", (FOLDER / f"{name}.pte").read_bytes())
    for name, (module, calls) in STATIC.items():
        yield from emitted(name, module.eval(), calls[0])
    for name, (module, shapes) in DYNAMIC.items():
        yield from emitted(
            f"dynamic {name}", module.eval(), (torch.ones(3, 4),), shapes
        )
    for name in ("convolution", "mlp", "branch"):
        for backend in ("tosa", "xnnpack"):
            yield from emitted(
                f"{name} on {backend}",
                STATIC[name][0].eval(),
                STATIC[name][1][0],
                None,
                [backend],
            )
    for info in opinfo._table():
        program = (
            opinfo._program(info, torch.float32, 0)
            if torch.float32 in info.supported_dtypes("cpu")
            else None
        )
        if program is not None:
            yield from emitted(f"operator {info.formatted_name}", *program.make(1))
    yield from _large_seeds()


def _large_seeds() -> Iterator[Seed]:
    """Files with thousands of values and instructions, without what delegraph's own
    files say of delegates.
    """
    from delegraph_executorch.program import pte_tables as t
    from delegraph_executorch.serialize.file import Segment, program_file

    def file(
        name: str,
        values: Sequence[Any],
        calls: Sequence[Any],
        operators: Sequence[Any],
        size: int,
    ) -> Seed:
        chain = t.Chain((0,), (1,), tuple(map(t.Instruction, calls)))
        blob = t.BackendDelegateDataReference(t.BlobLocation.SEGMENT, 0)
        plan = t.ExecutionPlan(
            "forward",
            t.ContainerMetadata(),
            tuple(map(t.EValue, values)),
            (0,),
            (1,),
            (chain,),
            tuple(operators),
        )
        plan = dataclasses.replace(
            plan, delegates=(t.BackendDelegate("nobody", blob),), memory_sizes=(0, size)
        )
        program = t.Program(
            plans=(plan,), constant_segment=t.SubsegmentOffsets(0, (0,))
        )
        return Seed(name, program_file(program, [Segment(b"blob")]).join())

    def tensor(k: int) -> Any:
        return t.Tensor(6, 0, (4,), (0,), False, 0, t.AllocationDetails.at(1, 16 * k))

    count = 4000
    tensors = [tensor(k) for k in range(count)]
    relu = [t.Operator("aten::relu", "out")]
    chain = [t.KernelCall(0, (k, k + 1, k + 1)) for k in range(count - 1)]
    yield file("large chain", tensors, chain, relu, 16 * count)
    yield file(
        "large overlap", [tensor(k % 7) for k in range(count)], chain, relu, 16 * 7
    )
    delegates = [t.DelegateCall(0, (k, k + 1)) for k in range(count - 1)]
    yield file("large delegates", tensors, delegates, relu, 16 * count)
    jumps = [t.JumpFalseCall(count, k + 2) if k % 2 else c for k, c in enumerate(chain)]
    yield file("large jumps", [*tensors, t.Bool(True)], jumps, relu, 16 * count)
    listed = [*tensors, t.TensorList(tuple(range(count))), t.Int(0)]
    cat = [t.Operator("aten::cat", "out")]
    calls = [t.KernelCall(0, (count, count + 1, k, k)) for k in range(count)]
    yield file("large lists", listed, calls, cat, 16 * count)
    integers = [tensor(0), tensor(1), *(t.Int(k) for k in range(count))]
    add = [t.Operator("executorch_prim::add", "Scalar")]
    yield file(
        "large integers",
        integers,
        [t.KernelCall(0, (k, k, k)) for k in range(2, count)],
        add,
        32,
    )


# --- damage ---------------------------------------------------------------------------

_INTERESTING = (
    0,
    0,
    1,
    1,
    2,
    3,
    4,
    5,
    7,
    8,
    16,
    32,
    64,
    127,
    128,
    255,
    256,
    -1,
    -1,
    -2,
    -3,
    -128,
    1 << 15,
    1 << 16,
)
_HUGE = (
    1 << 20,
    1 << 24,
    (1 << 31) - 1,
    -(1 << 31),
    1 << 31,
    1 << 32,
    1 << 40,
    (1 << 63) - 1,
    -(1 << 63),
    1 << 62,
)
_TEXTS = (
    "",
    "floor",
    "trunc",
    "none",
    "tanh",
    "sum",
    "out",
    "forward",
    "\0",
    "x" * 300,
    '{"tuple": []}',
    "é",
)


def case(seeds: Sequence[Seed], seed: int, number: int) -> tuple[Seed, bytes]:
    """The file that case ``number`` damages, and the damaged one."""
    source = random.Random(f"{seed}/{number}")
    large = source.random() < 0.002
    chosen = source.choice([s for s in seeds if s.name.startswith("large") == large])
    damage = source.choice([damage_bytes, damage_tables])
    return chosen, damage(chosen.content, source)


def damage_bytes(data: bytes, source: random.Random) -> bytes:
    """Flip, replace or cut: single bytes, and words with values that are likely to
    hurt.
    """
    made = bytearray(data)
    for _ in range(source.choice([1, 1, 1, 2, 8])):
        place = source.randrange(
            min(len(made), source.choice([1 << 10, 1 << 13, len(made)]))
        )
        kind = source.randrange(4)
        if kind == 0:
            made[place] = source.randrange(256)
        elif kind == 1:
            made[place] ^= 1 << source.randrange(8)
        elif kind == 2 and place + 4 <= len(made):
            word = source.choice(
                [0, 1, 0xFFFFFFFF, 0x7FFFFFFF, 0x80000000, source.randrange(1 << 16)]
            )
            struct.pack_into("<I", made, place, word)
        elif source.random() < 0.1:
            del made[place:]
            return bytes(made) or b"\0"
    return bytes(made)


def damage_tables(data: bytes, source: random.Random) -> bytes:
    """Change what tables say, and write the file anew."""
    from delegraph_executorch.serialize.file import Segment, program_file
    from delegraph_executorch.serialize.reader import read_program

    file = read_program(data)
    program: Any = file.program
    for _ in range(source.choice([1, 1, 2, 2, 3, 6])):
        program = _damage(program, source)
    if not any(map(len, file.segments)):
        return program_file(program, []).join()
    return program_file(program, [Segment(bytes(s)) for s in file.segments]).join()


def _damage(table: Any, source: random.Random) -> Any:
    """A table with one field, its own or that of a table below it, changed."""
    from delegraph_executorch.program.schema import (
        Either,
        Numbers,
        Scalar,
        Sub,
        Tables,
        fields_of,
    )

    fields = fields_of(type(table))
    if not fields:
        return table
    deep = [
        f
        for f in fields
        if isinstance(f.kind, (Sub, Tables, Either)) and getattr(table, f.name)
    ]
    field = (
        source.choice(deep)
        if deep and source.random() < 0.85
        else source.choice(fields)
    )
    value = getattr(table, field.name)
    kind = field.kind
    if isinstance(kind, Scalar):
        made = _damage_number(value, kind.form, source)
    elif isinstance(kind, Numbers):
        made = _damage_numbers(value, kind, source)
    elif isinstance(kind, Tables):
        made = _damage_list(value, kind.cls, source)
    elif isinstance(kind, Sub):
        made = (
            None if value is None or source.random() < 0.1 else _damage(value, source)
        )
    elif isinstance(kind, Either):
        made = _damage_union(value, kind.members, source)
    else:
        made = _damage_text(value, type(table).__name__, field.name, source)
    return dataclasses.replace(table, **{field.name: made})


def _damage_number(value: Any, form: str, source: random.Random) -> Any:
    if form == "?":
        return not value
    if form == "d":
        return source.choice(
            [0.0, -0.0, 1.5, -1.0, 1e308, float("inf"), float("nan"), 1e-320, 2.0**63]
        )
    bits = 8 * struct.calcsize("<" + form)
    near = value + source.choice([-1, 1, 2, -2, 8])
    wanted = source.choice(
        [near, source.choice(_INTERESTING), source.choice(_HUGE), source.randrange(40)]
    )
    wanted &= (1 << bits) - 1
    return wanted - (1 << bits) if form.islower() and wanted >> (bits - 1) else wanted


def _damage_numbers(value: Any, kind: Any, source: random.Random) -> Any:
    if kind.raw:
        return damage_bytes(value or b"\0", source)
    listed = list(value)
    where = source.randrange(len(listed) + 1)
    what = source.randrange(5)
    if what == 0 or where == len(listed):
        listed.insert(where, _damage_number(0, kind.form, source))
    elif what == 1:
        del listed[where]
    elif what == 2:
        listed[where] = source.choice(listed)
    else:
        listed[where] = _damage_number(listed[where], kind.form, source)
    return tuple(listed)


def _damage_list(value: Any, cls: type, source: random.Random) -> Any:
    listed = list(value)
    if listed and source.random() < 0.85:
        where = source.randrange(len(listed))
        listed[where] = _damage(listed[where], source)
        return tuple(listed)
    what = source.randrange(4)
    where = source.randrange(len(listed) + 1)
    if not listed or what == 0:
        listed.insert(where, cls())
    elif what == 1:
        del listed[where % len(listed)]
    elif what == 2:
        listed.insert(where, source.choice(listed))
    else:
        source.shuffle(listed)
    return tuple(listed)


def _damage_union(value: Any, members: Sequence[type], source: random.Random) -> Any:
    if value is not None and source.random() < 0.7:
        return _damage(value, source)
    made: Any = source.choice(members)()
    for _ in range(source.randrange(3)):
        made = _damage(made, source)
    return None if source.random() < 0.05 else made


def _damage_text(value: str, table: str, field: str, source: random.Random) -> str:
    if table == "Operator" and source.random() < 0.9:
        from delegraph_executorch.kernels import stock_kernels

        name, _, overload = source.choice(sorted(stock_kernels().names)).partition(".")
        return name if field == "name" else overload
    if value and source.random() < 0.5:
        where = source.randrange(len(value))
        return (
            value[:where]
            + source.choice(["", "-1", "9" * 20, "[", "null", "\\"])
            + value[where + 1 :]
        )
    return source.choice(_TEXTS)


# --- cases ----------------------------------------------------------------------------


def run_cases(
    seeds: Sequence[Seed], arguments: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    """The outcome of each case, from child processes that are replaced when one is
    ended.
    """
    number = arguments.first
    end = arguments.first + arguments.count
    with tempfile.TemporaryDirectory(
        dir="/dev/shm" if os.path.isdir("/dev/shm") else None
    ) as folder:
        while number < end:
            stop = min(end, number + BATCH)
            for outcome in _child(
                lambda say, a=number, b=stop: _serve(
                    seeds, arguments, a, b, Path(folder), say
                )
            ):
                yield outcome
                number = outcome["number"] + 1


def _warm_up(seeds: Sequence[Seed], arguments: argparse.Namespace) -> None:
    """Import what cases need, once for all children; no code of ExecuTorch runs, whose
    threads a child would miss.
    """
    import delegraph

    for backend in ("tosa", "XnnpackBackend"):
        delegraph.get_runtime(backend)
    if arguments.runtime is None:
        chosen = [s for s in seeds if "xnnpack" not in s.name and "large" not in s.name]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "seed.pte"
            for seed in chosen[:: len(chosen) // 20]:
                path.write_bytes(seed.content)
                Case(
                    1, seed.name, path, seed.content, arguments, lambda said: None
                ).run()


def _child(
    work: Callable[[Callable[[dict[str, Any]], None]], None],
) -> Iterator[dict[str, Any]]:
    """What a child process says, a line a time; where it is ended, an outcome for what
    it was doing.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            work(
                lambda said: (
                    os.write(writing, json.dumps(said).encode() + b"\n") and None
                )
            )
        except BaseException as e:
            os.write(
                writing,
                json.dumps({"failed": "".join(traceback.format_exception(e))}).encode()
                + b"\n",
            )
            os._exit(3)
        os._exit(0)
    os.close(writing)
    doing: dict[str, Any] = {}
    rest = b""
    hung = False
    while True:
        if not select.select([reading], [], [], 20 * SECONDS)[0]:
            os.kill(child, signal.SIGKILL)
            hung = True
        block = os.read(reading, 1 << 16)
        *lines, rest = (rest + block).split(b"\n")
        for line in lines:
            said = json.loads(line)
            if "kinds" in said:
                yield said
                doing = {}
            else:
                doing |= said
        if not block:
            break
    os.close(reading)
    _, status = os.waitpid(child, 0)
    if "failed" in doing:
        raise SystemExit(f"a child ended: {doing}")
    if status:
        code = os.waitstatus_to_exitcode(status)
        how = (
            f"hangs for {SECONDS} s"
            if hung or -code == signal.SIGXCPU
            else signal.Signals(-code).name
            if code < 0
            else f"exit {code}"
        )
        kind = "native" if doing.get("native") else "dead"
        fault = f"{kind}: {how} in {doing['stage']}"
        yield {
            "number": doing["number"],
            "seed": doing["seed"],
            "kinds": [kind],
            "faults": [fault],
            "grown": 0,
        }


def _serve(
    seeds: Sequence[Seed],
    arguments: argparse.Namespace,
    first: int,
    stop: int,
    folder: Path,
    say: Any,
) -> None:
    """Try the cases from ``first`` to ``stop``."""
    limit = _status("VmSize") + ADDRESSES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    sys.setrecursionlimit(1000)
    path = folder / "case.pte"
    for number in range(first, stop):
        chosen, content = case(seeds, arguments.seed, number)
        path.write_bytes(content)
        say(
            {"number": number, "seed": chosen.name, "stage": "reading", "native": False}
        )
        say(Case(number, chosen.name, path, content, arguments, say).run())


class Case:
    """One damaged file, and what happens with it."""

    def __init__(
        self,
        number: int,
        seed: str,
        path: Path,
        content: bytes,
        arguments: argparse.Namespace,
        say: Any,
    ) -> None:
        self.number = number
        self.seed = seed
        self.path = path
        self.content = content
        self.say = say
        self.runtime = arguments.runtime
        self.kinds: Counter[str] = Counter()
        self.faults: list[str] = []
        self.grown = 0
        self.allowed = 16 * len(content) + _stated(content)

    def run(self) -> dict[str, Any]:
        """The outcome."""
        from delegraph.discovery.registry import default_registry
        from delegraph.host.files import FileFormat
        from delegraph_analysis import summary_text

        _allow_seconds()
        file_format = FileFormat(self.path, default_registry())
        inputs = self.stage("sample", lambda: file_format.sample(self.path, 0)) or []
        loaded = self.stage(
            "load", lambda: self.load(file_format), native=self.runtime is not None
        )
        if self.runtime is None:
            self.stage(
                "inspect",
                lambda: (
                    str(i := file_format.inspect(self.path)) and json.dumps(i.to_json())
                ),
            )
            self.stage(
                "summary", lambda: summary_text(file_format.summarize(self.path))
            )
            self.stage("page", lambda: file_format.page(self.path))
            self.stage("verify", self.verify)
        for method in (loaded or {}).values():
            self.stage(
                "run",
                lambda m=method: self.call(m, inputs),
                native=self.runtime is not None,
            )
            self.stage(
                "run again",
                lambda m=method: self.call(m, inputs),
                native=self.runtime is not None,
            )
        if self.number % 20 == 0 and self.runtime is None:
            self.command("inspect", "--summary", str(self.path))
            self.command(
                "run",
                "--max-memory",
                str(MEMORY),
                "--max-iterations",
                str(ITERATIONS),
                str(self.path),
            )
        kinds = [f"{stage}:{how}" for stage, how in self.kinds]
        kinds += sorted({fault.partition(":")[0] for fault in self.faults})
        return {
            "number": self.number,
            "seed": self.seed,
            "kinds": kinds,
            "faults": self.faults,
            "grown": self.grown,
        }

    def load(self, file_format: Any) -> Any:
        if self.runtime is not None:
            return file_format.load_in(self.runtime, self.path)
        return file_format.kind.read(
            self.path, self.load_delegate, max_memory=MEMORY, max_iterations=ITERATIONS
        )

    def load_delegate(
        self, backend: str, blob: bytes, specs: Any = (), data: Any = None
    ) -> Any:
        import delegraph

        native = backend == "XnnpackBackend"
        self.say({"native": native})
        runner = delegraph.get_runtime(backend).load(blob, specs, data or {})
        self.say({"native": False})

        def call(*args: Any) -> Any:
            self.say({"native": native})
            try:
                return runner(*args)
            finally:
                self.say({"native": False})

        return call

    def call(self, method: Any, inputs: Sequence[Any]) -> None:
        import torch

        method(
            *(
                torch.from_numpy(i) if i.shape or i.dtype.kind == "f" else i.item()
                for i in inputs
            )
        )

    def verify(self) -> None:
        from delegraph_executorch.format import _checked
        from delegraph_executorch.run.arguments import check_arguments
        from delegraph_executorch.run.verdicts import judge_plans

        file = _checked(self.path)
        check_arguments(file)
        judge_plans(file)

    def command(self, *words: str) -> None:
        from delegraph.cli import main as command

        def run() -> None:
            errors = io.StringIO()
            before = sys.stderr
            sys.stderr = errors
            try:
                command(list(words))
            finally:
                sys.stderr = before
            said = errors.getvalue()
            for code in ("[internal]", "[plugin-failed]", "[contract-violation]"):
                if code in said:
                    self.faults.append(
                        f"foreign: command {words[0]}:"
                        f" {said.partition(chr(10))[0][:150]}"
                    )

        self.stage(f"command {words[0]}", run)

    def stage(self, name: str, work: Callable[[], Any], native: bool = False) -> Any:
        """The result of a step, or None where it is refused."""
        from delegraph.errors import (
            ContractViolation,
            DelegraphError,
            InternalError,
            PluginFailed,
        )

        self.say({"stage": name, "native": native})
        _reset_peak()
        before = _status("VmRSS")
        result = None
        how = "fine"
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                result = work()
        except (PluginFailed, ContractViolation, InternalError) as e:
            how = "foreign"
            self.faults.append(f"foreign: {name}: {_where(e.__cause__ or e)}")
        except DelegraphError:
            how = "refused"
        except Exception as e:
            how = "foreign"
            self.faults.append(f"foreign: {name}: {_where(e)}")
        taken = _status("VmHWM") - before
        beyond = max(0, taken - self.allowed)
        self.grown = max(self.grown, beyond)
        if beyond > SLACK:
            self.faults.append(f"grown: {name} takes memory")
        self.kinds[name, how] += 1
        self.say({"native": False})
        return result


def _where(error: BaseException) -> str:
    """An exception and the innermost line of ours that it passed."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [f for f in frames if "delegraph" in f.filename] or frames
    at = f"{Path(ours[-1].filename).name}:{ours[-1].lineno}" if ours else "?"
    return f"{type(error).__name__} at {at}: {str(error).partition(chr(10))[0][:100]}"


def _stated(content: bytes) -> int:
    """Bytes of memory that a file says its tensors have: planned, given, and computed."""
    from delegraph.errors import DelegraphError
    from delegraph_executorch.program.pte_tables import Tensor
    from delegraph_executorch.serialize.check import check_program, nbytes
    from delegraph_executorch.serialize.reader import read_program

    try:
        file = read_program(content)
        check_program(file)
    except DelegraphError:
        return 0
    plans = [plan for plan in file.program.plans if sum(plan.memory_sizes) <= MEMORY]
    tensors = [
        e.value for plan in plans for e in plan.values if isinstance(e.value, Tensor)
    ]
    return 2 * sum(sum(plan.memory_sizes) for plan in plans) + 2 * sum(
        map(nbytes, tensors)
    )


def _status(field: str) -> int:
    """A figure of /proc/self/status, in bytes."""
    with open("/proc/self/status", "rb") as file:
        for line in file:
            if line.startswith(field.encode() + b":"):
                return int(line.split()[1]) << 10
    return 0


def _allow_seconds() -> None:
    """Have the system end this process after ``SECONDS`` of computing more: other work
    may keep it waiting for long.
    """
    used = resource.getrusage(resource.RUSAGE_SELF)
    limit = int(used.ru_utime + used.ru_stime) + SECONDS
    resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.RLIM_INFINITY))


def _reset_peak() -> None:
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")


if __name__ == "__main__":
    main()
