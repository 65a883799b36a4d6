"""The comparison itself: each request to both servers, one in flight, and what came of it."""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from bench.parity import sample as samples
from bench.parity.client import Refused, Server, ask, fetch
from bench.parity.compare import Difference, differences
from bench.parity.explained import Case, Explanation, explanation_of
from bench.parity.shape import Group, Shape
from bench.parity.shapes import shapes
from bench.served import Unreachable, served_models

# How often a request is asked at most.
_TURNS = 3


class Verdict(StrEnum):
    SAME = "same"
    EXPLAINED = "explained"
    DIFFERENT = "DIFFERENT"


@dataclass(frozen=True)
class Finding:
    """One difference. `explanation`: why A is right all the same, if it is known to be; `b_is_right`: why B is."""

    difference: Difference
    explanation: Explanation | None
    b_is_right: Explanation | None = None


@dataclass(frozen=True)
class Outcome:
    """What one request showed; `turns` is how often it was asked."""

    case: Case
    found: tuple[Finding, ...]
    turns: int = 1

    @property
    def verdict(self) -> Verdict:
        if self.unexplained:
            return Verdict.DIFFERENT
        return Verdict.EXPLAINED if self.found else Verdict.SAME

    @property
    def unexplained(self) -> list[Finding]:
        return [finding for finding in self.found if finding.explanation is None]

    @property
    def may_be_rounding(self) -> bool:
        """Whether nothing but log probabilities and ranks differs without an explanation."""
        places = [finding.difference.place for finding in self.unexplained]
        return all(place.endswith(("logprob", "rank")) or "token_logprobs" in place for place in places)


@dataclass(frozen=True)
class Plan:
    """What will be asked; `left_out` says what will not, and why."""

    a: Server
    b: Server
    shapes: list[Shape]
    left_out: list[str]


def plan(a: Server, b: Server, groups: Collection[Group] = tuple(Group)) -> Plan:
    """Takes what the requests need to be telling from B, which is the known one. Raises Unreachable."""
    path, body = samples.NEEDED
    try:
        chat = fetch(b, path, body)
    except Refused as problem:
        raise Unreachable(f"A plain request is refused, so there is nothing to compare: {problem}") from problem
    wanted = {}
    for name, (path, body) in samples.WANTED.items():
        try:
            wanted[name] = fetch(b, path, body)
        except Refused:
            continue
    try:
        sample = samples.make_sample(chat, wanted, served_models(b.url, b.key).get(b.model))
    except (LookupError, TypeError) as problem:
        raise Unreachable(f"{b.url} gave no answer of this API: {problem!r}") from problem
    asked = [shape for shape in shapes(sample) if shape.group in groups]
    return Plan(a, b, asked, samples.left_out(sample))


def run(work: Plan, progress: Callable[[int, Shape], None] = lambda number, shape: None) -> Iterator[Outcome]:
    """Asks both servers every shape; `progress` is told before each one. Raises Unreachable."""
    for number, shape in enumerate(work.shapes):
        progress(number, shape)
        outcome = _compare(work.a, work.b, shape)
        # An engine that is just done with the request before computes this one in another batch, with other last
        # digits. What a frontend does wrong, it does wrong again.
        while outcome.unexplained and outcome.may_be_rounding and outcome.turns < _TURNS:
            outcome = replace(_compare(work.a, work.b, shape), turns=outcome.turns + 1)
        yield outcome


def _compare(a: Server, b: Server, shape: Shape) -> Outcome:
    sent = shape.body if shape.raw is None else shape.raw
    case = Case(shape, ask(a, shape.path, sent), ask(b, shape.path, sent))
    if case.a.tree.get("model") == a.model and case.b.tree.get("model") == b.model:
        case.a.tree.pop("model")
        case.b.tree.pop("model")
    if case.a.status == case.b.status:
        found = list(differences(case.a.tree, case.b.tree))
    else:
        found = [Difference("status", case.a.status, case.b.status)]
    return Outcome(case, tuple(_finding(case, difference) for difference in found))


def _finding(case: Case, difference: Difference) -> Finding:
    explanation = explanation_of(case, difference)
    if explanation is not None:
        return Finding(difference, explanation)
    return Finding(difference, None, explanation_of(case.mirrored, difference.mirrored))
