"""The backend where its packages are missing, or cannot be installed."""

import subprocess
import sys

import pytest
from delegraph_coreai import plugin


def hint(monkeypatch, platform_name, libc=("glibc", "2.36")):
    monkeypatch.setattr(plugin, "find_spec", lambda name: None)
    monkeypatch.setattr(plugin.sys, "platform", platform_name)
    monkeypatch.setattr(plugin.platform, "libc_ver", lambda: libc)
    return plugin.install_hint()


@pytest.mark.parametrize(
    ("system", "libc", "text"),
    [
        ("linux", ("glibc", "2.36"), "pip install 'delegraph-coreai[runtime]'"),
        ("linux", ("glibc", "2.31"), "glibc 2.34 or later: this one has glibc 2.31"),
        ("linux", ("", ""), "this one has another C library"),
        ("darwin", ("", ""), "macOS on Apple silicon"),
        ("win32", ("", ""), "no wheels for win32"),
    ],
)
def test_the_hint_fits_the_system(monkeypatch, system, libc, text):
    assert text in hint(monkeypatch, system, libc)


def test_without_its_packages_the_backend_is_unavailable():
    code = (
        "import sys\n"
        "sys.modules['coreai'] = None\n"
        "sys.modules['coreai_torch'] = None\n"
        "import delegraph, torch\n"
        "try:\n"
        "    delegraph.lower(torch.nn.ReLU(), (torch.ones(2),), backends=['coreai'])\n"
        "except delegraph.errors.PluginUnavailable as error:\n"
        "    print(error.message, error.hint)\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True
    )
    assert "coreai" in done.stdout and "pip install" in done.stdout, done.stderr


def test_without_its_packages_the_backend_is_listed_with_the_way_out():
    code = (
        "import sys\n"
        "sys.modules['coreai'] = None\n"
        "sys.modules['coreai_torch'] = None\n"
        "from delegraph.cli import main\n"
        "main(['backends', '--json'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True
    )
    assert '"unavailable"' in done.stdout, done.stderr
    assert "pip install 'delegraph-coreai[runtime]'" in done.stdout
