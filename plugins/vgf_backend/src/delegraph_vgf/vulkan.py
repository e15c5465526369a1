"""Whether this host can run VGF files, and why not: the Vulkan loader, a driver, and
Arm's emulation layer.

The layer is two Vulkan layers, which the loader finds through environment variables.
Who has set VK_INSTANCE_LAYERS (to nothing, for a driver that has the extensions itself)
keeps what it says.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import emulation_layer
import scenario_runner
from delegraph.errors import NoRuntime

_LOADER = "libvulkan.so.1"
_TRIED = (1, 4, 309)
"""The oldest loader with which the layer was seen to work; 1.3.239 does not know its
extensions.
"""
_LAYERS = {
    "VK_LAYER_ML_Graph_Emulation": "Graph",
    "VK_LAYER_ML_Tensor_Emulation": "Tensor",
}
"""Name of a layer -> its library. The graph's comes first: it uses the other."""
INSTALL = "apt-get install libvulkan1 mesa-vulkan-drivers on Debian 13 or newer"
_PATIENCE = 300
"""Seconds after which a driver hangs: a device is made in one, on an idle machine."""
_environment = threading.Lock()


@contextmanager
def layers() -> Iterator[None]:
    """Vulkan instances that are made inside have the emulation layer; the environment
    is put back behind them.
    """
    deployed = Path(emulation_layer.__file__).parent / "deploy"
    path = str(deployed / "share/vulkan/explicit_layer.d")
    wanted = {"VK_LAYER_PATH": path, "VK_INSTANCE_LAYERS": ":".join(_LAYERS)}
    if "VK_INSTANCE_LAYERS" in os.environ:
        yield
        return
    # the manifests name them without a folder: the loader finds what is loaded
    for library in _LAYERS.values():
        ctypes.CDLL(str(deployed / "lib" / f"libVkLayer_{library}.so"))
    with _environment:
        before = {name: os.environ.get(name) for name in wanted}
        os.environ.update(wanted)
        try:
            yield
        finally:
            for name, value in before.items():
                (
                    os.environ.pop(name)
                    if value is None
                    else os.environ.__setitem__(name, value)
                )


def require() -> None:
    """NoRuntime with what to install, if this host cannot run VGF files."""
    if (why := why_not()) is not None:
        raise NoRuntime("no-runtime", why, hint=INSTALL)


@cache
def why_not() -> str | None:
    """Why this host cannot run VGF files; None if it can.

    A process of its own tries, since drivers and layers that do not fit each other
    crash.
    """
    command = [sys.executable, "-m", __name__]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_PATIENCE
        )
    except subprocess.TimeoutExpired:
        return (
            "the Vulkan driver made no device with Arm's emulation layer within"
            f" {_PATIENCE} seconds"
        )
    if done.returncode < 0:
        return (
            "the Vulkan driver crashes with Arm's emulation layer (signal"
            f" {-done.returncode})"
        )
    if done.returncode:
        return (
            "Arm's emulation layer does not load:"
            f" {(done.stderr.strip() or 'no reason')[-200:].splitlines()[-1]}"
        )
    return done.stdout.strip() or None


def loader_version() -> tuple[int, int, int] | None:
    """Version of the Vulkan loader; None if there is none."""
    try:
        loader = ctypes.CDLL(_LOADER)
    except OSError:
        return None
    packed = ctypes.c_uint32()
    loader.vkEnumerateInstanceVersion(ctypes.byref(packed))
    return packed.value >> 22 & 0x7F, packed.value >> 12 & 0x3FF, packed.value & 0xFFF


def tried() -> str:
    """Why no device can be made here; "" if it can."""
    version = loader_version()
    if version is None:
        return f"there is no Vulkan loader ({_LOADER})"
    named = ".".join(map(str, version))
    builder = scenario_runner.ScenarioBuilder()
    builder.add_tensor([1], scenario_runner.Format.R32Sfloat)
    try:
        with layers():
            builder.build()
    except RuntimeError as error:
        if version < _TRIED:
            return (
                f"the Vulkan loader {named} is too old for Arm's emulation layer,"
                f" 1.4.309 is not: {error}"
            )
        return (
            "no Vulkan driver here has what Arm's emulation layer needs (loader"
            f" {named}): {error}"
        )
    return ""


if __name__ == "__main__":
    sys.stdout.write(tried())
