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

    None of them starts a thread, which a fork would lose.
    """
    import delegraph
    import delegraph.report
    import numpy  # noqa: F401

    from .. import comparison  # noqa: F401

    assert callable(delegraph.lower)
    # the first export imports many more modules
    torch.export.export(torch.nn.ReLU(), (torch.zeros(1),))


def cell(
    job: Mapping[str, Any], store: Mapping[str, str], begin: Callable[[str], None]
) -> dict[str, Any]:
    """Do a cell, and call ``begin`` with the name of each stage.

    ``job``: see ``Cell.job``. ``store``: see ``Store.address``. Returns ``found``, the
    fields of the row, and ``parcel``, the files if this machine does not see the store.
    If an error is not the cell's fault, such as a full disk, returns only ``stop``, the
    error: it ends the whole matrix.
    """
    import torch

    target = place_for(store)
    work = _Work(job, target, begin)
    try:
        _expect_versions(job)
        os.chdir(job["folder"])
        torch.set_num_threads(job["settings"]["threads"])
        _seed(torch)
        warnings.simplefilter("ignore")
        work.do_all_stages()
    except WriteError as e:
        return {"stop": described(e)}
    except _OtherVersions as e:
        error = DelegraphError("matrix/versions", str(e), hint=_SAME)
        return {"stop": described(error)}
    return {
        "found": work.found,
        "parcel": target.contents if isinstance(target, Parcel) else {},
    }


def _seed(torch: Any) -> None:
    """Make random weights and inputs the same in each process."""
    import numpy

    random.seed(0)
    numpy.random.seed(0)
    torch.manual_seed(0)


class _OtherVersions(Exception):
    """The versions here are not those of the command, so figures would be wrong."""


_SAME = (
    "install the same versions there; if you edited code meanwhile, call the command"
    " again"
)


def _expect_versions(job: Mapping[str, Any]) -> None:
    """Raise _OtherVersions if a version here is not that of the job."""
    here = versions_of(
        job["backends"], scheme_of(job["model"]), job["settings"]["files"]
    )
    other = []
    for name, version in job["versions"].items():
        if here.get(name) != version:
            other.append(f"{name} {here.get(name, 'not at all')}, not {version}")
    if other:
        raise _OtherVersions(f"a worker process of the matrix has {'; '.join(other)}")


class _Work:
    """The stages of a cell, and their results. If a stage fails, earlier results remain.

    ``found``: the fields of the cell's row. ``measured``: the field for figures that
    differ from run to run, such as times. ``begin`` is called with each stage's name.
    """

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

    def do_all_stages(self) -> None:
        """Do all stages until one fails; then its error is in ``found``.

        Raises WriteError, which is not the cell's fault.
        """
        try:
            with self._stage("load"):
                given = self._load()
            if self.job["quantize"] != "float":
                with self._stage("quantize"):
                    self.found["quantizer"] = self._quantize(given)
            self._lower_and_check(given)
        except WriteError:
            raise
        except DelegraphError as e:
            self.found["error"] = described(e)
        except (Exception, SystemExit) as e:
            self.found["error"] = described(e)
            traceback.print_exc()

    @contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        """Time a ``with`` block. If it fails, its name remains as the failed stage."""
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
        """Replace the model's programs by quantized ones; return the quantizer's name."""
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
            chosen = {"backend": name}
            if _is_function(name):
                chosen = {"quantizer": _make_quantizer(name)}
            batches = self._batches(given, method)
            shapes = given.dynamic_shapes[method]
            program = quantize(
                given.programs[method], batches, dynamic_shapes=shapes, **chosen
            )
            # a batch is a tuple of inputs, or a dict of all inputs by name
            if isinstance(batches[0], tuple):
                given.add(method, program, batches[0], None)
            else:
                given.add(method, program, (), batches[0])
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
        names = _names_of(program)[: len(args or ())]
        return [{**dict(zip(names, args or (), strict=True)), **kwargs}]

    def _lower_and_check(self, given: Any) -> None:
        """Export, lower, write and call the model, and check the gates."""
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
            compiler = None
            cache = self.settings["cache"]
            if cache:
                compiler = provided("delegraph_workers:Compiler", "--cache")(
                    cache=cache
                )
            lowered = delegraph.lower(
                exported,
                backends=backends,
                options=options,
                transforms=transforms,
                compiler=compiler,
            )
        self._add_report(lowered)
        try:
            with self._stage("write"):
                self._write(lowered)
            if self.settings["verify"] or self.settings["runs"]:
                self._call(given, exported, lowered)
            self._check_gates(lowered)
        finally:
            self._keep_reports(lowered)

    def _add_report(self, lowered: LoweredProgram) -> None:
        """Add the counts of the report to ``found``, and the refusals."""
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
                file_format = FileFormat(f"program{suffix}", default_registry())
                with TRACING:  # a format may trace
                    contents = file_format.contents(lowered, {})
            except DelegraphError as e:
                entry["error"] = e.message
                continue
            entry["bytes"] = sum(map(len, contents.values()))
            if self.settings["keep_files"]:
                entry["path"] = self._store.keep(contents[""], suffix)
                # the program's file refers to the others by these names
                others = {}
                for name, content in contents.items():
                    if name:
                        others[name] = self._store.keep(content, Path(name).suffix)
                if others:
                    entry["others"] = others

    def _call(
        self, given: Any, exported: Mapping[str, Any], lowered: LoweredProgram
    ) -> None:
        """Verify and time the program. A backend without a runtime here is no error."""
        from ..comparison import caller_of, caller_of_eager, example_call, writes_inputs
        from ..turns import call_in_turns

        calls = {}
        for method, program in exported.items():
            call = example_call(given.inputs[method], given.kwargs[method], program)
            if call is None:
                self.found["not_run"] = "there are no example inputs"
                return
            calls[method] = call
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
        """Compare each method with eager PyTorch, except where eager picks among ties."""
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

    def _check_gates(self, lowered: LoweredProgram) -> None:
        """Check all gates, and raise the error of the first that fails."""
        errors = _gate_errors(lowered.report, self.found, self.settings)
        self.found["gates"] = {name: error is None for name, error in errors.items()}
        for error in errors.values():
            if error is not None:
                raise error

    def _keep_reports(self, lowered: LoweredProgram) -> None:
        """Store the report as a page and as JSON.

        The report has times, so its files are named in ``measured``.
        """
        from delegraph.report import LoweringResult, verification_content

        from ..page.report_page import PageReport

        result = LoweringResult(
            lowered.report, dict(self.verifications), model=self.job["name"]
        )
        page = PageReport.render(result)
        data = page.encode() if isinstance(page, str) else page
        self.measured["page"] = self._store.keep(data, ".html")
        content = {
            **lowered.report.to_json(),
            "verification": verification_content(dict(self.verifications)),
        }
        text = json.dumps(_plain(content), default=str, allow_nan=False)
        self.measured["report"] = self._store.keep(text.encode(), ".json")


def _lower_something(backends: list[str], options: Mapping[str, Any]) -> None:
    """Lower one operator, so that the backends import all their modules.

    Otherwise the imports would count as time of lowering the model: with XNNPACK, ten
    times that of a small model. A failure here does not matter.
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


def _gate_errors(
    report: Any, found: Mapping[str, Any], settings: Mapping[str, Any]
) -> dict[str, DelegraphError | None]:
    """Return each gate in the settings with its error; None if the gate is passed."""
    errors: dict[str, DelegraphError | None] = {}
    if settings["require_agreement"]:
        errors["agreement"] = None
        wrong = [
            method
            for method, figures in found["methods"].items()
            if not figures["agrees"]
        ]
        if wrong:
            text = (
                "the lowered program does not agree with eager PyTorch, in"
                f" {', '.join(wrong)}"
            )
            errors["agreement"] = DelegraphError("verification-failed", text)
    if settings["require_full"]:
        errors["require-full"] = None
        left = report.host_operators
        if left:
            text = f"{left} operators are left to the host"
            errors["require-full"] = DelegraphError("not-fully-delegated", text)
    least = settings["min_delegated"]
    if least is not None:
        errors["min-delegated"] = None
        share = report.delegated_share
        if share < least:
            text = (
                f"{share:.1%} of the operators are delegated, fewer than the required"
                f" {least:.1%}"
            )
            errors["min-delegated"] = DelegraphError("gate-failed", text)
    most = settings["max_delegates"]
    if most is not None:
        errors["max-delegates"] = None
        count = len(report.delegates)
        if count > most:
            text = f"there are {count} delegates, more than the accepted {most}"
            errors["max-delegates"] = DelegraphError("gate-failed", text)
    return errors


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
    return {
        "code": error.code,
        "message": error.message[:_LONGEST],
        "source": None if error.source is None else str(error.source),
        "hint": error.hint,
        "raised_by": error.raised_by,
    }


_LONGEST = 4000
"""The most characters of a message in a row."""


def _with_quantizer(backends: list[str]) -> str:
    """Return the first of the backends with a quantizer, else the default one."""
    from delegraph import default_registry

    registry = default_registry()
    having = {info.name for info in registry.usable_backends() if info.has_quantizer}
    for name in backends:
        if name in having:
            return name
    return registry.default_backends(suits=lambda info: info.has_quantizer).names[0]


def _is_function(name: str) -> bool:
    """Return whether a quantizer is ``path.py:function``, not the name of a backend."""
    return name.rpartition(":")[0].endswith(".py")


def _make_quantizer(name: str) -> Any:
    """Call the function ``path.py:function``, and return its quantizer."""
    import runpy

    from delegraph.errors import UsageError

    path, _, function = name.rpartition(":")
    names = runpy.run_path(place_of(path, Path.cwd()))
    found: Callable[[], Any] | None = names.get(function)
    if found is None:
        raise UsageError(
            "usage-invalid",
            f"{path} has no function {function!r} to make a quantizer",
        )
    return found()


def _names_of(program: Any) -> list[str]:
    """Return the names of a model's inputs."""
    import inspect

    from delegraph_programs import user_inputs
    from torch.export import ExportedProgram

    if isinstance(program, ExportedProgram):
        return [node.name for node in user_inputs(program)]
    return list(inspect.signature(program.forward).parameters)


def _finite(value: float | None) -> float | None:
    """Return a number; None for NaN and infinity, which JSON lacks."""
    return None if value is None or not math.isfinite(value) else value


def _plain(value: Any) -> Any:
    """Return a JSON value with None in place of NaN and infinity."""
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return _finite(value) if isinstance(value, float) else value
