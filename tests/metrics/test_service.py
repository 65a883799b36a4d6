"""The service: limits, deadlines, failing sources, sharing, its own pages."""

import asyncio
import gzip
import json
import signal
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from bench.ports import free_port
from devtools.paths import ROOT
from tests.support.metrics import (
    OPENMETRICS,
    TEXT,
    Answer,
    PageServer,
    Samples,
    running_app,
    running_proxy,
)
from tests.support.metrics_writer import Writer
from tests.support.waiting import wait_for

UP = 'metrics_proxy_source_up{source="exporter"}'
ERRORS = 'metrics_proxy_source_parse_errors_total{source="exporter"}'
SMALL = ("--max-body-bytes", "20000", "--max-samples", "100", "--source-timeout", "30")


def endless() -> Iterator[bytes]:
    i = 0
    while True:
        yield f"a{i} 1\n".encode() * 100
        i += 1


HEADERS = {"Content-Type": TEXT}
GZIP = HEADERS | {"Content-Encoding": "gzip"}
PLAIN = b"# TYPE a gauge\na 1\n"

BAD_ANSWERS: dict[str, Answer] = {
    "status 500": Answer(PLAIN, 500),
    "a redirect": Answer(b"", 302, {"Location": "http://127.0.0.1:1/"}),
    "HTML": Answer(b"<html>", headers={"Content-Type": "text/html"}),
    "JSON": Answer(b'{"status": "ok"}', headers={"Content-Type": "application/json"}),
    "no UTF-8": Answer(b'a{b="\xff"} 1\n'),
    "a body without end": Answer(endless()),
    "a large body": Answer(PLAIN * 2000),
    "many samples": Answer(b"".join(b"a%d 1\n" % i for i in range(101))),
    "a body that ends early": Answer(PLAIN, claims=1000),
    "gzip that is none": Answer(PLAIN, headers=GZIP),
    "gzip that ends early": Answer(gzip.compress(PLAIN * 100)[:-20], headers=GZIP),
    "gzip that is large inside": Answer(gzip.compress(b"# a\n" * 10**7), headers=GZIP),
    "an encoding that was not asked for": Answer(zlib.compress(PLAIN), headers=HEADERS | {"Content-Encoding": "br"}),
    "OpenMetrics without its end": Answer(PLAIN, headers={"Content-Type": OPENMETRICS}),
    "a wrong line": Answer(PLAIN + b"b\n"),
}


@pytest.mark.parametrize("what", BAD_ANSWERS)
async def test_a_bad_answer_is_an_honest_down_and_the_rest_is_served(what: str) -> None:
    with PageServer(BAD_ANSWERS[what]) as bad, PageServer("b 1\n") as good:
        flags = ("--source", f"exporter={bad.url}", "--source", f"triton={good.url}", *SMALL)
        async with running_app(*flags) as client:
            answer = await client.get("/metrics")
            page = Samples(answer.text)
            assert answer.status_code == 200
            assert (page[UP], page['metrics_proxy_source_up{source="triton"}'], page["b"]) == (0, 1, 1)
            assert "a" not in page
            assert page['metrics_proxy_source_samples{source="exporter"}'] == 0
            assert 'metrics_proxy_source_last_success_timestamp_seconds{source="exporter"}' not in page
            # It recovers by itself.
            bad.say("a 2\n")
            page = Samples((await client.get("/metrics")).text)
            assert (page[UP], page["a"]) == (1, 2)
            assert page['metrics_proxy_source_last_success_timestamp_seconds{source="exporter"}'] > 1e9


async def test_503_by_setting() -> None:
    with PageServer("b 1\n") as good:
        flags = ("--source", f"exporter=http://127.0.0.1:{free_port()}/metrics", "--source", f"triton={good.url}")
        async with running_app(*flags, "--fail-when-down") as client:
            answer = await client.get("/metrics")
            assert answer.status_code == 503
            assert Samples(answer.text)["b"] == 1


@pytest.mark.parametrize("slow", ["hangs", "drips"])
async def test_a_slow_source_is_given_up_within_the_scrapers_time(slow: str) -> None:
    release = threading.Event()
    hanging = Answer(PLAIN, before=lambda: release.wait(60))
    dripping = Answer(iter([b"a", *[b" "] * 300, b"1\n"]), delay=0.2)
    with PageServer(hanging if slow == "hangs" else dripping) as bad, PageServer("b 1\n") as good:
        flags = ("--source", f"exporter={bad.url}", "--source", f"triton={good.url}", "--source-timeout", "50")
        async with running_app(*flags) as client:
            answer = await client.get("/metrics", headers={"X-Prometheus-Scrape-Timeout-Seconds": "1.5"})
            page = Samples(answer.text)
            assert (page[UP], page["b"]) == (0, 1)
            assert page['metrics_proxy_source_fetch_duration_seconds{source="exporter"}'] < 50
            # The next one waits for the same read; no second is begun.
            answer = await client.get("/metrics", headers={"X-Prometheus-Scrape-Timeout-Seconds": "0.1"})
            assert Samples(answer.text)[UP] == 0
            assert len(bad.requests) == 1
            release.set()


async def test_a_source_has_its_own_time() -> None:
    release = threading.Event()
    with PageServer(Answer(PLAIN, before=lambda: release.wait(60))) as bad:
        async with running_app("--source", f"exporter={bad.url}", "--source-timeout", "0.2") as client:
            assert Samples((await client.get("/metrics")).text)[UP] == 0
            release.set()
            assert Samples((await client.get("/metrics")).text)[UP] == 1


async def test_concurrent_scrapes_share_one_collection() -> None:
    release = threading.Event()
    with PageServer(Answer(PLAIN, before=lambda: release.wait(60))) as source:
        async with running_app("--source", f"exporter={source.url}", "--source-timeout", "60") as client:
            scrapes = [asyncio.create_task(client.get("/metrics")) for _ in range(20)]
            await asyncio.to_thread(wait_for, lambda: source.requests)
            # All of them are under way.
            await asyncio.sleep(0.1)
            release.set()
            pages = [Samples((await scrape).text) for scrape in scrapes]
            assert len(source.requests) == 1
            assert all(page["a"] == 1 for page in pages)
            source.say("a 2\n")
            assert Samples((await client.get("/metrics")).text)["a"] == 2


async def test_formats_and_compression() -> None:
    with PageServer('# TYPE a_total counter\na_total{b="c"} 1 1700000000000\n' + "# TYPE d gauge\nd 1\n") as source:
        async with running_app("--source", f"exporter={source.url}") as client:
            text = await client.get("/metrics", headers={"Accept-Encoding": "identity"})
            assert text.headers["content-type"] == TEXT
            assert 'a_total{b="c"} 1\n' in text.text
            other = await client.get("/metrics", headers={"Accept": OPENMETRICS, "Accept-Encoding": "gzip"})
            assert other.headers["content-type"] == OPENMETRICS
            assert other.headers["content-encoding"] == "gzip"
            assert Samples(other.text).without_own() == Samples(text.text).without_own()
            head = await client.head("/metrics")
            assert (head.status_code, head.content) == (200, b"")
            assert source.requests[0]["accept"].startswith("text/plain;version=0.0.4")
            assert source.requests[0]["accept-encoding"] == "gzip"


async def test_openmetrics_from_a_source_with_exemplars_and_gzip() -> None:
    body = gzip.compress(b'# TYPE a counter\na_total 1 # {t="x"} 1\n# EOF\n')
    answer = Answer(body, headers={"Content-Type": OPENMETRICS, "Content-Encoding": "gzip"})
    with PageServer(answer) as source:
        async with running_app("--source", f"exporter={source.url}") as client:
            page = Samples((await client.get("/metrics")).text)
            assert (page["a_total"], page.types()["a_total"]) == (1, "counter")
            assert "#" not in page.text.replace("# HELP", "").replace("# TYPE", "")


async def test_a_directory_comes_and_goes(tmp_path: Path) -> None:
    directory = tmp_path / "metrics"
    up = 'metrics_proxy_source_up{source="directory"}'
    async with running_app("--source", f"directory={directory}") as client:
        assert Samples((await client.get("/metrics")).text)[up] == 0
        assert "No such file or directory" in (await client.get("/")).text
        directory.mkdir()
        assert Samples((await client.get("/metrics")).text)[up] == 1
        assert "PROMETHEUS_MULTIPROC_DIR" in (await client.get("/")).text
        Writer(directory, 5_000_001).tokens.inc(3)
        (directory / "foreign.db").write_text("")
        page = Samples((await client.get("/metrics")).text)
        assert page['vllm:generation_tokens_total{model_name="m",engine="0"}'] == 3
        assert page['metrics_proxy_directory_processes{source="directory",state="unknown"}'] == 1
        assert page['metrics_proxy_directory_bad_files{source="directory",reason="foreign"}'] == 1
        assert page['metrics_proxy_source_parse_errors_total{source="directory"}'] == 1


async def test_the_status_page_tells_at_a_glance(tmp_path: Path) -> None:
    Writer(tmp_path, 5_000_001).tokens.inc(3)
    bridge = '# TYPE vllm:generation_tokens_total counter\nvllm:generation_tokens_total{model="<b>"} 1\n'
    with PageServer(bridge) as triton:
        flags = ("--source", f"triton={triton.url}", "--source", f"directory={tmp_path}")
        down = ("--source", f"exporter=http://127.0.0.1:{free_port()}/metrics")
        async with running_app(*flags, *down) as client:
            answer = await client.get("/")
            assert answer.headers["content-type"] == "text/html; charset=utf-8"
            text = answer.text
    assert "2 of 3 sources up" in text
    assert triton.url in text
    assert "it cannot be reached" in text
    assert "<code>vllm:generation_tokens_total</code></td><td>triton</td><td>directory</td>" in text
    assert "1 unknown" in text
    assert "<b>" not in text


async def test_health_and_unknown_paths() -> None:
    with PageServer("a 1\n") as source:
        async with running_app("--source", f"exporter={source.url}") as client:
            assert (await client.get("/health/live")).json() == {"status": "live"}
            ready = await client.get("/health/ready")
            assert (ready.status_code, ready.json()["sources"]) == (200, {"exporter": "up"})
            source.stop()
            ready = await client.get("/health/ready")
            assert ready.status_code == 503
            assert "cannot be reached" in ready.json()["sources"]["exporter"]
            assert (await client.get("/health/live")).status_code == 200
            assert (await client.get("/nothing")).status_code == 404
            refused = await client.post("/metrics")
            assert (refused.status_code, refused.headers["allow"]) == (405, "GET, HEAD")


async def test_behind_another_proxy_its_own_series_do_not_collide() -> None:
    with PageServer('# TYPE metrics_proxy_source_up gauge\nmetrics_proxy_source_up{source="exporter"} 0\n') as other:
        async with running_app("--source", f"exporter={other.url}") as client:
            page = Samples((await client.get("/metrics")).text)
            assert page[UP] == 1
        source = json.dumps({"kind": "exporter", "url": other.url, "labels": {"node": "b"}})
        async with running_app("--source", source) as client:
            page = Samples((await client.get("/metrics")).text)
            assert page['metrics_proxy_source_up{source="exporter",node="b"}'] == 0
            assert page[UP] == 1


async def test_families_with_new_names_every_time_do_not_pile_up() -> None:
    with PageServer("") as source:
        async with running_app("--source", f"exporter={source.url}") as client:
            for i in range(3):
                source.say("".join(f"a{i}_{j} 1\na{i}_{j} 2\n" for j in range(600)))
                page = Samples((await client.get("/metrics")).text)
            counted = page.named("metrics_proxy_conflicts_total")
            assert len(counted) <= 1001
            assert sum(counted.values()) == 1800


def test_a_process_starts_serves_and_ends(tmp_path: Path) -> None:
    with running_proxy("--source", f"directory={tmp_path}") as proxy:
        assert proxy.page()['metrics_proxy_source_up{source="directory"}'] == 1
        logged = [entry for entry in proxy.logs if entry["message"] == "effective settings"]
        assert logged[0]["settings"]["port"] == 0
        (tmp_path / "x.db").write_text("")
        for _ in range(3):
            proxy.page()
        wait_for(lambda: any("x.db is left out" in entry["message"] for entry in proxy.logs))
        assert sum("x.db" in entry["message"] for entry in proxy.logs) == 1
        proxy.process.send_signal(signal.SIGTERM)
        assert proxy.process.wait(30) == 0


def test_a_taken_port_is_one_sentence(tmp_path: Path) -> None:
    with running_proxy("--source", f"directory={tmp_path}") as proxy:
        command = [sys.executable, "-m", "metrics_proxy", "--port", str(proxy.port)]
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2
    assert ended.stderr == f"metrics_proxy: The port {proxy.port} is taken; free it or give another --port.\n"


@pytest.mark.long
@pytest.mark.timeout(600)
def test_memory_is_flat_over_10000_scrapes(tmp_path: Path) -> None:
    for i in range(4):
        writer = Writer(tmp_path, 5_000_001 + i)
        writer.ttft.observe(1)
    with PageServer(PLAIN.decode()) as source:
        flags = ("--source", f"directory={tmp_path}", "--source", f"exporter={source.url}")
        with running_proxy(*flags) as proxy, httpx.Client(base_url=proxy.url, timeout=60) as client:
            grown = []
            for i in range(10_000):
                writer.tokens.inc(1)
                answer = client.get("/metrics", headers={"Accept": OPENMETRICS} if i % 2 else {})
                assert answer.status_code == 200
                if i % 1000 == 999:
                    status = Path(f"/proc/{proxy.process.pid}/status").read_text()
                    grown.append(int(status.partition("VmRSS:")[2].split()[0]))
    # After the first thousand nothing is new.
    assert grown[-1] - grown[0] < 4096, grown


def test_a_scrape_after_a_pause_is_fresh() -> None:
    """Nothing that was read before is served again."""
    with PageServer("a 1\n") as source, running_proxy("--source", f"exporter={source.url}") as proxy:
        first = proxy.page()
        time.sleep(0.01)
        source.say("a 2\n")
        second = proxy.page()
    name = 'metrics_proxy_source_last_success_timestamp_seconds{source="exporter"}'
    assert (first["a"], second["a"]) == (1, 2)
    assert second[name] > first[name]
