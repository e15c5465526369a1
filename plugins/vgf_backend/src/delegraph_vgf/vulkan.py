"""Checks whether this host can run VGF files, and sets up Arm's emulation layer.

Running needs the Vulkan loader, a driver and the emulation layer. That is two Vulkan
layers, which the loader finds through environment variables. If VK_INSTANCE_LAYERS is
already set, its value is kept. It may be empty, for a driver that has the extensions
itself.
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
"""The oldest loader that was tested with the layer; 1.3.239 lacks its extensions."""
_LAYERS = {
    "VK_LAYER_ML_Graph_Emulation": "Graph",
    "VK_LAYER_ML_Tensor_Emulation": "Tensor",
}
"""Name of a layer -> its library. The graph layer comes first: it uses the other one.
"""
INSTALL = "apt-get install libvulkan1 mesa-vulkan-drivers on Debian 13 or newer"
_PATIENCE = 300
"""Seconds after which a driver counts as hanging. On an idle host, it takes one second.
"""
_environment = threading.Lock()
"""Held while the environment variables of the process are changed."""


@contextmanager
def layers() -> Iterator[None]:
    """Add the emulation layer to Vulkan instances that are made in this block.

    The environment is restored afterwards.
    """
    deployed = Path(emulation_layer.__file__).parent / "deploy"
    path = str(deployed / "share/vulkan/explicit_layer.d")
    wanted = {"VK_LAYER_PATH": path, "VK_INSTANCE_LAYERS": ":".join(_LAYERS)}
    if "VK_INSTANCE_LAYERS" in os.environ:
        yield
        return
    # the layers' manifests name the libraries without a folder, so the loader finds them
    # only if they are loaded already
    for library in _LAYERS.values():
        ctypes.CDLL(str(deployed / "lib" / f"libVkLayer_{library}.so"))
    with _environment:
        before = {name: os.environ.get(name) for name in wanted}
        os.environ.update(wanted)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value


def require() -> None:
    """Raise NoRuntime, with the packages to install, if this host cannot run VGF files."""
    why = why_not()
    if why is not None:
        raise NoRuntime("no-runtime", why, hint=INSTALL)


@cache
def why_not() -> str | None:
    """Return why this host cannot run VGF files, or None if it can.

    The test runs in a process of its own, since incompatible drivers and layers crash.
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
        output = done.stderr.strip() or "no error message"
        return f"Arm's emulation layer does not load: {output.splitlines()[-1][-200:]}"
    return done.stdout.strip() or None


def loader_version() -> tuple[int, ...] | None:
    """Return the version of the Vulkan loader, or None if there is none."""
    try:
        loader = ctypes.CDLL(_LOADER)
    except OSError:
        return None
    packed = ctypes.c_uint32()
    loader.vkEnumerateInstanceVersion(ctypes.byref(packed))
    # VK_MAKE_API_VERSION: 7 bits of the major version, 10 of the minor, 12 of the patch
    return packed.value >> 22 & 0x7F, packed.value >> 12 & 0x3FF, packed.value & 0xFFF


def try_device() -> str:
    """Make a Vulkan device; return why that fails, or "" if it works."""
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
                f"the Vulkan loader {named} is too old for Arm's emulation layer, which"
                f" needs 1.4.309: {error}"
            )
        return (
            "no Vulkan driver here has the features that Arm's emulation layer needs"
            f" (loader {named}): {error}"
        )
    return ""


if __name__ == "__main__":
    sys.stdout.write(try_device())
