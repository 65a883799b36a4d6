"""The documentation names every setting, field of a request, metric, field of a log line and command."""

import argparse
from collections.abc import Iterator, Mapping

import pytest

from devtools import fields_page
from devtools.paths import ROOT
from gateway.access import command
from gateway.access.keys import Entry, Key
from gateway.app import Gateway
from gateway.observe import request_log
from gateway.observe.instances import GAUGES
from gateway.observe.metrics import REGISTRY
from gateway.observe.record import Record, ServiceLevel
from gateway.observe.trace_context import TraceContext
from gateway.openai import fields
from gateway.openai.errors import unavailable
from gateway.settings import ModelSettings, Settings, load

PAGE = (ROOT / "docs" / "gateway.md").read_text(encoding="utf-8")
OPERATIONS = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    return OPERATIONS.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def cells(title: str) -> set[str]:
    """What stands in backticks in the first column of a section's tables."""
    rows = (line.split(" | ")[0] for line in section(title).splitlines() if line.startswith("| `"))
    return {name for row in rows for name in row.split("`")[1::2]}


def test_every_setting_is_documented_with_its_default() -> None:
    for name, field in Settings.model_fields.items():
        row = next((line for line in section("Settings").splitlines() if line.startswith(f"| `{name}` |")), None)
        assert row, f"docs/operations.md has no row for {name}"
        if isinstance(field.default, int | float | str) and not isinstance(field.default, bool):
            assert f"| {field.default} |" in row
    assert cells("Settings") == set(Settings.model_fields)
    for name in ModelSettings.model_fields:
        assert f"`{name}`" in PAGE


def test_every_metric_is_documented_in_its_own_words() -> None:
    documented = {
        f"{metric.name}_total" if metric.type == "counter" else metric.name: metric.documentation
        for metric in REGISTRY.collect()
    } | {name: text for name, (text, _) in GAUGES.items()}
    for name, text in documented.items():
        rows = [line for line in section("Metrics").splitlines() if line.startswith(f"| `{name}` | ")]
        assert len(rows) == 1, f"docs/operations.md has no row for {name}"
        assert rows[0].endswith(f" | {text} |")
    assert cells("Metrics") == set(documented)


def test_every_admin_call_is_documented() -> None:
    settings = load(["--models", '[{"triton_model": "m"}]'])
    document = Gateway(settings)._rest.openapi()
    for path, methods in document["paths"].items():
        if path.startswith("/admin/"):
            for method in methods:
                assert f"`{method.upper()} {path.replace(':path', '')}`" in OPERATIONS


@pytest.fixture
def whole_record() -> Record:
    """One of which everything is known."""
    record = Record({"type": "http", "method": "POST", "path": "/v1/completions", "headers": []})
    record.trace = TraceContext("a" * 32, "b" * 16, 1)
    record.key = Key("a")
    record.asks("m", stream=True)
    record.entered("i", 1, 0.1)
    record.sent()
    record.admitted(0.1)
    record.tokens(0, 1, 1e9)
    record.tokens(0, 1, 2e9)
    record.constraint, record.parser_failures, record.error = "json", 1, unavailable("gone")
    record.finish(ServiceLevel())
    return record


def test_every_field_of_a_request_s_log_line_is_documented(whole_record: Record) -> None:
    assert cells("Logs") == set(request_log.fields(whole_record))


def flags_of(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, sub in action.choices.items():
                yield name
                yield from flags_of(sub)
        yield from action.option_strings


def test_every_command_and_flag_and_member_of_a_key_is_documented() -> None:
    for name in flags_of(command.parser()):
        if name not in ("-h", "--help"):
            assert name in section("Keys"), f"docs/operations.md does not say what {name} is"
    assert cells("Keys") == set(Entry.model_fields)


def test_the_page_of_fields_is_what_the_tables_say() -> None:
    assert fields_page.FILE.read_text(encoding="utf-8") == fields_page.page(), "run ./dev docs"


def test_the_page_of_fields_has_every_table_and_every_row() -> None:
    tables = {name: table for name, table in vars(fields).items() if name.isupper() and isinstance(table, Mapping)}
    assert tables.keys() >= {"CHAT", "COMPLETION", "TOKENIZE", "DETOKENIZE"}
    assert [id(table) for table in fields_page.REQUESTS.values()] == [id(table) for table in tables.values()]
    for title, table in fields_page.REQUESTS.items():
        section = fields_page.page().partition(f"## {title}\n")[2].partition("\n## ")[0]
        for field in table.values():
            assert section.count(f"| `{field.name}` |") == 1
