"""The diagnosis as one HTML file that needs nothing else: no scripts, no fonts, no pictures from elsewhere. Pure."""

from collections.abc import Iterable, Sequence
from html import escape

from bench.diagnose.chart import curves
from bench.diagnose.diagnosis import Diagnosis
from bench.diagnose.measured import Process, Regime, Step
from bench.diagnose.plan import sentences
from bench.diagnose.text import warmed
from bench.diagnose.verdict import Kind, milliseconds

_STYLE = """
:root { color-scheme: light dark; --ink: #1f2328; --soft: #59636e; --line: #d1d9e0; --page: #fff; --card: #f6f8fa;
  --c0: #1d4ed8; --c1: #c2410c; --c2: #047857; --c3: #a21caf; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --soft: #9198a1; --line: #3d444d; --page: #0d1117;
  --card: #151b23; --c0: #79a8ff; --c1: #ff9d5c; --c2: #4fd1a5; --c3: #e58cf0; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page); max-width: 74rem;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; } p.where { color: var(--soft); }
.verdict { border: 1px solid var(--line); border-left: 6px solid var(--mark); background: var(--card);
  padding: .8rem 1rem; border-radius: 6px; font-size: 1.05rem; }
.verdict.frontend { --mark: #c2410c; } .verdict.engine { --mark: #047857; } .verdict.other { --mark: #59636e; }
.curves { display: grid; grid-template-columns: repeat(auto-fit, minmax(300px, 1fr)); gap: 1rem; }
figure { margin: 0; background: var(--card); border: 1px solid var(--line); border-radius: 6px; padding: .6rem; }
figcaption { font-size: .85rem; font-weight: 600; } svg { width: 100%; height: auto; display: block; }
.key { font-weight: 400; margin-left: .9em; white-space: nowrap; }
.key::before { content: "\\25CF\\00A0"; color: var(--c); }
.c0 { --c: var(--c0); } .c1 { --c: var(--c1); } .c2 { --c: var(--c2); } .c3 { --c: var(--c3); }
.line { fill: none; stroke: var(--c); stroke-width: 2; } .dot { fill: var(--c); }
.grid { stroke: var(--line); } .axis { fill: var(--soft); font-size: 10px; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; margin: 1rem 0; font-size: .88rem; }
th, td { border-bottom: 1px solid var(--line); padding: .25rem .7rem; text-align: right; white-space: nowrap; }
th.left, td.left { text-align: left; } .core { display: inline-block; width: 4.5rem; margin: 0 .5rem .4rem 0;
  font-size: .75rem; color: var(--soft); } .core i { display: block; height: 8px; border-radius: 4px;
  background: linear-gradient(90deg, var(--c0) var(--share), var(--line) var(--share)); }
"""
_CLASSES = {Kind.FRONTEND: "frontend", Kind.ENGINE: "engine"}


def html(found: Diagnosis, when: str) -> str:
    """`when` is the time of the measurement, in words."""
    about = f"{found.model} at {found.url}, {when}"
    parts = [
        "<h1>Is the frontend the bottleneck?</h1>",
        f'<p class="where">{escape(about)}</p>',
        f'<p class="verdict {_CLASSES.get(found.verdict.kind, "other")}">{escape(found.verdict.sentence)}</p>',
        _list("Evidence", found.verdict.evidence),
        _list("What would make it sure", found.verdict.missing),
        _list("Capacity plan", sentences(found.plan) if found.plan is not None else []),
        f"<p>The frontend's CPU is not seen: {escape(found.unseen)}.</p>" if found.unseen else "",
        _list("Warm-up", [warmed(warm) for warm in found.warm]),
    ]
    parts += [_regime(found, regime) for regime in found.regimes]
    body = "\n".join(part for part in parts if part)
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{escape(about)}</title>'
    head += f"<style>{_STYLE}</style>"
    return f'<!doctype html>\n<html lang="en">\n<head>{head}</head>\n<body>\n{body}\n</body></html>\n'


def _list(title: str, sentences_: Sequence[str]) -> str:
    if not sentences_:
        return ""
    return f"<h2>{title}</h2><ul>{''.join(f'<li>{escape(one)}</li>' for one in sentences_)}</ul>"


def _regime(found: Diagnosis, regime: Regime) -> str:
    steps, judged = found.of(regime), found.regimes[regime]
    parts = [f"<h2>{regime.capitalize()}: {judged.kind}</h2>", f"<p>{escape(judged.sentence)}</p>"]
    parts += ['<div class="curves">', *_curves(regime, steps), "</div>", _steps(steps)]
    if judged.step is not None:
        parts.append(_machine(judged.step))
    return "\n".join(parts)


def _curves(regime: Regime, steps: Sequence[Step]) -> list[str]:
    xs = [step.concurrency for step in steps]
    unit = "requests/s" if regime is Regime.PREPROCESS else "tokens/s"
    ttft = {"p50": [1000 * step.ttft.p50 for step in steps], "p99": [1000 * step.ttft.p99 for step in steps]}
    drawn = [
        curves(unit, xs, {"all streams": [step.rate for step in steps]}),
        curves("time to first token, ms", xs, ttft),
    ]
    if regime is Regime.DECODE:
        itl = {"mean": [1000 * step.itl.mean for step in steps], "p99": [1000 * step.itl.p99 for step in steps]}
        if all(step.engine is not None and step.engine.itl is not None for step in steps):
            itl["engine, mean"] = [1000 * (step.engine.itl or 0.0) if step.engine else 0.0 for step in steps]
        drawn.append(curves("time between tokens, ms", xs, itl))
    shares = {}
    if any(step.serving for step in steps):
        shares["busiest frontend thread"] = [
            100 * max((one.busiest.wanted for one in step.serving), default=0.0) for step in steps
        ]
    shares["load tool"] = [100 * step.client for step in steps]
    if all(step.cores for step in steps):
        shares["all cores"] = [100 * sum(step.cores) / len(step.cores) for step in steps]
    if all(step.gpu is not None for step in steps):
        shares["GPU"] = [100 * (step.gpu or 0.0) for step in steps]
    drawn.append(curves("% of a core wanted", xs, shares, most=100))
    if all(step.engine is not None and step.engine.running is not None for step in steps):
        inside = {
            "running": [step.engine.running or 0.0 if step.engine else 0.0 for step in steps],
            "waiting": [step.engine.waiting or 0.0 if step.engine else 0.0 for step in steps],
        }
        drawn.append(curves("requests in the engine", xs, inside))
    return drawn


def _steps(steps: Sequence[Step]) -> str:
    names = (
        "streams",
        "answers",
        "failed",
        "requests/s",
        "tokens/s",
        "TTFT p50",
        "p99",
        "ITL mean",
        "p99",
        "load tool",
    )
    rows = [
        (
            f"{step.concurrency}",
            f"{step.completed}",
            f"{step.failed}",
            f"{step.requests_per_second:,.1f}",
            f"{step.tokens_per_second:,.0f}",
            milliseconds(step.ttft.p50),
            milliseconds(step.ttft.p99),
            milliseconds(step.itl.mean),
            milliseconds(step.itl.p99),
            f"{step.client:.0%}",
        )
        for step in steps
    ]
    return _table(names, rows, left=0)


def _machine(step: Step) -> str:
    parts = []
    if step.frontend:
        rows = [row for process in step.frontend for row in _process(process)]
        parts.append(
            f"<p>The frontend's processes and threads at {step.concurrency} streams; wanted is used and waited for.</p>"
        )
        parts.append(_table(("process", "name", "thread", "used", "wanted", "memory"), rows, left=3))
    if step.others:
        rows = [(f"{one.pid}", one.name, "", f"{one.on_cpu:.0%}", "", _memory(one)) for one in step.others]
        parts.append("<p>Others on this machine.</p>")
        parts.append(_table(("process", "name", "", "used", "", "memory"), rows, left=3))
    if step.cores:
        cores = (
            f'<span class="core"><i style="--share:{share:.0%}"></i>core {number} {share:.0%}</span>'
            for number, share in enumerate(step.cores)
        )
        parts.append(f"<p>Cores of this machine.</p><div>{''.join(cores)}</div>")
    return "".join(parts)


def _process(process: Process) -> Iterable[tuple[str, ...]]:
    name = f"{process.name} (engine)" if process.is_engine else process.name
    yield (f"{process.pid}", name, "all", f"{process.on_cpu:.0%}", f"{process.wanted:.0%}", _memory(process))
    for thread in sorted(process.threads, key=lambda one: -one.wanted):
        if thread.wanted >= 0.01:
            yield ("", "", thread.name, f"{thread.on_cpu:.0%}", f"{thread.wanted:.0%}", "")


def _memory(process: Process) -> str:
    return f"{process.rss / 2**20:,.0f} MiB"


def _table(names: Sequence[str], rows: Sequence[Sequence[str]], left: int) -> str:
    """The first `left` columns hold words."""

    def cells(tag: str, values: Sequence[str]) -> str:
        return "".join(
            f"<{tag}{' class=left' if at < left else ''}>{escape(value)}</{tag}>" for at, value in enumerate(values)
        )

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f'<div class="scroll"><table><tr>{cells("th", names)}</tr>{body}</table></div>'
