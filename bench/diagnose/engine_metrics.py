"""What vLLM's metrics say of the time between two readings of the page. Pure, but for `fetch`.

The names are those of vLLM's V1 engine; a page of Triton, of the metrics proxy, or of vLLM's own server may have them.
A family that the page lacks is None in the result: `mostrecent` gauges are absent before the first request.
"""

import re
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.diagnose.measured import Engine
from devtools.errors import DevError

_SAMPLE = re.compile(r"^(vllm:\w+)(?:\{(.*)\})? ([-+0-9.eEnaifNIF]+)(?: |$)")
_MODEL = re.compile(r'(?:^|,)model_name="((?:[^"\\]|\\.)*)"')
_LIMIT = 10

RUNNING, WAITING = "vllm:num_requests_running", "vllm:num_requests_waiting"
_KV = "vllm:kv_cache_usage_perc"
_TOKENS = "vllm:generation_tokens_total"
_ITL = "vllm:inter_token_latency_seconds"
_QUEUE, _PREFILL = "vllm:request_queue_time_seconds", "vllm:request_prefill_time_seconds"
_NAMES = frozenset(
    {
        RUNNING,
        WAITING,
        _KV,
        _TOKENS,
        *(f"{family}_{part}" for family in (_ITL, _QUEUE, _PREFILL) for part in ("sum", "count")),
    }
)


@dataclass(frozen=True)
class Reading:
    """Name of a sample → its value; `at` in monotonic seconds."""

    at: float
    values: Mapping[str, float]


def fetch(url: str) -> str:
    """The page. Raises DevError."""
    try:
        with urllib.request.urlopen(url, timeout=_LIMIT) as response:
            return str(response.read().decode(errors="replace"))
    except urllib.error.HTTPError as error:
        raise DevError(f"--metrics {url} answered {error.code}; it must be a page of Prometheus metrics.") from error
    except (OSError, ValueError) as problem:
        raise DevError(f"--metrics {url} does not answer: {getattr(problem, 'reason', problem)}") from problem


def read(page: str, model: str, at: float) -> Reading:
    """The samples of the model, or, where none carries its name, of all models together. Gauges of several engines are
    summed, but the KV cache's, of which the fullest counts."""
    samples: list[tuple[str, str | None, float]] = []
    for line in page.splitlines():
        found = _SAMPLE.match(line)
        if found is not None and found[1] in _NAMES:
            named = _MODEL.search(found[2] or "")
            samples.append((found[1], named[1] if named else None, float(found[3])))
    if any(name == model for _, name, _ in samples):
        samples = [sample for sample in samples if sample[1] == model]
    values: dict[str, float] = {}
    for family, _, value in samples:
        values[family] = max(values.get(family, 0.0), value) if family == _KV else values.get(family, 0.0) + value
    return Reading(at, values)


def between(readings: Sequence[Reading]) -> Engine | None:
    """Of at least two readings; None where no page had anything of vLLM's."""
    if len(readings) < 2 or not any(reading.values for reading in readings):
        return None
    first, last = readings[0], readings[-1]
    tokens = _gain(first, last, _TOKENS)
    queue, prefill = _mean_of(first, last, _QUEUE), _mean_of(first, last, _PREFILL)
    return Engine(
        running=_average(readings, RUNNING),
        waiting=_average(readings, WAITING),
        kv_usage=_average(readings, _KV),
        itl=_mean_of(first, last, _ITL),
        ttft=None if prefill is None else prefill + (queue or 0.0),
        tokens_per_second=None if tokens is None else tokens / (last.at - first.at),
    )


def _average(readings: Sequence[Reading], name: str) -> float | None:
    found = [reading.values[name] for reading in readings if name in reading.values]
    return sum(found) / len(found) if found else None


def _gain(first: Reading, last: Reading, name: str) -> float | None:
    if name not in last.values:
        return None
    gain = last.values[name] - first.values.get(name, 0.0)
    # A counter that goes back is that of an engine which was started again.
    return gain if gain >= 0 else None


def _mean_of(first: Reading, last: Reading, family: str) -> float | None:
    """Of a histogram's observations between the two."""
    count, total = _gain(first, last, f"{family}_count"), _gain(first, last, f"{family}_sum")
    return total / count if count and total is not None else None
