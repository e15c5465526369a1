"""Python in processes that need not import torch: most commands of the tests take less time than that import.

One process imports torch and what export needs of it, and forks for each command. The command runs as in a process of
its own, with its own arguments, variables, folder and streams; delegraph and its plugins are imported anew in each.
What such a process cannot show: which modules a command imports, and what depends on the seed of hashes.
"""

import atexit
import ctypes
import functools
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import types
import warnings
from pathlib import Path
from typing import NoReturn

SHIM = """#!{python} -ISB
import json, os, signal, socket, sys
words = sys.argv[1:]
plain = words and (words[0] in ("-c", "-m", "-W") or words[0][0] != "-")
if plain and os.environ.get("PYTHONHASHSEED", {seed!r}) == {seed!r}:
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.connect({address!r})
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
"""Is called as if it were Python: it hands a command to the process that has imported torch, and ends as that does."""


@functools.cache
def warm_python(seed: str = "random") -> str:
    """The path of a Python that has imported torch already, where hashes have this seed.

    With options other than -c, -m and -W, or another PYTHONHASHSEED, it is the usual Python.
    """
    folder = tempfile.TemporaryDirectory(prefix="warm-")
    address = os.path.join(folder.name, "socket")
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    server = subprocess.Popen(
        [sys.executable, "-P", __file__, address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=variables | {"PYTHONHASHSEED": seed, "OMP_NUM_THREADS": "1"},
    )
    assert server.stdout is not None and server.stdout.readline() == b"ready\n"
    atexit.register(lambda: (server.communicate(), folder.cleanup()))
    shim = Path(folder.name) / "python"
    shim.write_text(SHIM.format(python=sys.executable, address=address, seed=seed))
    shim.chmod(0o700)
    return str(shim)


def serve(address: str) -> tuple[list[str], str, dict[str, str]]:
    """Fork for each command that comes to ``address`` until the input ends. Returns in the forked processes only."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(address)
    listener.listen(64)
    ready = selectors.DefaultSelector()
    ready.register(listener, selectors.EVENT_READ)
    ready.register(0, selectors.EVENT_READ)
    print("ready", flush=True)
    callers: dict[int, tuple[int, socket.socket]] = {}
    while True:
        for key, _ in ready.select():
            if key.fileobj == 0:
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
    while arguments[0] == "-W":
        warnings._processoptions([arguments[1]])
        arguments = arguments[2:]
    first, *others = arguments
    paths = [path for path in variables.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:0] = ["" if first == "-c" else folder if first == "-m" else str(Path(first).resolve().parent), *paths]
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
    """End as Python does, but without taking apart what was imported, which takes as long as importing it."""
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


if __name__ == "__main__":
    import torch

    torch.export.export(torch.nn.ReLU(), (torch.zeros(1),))  # the first export imports more than torch itself
    gc.collect()
    gc.freeze()
    try:
        run(*serve(sys.argv[1]))
    except BaseException as raised:
        end(raised)
    end(None)
