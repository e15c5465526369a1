"""The page of a matrix in a real browser: it sorts and filters, asks for nothing, and
runs no text of a model.
"""

import json

import pytest
from delegraph_analysis.matrix import page
from delegraph_analysis.matrix.rows import latest
from delegraph_analysis.matrix.store import read_rows

from ..support.browser import MISSING, browser, executable

EVIL = "<script>window.harm = 1</script><img src=x onerror='window.harm = 1'>"
SECOND = "document.querySelectorAll('table')[1]"
SHOWN = (
    f"[...{SECOND}.tBodies[0].rows].filter(r => !r.hidden).map(r =>"
    " [r.cells[0].textContent, r.cells[8].textContent])"
)


@pytest.mark.skipif(executable() is None, reason=MISSING)
def test_a_page_sorts_and_filters(finished, tmp_path):
    rows = latest(read_rows(finished))
    rows[0]["name"] = EVIL
    (tmp_path / "page.html").write_text(page.page(rows, EVIL, ""), encoding="utf-8")
    try:
        opened = browser(executable(), tmp_path)
        tab = opened.__enter__()
    except (EOFError, BrokenPipeError):
        pytest.skip(f"{executable()} does not start")
    try:
        tab.open(tmp_path / "page.html")
        assert tab.evaluate("window.harm === undefined")
        assert len(tab.said("Network.requestWillBeSent")) == 1, "the page itself"
        assert not tab.said("Log.entryAdded", "Runtime.exceptionThrown")
        press = f"{SECOND}.tHead.rows[0].cells[8].querySelector('button').click()"
        for down in (False, True):
            tab.evaluate(press)
            times = [float(ms) for _, ms in tab.evaluate(SHOWN) if ms != "-"]
            assert len(times) > 3
            assert times == sorted(times, reverse=down)
            assert tab.evaluate(SHOWN)[-1][1] == "-", "what has no figure comes last"
        typed = (
            "const i = document.querySelector('input'); i.value = 'Small tosa';"
            " i.dispatchEvent(new Event('input'))"
        )
        tab.evaluate(f"(() => {{{typed}}})()")
        assert {name for name, _ in tab.evaluate(SHOWN)} <= {"small", EVIL}
        assert len(tab.evaluate(SHOWN)) < len(rows)
        assert json.dumps(
            tab.evaluate("document.querySelector('[role=status]').textContent")
        ).count("rows")
    finally:
        opened.__exit__(None, None, None)
