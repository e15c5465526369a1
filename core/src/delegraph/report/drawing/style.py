"""The style sheet of a page, and its head, whose policy allows no other style and no script."""

from __future__ import annotations

import base64
import hashlib

from ...io.escape import text

TONES = 5
"""Colours for backends. More backends than that share colours; every box has its backend's name as well."""

# The colours of backends and host are as far apart as a search could put them: by the least distance in CIELAB of any
# two, for readers with and without each of the three dichromacies. All have a contrast of 3 to the paper.
STYLE = """
:root { --ink: #1b1f24; --paper: #ffffff; --faint: #5b6470; --rule: #d0d7de; --wire: #7a828c; --link: #0550ae;
  --host: #3d444d; --mark: #b3261e; --t0: #004efe; --t1: #06aa6f; --t2: #e518b9; --t3: #948d1e; --t4: #552600; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e8eb; --paper: #14171a; --faint: #a0a8b2; --rule: #3a4149; --wire: #8b949e; --link: #79b8ff;
    --host: #d0d7de; --mark: #ff8a80; --t0: #5d87f9; --t1: #69ff9a; --t2: #c93070; --t3: #f1c114; --t4: #7c6400; }
}
* { box-sizing: border-box; }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 0 auto;
  padding: 1.5rem; max-width: 100rem; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; margin: 0; }
h2 { margin: 2.5rem 0 .5rem; padding-top: .5rem; border-top: 1px solid var(--rule); }
h3 { margin: 1.5rem 0 .5rem; } p { max-width: 60rem; }
a { color: var(--link); } .faint { color: var(--faint); }
table { border-collapse: collapse; margin: .5rem 0; } caption { text-align: left; color: var(--faint); }
th, td { text-align: left; vertical-align: top; padding: .25rem 1rem .25rem 0; border-bottom: 1px solid var(--rule);
  unicode-bidi: isolate; }
td { min-width: 5rem; } td.name { min-width: 8.5rem; } td.text { min-width: 12rem; }
th { white-space: nowrap; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
code, .code { font: .9em/1.4 ui-monospace, monospace; unicode-bidi: isolate; }
td ul { margin: 0; padding: 0; list-style: none; }
summary { cursor: pointer; } details details { margin-left: 1rem; }
.wide { overflow-x: auto; }
.picture { overflow: auto; max-height: 85vh; border: 1px solid var(--rule); border-radius: 6px; margin: .5rem 0; }
.picture svg { display: block; margin: 0 auto; }
.legend { list-style: none; padding: 0; display: flex; flex-wrap: wrap; gap: .25rem 1.5rem; }
.legend svg { vertical-align: -3px; margin-right: .4rem; }
svg text { font: 11px ui-monospace, monospace; fill: var(--ink); unicode-bidi: isolate; }
svg .title { font-weight: bold; }
svg rect { fill: var(--c); fill-opacity: .14; stroke: var(--c); stroke-width: 1.5; }
svg a rect { stroke-width: 2.5; } svg a .title { text-decoration: underline; }
svg .border { --c: var(--faint); } svg .border rect { fill-opacity: 0; stroke-width: 1; }
svg .host { --c: var(--host); } svg .several { --c: var(--faint); } svg .several rect { stroke-dasharray: 1 3; }
svg .t0 { --c: var(--t0); } svg .t1 { --c: var(--t1); } svg .t2 { --c: var(--t2); } svg .t3 { --c: var(--t3); }
svg .t4 { --c: var(--t4); }
svg .e1 rect { fill: #2da44e; fill-opacity: .35; } svg .e2 rect { fill: #d4c400; fill-opacity: .4; }
svg .e3 rect { fill: #f08000; fill-opacity: .6; } svg .e4 rect { fill: #d1242f; fill-opacity: .75; }
svg .marked rect { stroke: var(--mark); stroke-width: 2; stroke-dasharray: 6 3; }
svg .mark { fill: var(--mark); font-weight: bold; }
svg path { fill: none; stroke: var(--wire); stroke-width: 1.2; }
svg path.near { stroke: transparent; stroke-width: 9; }
svg g:hover > path.wire { stroke: var(--link); stroke-width: 3; }
@media print { .picture { max-height: none; overflow: visible; border: 0; } }
"""


def head(title: str) -> str:
    """Everything before a page's body. Its policy lets the browser load this style sheet and nothing else."""
    digest = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"/>
<meta http-equiv="Content-Security-Policy" content="{policy}"/>
<meta name="viewport" content="width=device-width, initial-scale=1"/>
<meta name="color-scheme" content="light dark"/>
<meta name="referrer" content="no-referrer"/>
<title>{text(title)}</title>
<style>{STYLE}</style></head>
"""
