"""Who is the bottleneck: from measured steps to a verdict with its evidence. Pure.

The reasons, in the order in which they count:
1. A thread that never sleeps is at its ceiling: no event loop does more than its thread can. What counts is the time
   that it ran or waited for a core (or until a CPU limit let it), so that other work on the machine does not hide it.
   The threads of a Python process are at theirs when they use one core together, since only one of them runs at a time.
2. Where the requests are, and where their time passes: the engine's own count of requests and its own times against
   those that the client sees.
3. Where neither is seen, how latencies grow: an engine takes warm prompts in batches and a full engine lets requests
   wait at the beginning, while tokens keep their pace; what serves one after the other lets everything grow with the
   number of streams.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from bench.diagnose.measured import Process, Regime, Step
from bench.load.report import BUSY_SHARE

# Of a core, wanted: at the ceiling from the first on, far from it up to the second.
CEILING, EASY = 0.85, 0.6
# Of the time: who waits as long as that for a core shares it with too many.
CROWDED = 0.25
# Of a core: who wants it all, gets less, and sees another process get twice as much, shows nothing but that the machine
# is full.
STARVED = 0.25
# Where Triton runs a model of its Python backend: a Python process, so at its ceiling at one core. The engine's own
# times leave it out.
_STUB = "triton_python_backend_stub"
_HOLDS = "a limit of requests in flight, a lock, the network or what stands between the two holds them"
# Of the time, or of the requests: the engine's are most from the first on, others' up to the second.
MOST, FEW = 0.75, 0.5
# Of the concurrency's growth, in logarithms: how much of it the rate must follow, and how much of it a latency follows
# that grows with the number of streams.
_SCALES, _PROPORTIONAL = 0.3, 0.7


class Kind(StrEnum):
    FRONTEND = "frontend-bound"
    ENGINE = "engine-bound"
    CLIENT = "client-bound"
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class Verdict:
    """`reason` continues "frontend-bound: "; `evidence` are sentences; `missing`: what would decide, or make it sure.
    `step` is the one that was judged."""

    kind: Kind
    reason: str
    evidence: Sequence[str] = ()
    missing: Sequence[str] = ()
    step: Step | None = None

    @property
    def sentence(self) -> str:
        return f"{self.kind}: {self.reason}."


def overall(verdicts: dict[Regime, Verdict]) -> Verdict:
    """One verdict for the stack: a limit of the frontend in either regime is one of the stack."""
    for kind in (Kind.FRONTEND, Kind.CLIENT, Kind.ENGINE, Kind.UNDECIDED):
        found = {regime: verdict for regime, verdict in verdicts.items() if verdict.kind is kind}
        if not found:
            continue
        reason = "; ".join(f"{regime}, {verdict.reason}" for regime, verdict in found.items())
        others = [f"{regime} is {verdict.sentence}" for regime, verdict in verdicts.items() if regime not in found]
        evidence = [f"{regime}: {one}" for regime, verdict in found.items() for one in verdict.evidence]
        missing = [one for verdict in verdicts.values() for one in verdict.missing]
        return Verdict(kind, reason, [*evidence, *others], list(dict.fromkeys(missing)))
    return Verdict(Kind.UNDECIDED, "nothing was measured", missing=["a regime"])


def judge(steps: Sequence[Step]) -> Verdict:
    """Of one regime; the steps in the order of their concurrency."""
    clean = [step for step in steps if step.is_clean]
    if not clean:
        error = next((step.first_error for step in steps if step.first_error), "no request was completed")
        return Verdict(
            Kind.UNDECIDED, f"requests failed ({error})", missing=["steps in which the requests are answered"]
        )
    step = clean[-1]
    growth = _Growth(clean)
    frontend, engine = _frontend(step), _engine(step)
    evidence = [growth.sentence, frontend.sentence, engine.sentence, *step.notes]
    if len(clean) < len(steps):
        refused = next(one for one in steps if not one.is_clean)
        evidence.append(f"From {refused.concurrency} streams on requests failed: {refused.first_error}")
    if step.client >= BUSY_SHARE:
        return _client_hot(step, frontend, evidence)
    kind, reason, missing = _decide(step, growth, frontend, engine)
    return Verdict(kind, reason, [one for one in evidence if one], [*missing, *_crowded(step)], step)


def _client_hot(step: Step, frontend: "_Frontend", evidence: Sequence[str]) -> Verdict:
    at = f"at {step.concurrency} streams the load tool's busiest process used {step.client:.0%} of a core"
    missing = ["more --processes for the load, another machine for it, or fewer streams"]
    shown = [one for one in evidence if one]
    if frontend.at_ceiling:
        return Verdict(Kind.UNDECIDED, f"{at}, and so did the frontend's: {frontend.what}", shown, missing, step)
    return Verdict(Kind.CLIENT, f"{at}, so no more load was sent", shown, missing, step)


def _decide(step: Step, growth: "_Growth", frontend: "_Frontend", engine: "_Engine") -> tuple[Kind, str, list[str]]:
    at = f"at {step.concurrency} streams"
    if frontend.starved_by is not None:
        other = frontend.starved_by
        rest = f"{other.name} ({other.pid}) got {other.on_cpu:.0%}, so it is the machine that is full"
        return Kind.UNDECIDED, f"{at} {frontend.what} and got {frontend.got:.0%}; {rest}", []
    if frontend.at_ceiling:
        if engine.is_limit:
            both = f"{at} {frontend.what}, but {engine.what}"
            return Kind.UNDECIDED, both, ["the frontend with one more process: if the rate stays, it is the engine"]
        return Kind.FRONTEND, f"{at} {frontend.what}{growth.addition}", []
    if engine.is_idle:
        how = f" although {frontend.what}" if frontend.is_easy else ""
        why = f", so {_HOLDS}" if frontend.is_easy else ""
        return Kind.FRONTEND, f"{at} {engine.what}{how}{why}", []
    if engine.is_limit:
        told = f", and {frontend.what}" if frontend.is_seen else ""
        return Kind.ENGINE, f"{at} {engine.what}{told}", []
    if frontend.is_easy:
        return Kind.ENGINE, f"{at} {frontend.what}: what the streams wait for is behind it{growth.addition}", []
    if frontend.is_seen:
        missing = ["the engine's metrics (--metrics)", "more streams (--concurrency)"]
        return Kind.UNDECIDED, f"{at} {frontend.what}, which is neither at its ceiling nor far from it", missing
    return _by_latencies(step, growth)


def _by_latencies(step: Step, growth: "_Growth") -> tuple[Kind, str, list[str]]:
    """Neither the frontend's CPU nor the engine is seen."""
    missing = ["the engine's metrics (--metrics)", "the frontend's CPU (run on its machine, or --pid)"]
    if not growth.is_known:
        return Kind.UNDECIDED, "one step of load shows no growth", [*missing, "more than one step (--concurrency)"]
    if not growth.is_saturated:
        return Kind.UNDECIDED, f"up to {step.concurrency} streams nothing is at its limit", ["more streams", *missing]
    if step.regime is Regime.PREPROCESS and growth.ttft >= _PROPORTIONAL:
        reason = (
            "judged by latencies alone, the time to the first token grows with the number of streams although the "
            "prompts are in the prefix cache: requests are served one after the other ahead of the engine's batches"
        )
        return Kind.FRONTEND, reason, missing
    if step.regime is Regime.DECODE and growth.ttft >= _PROPORTIONAL and growth.itl < _SCALES:
        reason = (
            "judged by latencies alone, tokens keep their pace while the first one is waited for longer: the engine "
            "is full and requests queue for it"
        )
        return Kind.ENGINE, reason, missing
    return Kind.UNDECIDED, "latencies alone do not tell: a slow step of the engine looks the same", missing


def _crowded(step: Step) -> list[str]:
    """A frontend that waits for a core is slow, but not by itself."""
    waits = max((process.busiest.wanted - process.busiest.on_cpu for process in step.serving), default=0.0)
    return ["a frontend with cores of its own and no lower CPU limit"] if waits >= CROWDED else []


class _Growth:
    """How rate and latencies went with the concurrency, over the last two steps for the rate and over all for
    latencies; 1.0 is in proportion to it."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self.is_known = len(steps) > 1 and steps[-1].concurrency > steps[0].concurrency
        self.rate, self.ttft, self.itl = 1.0, 0.0, 0.0
        self.sentence = self.addition = ""
        if not self.is_known:
            return
        first, before, last = steps[0], steps[-2], steps[-1]
        self.rate = _exponent(before.concurrency, last.concurrency, before.rate, last.rate)
        self.ttft = _exponent(first.concurrency, last.concurrency, first.ttft.p50, last.ttft.p50)
        self.itl = _exponent(first.concurrency, last.concurrency, first.itl.mean, last.itl.mean)
        unit = "requests" if last.regime is Regime.PREPROCESS else "tokens"
        # Tokens that a busy frontend sends in bundles have no time between them, so that the median would shrink.
        is_preprocess = last.regime is Regime.PREPROCESS
        name = "time to the first token (p50)" if is_preprocess else "time between tokens (mean)"
        least, most = (one.ttft.p50 if is_preprocess else one.itl.mean for one in (first, last))
        rates = f"{before.rate:,.0f} to {last.rate:,.0f} {unit}/s"
        self.sentence = (
            f"From {before.concurrency} to {last.concurrency} streams the rate went from {rates}; from "
            f"{first.concurrency} to {last.concurrency} streams the {name} went from {milliseconds(least)} to "
            f"{milliseconds(most)}."
        )
        if self.is_saturated:
            self.addition = f", while the rate no longer grew ({rates} from {before.concurrency} streams on)"

    @property
    def is_saturated(self) -> bool:
        return self.is_known and self.rate < _SCALES


def _exponent(small: float, large: float, first: float, last: float) -> float:
    if first <= 0 or last <= 0 or large <= small:
        return 0.0
    return math.log(last / first) / math.log(large / small)


@dataclass(frozen=True)
class _Frontend:
    """Whether its busiest process is at its ceiling, or far from it; neither where none is seen. `got` is what that
    process used of a core; `starved_by`: who kept a thread at its ceiling from more."""

    is_seen: bool = False
    at_ceiling: bool = False
    is_easy: bool = False
    what: str = ""
    sentence: str = ""
    got: float = 1.0
    starved_by: Process | None = None


def _frontend(step: Step) -> _Frontend:
    if not step.serving:
        return _Frontend(sentence="The frontend's CPU was not seen.")
    share, process = max(((_share(one), one) for one in step.serving), key=lambda pair: pair[0])
    thread = process.busiest
    name = f"process {process.pid}, {process.name}"
    what = f"the frontend's busiest thread ({name}, thread {thread.name}) wanted {thread.wanted:.0%} of a core"
    if thread.wanted < CEILING <= share:
        what = (
            f"the {len(process.threads)} threads of the frontend's busiest process ({name}) together used "
            f"{process.on_cpu:.0%} of one core, which is all that Python's lock lets them have"
        )
    got, others = process.on_cpu, [*step.others, *(one for one in step.frontend or () if one.is_engine)]
    taker = max(others, key=lambda one: one.on_cpu, default=None)
    is_starved = share >= CEILING and got < STARVED and taker is not None and taker.on_cpu >= 2 * got
    sentence = _idle_rest(step, process)
    return _Frontend(True, share >= CEILING, share <= EASY, what, sentence, got, taker if is_starved else None)


def _share(process: Process) -> float:
    """Of its ceiling. Python's threads that hand their lock to each other use about one core in all; where they use
    clearly more, native code runs beside it, and the busiest thread counts."""
    together = process.on_cpu if process.is_python and process.on_cpu <= 1.3 else 0.0
    return max(process.busiest.wanted, together)


def _idle_rest(step: Step, process: Process) -> str:
    """What the others did meanwhile: cores that are idle beside a busy thread are the sign of a single event loop."""
    parts = []
    rest = [one for one in step.serving if one.pid != process.pid and one.name == process.name]
    if rest:
        idlest = min(_share(one) for one in rest)
        parts.append(f"of its {len(rest) + 1} processes the idlest wanted {idlest:.0%} of a core")
    waits = process.busiest.wanted - process.busiest.on_cpu
    if waits >= CROWDED:
        parts.append(f"its busiest thread waited {waits:.0%} of the time for a core")
    if step.cores:
        idle = [share for share in step.cores if share < EASY]
        full = sum(step.cores) >= 0.97 * len(step.cores)
        cores = (
            "all cores of this machine were busy"
            if full
            else f"{len(idle)} of {len(step.cores)} cores were mostly idle"
        )
        parts.append(cores)
    return f"Meanwhile {', and '.join(parts)}." if parts else ""


@dataclass(frozen=True)
class _Engine:
    """Whether the requests' time passes in the engine, or ahead of it; neither where nothing tells."""

    is_limit: bool = False
    is_idle: bool = False
    what: str = ""
    sentence: str = ""


def _engine(step: Step) -> _Engine:
    engine, sentence = step.engine, _engine_sentence(step)
    for process in (*step.others, *(step.frontend or ())):
        if process.name == _STUB and process.on_cpu >= CEILING:
            what = f"Triton's process of the model ({process.pid}, {process.name}) used {process.on_cpu:.0%} of a core"
            return _Engine(is_limit=True, what=what, sentence=sentence)
    if engine is not None:
        own = engine.ttft if step.regime is Regime.PREPROCESS else engine.itl
        seen = step.latency.mean
        if own is not None and seen > 0:
            share = min(own / seen, 1.0)
            name = "time to the first token" if step.regime is Regime.PREPROCESS else "time between tokens"
            what = f"{share:.0%} of the {name} passed in the engine"
            return _Engine(share >= MOST, share <= FEW, what, sentence)
        if engine.requests is not None:
            share = min(engine.requests / step.concurrency, 1.0)
            what = f"{engine.requests:.0f} of {step.concurrency} requests were in the engine"
            return _Engine(share >= MOST, share <= FEW, what, sentence)
    if step.gpu is not None:
        what = f"the GPU computed {step.gpu:.0%} of the time"
        return _Engine(step.gpu >= 0.9, step.gpu <= FEW, what, sentence)
    return _Engine(sentence=sentence)


def _engine_sentence(step: Step) -> str:
    engine = step.engine
    if engine is None:
        return ""
    parts = []
    if engine.running is not None:
        parts.append(f"{engine.running:.0f} requests running and {engine.waiting or 0:.0f} waiting")
    if engine.kv_usage is not None:
        parts.append(f"{engine.kv_usage:.0%} of the KV cache in use")
    if engine.itl is not None and step.regime is Regime.DECODE:
        seen = milliseconds(step.itl.mean)
        parts.append(f"{milliseconds(engine.itl)} between tokens, of which the client sees {seen}")
    if engine.ttft is not None and step.regime is Regime.PREPROCESS:
        parts.append(
            f"{milliseconds(engine.ttft)} to the first token, of which the client sees {milliseconds(step.ttft.mean)}"
        )
    return f"The engine says: {', '.join(parts)}." if parts else ""


def milliseconds(seconds: float) -> str:
    """A dash where there was nothing to measure, as between the tokens of answers of one token."""
    if not seconds:
        return "-"
    value = seconds * 1000
    return f"{value:.2f} ms" if value < 10 else f"{value:,.0f} ms"
