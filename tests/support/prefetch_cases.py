"""The cases of tests/data/prefetch.jsonl: webhooks, object keys, layouts and object states, each with what must come.

`source` says what a case is modelled on, `why` what it is about; all names and secrets are made up.
"""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_FILE = Path(__file__).parent.parent / "data" / "prefetch.jsonl"
WEBHOOKS = ("mlflow", "huggingface", "sns", "eventbridge", "own")


def cases(*, webhooks: bool) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in _FILE.read_text(encoding="utf-8").splitlines()]
    return [case for case in found if (case["kind"] in WEBHOOKS) is webhooks]


def objects(case_input: dict[str, Any]) -> Iterator[tuple[str, bytes]]:
    """Each key with its bytes."""
    generate = case_input.get("generate")
    if generate:
        for i in range(generate["count"]):
            yield generate["key"].format(i=i), b"x" * generate["size"]
    for entry in case_input.get("objects", []):
        yield entry["key"], base64.b64decode(entry["body_b64"])
