"""Everything that a diagnosis found, as `text` and `report` show it and as programs read it. Pure."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bench.diagnose import verdict
from bench.diagnose.measured import Process, Regime, Step
from bench.diagnose.plan import Plan, plan, sentences
from bench.diagnose.run import Warm
from bench.diagnose.verdict import Verdict


@dataclass(frozen=True)
class Diagnosis:
    """`unseen` is why the frontend's processes are not seen, if they are not."""

    url: str
    model: str
    unseen: str
    warm: Sequence[Warm]
    steps: Sequence[Step]
    regimes: dict[Regime, Verdict]
    verdict: Verdict
    plan: Plan | None

    def of(self, regime: Regime) -> list[Step]:
        return [step for step in self.steps if step.regime is regime]

    def as_json(self) -> dict[str, Any]:
        return {
            "url": self.url,
            "model": self.model,
            "verdict": self.verdict.kind,
            "sentence": self.verdict.sentence,
            "evidence": list(self.verdict.evidence),
            "missing": list(self.verdict.missing),
            "regimes": {
                regime: {"verdict": found.kind, "sentence": found.sentence} for regime, found in self.regimes.items()
            },
            "plan": None
            if self.plan is None
            else asdict(self.plan) | {"processes": self.plan.processes, "sentences": sentences(self.plan)},
            "frontend_unseen": self.unseen,
            "warm_up": [asdict(warm) for warm in self.warm],
            "steps": [asdict(step) for step in self.steps],
        }


def diagnose(
    url: str, model: str, unseen: str, warm: Sequence[Warm], steps: Sequence[Step], idle: Sequence[Process], cores: int
) -> Diagnosis:
    regimes = {
        regime: verdict.judge([step for step in steps if step.regime is regime])
        for regime in Regime
        if any(step.regime is regime for step in steps)
    }
    return Diagnosis(url, model, unseen, warm, steps, regimes, verdict.overall(regimes), plan(steps, idle, cores))
