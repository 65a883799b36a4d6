"""The comparison itself: each request to both servers, one in flight, and what came of it."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from bench.parity.client import ask, fetch
from bench.parity.compare import Difference, differences
from bench.parity.explained import Case, Explanation, explanation_of
from bench.parity.shapes import Sample, Shape, make_sample, sample_requests, shapes

# Of a value that differs, in the table.
_SHOWN = 100
# How often a request is asked at most.
_TURNS = 3


@dataclass(frozen=True)
class Outcome:
    """What one request showed. `found` are the differences, each with its explanation if there is one; `turns` is how
    often it was asked."""

    case: Case
    found: tuple[tuple[Difference, Explanation | None], ...]
    turns: int = 1

    @property
    def unexplained(self) -> list[Difference]:
        return [difference for difference, explanation in self.found if explanation is None]

    @property
    def may_be_rounding(self) -> bool:
        """Whether nothing but log probabilities and ranks differs without an explanation."""
        return all(one.place.endswith(("logprob", "rank")) or "token_logprobs" in one.place for one in self.unexplained)

    def lines(self) -> list[str]:
        """The row of the table, and the details of what is unexplained."""
        case, unexplained = self.case, self.unexplained
        verdict = "DIFFERENT" if unexplained else "explained" if self.found else "same"
        explained = {one.fields[0] for _, one in self.found if one is not None}
        notes = sorted(explained) + ([f"asked {self.turns} times"] if self.turns > 1 else [])
        rows = [f"{verdict:<9}  {case.gateway.status}  {case.shape.name:<46} {', '.join(notes)}".rstrip()]
        for one in unexplained:
            rows.append(f"           {one.place}: gateway {_shown(one.gateway)}, vLLM {_shown(one.vllm)}")
        if unexplained and case.gateway.message != case.vllm.message:
            rows.append(f"           the gateway says {case.gateway.message!r}, vLLM says {case.vllm.message!r}")
        return rows


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"


def run(gateway: str, vllm: str, model: str, vllm_model: str) -> Iterator[Outcome]:
    """Asks both servers every shape. Raises Unreachable."""
    for shape in shapes(_sample(vllm, vllm_model)):
        outcome = _compare(gateway, vllm, model, vllm_model, shape)
        # An engine that is just done with the request before computes this one in another batch, with other last
        # digits. What the gateway does wrong, it does wrong again.
        while outcome.unexplained and outcome.may_be_rounding and outcome.turns < _TURNS:
            outcome = replace(_compare(gateway, vllm, model, vllm_model, shape), turns=outcome.turns + 1)
        yield outcome


def _sample(vllm: str, model: str) -> Sample:
    requests = sample_requests().items()
    return make_sample({name: fetch(vllm, path, {"model": model} | body) for name, (path, body) in requests})


def _compare(gateway: str, vllm: str, model: str, vllm_model: str, shape: Shape) -> Outcome:
    ours = ask(gateway, shape.path, {"model": model} | shape.body)
    theirs = ask(vllm, shape.path, {"model": vllm_model} | shape.body)
    if ours.tree.get("model") == model and theirs.tree.get("model") == vllm_model:
        ours.tree.pop("model")
        theirs.tree.pop("model")
    if ours.status == theirs.status:
        found = list(differences(ours.tree, theirs.tree))
    else:
        found = [Difference("status", ours.status, theirs.status)]
    case = Case(shape, ours, theirs)
    return Outcome(case, tuple((one, explanation_of(case, one)) for one in found))
