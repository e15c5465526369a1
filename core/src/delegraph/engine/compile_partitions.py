"""The step ``compile``: backends compile the partitions.

A partition that its compiler refuses is taken out of its plan. If a compiler raises an
exception for a partition, parts of the partition are compiled. Only the parts that fail
are then taken out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ..discovery.registry import Registry
from ..errors import BackendNotFound, ContractViolation
from .compiler_interface import Refused, Request, Session
from .extract import ProgramsOf
from .failures_to_refusals import log
from .find_failing_part import Narrowed, narrow
from .give_back_partitions import give_back
from .partition_records import Plan, Work
from .serial_compiler import fingerprint_of


class Done(NamedTuple):
    """The result of the step: compiled partitions, refused ones, and report notes."""

    work: list[Work]
    refused: list[Work]
    notes: list[str]


class PartitionCompiler(NamedTuple):
    """Compiles partitions in a session.

    ``registry``: finds the backends. ``gives_back``: a refused partition is taken out
    of its plan, and its calls go to the next backend or the host. Without it, a refusal
    is raised as an error, because no report could show the refusal.
    """

    registry: Registry
    session: Session
    gives_back: bool

    def compile(self, plans: Mapping[str, Plan], work: Sequence[Work]) -> Done:
        """Compile ``work``, and take refused partitions out of their ``plans``.

        ``plans``: method -> its plan, for all methods. The modules of compiled
        partitions get their blobs.
        """
        self._request(work)
        # compiles parts of each partition that was not compiled as a whole
        narrowed = [
            narrow(item, lambda part: self._request([part]))
            for item in work
            if item.not_compiled is not None
        ]
        done = Done([item for item in work if item.not_compiled is None], [], [])
        for one in narrowed:
            done.work.extend(one.kept)
            done.refused.extend(one.refused)
            # if parts are refused, the report has rows about them instead of a note
            if not one.refused:
                done.notes.append(_split_note(one))
        for method_plan in plans.values():
            # the plan itself, and those of the program's subgraphs
            for plan in method_plan.with_inner():
                give_back(plan, [one for one in narrowed if one.work.plan is plan])
        self._attach(done.work)
        return done

    def _request(self, work: Sequence[Work]) -> None:
        """Compile partitions, and store the result or the refusal in each ``Work``.

        Raises the error of a refusal, unless ``gives_back``.
        """
        requests: list[Request] = []
        for item in work:
            spec = item.partition.spec
            backend = self.registry.installed(spec.backend_id)
            # a partitioner may name a backend by its short name; programs store the
            # name of its class
            item.module.backend_id = backend.kind.__name__
            request = Request(
                backend,
                tuple(spec.compile_specs),
                item.method,
                item.partition.tag,
                ProgramsOf(item),
            )
            requests.append(request)
        answers = self.session.compile(requests)
        if len(answers) != len(requests):
            name = type(self.session).__name__
            text = (
                f"{name} returned {len(answers)} answers for {len(requests)} requests"
            )
            raise ContractViolation("contract-violation", text)
        for item, answer in zip(work, answers, strict=True):
            item.seconds["compile"] = answer.seconds
            item.origin = answer.origin
            # an equal partition may be compiled once: both then share the result
            if answer.equal_to is not None:
                item.equal_to = work[answer.equal_to]
            if not isinstance(answer.result, Refused):
                item.result = answer.result
                continue
            if not self.gives_back:
                raise answer.result.error
            item.not_compiled = answer.result
            if answer.result.has_failed:
                log(answer.result.error)

    def _attach(self, work: Sequence[Work]) -> None:
        """Store the results in the modules of the host's program."""
        # Backend and its settings -> fingerprint. A backend may have to start its
        # compiler to find the fingerprint, so this is done once for equal settings.
        fingerprints: dict[Any, str | None] = {}
        for item in work:
            assert item.result is not None, "refused work was taken out"
            backend = self.registry.installed(item.partition.spec.backend_id)
            specs = item.module.compile_specs
            settings = (item.module.backend_id, *specs)
            if settings not in fingerprints:
                fingerprints[settings] = fingerprint_of(backend, specs)
            item.module.attach(item.result, backend.producer, fingerprints[settings])


def expect_known_backends(work: Sequence[Work], name: str, registry: Registry) -> None:
    """Raise BackendNotFound for a partition of a backend that is not installed.

    ``name``: the backend of the partitioner that made the partitions. The error's hint
    names this backend, the partition, and the backend that is not installed.
    """
    for item in work:
        backend_id = item.module.backend_id
        try:
            registry.spec(backend_id)
        except BackendNotFound as e:
            e.hint = (
                f"the partitioner of {name!r} gave the partition"
                f" {item.partition.tag!r} to {backend_id!r}"
            )
            raise


def _split_note(narrowed: Narrowed) -> str:
    """Return the note about a partition that compiles only as several parts."""
    work = narrowed.work
    assert work.not_compiled is not None
    parts = ", ".join(part.partition.tag for part in narrowed.kept)
    return (
        f"{work.method}: partition {work.partition.tag} compiles only as {parts}:"
        f" {work.not_compiled.reason}"
    )
