"""Do one cell in its own process: load, quantize, lower, write, call and verify a
model.
"""

from __future__ import annotations

import json
import math
import os
import random
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from delegraph.errors import DelegraphError, NoRuntime, WriteError

from .cells import scheme_of, versions_of
from .description import place_of
from .store import Parcel, Store, place_for

if TYPE_CHECKING:
    from delegraph import LoweredProgram


def prepare(torch: Any) -> None:
    """Import the modules that each cell needs, before the forks.

    None of them starts a thread.
    """
    import delegraph
    import delegraph.report
    import numpy  # noqa: F401

    from .. import comparison  # noqa: F401

    assert callable(delegraph.lower)
    # the first one imports much more
    torch.export.export(torch.nn.ReLU(), (torch.zeros(1),))


def cell(
    job: Mapping[str, Any], store: Mapping[str, str], begin: Callable[[str], None]
) -> dict[str, Any]:
    """Do a cell, and call ``begin`` with each stage.

    Returns ``found``, the fields of the row, and ``parcel``, files for another machine.
    ``job``: see ``Cell.job``. ``store``: see ``Store.address``. An error that is not
    the cell's fault, such as a full disk, is ``stop``, which ends the whole matrix.
    """
    import torch

    target = place_for(store)
    doing = _Cell(job, target, begin)
    try:
        _expect_versions(job)
        os.chdir(job["folder"])
        torch.set_num_threads(job["settings"]["threads"])
        _seed(torch)
        warnings.simplefilter("ignore")
        doing.everything()
    except WriteError as e:
        return {"stop": described(e)}
    except _Foreign as e:
        return {
            "stop": described(DelegraphError("matrix/versions", str(e), hint=_SAME))
        }
    return {
        "found": doing.found,
        "parcel": target.contents if isinstance(target, Parcel) else {},
    }


def _seed(torch: Any) -> None:
    """Make random weights and inputs the same in each process."""
    import numpy

    random.seed(0)
    numpy.random.seed(0)
    torch.manual_seed(0)


class _Foreign(Exception):
    """The versions here differ from those of the asking process, so figures would be
    wrong.
    """


_SAME = (
    "install the same versions there; if you edited code meanwhile, call the command"
    " again"
)


def _expect_versions(job: Mapping[str, Any]) -> None:
    here = versions_of(
        job["backends"], scheme_of(job["model"]), job["settings"]["files"]
    )
    wanted = job["versions"]
    other = [
        f"{n} {here.get(n, 'not at all')}, not {v}"
        for n, v in wanted.items()
        if here.get(n) != v
    ]
    if other:
        raise _Foreign(f"a worker process of the matrix has {'; '.join(other)}")


class _Cell:
    """The work on a cell, and its results, which remain if an error ends it."""

    def __init__(
        self,
        job: Mapping[str, Any],
        store: Store | Parcel,
        begin: Callable[[str], None],
    ) -> None:
        self.job = job
        self.settings = job["settings"]
        self._store = store
        self._begin = begin
        self.found: dict[str, Any] = {
            "files": [],
            "causes": [],
            "gates": {},
            "methods": {},
            "error": None,
            "stage": None,
        }
        self.verifications: dict[str, Any] = {}
        self.measured: dict[str, Any] = {"seconds": {}, "cpu": {}}
        self.found["measured"] = self.measured

    def everything(self) -> None:
        """Do all stages until one fails.

        Raises WriteError, which is not the cell's fault.
        """
        try:
            with self._stage("load"):
                given = self._load()
            if self.job["quantize"] != "float":
                with self._stage("quantize"):
                    self.found["quantizer"] = self._quantize(given)
            self._lower_and_judge(given)
        except WriteError:
            raise
        except DelegraphError as e:
            self.found["error"] = described(e)
        except (Exception, SystemExit) as e:
            self.found["error"] = described(e)
            traceback.print_exc()

    @contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        """Time a block; an error in it belongs to that stage."""
        start = time.perf_counter()
        cpu = time.process_time()
        self.found["stage"] = name
        self._begin(name)
        yield
        self.found["stage"] = None
        self.measured["seconds"][name] = time.perf_counter() - start
        self.measured["cpu"][name] = time.process_time() - cpu

    def _load(self) -> Any:
        from delegraph.command import read_model

        return read_model(self.job["model"])

    def _quantize(self, given: Any) -> str:
        """Replace the model's programs by quantized ones; return the quantizer."""
        from delegraph.command import provided

        name = self.job["quantizer"] or _with_quantizer(self.job["backends"])
        if self.job["calibration"] and not _is_function(name):
            quantize_given = provided(
                "delegraph_quantize.command:quantize_given", "quantizing"
            )
            quantize_given(given, Path(self.job["calibration"]), name)
            return name
        quantize = provided("delegraph_quantize:quantize", "quantizing")
        for method in list(given.programs):
            chosen = (
                {"quantizer": _made_by(name)}
                if _is_function(name)
                else {"backend": name}
            )
            batches = self._batches(given, method)
            shapes = given.dynamic_shapes[method]
            program = quantize(
                given.programs[method], batches, dynamic_shapes=shapes, **chosen
            )
            positional = (
                (batches[0], None)
                if isinstance(batches[0], tuple)
                else ((), batches[0])
            )
            given.add(method, program, *positional)
        return name

    def _batches(self, given: Any, method: str) -> list[Any]:
        """Return the batches of the calibration file, else the example inputs alone."""
        from delegraph.command import provided
        from delegraph.errors import InputError

        args = given.inputs[method]
        kwargs = given.kwargs[method]
        program = given.programs[method]
        if self.job["calibration"]:
            read = provided("delegraph_quantize.command:read_batches", "quantizing")
            return list(read(Path(self.job["calibration"]), _names_of(program)))
        if args is None and not kwargs:
            text = f"method {method} has no example inputs to calibrate with"
            raise InputError(
                "input-invalid", text, hint="give the model calibration = 'FILE.npz'"
            )
        if not kwargs:
            return [tuple(args or ())]
        names = [*_names_of(program)][: len(args or ())]
        return [{**dict(zip(names, args or (), strict=True)), **kwargs}]

    def _lower_and_judge(self, given: Any) -> None:
        import delegraph
        from delegraph.command import provided

        arguments = given.arguments()
        transforms = arguments.pop("transforms")
        with self._stage("export"):
            exported = delegraph.export(**arguments)
        backends = self.job["backends"]
        options = self.job["options"]
        for backend in backends:
            delegraph.get_partitioner(backend)
            delegraph.get_backend(backend)
        with self._stage("import"):
            _lower_something(backends, options)
        with self._stage("lower"):
            cache = self.settings["cache"]
            compiler = (
                provided("delegraph_workers:Compiler", "--cache")(cache=cache)
                if cache
                else None
            )
            lowered = delegraph.lower(
                exported,
                backends=backends,
                options=options,
                transforms=transforms,
                compiler=compiler,
            )
        self._report(lowered)
        try:
            with self._stage("write"):
                self._write(lowered)
            if self.settings["verify"] or self.settings["runs"]:
                self._call(given, exported, lowered)
            self._gates(lowered)
        finally:
            self._keep_reports(lowered)

    def _report(self, lowered: LoweredProgram) -> None:
        report = lowered.report
        self.found |= {
            "operators": report.delegated_operators + report.host_operators,
            "delegated": report.delegated_operators,
            "delegates": len(report.delegates),
            "bytes": sum(row.bytes for row in report.delegates),
            "given_back": [str(row.reason) for row in report.given_back],
        }
        content = report.to_json()
        for row in content["refusals"]:
            cause = content["causes"][row["cause"]]
            self.found["causes"].append(
                {
                    "method": row["method"],
                    "backend": row["backend"],
                    "operator": row["operator"],
                    "reason": row["reason"],
                    "count": row["count"],
                    "hint": cause["hint"],
                }
            )

    def _write(self, lowered: LoweredProgram) -> None:
        """Write the program in each format; if that fails, keep the reason."""
        from delegraph import default_registry
        from delegraph.host import FileFormat
        from delegraph_programs import TRACING

        for suffix in self.settings["files"]:
            entry: dict[str, Any] = {
                "suffix": suffix,
                "bytes": None,
                "path": None,
                "error": None,
            }
            self.found["files"].append(entry)
            try:
                with TRACING:  # a format may trace
                    contents = FileFormat(
                        f"program{suffix}", default_registry()
                    ).contents(lowered, {})
            except DelegraphError as e:
                entry["error"] = e.message
                continue
            entry["bytes"] = sum(map(len, contents.values()))
            if self.settings["keep_files"]:
                entry["path"] = self._store.keep(contents[""], suffix)
                # the program's file refers to the others by these names
                others = {
                    name: self._store.keep(c, Path(name).suffix)
                    for name, c in contents.items()
                    if name
                }
                entry |= {"others": others} if others else {}

    def _call(
        self, given: Any, exported: Mapping[str, Any], lowered: LoweredProgram
    ) -> None:
        """Verify and time. A backend without a runtime here is no error."""
        from ..comparison import caller_of, caller_of_eager, example_call, writes_inputs
        from ..turns import call_in_turns

        found = {
            m: example_call(given.inputs[m], given.kwargs[m], program)
            for m, program in exported.items()
        }
        calls = {m: call for m, call in found.items() if call is not None}
        if len(calls) < len(found):
            self.found["not_run"] = "there are no example inputs"
            return
        try:
            if self.settings["verify"]:
                with self._stage("verify"):
                    self._verify(lowered, calls)
            if not self.settings["runs"]:
                return
            with self._stage("run"):
                writes = {m: writes_inputs(lowered, m) for m in exported}
                eager = caller_of_eager(exported, calls, writes)
                caller = caller_of(lowered.instance(), calls, writes)
                call_in_turns([eager, caller], self.settings["runs"])
                for name, timed in (("eager", eager), ("latency", caller)):
                    if timed.error is not None:
                        raise timed.error
                    self.measured[name] = {
                        "seconds": timed.seconds,
                        "first": timed.first_seconds,
                    }
        except NoRuntime as e:
            self.found |= {"not_run": e.message, "stage": None}

    def _verify(self, lowered: LoweredProgram, calls: Mapping[str, Any]) -> None:
        from ..accuracy.reruns import verify_ties

        tolerance = self.settings["tolerance"]
        for method, (args, kwargs) in calls.items():
            verification = verify_ties(lowered, *args, method=method, **kwargs)
            verification = verification.within(tolerance)
            self.verifications[method] = verification
            ratios = [
                output.snr for output in verification.outputs if output.snr is not None
            ]
            self.found["methods"][method] = {
                "relative_error": _finite(verification.relative_error),
                "agrees": verification.agrees(),
                "only_non_finite": verification.has_only_non_finite,
                "snr": _finite(min(ratios, default=None)),
            }

    def _gates(self, lowered: LoweredProgram) -> None:
        """Check all gates; the first that fails is the error of the cell."""
        gates = dict(_checked_gates(lowered.report, self.found, self.settings))
        self.found["gates"] = {name: error is None for name, error in gates.items()}
        for error in filter(None, gates.values()):
            raise error

    def _keep_reports(self, lowered: LoweredProgram) -> None:
        """Store the report as a page and as JSON.

        It has times, so it differs each time.
        """
        from delegraph.report import LoweringResult, verification_content

        from ..page.report_page import PageReport

        result = LoweringResult(
            lowered.report, dict(self.verifications), model=self.job["name"]
        )
        page = PageReport.render(result)
        self.measured["page"] = self._store.keep(
            page.encode() if isinstance(page, str) else page, ".html"
        )
        content = {
            **lowered.report.to_json(),
            "verification": verification_content(dict(self.verifications)),
        }
        text = json.dumps(_plain(content), default=str, allow_nan=False)
        self.measured["report"] = self._store.keep(text.encode(), ".json")


def _lower_something(backends: list[str], options: Mapping[str, Any]) -> None:
    """Lower one operator, so that first imports of a backend do not count as the
    model's time.

    They took XNNPACK ten times as long as lowering a small model. A failure does not
    matter.
    """
    import delegraph
    import torch

    with suppress(Exception):
        delegraph.lower(
            torch.nn.ReLU().eval(),
            (torch.ones(1, 1, 1, 1),),
            backends=backends,
            options=options,
        )


def _checked_gates(
    report: Any, found: Mapping[str, Any], settings: Mapping[str, Any]
) -> Iterator[tuple[str, DelegraphError | None]]:
    """Yield each gate of the settings with its error, or None."""
    if settings["require_agreement"]:
        wrong = [
            method
            for method, figures in found["methods"].items()
            if not figures["agrees"]
        ]
        text = (
            "the lowered program does not agree with eager PyTorch, in"
            f" {', '.join(wrong)}"
        )
        yield (
            "agreement",
            DelegraphError("verification-failed", text) if wrong else None,
        )
    if settings["require_full"]:
        left = report.host_operators
        text = f"{left} operators are left to the host"
        yield (
            "require-full",
            DelegraphError("not-fully-delegated", text) if left else None,
        )
    share = report.delegated_share
    least = settings["min_delegated"]
    if least is not None:
        text = (
            f"{share:.1%} of the operators are delegated, fewer than the required"
            f" {least:.1%}"
        )
        yield (
            "min-delegated",
            DelegraphError("gate-failed", text) if share < least else None,
        )
    count = len(report.delegates)
    most = settings["max_delegates"]
    if most is not None:
        text = f"there are {count} delegates, more than the accepted {most}"
        yield (
            "max-delegates",
            DelegraphError("gate-failed", text) if count > most else None,
        )


def described(error: BaseException) -> dict[str, Any]:
    """Return an error as a JSON value of ``delegraph.error/1``."""
    if not isinstance(error, DelegraphError):
        text = f"{type(error).__name__}: {error}"
        return {
            "code": "internal",
            "message": text[:_LONGEST],
            "source": None,
            "hint": None,
            "raised_by": None,
        }
    source = None if error.source is None else str(error.source)
    fields = {
        "code": error.code,
        "message": error.message[:_LONGEST],
        "source": source,
        "hint": error.hint,
    }
    return {**fields, "raised_by": error.raised_by}


_LONGEST = 4000
"""The most characters of a message in a row."""


def _with_quantizer(backends: list[str]) -> str:
    """Return the first of the backends with a quantizer, else the default one."""
    from delegraph import default_registry

    registry = default_registry()
    having = {info.name for info in registry.usable_backends() if info.has_quantizer}
    own = next((name for name in backends if name in having), None)
    return own or registry.default_backends(suits=lambda info: info.has_quantizer)[0][0]


def _is_function(name: str) -> bool:
    return name.rpartition(":")[0].endswith(".py")


def _made_by(name: str) -> Any:
    """Return the quantizer that the function ``path.py:function`` makes."""
    import runpy

    from delegraph.errors import UsageError

    path, _, function = name.rpartition(":")
    found: Callable[[], Any] | None = runpy.run_path(place_of(path, Path.cwd())).get(
        function
    )
    if found is None:
        raise UsageError(
            "usage-invalid",
            f"{path} has no function {function!r} to make a quantizer",
        )
    return found()


def _names_of(program: Any) -> list[str]:
    """Return a model's names of its inputs."""
    import inspect

    from delegraph_programs import user_inputs
    from torch.export import ExportedProgram

    if isinstance(program, ExportedProgram):
        return [node.name for node in user_inputs(program)]
    return list(inspect.signature(program.forward).parameters)


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else value


def _plain(value: Any) -> Any:
    """Return a JSON value without NaN and infinity."""
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return _finite(value) if isinstance(value, float) else value
