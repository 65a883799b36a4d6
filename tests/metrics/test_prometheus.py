"""The real Prometheus and promtool take the page, in both formats, and store what the sources have, under its names."""

import asyncio
import json
import math
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.metrics.conftest import FORMATS
from tests.metrics.test_cases import CASES, answer_of, flags_of
from tests.support.metrics import Key, PageServer, Samples, running_app, running_proxy
from tests.support.metrics_writer import Writer

# Whole pages of several programs, which do not collide.
PAGES = ("m01", "m02", "m04", "m05", "m06", "m19", "m21", "m23", "m31", "m33", "m42", "m44")


def sources() -> list[dict[str, Any]]:
    found = []
    for case in CASES:
        if case["id"][:3] in PAGES:
            for source in case["sources"]:
                found.append(source | {"name": f"{case['id']}-{source['name']}", "labels": {"case": case["id"][:3]}})
    return found


async def test_promtool_takes_the_page_of_every_case(promtool: str) -> None:
    for case in CASES:
        if case["id"].startswith(("m50", "m53")):
            continue  # Their sources are not on the page.
        with ExitStack() as stack:
            servers = {
                source["name"]: stack.enter_context(PageServer(answer_of(source) or "")) for source in case["sources"]
            }
            async with running_app(*flags_of(case, servers)) as client:
                page = (await client.get("/metrics")).text
        ended = await asyncio.to_thread(check, promtool, page)
        # 3: it has an opinion on the sources' names. 1: it cannot read the page.
        assert ended.returncode in (0, 3), (case["id"], ended.stderr)
        assert "error while linting" not in ended.stderr


def check(promtool: str, page: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([promtool, "check", "metrics"], input=page, capture_output=True, text=True, timeout=60)


def test_prometheus_stores_the_same_from_both_formats(prometheus: Callable[[str], Any], tmp_path: Path) -> None:
    directory = tmp_path / "metrics"
    directory.mkdir()
    writer = Writer(directory, 5_000_001)
    writer.tokens.inc(3)
    writer.ttft.observe(0.5)
    with ExitStack() as stack:
        listed = sources()
        servers = {source["name"]: stack.enter_context(PageServer(answer_of(source) or "")) for source in listed}
        flags = flags_of({"sources": listed}, servers)
        last = json.dumps({"kind": "directory", "path": str(directory), "labels": {"case": "directory"}})
        proxy = stack.enter_context(running_proxy(*flags, "--source", last))
        running = stack.enter_context(prometheus(proxy.url))
        running.wait_for_scrapes()
        wanted = set()
        for source in listed:
            if "openmetrics" not in source["content_type"]:
                case = ("case", source["labels"]["case"])
                wanted |= {(name, labels | {case}) for name, labels in series_of(source["body"])}
        stored = {job: running.values(job) for job in FORMATS}
        page = proxy.page()
    for job in FORMATS:
        without_own = {key: v for key, v in stored[job].items() if not key[0].startswith("metrics_proxy_")}
        # Every series of the page, with its value, and nothing else.
        assert set(without_own) == set(page.without_own())
        for key, values in page.without_own().items():
            assert values[0] == without_own[key] or (math.isnan(values[0]) and math.isnan(without_own[key])), key
        assert wanted <= set(without_own)
        assert ("metrics_proxy_source_up", frozenset({("source", "directory")})) in stored[job]
        assert all(v == 1 for (name, _), v in stored[job].items() if name == "metrics_proxy_source_up")


def series_of(body: str) -> set[Key]:
    return set(Samples(body).values)
