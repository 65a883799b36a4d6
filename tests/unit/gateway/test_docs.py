"""The documentation names every setting and every field."""

from collections.abc import Mapping
from pathlib import Path

from devtools import fields_page
from gateway.openai import fields
from gateway.settings import ModelSettings, Settings

PAGE = (Path(__file__).parents[3] / "docs" / "gateway.md").read_text(encoding="utf-8")


def test_every_setting_is_documented_with_its_default() -> None:
    for name, field in Settings.model_fields.items():
        row = next((line for line in PAGE.splitlines() if line.startswith(f"| `{name}` |")), None)
        assert row, f"docs/gateway.md has no row for {name}"
        if isinstance(field.default, int | float | str) and not isinstance(field.default, bool):
            assert f"| {field.default} |" in row
    for name in ModelSettings.model_fields:
        assert f"`{name}`" in PAGE


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
