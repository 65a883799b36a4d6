"""What the check prints: a table of each model for people, JSON for machines. Pure."""

import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from gateway.check.answers import Api
from gateway.check.run import ModelReport, probed
from gateway.check.verdicts import Kind, Verdict

_APIS: tuple[Api, ...] = ("chat", "completions")
_WORDS = {Kind.SEEN: "seen", Kind.ACCEPTED: "accepted", Kind.REFUSED: "refused", Kind.FAILED: "FAILED"}
_BACKENDS = {"ours": "this project's vllm_backend", "stock": "Triton's stock vLLM backend"}
_LEAST_TEXT = 30

LEGEND = """\
seen      the answer shows that the field is obeyed
accepted  the request is answered; the answer cannot show whether the field is obeyed
refused   a 400 with this reason: it cannot be had from this deployment
FAILED    it should work here, and does not"""


def table(report: ModelReport, width: int) -> str:
    """`width` in characters."""
    title = f"{report.name} on {report.url}"
    if report.not_ready is not None:
        return f"{title}: not ready: {report.not_ready}\n"
    assert report.backend is not None
    lines = [f"{title}: {_BACKENDS[report.backend]}"]
    for api, found in report.apis.items():
        if found.plain is not None:
            lines.append(f"{api}: a plain request is {_WORDS[found.plain.kind]}: {found.plain.how}")
    rows = [(name, [report.apis[api].fields.get(name) for api in _APIS]) for name in _names(report)]
    if rows:
        lines += ["", *_aligned([("field", *_APIS, "how"), *_cells(rows)], width), ""]
    counts = {kind: sum(verdict.kind is kind for verdict in report.verdicts) for kind in Kind}
    lines.append(", ".join(f"{count} {_WORDS[kind]}" for kind, count in counts.items()))
    return "\n".join(lines) + "\n"


def _names(report: ModelReport) -> list[str]:
    """In the order of the tables of fields."""
    names = dict.fromkeys(name for api in _APIS for name in probed(api))
    return [name for name in names if any(name in found.fields for found in report.apis.values())]


def _cells(rows: Sequence[tuple[str, list[Verdict | None]]]) -> Iterator[tuple[str, ...]]:
    for name, verdicts in rows:
        words = [_WORDS[verdict.kind] if verdict else "" for verdict in verdicts]
        told = {api: verdict.how for api, verdict in zip(_APIS, verdicts, strict=True) if verdict}
        if len(set(told.values())) == 1:
            yield name, *words, next(iter(told.values()))
        else:
            yield name, *words, "; ".join(f"{api}: {how}" for api, how in told.items())


def _aligned(rows: Sequence[Sequence[str]], width: int) -> Iterator[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    margin = sum(widths) + 2 * len(widths)
    for *cells, text in rows:
        begin = "".join(cell.ljust(wide + 2) for cell, wide in zip(cells, widths, strict=True))
        yield textwrap.fill(
            text, max(width, margin + _LEAST_TEXT), initial_indent=begin, subsequent_indent=" " * margin,
            break_long_words=False, break_on_hyphens=False,
        )  # fmt: skip


def as_json(reports: Sequence[ModelReport]) -> dict[str, Any]:
    return {"sound": all(report.is_sound for report in reports), "models": [_model(report) for report in reports]}


def _model(report: ModelReport) -> dict[str, Any]:
    return {
        "triton": report.url,
        "name": report.name,
        "triton_model": report.triton_model,
        "ready": report.not_ready is None,
        "reason": report.not_ready,
        "backend": report.backend,
        "requests": {
            api: {
                "plain": None if found.plain is None else _verdict(found.plain),
                "fields": {name: _verdict(verdict) for name, verdict in found.fields.items()},
            }
            for api, found in report.apis.items()
        },
    }


def _verdict(verdict: Verdict) -> dict[str, str]:
    return {"verdict": verdict.kind, "how": verdict.how}
