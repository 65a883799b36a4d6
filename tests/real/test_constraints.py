"""Catalogues and other constraints through Triton and the gateway."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from devtools import models
from devtools.stack import Stack, StackConfig
from gateway.check.run import ModelReport, check_triton
from gateway.check.verdicts import Kind
from gateway.settings import Settings
from tests.support.backend import Backend
from tests.support.catalogs import build_catalog, build_command, with_catalogs
from tests.support.tools import Reply, ask_all

THINGS = ("Red Shoe", "Red Hat", "Green Shoe", "Blue Hat", "Über-Mantel")
TITLES = [f"{thing} {number}" for thing in THINGS for number in range(60)]
# Unlike each other from the first letter on, as the ids of a shop are; one number is a multiple of another modulo 2^32.
IDS = 1_000_000


def shop_id(number: int) -> str:
    return f"{number * 2_654_435_761 % 2**32:08X}"


@dataclass(frozen=True)
class Constrained:
    """A stack whose model has the catalogues in `folder`."""

    stack: Stack
    folder: Path
    model: str

    def body(self, **fields: Any) -> dict[str, Any]:
        """A chat request. `constraints` go the way that the official client has for what it does not know."""
        extra = {"constraints": fields.pop("constraints")} if "constraints" in fields else {}
        messages = [{"role": "user", "content": "Which of our products fits best? Name it."}]
        return {"model": self.model, "messages": messages, "extra_body": extra} | fields

    def refusal(self, constraints: Any, **fields: Any) -> dict[str, Any]:
        """The error of the 400 that a chat request with them meets."""
        body = self.body(**fields)
        del body["extra_body"]
        answer = httpx.post(
            f"{self.stack.url}/v1/chat/completions", json=body | {"constraints": constraints}, timeout=60
        )
        assert answer.status_code == 400, answer.text
        error: dict[str, Any] = answer.json()["error"]
        return error


def running(model: str, folder: Path, state: Path) -> Stack:
    stack = Stack(StackConfig(models={model: with_catalogs(folder)}), state, Path(sys.executable))
    stack.start()
    return stack


@pytest.fixture(scope="module")
def tiny(engine_platform: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Constrained]:
    """The tiny model with one good catalogue, and files that are none for it."""
    place = tmp_path_factory.mktemp("constraints")
    folder = place / "catalogs"
    folder.mkdir()
    tokenizer = models.tiny(Path(sys.executable))
    build_catalog(TITLES, tokenizer, folder / "titles.catalog")
    build_catalog(["one", "two"], models.smollm2(), folder / "foreign.catalog")
    (folder / "empty.catalog").write_bytes(b"")
    whole = (folder / "titles.catalog").read_bytes()
    (folder / "cut.catalog").write_bytes(whole[: len(whole) // 2])
    stack = running(models.TINY, folder, place / "stack")
    yield Constrained(stack, folder, models.TINY)
    stack.stop()


def catalog(**arguments: Any) -> dict[str, Any]:
    return {"catalog": {"name": "titles"} | arguments}


def answers(constrained: Constrained, *requests: dict[str, Any], at_a_time: int = 16) -> list[Reply]:
    """Each request streamed and whole, many at once: the answers in the order of the requests, streamed first."""
    both = [(constrained.body(**fields), stream) for fields in requests for stream in (True, False)]
    return asyncio.run(ask_all(constrained.stack.url, both, at_a_time))


def check_list(reply: Reply, members: set[str], items: int) -> None:
    entries = reply.content.split("\n")
    assert (len(entries), len(set(entries)), reply.finish_reason) == (items, items, "stop"), reply.content
    assert set(entries) <= members


def test_every_answer_is_an_entry_whoever_answers_beside_it(tiny: Constrained) -> None:
    one = [{"constraints": catalog(), "temperature": 1.5, "seed": seed} for seed in range(6)]
    lists = [{"constraints": catalog(items=5, separator="\n"), "temperature": 1.5, "seed": seed} for seed in range(4)]
    free = {"max_tokens": 24, "temperature": 0}
    kinds: list[list[dict[str, Any]]] = [[one[at], lists[at], free] for at in range(4)]
    got = answers(tiny, *(fields for three in kinds for fields in three), *one[4:])
    members = set(TITLES)
    for at in range(0, 24, 6):
        for reply in got[at : at + 2]:
            assert (reply.content in members, reply.finish_reason) == (True, "stop"), reply.content
        for reply in got[at + 2 : at + 4]:
            check_list(reply, members, 5)
    assert all(reply.content in members for reply in got[24:])
    # Rows without a constraint are as if there were no others.
    unbound = {reply.content for at in range(4, 24, 6) for reply in got[at : at + 2]}
    assert unbound == {answers(tiny, free)[0].content}


def test_no_token_comes_twice(tiny: Constrained) -> None:
    asked = {"constraints": {"no_repeat_ngram": {"size": 1}}, "max_tokens": 32, "ignore_eos": True, "temperature": 2}
    body = {"model": tiny.model, "prompt": "a a a a", "return_token_ids": True} | asked
    (choice,) = httpx.post(f"{tiny.stack.url}/v1/completions", json=body, timeout=60).json()["choices"]
    assert len(set(choice["token_ids"])) == len(choice["token_ids"]) == 32


async def test_the_check_sees_it(tiny: Constrained) -> None:
    reports: list[ModelReport] = []
    settings = Settings(triton=[tiny.stack.triton_url], model_repository=[tiny.stack.repository])
    await check_triton(settings, tiny.stack.triton_url, lambda _: None, reports.append, ["constraints"])
    kinds = [verdict.kind for report in reports for api in report.apis.values() for verdict in api.fields.values()]
    assert kinds == [Kind.SEEN, Kind.SEEN]


@pytest.mark.parametrize(
    ("constraints", "param"),
    [
        ({"other": {}}, "constraints.other"),
        ({}, "constraints"),
        ({**catalog(), "no_repeat_ngram": {"size": 2}}, "constraints"),
        ({"catalog": {}}, "constraints.catalog.name"),
        ({"catalog": {"name": "absent"}}, "constraints.catalog.name"),
        ({"catalog": {"name": "../titles"}}, "constraints.catalog.name"),
        ({"catalog": {"name": "empty"}}, "constraints.catalog.name"),
        ({"catalog": {"name": "cut"}}, "constraints.catalog.name"),
        ({"catalog": {"name": "foreign"}}, "constraints.catalog.name"),
        (catalog(size=2), "constraints.catalog.size"),
        (catalog(items=0), "constraints.catalog.items"),
        (catalog(items=len(TITLES) + 1, separator="\n"), "constraints.catalog.items"),
        (catalog(items=2), "constraints.catalog.separator"),
        ({"no_repeat_ngram": {"size": 65}}, "constraints.no_repeat_ngram.size"),
        ({"no_repeat_ngram": {"size": "3"}}, "constraints.no_repeat_ngram.size"),
    ],
)
def test_a_bad_argument_is_400_with_its_name(constraints: dict[str, Any], param: str, tiny: Constrained) -> None:
    error = tiny.refusal(constraints)
    assert (error["param"], error["type"]) == (param, "invalid_request_error")
    assert error["message"].startswith(f"{param}: ")
    # Nothing of the server's own places.
    assert str(tiny.folder) not in error["message"]


@pytest.mark.parametrize(
    "beside",
    [{"allowed_token_ids": [5]}, {"bad_words": ["Red"]}, {"min_tokens": 2}, {"ignore_eos": True}],
    ids=lambda fields: next(iter(fields)),
)
def test_what_could_leave_nothing_allowed_is_refused(beside: dict[str, Any], tiny: Constrained) -> None:
    error = tiny.refusal(catalog(), **beside)
    assert error["param"] == "constraints"
    assert next(iter(beside)) in error["message"]


def test_beside_a_structured_output_it_is_refused(tiny: Constrained) -> None:
    error = tiny.refusal(catalog(), response_format={"type": "json_object"})
    assert error["param"] == "constraints"
    assert "response_format" in error["message"]


def test_a_catalogue_may_be_added_and_replaced(tiny: Constrained) -> None:
    target = tiny.folder / "added.catalog"
    for entries in (["Grey Coat"], ["Black Coat"]):
        build_catalog(entries, models.tiny(Path(sys.executable)), target)
        replies = answers(tiny, {"constraints": {"catalog": {"name": "added"}}})
        assert [reply.content for reply in replies] == entries * 2


def test_nothing_reads_it_where_no_processor_is_loaded(stack: Stack, backend: Backend) -> None:
    """vLLM alone would answer as if it had not been asked."""
    error = Constrained(stack, Path(), models.TINY).refusal(catalog())
    assert error["param"] == "constraints"
    assert "logits_processors" in error["message"]


def test_a_text_without_entries_makes_no_catalogue(tmp_path: Path, engine_platform: None) -> None:
    source = tmp_path / "nothing.txt"
    source.write_text("\n\n")
    command = build_command(source, models.tiny(Path(sys.executable)), tmp_path / "nothing.catalog")
    ended = subprocess.run(command, capture_output=True, text=True)
    # Ahead of it, transformers may say that there is no torch.
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.splitlines()[-1] == f"{source} has no entries; it must have one a line."
    assert not (tmp_path / "nothing.catalog").exists()


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_million_ids(engine_platform: None, tmp_path: Path) -> None:
    folder = tmp_path / "catalogs"
    folder.mkdir()
    build_catalog(map(shop_id, range(IDS)), models.smollm2(), folder / "titles.catalog")
    members = set(map(shop_id, range(IDS)))
    assert len(members) == IDS
    stack = running(models.SMOLLM2, folder, tmp_path / "stack")
    try:
        constrained = Constrained(stack, folder, models.SMOLLM2)
        one = [{"constraints": catalog(), "temperature": 1.5, "seed": seed} for seed in range(8)]
        lists = [{"constraints": catalog(items=3, separator="\n"), "temperature": 1, "seed": seed} for seed in range(3)]
        free = [{"max_tokens": 16, "temperature": 0}] * 3
        got = answers(constrained, *(fields for three in zip(one, lists, free, strict=False) for fields in three),
                      *one[3:])  # fmt: skip
    finally:
        stack.stop()
    singles = [*got[0:18:6], *got[1:18:6], *got[18:]]
    assert [reply.content for reply in singles if reply.content not in members] == []
    assert {reply.finish_reason for reply in singles} == {"stop"}
    # Not one and the same answer over and over.
    assert len({reply.content for reply in singles}) > 4
    for reply in [*got[2:18:6], *got[3:18:6]]:
        check_list(reply, members, 3)
    assert len({reply.content for reply in [*got[4:18:6], *got[5:18:6]]}) == 1
