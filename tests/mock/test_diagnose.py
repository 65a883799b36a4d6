"""`python -m bench diagnose` of real processes: a slow frontend before a fast engine, the gateway before a slow one.

What is judged are shares of a core and where the requests' time passes, by wide margins; no time of this machine.
"""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.mock_engine.running import running_mock_engine
from bench.upstream.running import running_upstream
from bench.upstream.script import Model
from devtools.paths import ROOT
from tests.support.gateway import running_gateway
from tests.support.service import running_service

# A machine that pauses makes the load's requests late, not the verdict another.
_LIMIT_SECONDS = 300


def diagnosis(url: str, folder: Path, *options: str) -> tuple[dict[str, Any], str]:
    """What the command found, for programs and for people; its page is looked at, too."""
    page, found = folder / "diagnosis.html", folder / "diagnosis.json"
    command = [sys.executable, "-m", "bench", "diagnose", "--url", url, "--report", str(page), "--json", str(found)]
    sizes = ["--concurrency", "1,4,12", "--seconds", "2", "--answer-tokens", "16", "--prompt-bytes", "4000"]
    done = subprocess.run(
        [*command, *sizes, *options], cwd=ROOT, capture_output=True, text=True, timeout=_LIMIT_SECONDS
    )
    assert done.returncode == 0, done.stdout + done.stderr
    html = page.read_text()
    assert not re.findall(r"<script|<link|<img|@import|url\(|https?://(?!127\.0\.0\.1)", html)
    assert html.count("<svg") >= 7
    return json.loads(found.read_text()), done.stdout


def busiest(found: dict[str, Any], regime: str) -> float:
    """Of the last step, the share of a core that the frontend's busiest thread wanted."""
    step = [step for step in found["steps"] if step["regime"] == regime][-1]
    return max(float(thread["wanted"]) for process in step["frontend"] for thread in process["threads"])


def test_a_single_slow_worker_before_a_fast_engine_is_frontend_bound(tmp_path: Path) -> None:
    with (
        running_upstream([Model("bench")]) as engine,
        running_service(
            "-m", "tests.support.slow_frontend", "--port", "0", "--engine", engine.url, environment={}
        ) as frontend,
    ):
        found, shown = diagnosis(frontend.url, tmp_path)
        pid = frontend.process.pid
    assert found["verdict"] == "frontend-bound", shown
    assert {regime["verdict"] for regime in found["regimes"].values()} == {"frontend-bound"}
    assert all(step["failed"] == 0 and step["completed"] > 0 for step in found["steps"])
    assert all([process["pid"] for process in step["frontend"]] == [pid] for step in found["steps"])
    assert min(busiest(found, regime) for regime in found["regimes"]) > 0.85
    # The evidence and the plan are in the sentence, and of what was put in: 2 ms a token, 10 a request, and some.
    assert f"process {pid}" in shown.splitlines()[-3]
    assert found["plan"]["per_token"] > 0.002
    assert found["plan"]["per_request"] > 0.01
    assert found["plan"]["needed"] > found["plan"]["running"] == 1
    assert found["plan"]["rss"] > 20 * 2**20


@pytest.fixture
def some_context(repository: Path, tmp_path: Path) -> Path:
    """The model repository of the other tests, with room for prompts of half the length that is asked for first."""
    shutil.copytree(repository, tmp_path / "repository")
    (file,) = (tmp_path / "repository").glob("*/1/model.json")
    file.write_text(json.dumps(json.loads(file.read_text()) | {"max_model_len": 3000}))
    return tmp_path / "repository"


def test_the_gateway_before_a_slow_engine_is_engine_bound(some_context: Path, tmp_path: Path) -> None:
    with (
        running_mock_engine(model_repository=some_context, token_interval_ms=150) as engine,
        running_gateway("--triton", engine.url, "--model-repository", str(some_context)) as gateway,
    ):
        gateway.wait_until_ready()
        found, shown = diagnosis(gateway.url, tmp_path)
        pids = {process["pid"] for step in found["steps"] for process in step["frontend"]}
        assert gateway.process.pid in pids
        assert engine.pid not in pids
    assert found["verdict"] == "engine-bound", shown
    assert {regime["verdict"] for regime in found["regimes"].values()} == {"engine-bound"}
    assert max(busiest(found, regime) for regime in found["regimes"]) < 0.6
    assert found["plan"]["processes"] == 1
    assert [warm["prompt_bytes"] for warm in found["warm_up"]] == [2000, 200]


def refused(*options: str) -> str:
    """The sentence with which the command ends before it sends anything."""
    done = subprocess.run(
        [sys.executable, "-m", "bench", "diagnose", *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=_LIMIT_SECONDS,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr
    return done.stderr.strip().splitlines()[-1]


def test_what_cannot_be_asked_is_one_sentence() -> None:
    assert refused("--url", "http://127.0.0.1:1").startswith("bench diagnose: http://127.0.0.1:1 does not answer: ")
    assert refused("--url", "nowhere").endswith("is no URL such as http://127.0.0.1:9000.")
    assert "--concurrency: must ascend" in refused("--url", "http://127.0.0.1:1", "--concurrency", "8,1")
    assert "--seconds: must be a number of 2 at least" in refused("--url", "http://127.0.0.1:1", "--seconds", "0.1")
    with running_upstream([Model("a"), Model("b")]) as engine:
        assert refused("--url", engine.url) == f"bench diagnose: {engine.url} serves 'a', 'b'; say which is meant."
        assert "does not serve 'c'" in refused("--url", engine.url, "--model", "c")
        asked = ("--url", f"{engine.url}/v1", "--model", "a")
        assert "--metrics http://127.0.0.1:1/metrics does not answer" in refused(
            *asked, "--metrics", "http://127.0.0.1:1/metrics"
        )
        assert refused(*asked, "--pid", str(2**22 + 1)).startswith("bench diagnose: --pid 4194305: there is no such")
