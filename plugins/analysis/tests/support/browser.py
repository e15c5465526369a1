"""A headless Chromium, spoken to in the DevTools protocol over two pipes, so that no
package is needed for it.

Any build from 112 on will do: that of a distribution, the one in the npm package
``@sparticuz/chromium`` (its ``executablePath()`` unpacks it), or the headless shell
that Playwright downloads.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import struct
import subprocess
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

VARIABLE = "DELEGRAPH_CHROMIUM"
NAMES = (
    "chromium",
    "chromium-browser",
    "google-chrome",
    "chrome-headless-shell",
    "chrome",
)
MISSING = (
    f"needs Chromium: set {VARIABLE} to its path, or put one of {', '.join(NAMES)} on"
    " the PATH (docs/testing.md)"
)
_ARGUMENTS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
)
_STARTING = 60
_SECONDS = 600
"""Seconds after which the browser is ended: if it has not opened a tab, and whatever it
is doing.
"""


def executable() -> str | None:
    """The browser to take, if there is one."""
    return os.environ.get(VARIABLE) or next(
        filter(None, map(shutil.which, NAMES)), None
    )


class Tab:
    """A page, and all that it said: errors, what it logged, and what it asked for."""

    def __init__(
        self,
        send: Callable[[dict[str, Any]], None],
        receive: Callable[[], dict[str, Any]],
    ) -> None:
        self._send = send
        self._receive = receive
        self._count = 0
        self._session = ""
        self._script = True
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call(
            "Target.attachToTarget", targetId=target, flatten=True
        )["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """One command of the protocol, and its result."""
        self._count += 1
        session = {"sessionId": self._session} if self._session else {}
        self._send({"id": self._count, "method": method, "params": params, **session})
        while (message := self._receive()).get("id") != self._count:
            self.events.append(message)
        assert "error" not in message, (method, message)
        result: dict[str, Any] = message["result"]
        return result

    def open(
        self,
        path: Path,
        size: tuple[int, int] = (1280, 800),
        script: bool = True,
        scheme: str = "light",
    ) -> None:
        """Load a file; returns when it is loaded."""
        width, height = size
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        self.call(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": scheme}],
        )
        self.call("Emulation.setScriptExecutionDisabled", value=not script)
        self._script = script
        self.events.clear()
        self.call("Page.navigate", url=path.as_uri())
        while not self.said("Page.loadEventFired"):
            self.events.append(self._receive())

    def said(self, *methods: str) -> list[dict[str, Any]]:
        """The events of these names since the page was opened."""
        return [
            event["params"] for event in self.events if event.get("method") in methods
        ]

    def evaluate(self, expression: str) -> Any:
        """The value of an expression in the page, after two frames, in which it has
        come to rest.
        """
        frames = (
            "new Promise(done => requestAnimationFrame(() =>"
            " requestAnimationFrame(done)))"
        )
        whole = f"{frames}.then(() => ({expression}))" if self._script else expression
        if not self._script:
            self.picture()
        found = self.call(
            "Runtime.evaluate", expression=whole, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        """``mousePressed``, ``mouseMoved``, ``mouseReleased`` or ``mouseWheel``."""
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def click(self, x: float, y: float) -> None:
        for kind in ("mousePressed", "mouseReleased"):
            self.mouse(kind, x, y, button="left", clickCount=1)

    def key(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key)

    def picture(self) -> bytes:
        """What the window shows, as PNG."""
        return base64.b64decode(
            self.call("Page.captureScreenshot", format="png", optimizeForSpeed=True)[
                "data"
            ]
        )


def pixels(png: bytes) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """[height, width, 3]: red, green and blue of a PNG of 8 bits a channel that is not
    interlaced.
    """
    chunks = b""
    at = 8
    while at < len(png):
        size, kind = struct.unpack(">I4s", png[at : at + 8])
        if kind == b"IHDR":
            width, height, depth, colours, *_ = struct.unpack(
                ">IIBBBBB", png[at + 8 : at + 8 + size]
            )
        chunks += png[at + 8 : at + 8 + size] if kind == b"IDAT" else b""
        at += size + 12
    channels = {2: 3, 6: 4}[colours]
    assert depth == 8
    lines = np.frombuffer(zlib.decompress(chunks), np.uint8).reshape(
        height, 1 + width * channels
    )
    above = np.zeros((width, channels), np.uint8)
    rows = []
    for filter, line in zip(
        lines[:, 0], lines[:, 1:].reshape(height, width, channels), strict=True
    ):
        above = _unfilter(int(filter), line, above)
        rows.append(above)
    return np.stack(rows)[..., :3]


def _unfilter(
    filter: int,
    line: np.ndarray[Any, np.dtype[np.uint8]],
    above: np.ndarray[Any, np.dtype[np.uint8]],
) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """PNG (ISO/IEC 15948), 9.2: none, sub, up, average, Paeth."""
    if filter in (0, 2):
        return line if filter == 0 else line + above
    if filter == 1:
        return np.cumsum(line, 0, dtype=np.uint8)
    made = []
    left = np.zeros(line.shape[1], int)
    corner = np.zeros(line.shape[1], int)
    for given, up in zip(line.astype(int), above.astype(int), strict=True):
        distances = np.abs([up - corner, left - corner, left + up - 2 * corner])
        best = np.choose(distances.argmin(0), [left, up, corner])
        left = (given + (best if filter == 4 else (left + up) // 2)) % 256
        corner = up
        made.append(left)
    return np.array(made, np.uint8)


@contextmanager
def browser(path: str, folder: Path) -> Iterator[Tab]:
    """A tab of a browser of its own, whose files are in ``folder``. Raises EOFError if
    it does not start.
    """
    (to_read, ours_out), (ours_in, to_write) = os.pipe(), os.pipe()
    # the protocol's pipes are 3 and 4
    shell = f'exec "$0" "$@" 3<&{to_read} 4>&{to_write}'
    arguments = [
        *_ARGUMENTS,
        "--remote-debugging-pipe",
        f"--user-data-dir={folder}",
        "about:blank",
    ]
    with open(folder / "log.txt", "w") as log:
        command = ["bash", "-c", shell, path, *arguments]
        process = subprocess.Popen(
            command, pass_fds=(to_read, to_write), stdout=log, stderr=log
        )
    os.close(to_read)
    os.close(to_write)
    try:
        with os.fdopen(ours_out, "wb", 0) as out, os.fdopen(ours_in, "rb") as replies:
            with _ended_after(_STARTING, process):
                tab = Tab(lambda message: _write(out, message), lambda: _read(replies))
            with _ended_after(_SECONDS, process):
                yield tab
    finally:
        process.kill()
        process.wait()


@contextmanager
def _ended_after(seconds: float, process: subprocess.Popen[bytes]) -> Iterator[None]:
    ending = threading.Timer(seconds, process.kill)
    ending.start()
    try:
        yield
    finally:
        ending.cancel()


def _write(out: Any, message: dict[str, Any]) -> None:
    out.write(json.dumps(message).encode() + b"\0")


def _read(replies: Any) -> dict[str, Any]:
    """The next message; each ends with a zero byte."""
    parts = []
    while part := replies.read(1):  # of a buffer
        if part == b"\0":
            message: dict[str, Any] = json.loads(b"".join(parts))
            return message
        parts.append(part)
    raise EOFError("the browser has ended")
