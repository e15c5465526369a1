"""The style sheet of a page, and its head.

The policy in the head allows no other style and no other script.
"""

from __future__ import annotations

import base64
import hashlib

from .escape import text
from .viewer import SCRIPT

TONES = 5
"""The number of colours for backends. Further backends reuse them."""

# The colours of backends and host are as far apart as a search could put them: by the
# least distance in CIELAB of any two, for readers with and without each of the three
# dichromacies. All have a contrast of 3 to the paper.
STYLE = """
:root { --ink: #1b1f24; --paper: #ffffff; --faint: #5b6470; --rule: #d0d7de; --wire: #7a828c; --link: #0550ae;
  --host: #3d444d; --mark: #b3261e; --t0: #004efe; --t1: #06aa6f; --t2: #e518b9; --t3: #948d1e; --t4: #552600;
  --sheet: #f6f8fa; --lit: #fff3c4; --e2: #ffe08a; --e3: #f5a524; --e4: #c2340a; --e4ink: #ffffff; }
@media screen and (prefers-color-scheme: dark) {
  :root { --ink: #e6e8eb; --paper: #14171a; --faint: #a0a8b2; --rule: #3a4149; --wire: #8b949e; --link: #79b8ff;
    --host: #d0d7de; --mark: #ff8a80; --t0: #5d87f9; --t1: #69ff9a; --t2: #c93070; --t3: #f1c114; --t4: #7c6400;
    --sheet: #1b1f24; --lit: #463a08; --e2: #4a3d0a; --e3: #8a5300; --e4: #ff9d76; --e4ink: #14171a; }
}
* { box-sizing: border-box; }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 0 auto;
  padding: 1.25rem clamp(1rem, 3vw, 2.5rem) 4rem; max-width: 100rem; overflow-wrap: anywhere; }
h1 { font-size: 1.35rem; line-height: 1.3; margin: 0; }
h2 { font-size: 1.15rem; margin: 2rem 0 .25rem; padding-top: .75rem; border-top: 1px solid var(--rule); }
h3 { font-size: 1rem; margin: 1.1rem 0 .35rem; } p { max-width: 60rem; margin: .25rem 0; }
header + h2 { margin-top: .75rem; }
a { color: var(--link); } .faint { color: var(--faint); }
:focus-visible { outline: 2px solid var(--link); outline-offset: 2px; }
table { border-collapse: collapse; font-size: .93em; } caption { text-align: left; color: var(--faint); }
th, td { text-align: left; vertical-align: top; padding: .3rem 1.1rem .3rem 0; border-bottom: 1px solid var(--rule);
  unicode-bidi: isolate; }
th { white-space: nowrap; color: var(--faint); font-weight: 600; }
td { min-width: 5rem; } td.name { min-width: 10rem; } td.text { min-width: 11rem; }
td.op { min-width: 17rem; } td.links { min-width: 9rem; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
td.brief { white-space: nowrap; }
tr:target > * { background: var(--lit); } details:has(:target) > summary { font-weight: 600; }
code, .code { font: .9em/1.4 ui-monospace, monospace; unicode-bidi: isolate; }
td ul { margin: .15rem 0 0; padding: 0; list-style: none; }
td li { padding-left: .75rem; border-left: 2px solid var(--rule); }
summary { cursor: pointer; } details details { margin-left: 1rem; }
.wide, .short, .long { overflow: auto; }
.long { max-height: 80vh; border-bottom: 1px solid var(--rule); }
.short { max-height: max(9rem, 27vh); border-bottom: 1px solid var(--rule); }
.short thead th, .long thead th { position: sticky; top: 0; background: var(--paper); }
.short tr:last-child td, nav .short { border-bottom: 0; }
.share { display: block; width: 100%; height: 10px; margin: .6rem 0 .5rem; border-radius: 5px; }
.share rect { fill-opacity: 1; stroke: var(--paper); stroke-width: 0; } .share .host rect { fill-opacity: .3; }
.legend { list-style: none; padding: 0; margin: .25rem 0; display: flex; flex-wrap: wrap; gap: .1rem 1.4rem;
  font-size: .93em; }
.legend svg { vertical-align: -3px; margin-right: .4rem; }
.tools { display: flex; flex-wrap: wrap; gap: .25rem; margin: .35rem 0; }
.tools button { font: inherit; font-size: .87em; min-width: 2rem; padding: .1rem .6rem; color: var(--ink);
  background: var(--sheet); border: 1px solid var(--rule); border-radius: 6px; cursor: pointer; }
.tools button:hover { border-color: var(--link); }
@media screen and (max-width: 40rem) {  /* a phone: a cause is read from top to bottom */
  .tools button { min-width: 1.75rem; padding: .1rem .4rem; }
  .causes thead { display: none; } .causes :is(table, tbody, tr, td) { display: block; }
  .causes tr { padding: .35rem 0; border-bottom: 1px solid var(--rule); }
  .causes td { padding: 0; border: 0; } .causes td.number { text-align: left; }
  .causes td.number::before { content: "operators: "; } .causes td.links::before { content: "in the graph: "; }
}
@media (min-width: 50rem) { h2 + .tools, h3 + .tools { float: right; margin: -2rem 0 0; } }
.picture { clear: both; overflow: auto; max-height: 80vh; border: 1px solid var(--rule); border-radius: 8px;
  margin: .35rem 0; background: var(--sheet); cursor: grab; }
.picture.dragged { cursor: grabbing; user-select: none; }
.picture svg { display: block; margin: 0 auto; }
svg text { font: 11px ui-monospace, monospace; fill: var(--ink); unicode-bidi: isolate; }
svg .title { font-weight: bold; }
svg .ground { fill: var(--paper); fill-opacity: 1; stroke: none; }
svg rect { fill: var(--c); fill-opacity: .14; stroke: var(--c); stroke-width: 1.5; }
svg a rect { stroke-width: 2.5; } svg a .title { text-decoration: underline; }
svg .border { --c: var(--faint); } svg .border rect { fill: var(--paper); fill-opacity: 1; stroke-width: 1; }
svg .host { --c: var(--host); } svg .several { --c: var(--faint); } svg .several rect { stroke-dasharray: 1 3; }
svg .t0 { --c: var(--t0); } svg .t1 { --c: var(--t1); } svg .t2 { --c: var(--t2); } svg .t3 { --c: var(--t3); }
svg .t4 { --c: var(--t4); }
svg .marked rect { stroke: var(--mark); stroke-width: 2; stroke-dasharray: 6 3; }
svg .mark { fill: var(--mark); font-weight: bold; }
svg .e1 rect { fill: var(--paper); fill-opacity: 1; } svg .e2 rect { fill: var(--e2); fill-opacity: 1; }
svg .e3 rect { fill: var(--e3); fill-opacity: 1; } svg .e4 rect { fill: var(--e4); fill-opacity: 1; }
svg .e4 text { fill: var(--e4ink); } svg .e3 .mark { fill: var(--ink); }
svg path { fill: none; stroke: var(--wire); stroke-width: 1.2; }
svg path.near { stroke: transparent; stroke-width: 9; }
svg g:hover > path.wire { stroke: var(--link); stroke-width: 3; }
svg a:hover rect { stroke: var(--link); } svg a:focus-visible { outline: none; }
svg a:focus-visible rect, svg :target > rect { stroke: var(--link); stroke-width: 5; stroke-dasharray: none; }
@media print {
  body { max-width: none; padding: 0; font-size: 10pt; } .tools { display: none; } h2, h3 { break-after: avoid; }
  .short, .long, .picture { max-height: none; height: auto !important; overflow: visible; border: 0; background: none; }
  .picture svg { max-width: 100%; height: auto; } tr { break-inside: avoid; }
  td, td[class] { min-width: 0; } td.op { min-width: 10rem; } th { white-space: normal; overflow-wrap: normal; }
}
"""


def head(
    title: str, script: str = SCRIPT, style: str = "", *, images: bool = False
) -> str:
    """Return everything before a page's body.

    Its policy lets the browser use only this style sheet and this script. ``script``
    replaces the one that moves and scales pictures; "" for none. ``style``: added to the
    style sheet. ``images``: whether the page contains images.
    """
    style = STYLE + style
    policy = (
        f"default-src 'none'; style-src '{_digest(style)}'; base-uri 'none';"
        " form-action 'none'"
    )
    if images:
        policy += "; img-src data:"
    element = ""
    if script:
        policy += f"; script-src '{_digest(script)}'"
        element = f"<script>{script}</script>"
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"/>
<meta http-equiv="Content-Security-Policy" content="{policy}"/>
<meta name="viewport" content="width=device-width, initial-scale=1"/>
<meta name="color-scheme" content="light dark"/>
<meta name="referrer" content="no-referrer"/>
<title>{text(title)}</title>
<style>{style}</style>{element}</head>
"""


def _digest(source: str) -> str:
    """Return the hash of a script or style sheet, as policies name it."""
    digest = hashlib.sha256(source.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"
