"""What the workloads ask."""

import itertools

import jsonschema_rs
import orjson
import pytest

from bench.load.workloads import NAMES, SCHEMA, Shape, messages, workload


@pytest.mark.parametrize("name", NAMES)
def test_requests_are_the_same_each_time_and_differ_from_one_another(name: str) -> None:
    asked = workload(name, "m", prompts=8)
    assert asked == workload(name, "m", prompts=8)
    assert len({request.body for request in asked.requests}) == len(asked.requests) == (16 if name == "mixed" else 8)
    # Asked in turn, without end.
    assert list(itertools.islice(asked, 20))[-1] == asked.requests[19 % len(asked.requests)]


def test_the_two_kinds_of_work() -> None:
    preprocess, decode = workload("mixed", "m").requests[:2]
    assert (preprocess.kind, decode.kind) == ("preprocess", "decode")
    long, short = orjson.loads(preprocess.body), orjson.loads(decode.body)
    assert (long["max_tokens"], short["max_tokens"]) == (1, 256)
    assert len(preprocess.body) > 16_000 > 1_000 > len(decode.body)
    assert long["stream"] is True
    assert long["stream_options"] == {"include_usage": True}


def test_a_structured_request_has_a_schema_that_its_answer_is_checked_by() -> None:
    request = workload("structured", "m").requests[0]
    assert orjson.loads(request.body)["response_format"]["json_schema"]["schema"] == SCHEMA
    assert request.expected.schema == SCHEMA
    good = {"city": "Lima", "warm": True, "month": 3, "rain": ["none", "much"]}
    assert jsonschema_rs.is_valid(dict(SCHEMA), good)
    assert not jsonschema_rs.is_valid(dict(SCHEMA), good | {"month": 13})


def test_the_length_of_an_answer_is_known_only_where_it_cannot_end_early() -> None:
    def tokens(shape: Shape) -> int | None:
        return workload("decode", "m", shapes={"decode": shape}).requests[0].expected.tokens

    assert tokens(Shape(100, 7)) is None
    assert tokens(Shape(100, 7, ignore_eos=True)) == 7


@pytest.mark.parametrize(
    "roles", [["user"], ["system", "user"], ["system", "user", "assistant", "user", "assistant", "user"]]
)
def test_messages(roles: list[str]) -> None:
    made = messages(Shape(3600, 1, messages=len(roles)), 5)
    assert [one["role"] for one in made] == roles
    assert sum(len(one["content"]) for one in made) == 3600
