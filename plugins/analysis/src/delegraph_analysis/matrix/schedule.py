"""Has the cells done that have no row yet.

Which one is done when, and where, is the executor's.
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
from .rows import counts_for, is_worth_another, row_of
from .store import Row, Store, name_of

_LOG = logging.getLogger("delegraph.progress")
_POLL = 0.2
"""Seconds between questions to jobs that are no futures of ``concurrent.futures``."""
_ATTEMPTS = 2


def missing(
    cells: Sequence[Cell], store: Store, failed_again: bool = False
) -> list[Cell]:
    """The cells without a row that counts; with ``failed_again``, also those that
    failed.
    """
    rows = {row["cell"]: row for row in store.rows()}

    def is_there(cell: Cell) -> bool:
        row = rows.get(cell.identity)
        return (
            row is not None
            and counts_for(row, cell)
            and not (failed_again and row["error"] is not None)
        )

    return list({cell.identity: cell for cell in cells if not is_there(cell)}.values())


@dataclass
class Work:
    """Cells that wait, and those that an executor has."""

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
                    self._take(cell, future)
                    _LOG.info(
                        "%d of %d cells, the last of them %s", self.done, total, cell
                    )
        finally:
            for future in self.pending:
                future.cancel()

    def _submit(self) -> None:
        while self.waiting and (
            self.engine.most is None or len(self.pending) < self.engine.most
        ):
            cell = self.waiting.popleft()
            try:
                future = self.engine.executor.submit(execute.run, self._message(cell))
            except BrokenExecutor as e:
                raise _broken(e) from e
            self.pending[future] = cell

    def _message(self, cell: Cell) -> bytes:
        limits = cell.limits()
        memory = limits["memory_limit"]
        request = {
            "job": cell.job(),
            "store": self.store.address(),
            "time_limit": limits["time_limit"],
        }
        return json.dumps(
            {**request, "memory_limit": None if memory is None else int(memory * 1e6)}
        ).encode()

    def _finished(self) -> list[Any]:
        """The futures that are done, when there is one."""
        if all(isinstance(future, Future) for future in self.pending):
            return list(wait(self.pending, return_when=FIRST_COMPLETED).done)
        while True:
            if done := [future for future in self.pending if future.done()]:
                return done
            time.sleep(_POLL)

    def _take(self, cell: Cell, future: Any) -> None:
        """Add the row of a cell, or have the cell done again."""
        try:
            outcome: Mapping[str, Any] = _parse(future.result())
        except BrokenExecutor as e:
            raise _broken(e) from e
        except DelegraphError:
            raise
        except Exception as e:  # whatever an executor raises for a job that it lost
            outcome = {
                "lost": (
                    f"{type(e).__name__}:"
                    f" {str(e).strip().splitlines()[0] if str(e).strip() else ''}"
                )
            }
        attempts = self.attempts[cell.identity] = (
            self.attempts.get(cell.identity, 0) + 1
        )
        if is_worth_another(outcome) and attempts < _ATTEMPTS:
            self.waiting.append(cell)
            return
        self._keep(cell, outcome, attempts)
        self.done += 1

    def _keep(self, cell: Cell, outcome: Mapping[str, Any], attempts: int) -> None:
        answer = outcome.get("answer") or {}
        if (stop := answer.get("stop")) is not None:
            raise DelegraphError(stop["code"], stop["message"], hint=stop["hint"])
        for name, content in answer.get("parcel", {}).items():
            data = base64.b64decode(content)
            if name_of(data, "".join(Path(name).suffixes)) != name:
                raise FormatError(
                    "format-invalid",
                    f"an executor returned the file {name} with changed content",
                )
            self.store.keep(data, "".join(Path(name).suffixes))
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
        f"an executor returned {answer!r:.80}, which is no answer of a cell",
    )


def run_cells(
    cells: Sequence[Cell], store: Store, engine: Engine, failed_again: bool = False
) -> list[Row]:
    """Do the cells that have no row, and return the rows of all, in the order of the
    cells.
    """
    Work(store, engine, deque(missing(cells, store, failed_again))).run()
    rows = {row["cell"]: row for row in store.rows()}
    return [rows[cell.identity] for cell in cells if cell.identity in rows]
