"""The output of a tool on a file takes no memory. It can be huge, because a text that many
operators share is printed for each of them.
"""

from __future__ import annotations

import sys
import tracemalloc

from delegraph_tosa.tools import external_validators


def test_output_of_tools_takes_no_memory() -> None:
    said = (
        "import sys; sys.stdout.write('x' * (64 << 20)); sys.exit('error: no\\n' + 'y'"
        " * (64 << 20))"
    )
    tracemalloc.start()
    done = external_validators._call([sys.executable, "-c", said], "module {}")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert done.returncode == 1
    assert done.stderr.startswith("error: no\n")
    assert peak < 16 << 20


def test_a_tool_gets_the_text() -> None:
    done = external_validators._call(
        [sys.executable, "-c", "import sys; sys.exit(sys.stdin.read())"], "module {}"
    )
    assert done.stderr.strip() == "module {}"
