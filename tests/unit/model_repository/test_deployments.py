"""What can be said of the shipped deployments without an engine: each value has its reason, written once."""

import json
import re
from pathlib import Path

import pytest

from devtools.repository import SHIPPED

DEPLOYMENTS = sorted(path.parent.name for path in SHIPPED.glob("*/config.pbtxt"))

_ROW = re.compile(r"^\| `(\w+)` \| `(.*?)` \| (.+) \|$", re.MULTILINE)


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_every_value_has_its_reason(name: str) -> None:
    arguments = json.loads((SHIPPED / name / "1" / "model.json").read_text())
    rows = _ROW.findall((SHIPPED / name / "README.md").read_text())
    assert [(key, json.loads(value)) for key, value, _ in rows] == list(arguments.items())
    for key, _, reason in rows:
        assert len(reason.split()) > 2, f"{key} has no reason"


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_what_is_nested_is_explained_too(name: str) -> None:
    arguments = json.loads((SHIPPED / name / "1" / "model.json").read_text())
    page = (SHIPPED / name / "README.md").read_text()
    for nested in ("eplb_config", "kv_events_config"):
        for key, value in arguments.get(nested, {}).items():
            # `enable_kv_cache_events: true` is the sentence itself.
            assert value is True or f"`{key}`" in page, f"{nested}.{key} is not explained"


def test_the_overview_names_all_of_them() -> None:
    linked = re.findall(r"\[([\w-]+)\]\(\1/README\.md\)", (SHIPPED / "README.md").read_text())
    assert sorted(linked) == DEPLOYMENTS


def test_the_configuration_is_the_backend_s_and_one() -> None:
    texts = {Path(SHIPPED / name / "config.pbtxt").read_text() for name in DEPLOYMENTS}
    assert len(texts) == 1
