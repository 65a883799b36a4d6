"""The documentation names every setting and every endpoint."""

from pathlib import Path

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
