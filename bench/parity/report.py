"""What the comparison found, for people and for programs. Pure."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bench.parity.compare import ABSENT
from bench.parity.explained import Explanation
from bench.parity.run import Finding, Outcome, Plan, Verdict
from bench.parity.shape import Group

# Of a value that differs.
_SHOWN = 100
_CELL = 34


def row(outcome: Outcome) -> list[str]:
    """The request's line, and the details of what is unexplained."""
    case, unexplained = outcome.case, outcome.unexplained
    notes = _explained_places(outcome) + ([f"asked {outcome.turns} times"] if outcome.turns > 1 else [])
    lines = [f"{outcome.verdict:<9}  {case.a.status}  {case.shape.name:<46} {', '.join(notes)}".rstrip()]
    for finding in unexplained:
        difference = finding.difference
        lines.append(f"           {difference.place}: A {_shown(difference.a)}, B {_shown(difference.b)}")
        if finding.b_is_right is not None:
            lines.append(f"           B is right: {finding.b_is_right.why}")
    if unexplained and case.a.message != case.b.message:
        lines.append(f"           A says {case.a.message!r}, B says {case.b.message!r}")
    return lines


def _explained_places(outcome: Outcome) -> list[str]:
    return sorted({finding.explanation.fields[0] for finding in outcome.found if finding.explanation is not None})


def summary(outcomes: Sequence[Outcome], work: Plan) -> list[str]:
    """The table of the groups, that of what differs, and the last line."""
    lines = [f"{'':<20}{'asked':>7}{'same':>7}{'explained':>11}{'DIFFERENT':>11}"]
    for group in Group:
        counts = _counts([one for one in outcomes if one.case.shape.group is group])
        if sum(counts.values()):
            lines.append(f"{group:<20}{sum(counts.values()):>7}" + _columns(counts))
    lines += [f"Not asked: {what}." for what in work.left_out]
    places = _places(outcomes)
    for title, rows in (
        ("What differs, and where A's answer is the right one:", [one for one in places if one.explanation]),
        ("What differs without an explanation:", [one for one in places if not one.explanation]),
    ):
        if rows:
            lines += ["", title, ""]
            lines += [line for place in rows for line in place.lines()]
    counts = _counts(outcomes)
    total = f"{len(outcomes)} requests: {counts[Verdict.SAME]} the same, {counts[Verdict.EXPLAINED]} explained"
    return [*lines, "", f"{total}, {counts[Verdict.DIFFERENT]} DIFFERENT"]


def _columns(counts: dict[Verdict, int]) -> str:
    return f"{counts[Verdict.SAME]:>7}{counts[Verdict.EXPLAINED]:>11}{counts[Verdict.DIFFERENT]:>11}"


def _counts(outcomes: Sequence[Outcome]) -> dict[Verdict, int]:
    return {verdict: sum(one.verdict is verdict for one in outcomes) for verdict in Verdict}


@dataclass
class _Place:
    """A place that differs, in how many requests, and as the first of them shows it."""

    place: str
    explanation: Explanation | None
    requests: list[str]
    first: Finding

    def lines(self) -> list[str]:
        count = f"{len(self.requests)} request{'s' if len(self.requests) > 1 else ''}, such as {self.requests[0]!r}"
        difference = self.first.difference
        lines = [f"  {self.place}: {count}"]
        lines.append(f"      A {_shown(difference.a, _CELL)}, B {_shown(difference.b, _CELL)}")
        if self.explanation is not None:
            lines.append(f"      {self.explanation.why}")
        return lines


def _places(outcomes: Sequence[Outcome]) -> list[_Place]:
    found: dict[tuple[str, Explanation | None], _Place] = {}
    for outcome in outcomes:
        for finding in outcome.found:
            place = re.sub(r"\[\d+\]", "[]", finding.difference.place)
            known = found.setdefault(
                (place, finding.explanation), _Place(place, finding.explanation, [], first=finding)
            )
            if outcome.case.shape.name not in known.requests:
                known.requests.append(outcome.case.shape.name)
    return sorted(found.values(), key=lambda one: -len(one.requests))


def _shown(value: object, limit: int = _SHOWN) -> str:
    text = repr(value)
    return text if len(text) <= limit else text[:limit] + "…"


def as_json(outcomes: Sequence[Outcome], work: Plan) -> dict[str, Any]:
    """All of it, without the servers' keys."""
    return {
        "a": {"url": work.a.url, "model": work.a.model},
        "b": {"url": work.b.url, "model": work.b.model},
        "counts": {verdict.lower(): count for verdict, count in _counts(outcomes).items()},
        "left_out": work.left_out,
        "requests": [_request(outcome) for outcome in outcomes],
    }


def _request(outcome: Outcome) -> dict[str, Any]:
    case = outcome.case
    return {
        "group": case.shape.group,
        "name": case.shape.name,
        "path": case.shape.path,
        "body": case.body if case.shape.raw is None else case.shape.raw.decode(errors="replace"),
        "verdict": outcome.verdict.lower(),
        "turns": outcome.turns,
        "a": {"status": case.a.status, "message": case.a.message},
        "b": {"status": case.b.status, "message": case.b.message},
        "differences": [_difference(finding) for finding in outcome.found],
    }


def _difference(finding: Finding) -> dict[str, Any]:
    """A side that has nothing at the place lacks its member."""
    difference = finding.difference
    sides = {name: value for name, value in (("a", difference.a), ("b", difference.b)) if value is not ABSENT}
    reasons = {"explanation": finding.explanation, "b_is_right": finding.b_is_right}
    told = {name: {"why": one.why, "reference": one.reference} for name, one in reasons.items() if one is not None}
    return {"place": difference.place, **sides, **told}
