"""VGF files in a Debian 13 root, whose Vulkan loader and CPU driver (lavapipe) run
them, whatever this machine has.

It wants root, debootstrap and a mirror of Debian (`apt-get install debootstrap`), and
is skipped without. ``DELEGRAPH_DEBIAN_ROOT`` names a folder for the root, which is made
once and kept.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PACKAGES = "libvulkan1,mesa-vulkan-drivers"
INSIDE = """
set -e
root=$1; shift
for folder in %s; do mkdir -p "$root$folder"; mount --rbind "$folder" "$root$folder"; done
mkdir -p "$root/proc" "$root/dev"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
exec chroot "$root" /usr/bin/env -i --chdir=%s PATH=/usr/bin:/bin HOME=/tmp OMP_NUM_THREADS=1 LC_ALL=C.UTF-8 "$@"
"""
"""A shell of a mount namespace of its own: this interpreter, its packages and the
checkout are in the root as well.
"""


@pytest.fixture(scope="module")
def debian(tmp_path_factory):
    """Runs a command in the root."""
    if os.geteuid() or not shutil.which("debootstrap"):
        pytest.skip(
            "a Debian root wants root and debootstrap: apt-get install debootstrap"
        )
    made = Path(
        os.environ.get("DELEGRAPH_DEBIAN_ROOT")
        or tmp_path_factory.mktemp("debian") / "root"
    )
    if not (made / "usr/share/vulkan/icd.d/lvp_icd.json").exists():
        command = [
            "debootstrap",
            "--variant=minbase",
            f"--include={PACKAGES}",
            "trixie",
            str(made),
        ]
        completed = subprocess.run(command, capture_output=True, text=True)
        if completed.returncode != 0:
            pytest.skip(f"debootstrap made no root: {completed.stdout[-300:]}")
    folders = " ".join(dict.fromkeys([sys.base_prefix, sys.prefix, str(ROOT)]))

    def run(*command):
        shell = [
            "unshare",
            "--mount",
            "/bin/sh",
            "-c",
            INSIDE % (folders, ROOT),
            "sh",
            str(made),
            *command,
        ]
        return subprocess.run(shell, capture_output=True, text=True)

    return run


@pytest.mark.slow
def test_skipped_tests_pass_in_debian(debian):
    tests = str(Path(__file__).parent / "test_vgf.py")
    done = debian(
        sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", tests
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "skipped" not in done.stdout, done.stdout + done.stderr


@pytest.mark.slow
def test_mobilenet_v2_is_verified_in_debian(debian):
    model = str(ROOT / "examples/mobilenet_v2.py")
    done = debian(
        sys.executable,
        "-m",
        "delegraph",
        "lower",
        model,
        "--backend",
        "vgf",
        "--verify",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "152 of 152 operators delegated" in done.stdout, done.stdout + done.stderr
    [ratio] = re.findall(r"ratio (\S+)", done.stdout)
    assert 0 < float(ratio) < 2e-5, done.stdout


@pytest.mark.slow
def test_conformance_kit_passes_in_debian(debian):
    done = debian(sys.executable, "-m", "delegraph", "check", "vgf", "--quick")
    assert done.returncode == 0, done.stdout + done.stderr
