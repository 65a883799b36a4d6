"""Rules, dashboards and the runbook: each valid by its own tool, and all of one piece. Whether their expressions return
data shows on a running stack alone."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from devtools.paths import ROOT, home

_PROMETHEUS = ROOT / "docker" / "prometheus"
_DASHBOARDS = sorted((ROOT / "docker" / "grafana" / "dashboards").glob("*.json"))
_TOOLS = ("@grafana/schema@12.4.11", "typescript@5.9.2")


def _run(*command: str | Path, cwd: Path = ROOT) -> None:
    done = subprocess.run(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout


def test_promtool_takes_the_configuration(tmp_path: Path) -> None:
    # It names the rules by their place in the container.
    text = (_PROMETHEUS / "prometheus.yml").read_text().replace("/etc/prometheus", str(_PROMETHEUS))
    (tmp_path / "prometheus.yml").write_text(text)
    _run("promtool", "check", "config", "--lint-fatal", tmp_path / "prometheus.yml")


def test_each_alert_fires_on_what_it_is_for() -> None:
    _run("promtool", "test", "rules", Path(__file__).with_name("alerts_test.yml"))


def _alerts() -> list[dict[str, Any]]:
    groups = yaml.safe_load((_PROMETHEUS / "rules" / "alerts.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def test_each_alert_is_tested() -> None:
    tests = yaml.safe_load(Path(__file__).with_name("alerts_test.yml").read_text())["tests"]
    fired = {
        one["alertname"] for test in tests for one in test.get("alert_rule_test", []) if one.get("exp_alerts")
    }
    assert fired == {alert["alert"] for alert in _alerts()}


def test_each_alert_has_its_section_in_the_runbook() -> None:
    text = (ROOT / "docs" / "runbook.md").read_text()
    sections = re.findall(r"^## (\w+)$", text, re.MULTILINE)
    assert sections == [alert["alert"] for alert in _alerts()]
    for alert in _alerts():
        assert alert["annotations"]["runbook_url"] == f"docs/runbook.md#{alert['alert'].lower()}"
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        assert all(f"**{part}**" in section for part in ("Means", "Look", "Do")), section.splitlines()[0]


def _panels(dashboard: Path) -> list[dict[str, Any]]:
    panels: list[dict[str, Any]] = json.loads(dashboard.read_text())["panels"]
    return panels


@pytest.mark.parametrize("dashboard", _DASHBOARDS, ids=lambda path: path.stem)
def test_every_expression_can_be_parsed(dashboard: Path, tmp_path: Path) -> None:
    expressions = [target["expr"] for panel in _panels(dashboard) for target in panel.get("targets", [])]
    assert expressions
    rules = [{"record": f"panel:number:{number}", "expr": expr} for number, expr in enumerate(expressions)]
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    _run("promtool", "check", "rules", tmp_path / "rules.yml")


@pytest.mark.parametrize("dashboard", _DASHBOARDS, ids=lambda path: path.stem)
def test_panels_lie_beside_each_other(dashboard: Path) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in _panels(dashboard):
        place = panel["gridPos"]
        cells = {
            (place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24, panel["title"]
        taken |= cells


def test_recorded_names_are_recorded() -> None:
    recorded = set(re.findall(r"record: (\S+)", (_PROMETHEUS / "rules" / "recording.yml").read_text()))
    for dashboard in _DASHBOARDS:
        used = set(re.findall(r"\b(?:model|model_name):\w+:\w+", dashboard.read_text()))
        assert used <= recorded, dashboard.name


def test_the_dashboards_are_grafana_s(tmp_path: Path) -> None:
    """By Grafana's own types. JSON has no enumerations, so the one that is used is written as TypeScript wants it."""
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed, so Grafana's types cannot be had")
    tools = home() / "grafana-schema-12.4.11"
    if not (tools / "node_modules" / "typescript" / "bin" / "tsc").exists():
        tools.mkdir(parents=True, exist_ok=True)
        options = ("--no-audit", "--no-fund", "--ignore-scripts", "--no-save")
        done = subprocess.run(["npm", "install", *options, *_TOOLS], cwd=tools, capture_output=True, text=True)
        if done.returncode != 0:
            pytest.skip(f"npm cannot install Grafana's types: {done.stderr[-300:]}")
    (tmp_path / "node_modules").symlink_to(tools / "node_modules")
    for dashboard in _DASHBOARDS:
        value = dashboard.read_text().replace('"mode": "absolute"', '"mode": ThresholdsMode.Absolute')
        head = "import { ThresholdsMode, type Dashboard } from '@grafana/schema';"
        (tmp_path / f"{dashboard.stem}.ts").write_text(f"{head}\nexport const d: Dashboard = {value};\n")
    modules = {"module": "esnext", "moduleResolution": "bundler", "types": []}
    compile_options = {"strict": True, "noEmit": True, "skipLibCheck": True, **modules}
    (tmp_path / "tsconfig.json").write_text(json.dumps({"compilerOptions": compile_options}))
    compiler = tmp_path / "node_modules" / "typescript" / "bin" / "tsc"
    _run("node", compiler, "-p", tmp_path, cwd=tmp_path)
    # A slip is found.
    slip = tmp_path / "overview.ts"
    slip.write_text(slip.read_text().replace('"refresh"', '"refresch"', 1))
    with pytest.raises(AssertionError, match="refresch"):
        _run("node", compiler, "-p", tmp_path, cwd=tmp_path)
