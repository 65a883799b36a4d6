"""What Prometheus has seen of all that happened in the tests before these: everything that is shown or warned of."""

import json
import math
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import yaml

from devtools.paths import ROOT, STATE
from tests.containers import picture
from tests.containers.stack import ContainerStack
from tests.support import waiting

pytestmark = pytest.mark.containers

# All that could take long has happened.
wait_for = partial(waiting.wait_for, seconds=120, pause=0.5)

_DASHBOARDS = sorted((ROOT / "docker" / "grafana" / "dashboards").glob("*.json"))
_RULES = ROOT / "docker" / "prometheus" / "rules"
_SELECTOR = re.compile(
    r"\b((?:(?:vllm|model|model_name):\w[\w:]*|(?:gateway|prefetch|metrics_proxy|DCGM)_\w+|up)\b(?:\{[^}]*\})?(?:\[\w+\])?)"
)


def _rules() -> Iterator[dict[str, Any]]:
    for path in sorted(_RULES.glob("*.yml")):
        for group in yaml.safe_load(path.read_text())["groups"]:
            yield from group["rules"]


def _panels() -> Iterator[tuple[str, str]]:
    """Where it is, and an expression."""
    for path in _DASHBOARDS:
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel.get("targets", []):
                yield f"{path.stem}, {panel['title']}", target["expr"]


@contextmanager
def _traffic(stack: ContainerStack) -> Iterator[None]:
    """Answers, and something that is refused."""
    stack.wait_until_ready()
    assert stack.chat(temperature=-1)[0] == 400
    with stack.under_load():
        yield


def test_prometheus_sees_every_target(stack: ContainerStack) -> None:
    jobs = set(re.findall(r"job_name: (\S+)", (ROOT / "docker" / "prometheus" / "prometheus.yml").read_text()))
    wait_for(lambda: {one["metric"]["job"] for one in stack.query("up == 1")} == jobs, "every target")
    wait_for(lambda: not stack.query("up == 0 or metrics_proxy_source_up == 0"), "nothing to be down")
    assert stack.query("metrics_proxy_source_up == 1")


def test_every_selector_finds_something(stack: ContainerStack) -> None:
    texts = [rule["expr"] for rule in _rules()] + [expression for _, expression in _panels()]
    selectors = {found for text in texts for found in _SELECTOR.findall(text)}
    assert len(selectors) > 40
    with _traffic(stack):
        for selector in sorted(selectors):
            # A range is asked for what is in it.
            query = f"last_over_time({selector})" if selector.endswith("]") else selector
            wait_for(lambda query=query: stack.query(query), selector)  # type: ignore[misc]


def _is_number(series: dict[str, Any]) -> bool:
    return math.isfinite(float(series["value"][1]))


def test_every_panel_shows_something(stack: ContainerStack) -> None:
    with _traffic(stack):
        for place, expression in _panels():
            wait_for(lambda it=expression: any(map(_is_number, stack.query(it))), place)  # type: ignore[misc]


def test_every_alert_has_fired(stack: ContainerStack) -> None:
    """In the tests before this one."""
    fired = stack.query('count by (alertname) (max_over_time(ALERTS{alertstate="firing"}[2h]))')
    assert {one["metric"]["alertname"] for one in fired} == {rule["alert"] for rule in _rules() if "alert" in rule}


def test_the_overview_can_be_drawn(stack: ContainerStack) -> None:
    """docs/overview.svg is this one of some run."""
    dashboard = json.loads((ROOT / "docker" / "grafana" / "dashboards" / "overview.json").read_text())
    end = time.time()
    (first,) = stack.query("min(min_over_time(timestamp(up)[2h:10s]))")
    start = float(first["value"][1])
    step = max(2.0, (end - start) / 120)
    drawn = picture.draw(dashboard, lambda expression: stack.query_range(expression, start, end, step), start, end)
    STATE.mkdir(exist_ok=True)
    (STATE / "overview.svg").write_text(drawn)
    assert "no data" not in drawn
