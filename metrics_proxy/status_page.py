"""`GET /`: for a person, which sources are up, what each gave, what collided and who won. HTML without scripts."""

import time
from collections.abc import Iterable, Sequence
from html import escape

from metrics_proxy.directory import Report
from metrics_proxy.page import Conflicts, Page
from metrics_proxy.sources import Source

_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:76rem;padding:0 1rem;color-scheme:light dark}"
    "table{border-collapse:collapse;width:100%;margin:.5rem 0 2rem}"
    "th,td{text-align:left;padding:.3rem .8rem .3rem 0;border-bottom:1px solid #8884;vertical-align:top}"
    ".up{color:#1a7f37}.down{color:#cf222e;font-weight:600}.note{color:#9a6700}code{font-size:90%}"
)


def html(sources: Sequence[Source], page: Page, conflicts: Conflicts) -> str:
    now = time.time()
    rows = []
    for source, outcome in zip(sources, page.outcomes, strict=True):
        notes = [f'<span class="down">{escape(outcome.error)}</span>'] if outcome.error else []
        if outcome.content and outcome.content.report:
            report = outcome.content.report
            counts = report.processes
            notes.append(f"processes: {counts['live']} live, {counts['dead']} dead, {counts['unknown']} unknown")
            notes += [f'<span class="note">{escape(note)}</span>' for note in _notes(report, counts["unknown"])]
            if not outcome.samples:
                notes.append("no values yet: is PROMETHEUS_MULTIPROC_DIR set in tritonserver's environment?")
        families = len(outcome.content.families) if outcome.content else 0
        rows.append(
            [
                f"{escape(source.name)}<br><code>{escape(source.address)}</code>",
                '<span class="up">up</span>' if outcome.content else '<span class="down">down</span>',
                f"{outcome.samples} in {families} families",
                f"{outcome.seconds * 1000:.1f} ms",
                _ago(now - source.last_success) if source.last_success else "never",
                "<br>".join(notes),
            ]
        )
    up = sum(outcome.content is not None for outcome in page.outcomes)
    collided = [
        [f"<code>{escape(family)}</code>", escape(loser), escape(winner)]
        for (family, loser), winner in page.merged.winners.items()
    ]
    counted = [
        [f"<code>{escape(family)}</code>", escape(kind), str(times)]
        for (family, kind), times in sorted(conflicts.counts.items())
    ]
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>Metrics proxy</title>'
        f"<style>{_STYLE}</style></head><body><h1>Metrics proxy</h1>"
        f"<p>{up} of {len(page.outcomes)} sources up, {page.samples} samples. "
        'The page for Prometheus: <a href="metrics">metrics</a>.</p>'
        f"<h2>Sources</h2>{_table(('source', 'state', 'gave', 'took', 'last success', ''), rows)}"
        f"<h2>Collisions now</h2>{_table(('family', 'left out', 'won'), collided)}"
        f"<h2>Conflicts since the start</h2>{_table(('family', 'kind', 'times'), counted)}</body></html>"
    )


def _notes(report: Report, unknown: int) -> Iterable[str]:
    if unknown:
        yield (
            "whether the unknown live cannot be known, so their gauges may be a dead process's: use this project's "
            "backend, or share the pid namespace and set shared_pid_namespace"
        )
    if report.combined.shared:
        yield f"{report.combined.shared} series are of several processes together (same_series)"
    if report.tidying:
        yield report.tidying
    for name, problem in sorted(report.bad.items()):
        yield f"{name}: {problem}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return "<p>None.</p>"
    cells = "".join(f"<th>{title}</th>" for title in head)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{cells}</tr>{body}</table>"


def _ago(seconds: float) -> str:
    return "now" if seconds < 2 else f"{seconds:.0f} s ago"
