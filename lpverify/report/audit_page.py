"""An audit as a table, and as a page: one HTML file without scripts, pictures or anything from a network."""

from __future__ import annotations

from html import escape

from lpverify import errors
from lpverify.core.results import AuditReport, CaseAudit, Finding
from lpverify.files import provenance
from lpverify.report.tables import number

SIGNATURE = "<!-- lpverify/audit-page@1 -->"
"""A page is recognised by it."""

HEADINGS = ("case", "mode", "runs", "total variation", "finds", "lossless")
CLASSES = ("", "", "right", "right", "right", "")
CAPTION = "total variation between the emitted and the target distribution of L+1 tokens (of both rounds if two)"
SAMPLED = "sampled cases: that of the sample. A loss of 'finds' or more is detected with probability 0.99; a lossless \
verifier fails any case with probability at most"

MODES = {
    "exact": "every draft and every choice was enumerated, in fractions, so there is no tolerance",
    "in floats": "every draft and every choice was enumerated, in floating point",
    "sampled": "random draws, and a test of the sample with stated error probabilities",
    "refused": "too large for this verifier",
}
COLOURS = {"lossless": "#1b6e3c", "not lossless": "#a61b1b", "not decided": "#7a5200"}
STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 60rem; padding: 1rem; }
body { color: #1a1a1a; background: #fff; }
h1 { font-size: 1.4rem; overflow-wrap: anywhere; } h2 { font-size: 1.1rem; margin-top: 2rem; }
.outcome { color: #fff; padding: .75rem 1rem; border-radius: .3rem; font-weight: 600; }
.finding { border-left: .25rem solid #a61b1b; padding: .1rem 0 .1rem .75rem; margin: 1rem 0; overflow-wrap: anywhere; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
th, td { text-align: left; padding: .3rem .6rem .3rem 0; border-bottom: 1px solid #ddd; vertical-align: top; }
td.right, th.right { text-align: right; font-variant-numeric: tabular-nums; }
td.no { color: #a61b1b; font-weight: 600; } dt { font-weight: 600; }
dd { margin: 0 0 .5rem 1rem; overflow-wrap: anywhere; }
@media (max-width: 40rem) {
  thead { display: none; } tr { display: block; padding: .5rem 0; border-bottom: 1px solid #bbb; }
  td, td.right { display: flex; justify-content: space-between; gap: 1rem; text-align: right; }
  td, td.right { border: 0; padding: .1rem 0; overflow-wrap: anywhere; } td:empty { display: none; }
  td::before { content: attr(data-name); color: #555; text-align: left; } td:first-child { font-weight: 600; }
}
"""


def cells(case: CaseAudit) -> tuple[str, ...]:
    """A case in words, below `HEADINGS`."""
    finding, verdict = case.finding, "not decided" if case.mode == "refused" else "yes"
    lossless = f"NO: {finding.cause or finding.kind}" if finding else verdict
    distances = ("" if x is None else number(float(x)) for x in (case.total_variation, case.smallest_found))
    return errors.label(case.case), mode(case), f"{case.count:,}" if case.count else "", *distances, lossless


def mode(case: CaseAudit) -> str:
    """How a case was decided, one of `MODES`."""
    return "in floats" if case.mode == "exact" and not case.rational else case.mode


def caption(report: AuditReport) -> str:
    """What the numbers of the table are."""
    return CAPTION + (f"; {SAMPLED} {report.false_alarm:g}" if report.false_alarm else "")


def page(verifier: str, report: AuditReport, *, adapter: str | None = None) -> str:
    """The report as an HTML document that needs nothing else.

    >>> from lpverify.auditing.audit import audit
    >>> text = page("bv", audit("bv", cases=["coin"]))
    >>> text.startswith("<!DOCTYPE html>"), SIGNATURE in text, "bv is lossless on 3 cases" in text
    (True, True, True)
    """
    name = escape(errors.label(verifier))
    title = f"Audit of {name}" + (f" as {escape(adapter)}" if adapter else "")
    modes = dict.fromkeys(mode(case) for case in report.cases)
    how = [f"<dt>{m}</dt><dd>{sum(mode(c) == m for c in report.cases)} cases: {MODES[m]}.</dd>" for m in modes]
    notes = [
        f"<dt>{sum(case.note == note for case in report.cases)} cases</dt><dd>{escape(errors.one_line(note))}</dd>"
        for note in dict.fromkeys(case.note for case in report.cases if case.note)
    ]
    findings = [_finding(name, finding) for name, finding in report.findings]
    made_with = ", ".join(
        f"{package} {version}" for package, version in provenance("numpy").items() if package != "git"
    )
    head = "".join(f'<th class="{kind}">{heading}</th>' for kind, heading in zip(CLASSES, HEADINGS, strict=True))
    rows = "\n".join(map(_row, report.cases))
    parts = [
        f'<!DOCTYPE html>\n{SIGNATURE}\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>",
        f'<p class="outcome" style="background: {COLOURS[report.outcome]}">{name} is {escape(report.summary)}</p>',
        "<p>A verifier is lossless if the tokens that it emits have exactly the distribution of the target model,",
        "whatever the drafts. Each case is a small target and draft; K is the number of drafted paths.</p>",
        *(["<h2>Findings</h2>", *findings] if findings else []),
        f"<h2>How it was decided</h2>\n<dl>{''.join(how)}</dl>",
        *([f"<h2>Notes</h2>\n<dl>{''.join(notes)}</dl>"] if notes else []),
        f"<h2>Cases</h2>\n<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody>\n</table>",
        f"<p>{escape(caption(report))}.</p>",
        *([f"<p>{escape(report.missed)}.</p>"] if report.missed else []),
        f"<p>Made with {escape(made_with)}.</p>\n</body>\n</html>\n",
    ]
    return "\n".join(parts)


def _row(case: CaseAudit) -> str:
    classes = (*CLASSES[:-1], "no" if case.finding else "")
    columns = zip(classes, HEADINGS, cells(case), strict=True)
    entries = (f'<td class="{kind}" data-name="{name}">{escape(text)}</td>' for kind, name, text in columns)
    return f"<tr>{''.join(entries)}</tr>"


def _finding(case: str, finding: Finding) -> str:
    explanation = f"<br>{escape(errors.one_line(finding.explanation))}" if finding.explanation else ""
    message = escape(errors.one_line(finding.message))
    return f'<div class="finding"><strong>{escape(errors.label(case))}</strong><br>{message}{explanation}</div>'
