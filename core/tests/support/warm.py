"""Python in processes that need not import torch: most commands of the tests take less
time than that import.

One process imports torch and what export needs of it, and forks for each command. The
command runs as in a process of its own, with its own arguments, variables, folder and
streams; delegraph and its plugins are imported anew in each. What such a process cannot
show: which modules a command imports, and what depends on the seed of hashes.
"""

import atexit
import ctypes
import fcntl
import functools
import gc
import importlib
import json
import os
import runpy
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import types
import warnings
import zlib
from pathlib import Path
from typing import NoReturn

SHIM = """#!{python} -ISB
import json, os, signal, socket, subprocess, sys
words = sys.argv[1:]
plain = words and (words[0] in ("-c", "-m", "-W") or words[0][0] != "-")
seed = os.environ.get("PYTHONHASHSEED", {unset!r})
if plain and seed in {seeds!r}:
    address = {address!r} + seed
    if not os.path.exists(address):
        variables = dict(os.environ, {owner_is})
        subprocess.run([{python!r}, "-ISB", {file!r}, "start", address, seed, {prepare!r}], env=variables, check=True)
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.connect(address)
    request = json.dumps([words, os.getcwd(), dict(os.environ)]).encode()
    socket.send_fds(server, [len(request).to_bytes(8, "little")], [0, 1, 2])
    server.sendall(request)
    for stream in (0, 1, 2):
        os.close(stream)
    status = int(server.recv(20) or b"9")
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)
os.execv({python!r}, [{python!r}, *words])
"""
"""Is called as if it were Python: it hands a command to the process that has imported
torch, and ends as that does.
"""
FOLDER = "WARM_FOLDER"
OWNER = "WARM_OWNER"
EXECUTABLE = "WARM_EXECUTABLE"
"""Variables: where warm processes listen, who they end with, and what
``sys.executable`` is in them.
"""


def open_session() -> None:
    """Let this process and all that it starts share their warm processes, until it
    ends.
    """
    if FOLDER not in os.environ:
        os.environ[FOLDER], os.environ[OWNER] = (
            tempfile.mkdtemp(prefix="warm-"),
            str(os.getpid()),
        )
        atexit.register(
            lambda folder, owner: os.getpid() == owner and shutil.rmtree(folder),
            os.environ[FOLDER],
            os.getpid(),
        )


@functools.cache
def warm_python(*seeds: str, prepare: str = "") -> str:
    """The path of a Python that has imported torch already, where hashes have one of
    these seeds, "random" by default.

    With options other than -c, -m and -W, or another PYTHONHASHSEED, it is the usual
    Python. The process that it is forked from has run ``prepare``, code, and starts
    when it is first needed.
    """
    open_session()
    seeds = seeds or ("random",)
    name = "-".join(("python", *seeds, f"{zlib.crc32(prepare.encode()):x}"))
    shim = Path(os.environ[FOLDER], name)
    text = SHIM.format(
        **{"python": sys.executable, "file": __file__, "seeds": seeds},
        **{
            "address": f"{shim}.",
            "prepare": prepare,
            "unset": seeds[0] if len(seeds) == 1 else "random",
        },
        # whoever calls first may have none of these variables
        owner_is=f"{OWNER}={os.environ[OWNER]!r}",
    )
    with tempfile.NamedTemporaryFile("w", dir=shim.parent, delete=False) as file:
        file.write(text)
    os.chmod(file.name, 0o700)
    os.rename(file.name, shim)
    return str(shim)


KIT = """
from delegraph_devkit.sweep import export_fixed
from delegraph_devkit.warm_up import warm_up
warm_up()
export_fixed()
"""


def kit_python() -> str:
    """A Python for the processes that the kit's checks run in: the common programs are
    exported there already.
    """
    return warm_python("1", "2", prepare=KIT)


def with_warm_kit() -> dict[str, str]:
    """Variables for a command of ``warm_python``, that its kit may start processes with
    ``kit_python``.
    """
    return {EXECUTABLE: kit_python(), "OMP_NUM_THREADS": "1"}


def start(address: str, seed: str, prepare: str) -> None:
    """Start the process that listens at ``address`` unless somebody did, and wait until
    it does.
    """
    with open(f"{address}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if os.path.exists(address):
            return
        kept = ("PYTHONPATH",)  # where delegraph is, if it is not installed
        variables = {
            n: value
            for n, value in os.environ.items()
            if n in kept or not n.startswith("PYTHON")
        }
        # whoever needed it first waits for the end of its own streams
        with open(f"{address}.log", "wb") as log:
            server = subprocess.Popen(
                [sys.executable, "-P", __file__, "serve", address, prepare],
                **{"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log},
                env=variables | {"PYTHONHASHSEED": seed, "OMP_NUM_THREADS": "1"},
                start_new_session=True,
            )
        while not os.path.exists(address):
            if server.poll() is not None:
                sys.exit(
                    "no process could import torch beforehand:"
                    f" {Path(log.name).read_text()[-2000:]}"
                )
            time.sleep(0.02)


def serve(address: str) -> tuple[list[str], str, dict[str, str]]:
    """Fork for each command that comes to ``address`` until the owner ends. Returns in
    the forked processes only.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mine = f"{address}.{os.getpid()}"
    listener.bind(mine)
    listener.listen(64)
    ready = selectors.DefaultSelector()
    ready.register(listener, selectors.EVENT_READ)
    ready.register(os.pidfd_open(int(os.environ[OWNER])), selectors.EVENT_READ, "owner")
    os.rename(mine, address)
    callers: dict[int, tuple[int, socket.socket]] = {}
    while True:
        for key, _ in ready.select():
            if key.data == "owner":
                os._exit(0)
            if key.fileobj is listener:
                caller, _ = listener.accept()
                head, streams, _, _ = socket.recv_fds(caller, 8, 3)
                request = caller.makefile("rb").read(int.from_bytes(head, "little"))
                child = os.fork()
                if child == 0:
                    for number, stream in enumerate(streams):
                        os.dup2(stream, number)
                    ready.close()
                    for other in (listener, caller, *(c for _, c in callers.values())):
                        other.close()
                    os.closerange(3, 256)
                    os.setpgid(0, 0)
                    return json.loads(request)
                for stream in streams:
                    os.close(stream)
                ended = os.pidfd_open(child)
                callers[child] = ended, caller
                ready.register(ended, selectors.EVENT_READ, child)
                ready.register(caller, selectors.EVENT_READ, child)
                continue
            child = key.data
            ended, caller = callers.pop(child)
            if key.fileobj is caller:  # whoever called has been killed
                os.killpg(child, signal.SIGKILL)
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            ready.unregister(ended)
            ready.unregister(caller)
            os.close(ended)
            if key.fileobj != caller:
                caller.sendall(str(status).encode())
            caller.close()


def run(arguments: list[str], folder: str, variables: dict[str, str]) -> None:
    """Do in this process what Python does with these arguments when it starts."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(variables)
    sys.executable = variables.get(EXECUTABLE, sys.executable)
    while arguments[0] == "-W":
        warnings._processoptions([arguments[1]])
        arguments = arguments[2:]
    first, *others = arguments
    paths = [path for path in variables.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:0] = [
        (
            ""
            if first == "-c"
            else folder
            if first == "-m"
            else str(Path(first).resolve().parent)
        ),
        *paths,
    ]
    importlib.invalidate_caches()
    if first == "-c":
        sys.argv = ["-c", *others[1:]]
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(others[0], "<string>", "exec", dont_inherit=True), main.__dict__)
    elif first == "-m":
        sys.argv = others
        runpy.run_module(others[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        runpy.run_path(first, run_name="__main__")


def end(raised: BaseException | None) -> NoReturn:
    """End as Python does, but without taking apart what was imported, which takes as
    long as importing it.
    """
    code: object = 0
    if isinstance(raised, SystemExit):
        code = raised.code
    elif raised is not None:
        sys.excepthook(type(raised), raised, raised.__traceback__)
        code = 1
    if code is not None and not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    ctypes.CDLL(None).fflush(None)
    os._exit((code or 0) & 255)


def import_torch(prepare: str) -> None:
    import torch

    # the first export imports more than torch itself
    torch.export.export(torch.nn.ReLU(), (torch.zeros(1),))
    exec(prepare)
    gc.collect()
    gc.freeze()


if __name__ == "__main__" and sys.argv[1] == "start":
    start(*sys.argv[2:])
elif __name__ == "__main__":
    import_torch(sys.argv[3])
    try:
        run(*serve(sys.argv[2]))
    except BaseException as raised:
        end(raised)
    end(None)
