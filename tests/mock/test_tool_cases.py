"""Raw answers of real models' formats through the whole gateway: what the official client gets, streamed in several
cuts and whole."""

from typing import Any

import pytest

from tests.support.tool_cases import CASES, check_case
from tests.support.tools import WHOLE, Reply, Talk, tokens_of


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_a_client_gets_what_the_model_said(case: dict[str, Any], talk: Talk) -> None:
    raw = case["raw"]
    fields: dict[str, Any] = {"tools": case["tools"]} if case["tools"] else {}
    if "prompt_ends_with" in case:
        fields["chat_template_kwargs"] = {"opening": case["prompt_ends_with"]}
    if case["engine_finish_reason"] == "length":
        fields["max_tokens"] = tokens_of(raw)
    replies = talk.whole(case["family"], raw, **fields)
    for merge in (1, 5, WHOLE):
        replies += talk.streamed(case["family"], raw, merge, **fields)
    if "chunks" in case:
        # A token a character: the chunks leave as they are.
        chunks = [chunk for chunk in case["chunks"] if chunk]
        replies += talk.streamed(case["family"], list(raw), [len(chunk) for chunk in chunks], **fields)
    for reply in replies:
        _check(case, reply)
        assert reply.said()[:4] == replies[0].said()[:4]


def _check(case: dict[str, Any], reply: Reply) -> None:
    check_case(case, reply.content, reply.reasoning, reply.calls, reply.finish_reason)
