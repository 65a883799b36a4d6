"""One page for several workers: what they counted adds up, what the dead had in flight does not."""

import os
import subprocess
import sys
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from devtools.paths import ROOT
from gateway.observe.multiprocess import directory

# A worker that counts, says its page, and dies with two generations in flight.
_WORKER = """
import os, sys
from pathlib import Path
from gateway.observe import multiprocess
multiprocess.join(Path(sys.argv[1]))
from gateway.observe import metrics
where = ("m", "i", sys.argv[2])
metrics.in_flight.labels(*where).inc(2)
metrics.completion_tokens_total.labels(*where, "stop").inc(5)
metrics.inter_token_latency_seconds.labels(*where).add([0, 3] + [0] * 17, 0.012)
print(multiprocess.page(metrics.REGISTRY).decode())
print("pid", os.getpid())
"""

_DEATH = """
import sys
from pathlib import Path
from gateway.observe import multiprocess
multiprocess.worker_died(Path(sys.argv[1]), int(sys.argv[2]))
"""

_ALONE = """
from gateway.observe import metrics, multiprocess
metrics.completion_tokens_total.labels("m", "i", "k", "stop").inc(5)
print(multiprocess.page(metrics.REGISTRY).decode())
"""


def run(code: str, *arguments: str, **environment: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip


def value(page: str, name: str, **labels: str) -> float:
    samples = (sample for family in text_string_to_metric_families(page) for sample in family.samples)
    return sum(one.value for one in samples if one.name == name and labels.items() <= one.labels.items())


def test_workers_add_up_and_the_dead_hold_nothing() -> None:
    with directory() as folder:
        first, _, pid = run(_WORKER, str(folder), "a").partition("\npid ")
        second, _, _ = run(_WORKER, str(folder), "a").partition("\npid ")
        assert value(first, "gateway_completion_tokens_total", key="a") == 5
        assert value(second, "gateway_completion_tokens_total", key="a") == 10
        assert value(second, "gateway_requests_in_flight", key="a") == 4
        assert value(second, "gateway_inter_token_latency_seconds_count", key="a") == 6
        assert value(second, "gateway_inter_token_latency_seconds_bucket", key="a", le="0.005") == 6
        run(_DEATH, str(folder), pid.strip())
        third, _, _ = run(_WORKER, str(folder), "b").partition("\npid ")
        assert value(third, "gateway_requests_in_flight", key="a") == 2
        assert value(third, "gateway_completion_tokens_total", key="a") == 10, "a counter does not go back"
    assert not folder.exists()


def test_a_folder_of_another_program_is_not_written_to(tmp_path: Path) -> None:
    page = run(_ALONE, PROMETHEUS_MULTIPROC_DIR=str(tmp_path))
    assert value(page, "gateway_completion_tokens_total") == 5
    assert list(tmp_path.iterdir()) == []
