"""The page itself: HTML with everything inside, nothing fetched, light and dark, on paper and on a phone."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from html import escape

from hush.report.plots import Plot, legend, svg

STYLE = """
:root { color-scheme: light dark; --paper:#ffffff; --ink:#1c2024; --soft:#5b6570; --rule:#d9dee3; --tint:#f3f6f9;
  --c0:#0072B2; --c1:#D55E00; --c2:#00805d; --c3:#b0568a; --c4:#6b6b6b; --alarm:#a40e26; --alarm-tint:#fdecee; }
@media (prefers-color-scheme: dark) { :root { --paper:#14181c; --ink:#e8ecf0; --soft:#a3adb8; --rule:#38414a;
  --tint:#1d2329; --c0:#56B4E9; --c1:#f0a04b; --c2:#3fc59d; --c3:#e39cc4; --c4:#a0a0a0; --alarm:#ff8f9e;
  --alarm-tint:#3a1a20; } }
@media print { :root { --paper:#ffffff; --ink:#000000; --soft:#444444; --rule:#bbbbbb; --tint:#ffffff; --c0:#0072B2;
  --c1:#D55E00; --c2:#00805d; --c3:#b0568a; --c4:#6b6b6b; --alarm:#a40e26; --alarm-tint:#ffffff; }
  figure, tr, .cards { break-inside: avoid; } h2 { break-after: avoid; } }
* { box-sizing: border-box; }
body { margin:0; background:var(--paper); color:var(--ink); font:17px/1.6 system-ui, -apple-system, "Segoe UI", Roboto,
  "Helvetica Neue", Arial, sans-serif; -webkit-text-size-adjust:100%; }
main { max-width:54rem; margin:0 auto; padding:1.5rem 1.15rem 4rem; }
h1 { font-size:clamp(1.6rem, 5vw, 2.3rem); line-height:1.2; margin:.6em 0 .3em; }
h2 { font-size:1.3rem; margin:2.2em 0 .5em; border-top:1px solid var(--rule); padding-top:1em; }
p { margin:.7em 0; max-width:44rem; } ul { padding-left:1.2em; } li { margin:.35em 0; max-width:43rem; }
.soft, figcaption { color:var(--soft); font-size:.92rem; }
.cards { display:grid; grid-template-columns:repeat(auto-fit, minmax(11.5rem, 1fr)); gap:.8rem; margin:1.4rem 0; }
.card { background:var(--tint); border:1px solid var(--rule); border-radius:.6rem; padding:.8rem 1rem; }
.card b { display:block; font-size:1.55rem; line-height:1.25; font-variant-numeric:tabular-nums; }
.alarm { background:var(--alarm-tint); color:var(--alarm); border:2px solid var(--alarm); border-radius:.6rem;
  padding:.7rem 1rem; font-weight:600; }
figure { margin:1.4rem 0; } svg { display:block; width:100%; height:auto; max-width:48rem; }
.legend { display:flex; flex-wrap:wrap; gap:.1rem 1.4rem; font-size:.95rem; margin:.3rem 0 .3rem; }
.legend span { display:inline-flex; align-items:center; gap:.5rem; } .legend svg { width:2.2rem; flex:none; }
.pair { display:grid; grid-template-columns:repeat(auto-fit, minmax(19rem, 1fr)); gap:0 1.4rem; }
.scroll { overflow-x:auto; } table { border-collapse:collapse; width:100%; font-size:.95rem; }
th, td { text-align:left; vertical-align:top; padding:.45rem .8rem .45rem 0; border-bottom:1px solid var(--rule);
  overflow-wrap:anywhere; }
th { font-weight:600; min-width:8.5rem; } th.n { min-width:0; }
td.n, th.n { text-align:right; font-variant-numeric:tabular-nums; }
td.n:first-child, th.n:first-child { text-align:left; }
code { font:0.86em ui-monospace, "SF Mono", Menlo, Consolas, monospace; overflow-wrap:anywhere; }
svg text { font-family:inherit; fill:var(--ink); }
svg .tick, svg .mark { font-size:15px; } svg .label { font-size:16px; }
.pair svg .tick, .pair svg .mark { font-size:20px; } .pair svg .label { font-size:21px; }
@media (max-width:40rem) { figure svg .tick, figure svg .mark { font-size:21px; }
  figure svg .label { font-size:22px; } }
svg .mark { font-weight:600; paint-order:stroke; stroke:var(--paper); stroke-width:5px; }
svg .tick { fill:var(--soft); } svg .grid { stroke:var(--rule); stroke-width:.7; }
svg .axis { fill:none; stroke:var(--soft); stroke-width:1.2; }
svg .line { fill:none; stroke-width:2.6; stroke-linejoin:round; }
svg .band { opacity:.16; stroke:none; } svg .dot { stroke:var(--paper); stroke-width:1.5; }
svg .leader { stroke:var(--soft); stroke-width:1.2; } .number { white-space:nowrap; }
@media print { body { font-size:10.5pt; line-height:1.45; } main { max-width:none; padding:0; } h2 { margin-top:1.3em; }
  p, li { max-width:none; } svg { max-width:34rem; } }
""" + "".join(
    f"svg .line.c{k} {{ stroke:var(--c{k}); }} svg .band.c{k}, svg .dot.c{k} {{ fill:var(--c{k}); }}\n"
    for k in range(5)
)

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""The browser itself is told to fetch nothing."""


def page(title: str, body: Iterable[str]) -> str:
    """A whole document."""
    head = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<title>{escape(title)}</title>\n<link rel="icon" href="data:,">\n<style>{STYLE}</style>\n'
        "</head>\n<body>\n<main>\n"
    )
    return head + "\n".join(body) + "\n</main>\n</body>\n</html>\n"


def prose(text: str) -> str:
    """Escaped, and with numbers such as 1e-6 in one piece: browsers break lines after a hyphen."""
    return re.sub(r"\b\d[\d.]*e-\d+", r'<span class="number">\g<0></span>', escape(text))


def heading(text: str) -> str:
    return f"<h2>{escape(text)}</h2>"


def paragraphs(texts: Iterable[str]) -> str:
    return "".join(f"<p>{prose(text)}</p>" for text in texts)


def bullets(texts: Iterable[str]) -> str:
    return "<ul>" + "".join(f"<li>{prose(text)}</li>" for text in texts) + "</ul>"


def cards(facts: Mapping[str, str]) -> str:
    """A few large numbers, each with a sentence below it."""
    drawn = (
        f'<div class="card"><b>{prose(value)}</b><span class="soft">{prose(words)}</span></div>'
        for value, words in facts.items()
    )
    return '<div class="cards">' + "".join(drawn) + "</div>"


def figure(plot: Plot, caption: str) -> str:
    return f"<figure>{svg(plot)}{legend(plot)}<figcaption>{prose(caption)}</figcaption></figure>"


def facts_table(rows: Mapping[str, str]) -> str:
    lines = (f"<tr><th scope='row'>{escape(name)}</th><td>{prose(value)}</td></tr>" for name, value in rows.items())
    return '<div class="scroll"><table>' + "".join(lines) + "</table></div>"


def number_table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    top = "".join(f'<th scope="col" class="n">{escape(name)}</th>' for name in header)
    lines = ("<tr>" + "".join(f'<td class="n">{prose(cell)}</td>' for cell in row) + "</tr>" for row in rows)
    return f'<div class="scroll"><table><tr>{top}</tr>' + "".join(lines) + "</table></div>"
