"""Do the cells that have no row yet, by an executor.

The executor decides when and where it does each cell.
"""

from __future__ import annotations

import base64
import json
import logging
import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from delegraph.errors import DelegraphError, FormatError

from . import execute
from .cells import Cell
from .executors import Engine
from .rows import counts_for, needs_another_attempt, row_of
from .store import Row, Store, name_of

_LOG = logging.getLogger("delegraph.progress")
_POLL = 0.2
"""Seconds between calls of ``done`` for jobs that ``concurrent.futures`` cannot await."""
_ATTEMPTS = 2
"""How often a cell is done if its process is lost or killed from outside."""


def missing(
    cells: Sequence[Cell], store: Store, failed_again: bool = False
) -> list[Cell]:
    """Return the cells without a row that counts, each once.

    ``failed_again``: also those with the row of a failed cell.
    """
    rows = {row["cell"]: row for row in store.rows()}
    found = {}
    for cell in cells:
        row = rows.get(cell.identity)
        is_missing = row is None or not counts_for(row, cell)
        failed = row is not None and row["error"] is not None
        if is_missing or (failed_again and failed):
            found[cell.identity] = cell
    return list(found.values())


@dataclass
class Work:
    """Cells that wait, and those that an executor has.

    ``pending``: the executor's future -> its cell. ``attempts``: identity of a cell ->
    how often it was done. ``done``: the number of finished cells.
    """

    store: Store
    engine: Engine
    waiting: deque[Cell]
    attempts: dict[str, int] = field(default_factory=dict)
    pending: dict[Any, Cell] = field(default_factory=dict)
    done: int = 0

    def run(self) -> None:
        """Do all cells.

        Raises errors that no cell causes, such as a full disk. Finished rows remain.
        """
        total = len(self.waiting)
        try:
            while self.waiting or self.pending:
                self._submit()
                for future in self._finished():
                    cell = self.pending.pop(future)
                    self._take_result(cell, future)
                    _LOG.info(
                        "%d of %d cells, the last of them %s", self.done, total, cell
                    )
        finally:
            for future in self.pending:
                future.cancel()

    def _submit(self) -> None:
        """Pass waiting cells to the executor, up to its most jobs."""
        most = self.engine.most
        while self.waiting and (most is None or len(self.pending) < most):
            cell = self.waiting.popleft()
            try:
                future = self.engine.executor.submit(execute.run, self._message(cell))
            except BrokenExecutor as e:
                raise _broken(e) from e
            self.pending[future] = cell

    def _message(self, cell: Cell) -> bytes:
        """Return the request for a cell, the argument of ``execute.run``."""
        memory = cell.settings.memory_limit
        request = {
            "job": cell.job(),
            "store": self.store.address(),
            "time_limit": cell.settings.time_limit,
            "memory_limit": None if memory is None else int(memory * 1e6),
        }
        return json.dumps(request).encode()

    def _finished(self) -> list[Any]:
        """Wait until a future is done, and return all that are."""
        if all(isinstance(future, Future) for future in self.pending):
            return list(wait(self.pending, return_when=FIRST_COMPLETED).done)
        while True:
            if done := [future for future in self.pending if future.done()]:
                return done
            time.sleep(_POLL)

    def _take_result(self, cell: Cell, future: Any) -> None:
        """Add the row of a cell, or let it wait for another attempt."""
        try:
            outcome: Mapping[str, Any] = _parse(future.result())
        except BrokenExecutor as e:
            raise _broken(e) from e
        except DelegraphError:
            raise
        except Exception as e:  # executors raise any error for a job that they lost
            first_line = str(e).strip().partition("\n")[0]
            outcome = {"lost": f"{type(e).__name__}: {first_line}"}
        attempts = self.attempts.get(cell.identity, 0) + 1
        self.attempts[cell.identity] = attempts
        if needs_another_attempt(outcome) and attempts < _ATTEMPTS:
            self.waiting.append(cell)
            return
        self._keep(cell, outcome, attempts)
        self.done += 1

    def _keep(self, cell: Cell, outcome: Mapping[str, Any], attempts: int) -> None:
        """Write the row and files of a cell to the store.

        Raises the error that the cell reported as ``stop``, and FormatError if a file
        has not the hash in its name.
        """
        answer = outcome.get("answer") or {}
        stop = answer.get("stop")
        if stop is not None:
            raise DelegraphError(stop["code"], stop["message"], hint=stop["hint"])
        for name, content in answer.get("parcel", {}).items():
            data = base64.b64decode(content)
            suffix = "".join(Path(name).suffixes)
            if name_of(data, suffix) != name:
                raise FormatError(
                    "format-invalid",
                    f"an executor returned the file {name} with changed content",
                )
            self.store.keep(data, suffix)
        self.store.append(row_of(cell, outcome, attempts))


def _broken(error: BrokenExecutor) -> DelegraphError:
    """Return the error for an executor that takes no jobs any more."""
    hint = "call the command again: finished cells are not done again"
    return DelegraphError("matrix/lost", f"the executor broke: {error}", hint=hint)


def _parse(answer: Any) -> dict[str, Any]:
    """Return the answer of ``execute.run``; raise FormatError for other values."""
    try:
        outcome: dict[str, Any] = json.loads(answer)
        if "lost" in outcome or {"exit", "stopped", "printed"} <= outcome.keys():
            return outcome
    except (ValueError, TypeError, AttributeError):
        pass
    raise FormatError(
        "format-invalid",
        f"an executor returned {answer!r:.80}, which is not the result of a cell",
    )


def run_cells(
    cells: Sequence[Cell], store: Store, engine: Engine, failed_again: bool = False
) -> list[Row]:
    """Do the cells that have no row, and return the rows of all, in their order."""
    Work(store, engine, deque(missing(cells, store, failed_again))).run()
    rows = {row["cell"]: row for row in store.rows()}
    return [rows[cell.identity] for cell in cells if cell.identity in rows]
