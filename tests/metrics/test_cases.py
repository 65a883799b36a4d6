"""Pages as sources serve them, good and bad, through the application in both formats: what has to come out."""

import json
import math
import os
import re
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as strict_openmetrics
from prometheus_client.parser import text_string_to_metric_families as strict_text

from tests.support.metrics import OPENMETRICS, TEXT, Answer, PageServer, Samples, key, running_app

CASES = [json.loads(line) for line in (Path(__file__).parents[1] / "data" / "metrics.jsonl").read_text().splitlines()]

Json = dict[str, Any]


def answer_of(source: Json) -> Answer | None:
    """None: nobody listens."""
    made = source.get("generate", {})
    if made.get("connection_refused"):
        return None
    headers = {"Content-Type": source.get("content_type", TEXT)}
    if "content_encoding" in source:
        headers["Content-Encoding"] = source["content_encoding"]
    body: bytes | Iterable[bytes] = source.get("body", "").encode()
    if "line" in made:
        body = _Generated(made)
    return Answer(body, source.get("status", 200), headers, source.get("content_length"))


class _Generated:
    def __init__(self, made: Json) -> None:
        self._made = made

    def __iter__(self) -> Any:
        yield self._made["head"].encode()
        count = self._made["count"]
        for start in range(0, count, 1000):
            stop = min(start + 1000, count)
            yield "".join(self._made["line"].format(i=i) for i in range(start, stop)).encode()


def flags_of(case: Json, servers: dict[str, PageServer]) -> list[str]:
    flags = []
    for source in case["sources"]:
        settings = {
            "kind": "triton" if source.get("role") == "triton" else "exporter",
            "name": source["name"],
            "url": servers[source["name"]].url,
            "labels": source.get("labels", {}),
        }
        flags += ["--source", json.dumps(settings)]
    for name, value in case.get("settings", {}).items():
        text = value if isinstance(value, str) else json.dumps(value)
        flags += [f"--{name.replace('_', '-')}", text]
    return flags


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
async def test_case(case: Json) -> None:
    with ExitStack() as stack:
        servers = {
            source["name"]: stack.enter_context(PageServer(answer_of(source.get("steps", [source])[0]) or ""))
            for source in case["sources"]
        }
        async with running_app(*flags_of(case, servers)) as client:
            steps = [entry for entry in case["expect"] if "step" in entry]
            for step in steps or [{"step": 0, "expect": case["expect"]}]:
                for source in case["sources"]:
                    if "steps" in source:
                        server = servers[source["name"]]
                        server.stop()
                        if answer := answer_of(source["steps"][step["step"]] | {"content_type": TEXT}):
                            server.answer = answer
                            server.start()
                for form in ("text", "openmetrics"):
                    before = _rss()
                    answer_ = await client.get("/metrics", headers={"Accept": OPENMETRICS} if form != "text" else {})
                    check(answer_, form, step["expect"], _rss() - before)


def check(answer: httpx.Response, form: str, expect: list[Json], rss_growth: int) -> None:
    text = answer.text
    assert text.endswith("\n")
    assert "\r" not in text
    list((strict_text if form == "text" else strict_openmetrics)(text))
    page = Samples(text)
    assert {key: len(values) for key, values in page.values.items() if len(values) > 1} == {}
    assert (text.count("# EOF\n"), text.endswith("# EOF\n")) == ((0, False) if form == "text" else (1, True))
    for entry in expect:
        if entry.get("format", form) == form:
            check_entry(answer, page, entry, form, rss_growth)


def check_entry(answer: httpx.Response, page: Samples, entry: Json, form: str, rss_growth: int) -> None:
    kinds = set(entry) - {"format", "value", "value_in"} - ({"count"} if "series" in entry else set())
    (kind,) = kinds
    wanted = entry[kind]
    match kind:
        case "series":
            values = page.values.get(key(wanted), [])
            assert len(values) == entry.get("count", 1), wanted
            allowed = entry.get("value_in", [entry.get("value")])
            assert all(any(same(value, other) for other in allowed) for value in values)
        case "absent":
            assert wanted not in page.names()
            assert key(wanted) not in page.values
        case "count":
            for name, number in wanted.items():
                assert len(page.named(name)) == number
        case "type":
            for name, type_ in wanted.items():
                assert page.types()[family_name(name, type_, form)] == type_
        case "one_block":
            for name in wanted:
                check_one_block(page, name)
        case "lines":
            for pattern, number in wanted.items():
                assert sum(bool(re.search(pattern, line)) for line in page.lines) == number
        case "line_regex":
            assert any(re.search(wanted, line) for line in page.lines)
        case "conflicts":
            labels = {(name, wanted[name]) for name in ("family", "kind") if name in wanted}
            found = sum(v for k, v in page.named("metrics_proxy_conflicts_total").items() if labels <= k)
            assert wanted.get("min", 0) <= found <= wanted.get("max", math.inf)
        case "up":
            for name, up in wanted.items():
                assert page[f'metrics_proxy_source_up{{source="{name}"}}'] == up
        case "parse_errors":
            for name, bounds in wanted.items():
                assert page[f'metrics_proxy_source_parse_errors_total{{source="{name}"}}'] >= bounds["min"]
        case "buckets_sorted":
            bounds = [bound_of(line) for line in page.lines if line.startswith(f"{wanted}_bucket")]
            assert bounds == sorted(bounds)
            assert bounds[-1] == math.inf
        case "le_count_equal":
            (last,) = [v for k, v in page.named(f"{wanted}_bucket").items() if ("le", "+Inf") in k]
            assert list(page.named(f"{wanted}_count").values()) == [last]
        case "status":
            assert answer.status_code == wanted
        case "body_lacks":
            assert not any(part in page.text for part in wanted)
        case "no_exemplars":
            assert not re.search(r" # \{", page.text)
        case "ends_with_newline":
            assert page.text.endswith("\n")
        case "rss_growth_below_mib":
            assert rss_growth < wanted * 2**20
        case "any_of":
            problems = []
            for alternative in wanted:
                try:
                    for one in alternative:
                        check_entry(answer, page, one, form, rss_growth)
                    break
                except AssertionError as problem:
                    problems.append(problem)
            else:
                raise AssertionError(problems)
        case _:
            raise AssertionError(f"unknown expectation {kind}")


def family_name(name: str, type_: str, form: str) -> str:
    """How OpenMetrics calls the family that the text format calls `name`."""
    return name.removesuffix("_total") if form == "openmetrics" and type_ == "counter" else name


def check_one_block(page: Samples, name: str) -> None:
    base = re.escape(name.removesuffix("_total"))
    pattern = re.compile(rf"(# (TYPE|HELP) )?{base}(_total|_bucket|_sum|_count)?[ {{]")
    lines = [i for i, line in enumerate(page.lines) if pattern.match(line)]
    assert lines == list(range(lines[0], lines[0] + len(lines)))
    for word in ("HELP", "TYPE"):
        assert sum(page.lines[i].startswith(f"# {word} ") for i in lines) <= 1


def bound_of(line: str) -> float:
    found = re.search(r'le="([^"]+)"', line)
    assert found
    return float(found[1])


def same(value: float, wanted: Any) -> bool:
    return math.isnan(value) if wanted == "NaN" else value == float(wanted)


def _rss() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
