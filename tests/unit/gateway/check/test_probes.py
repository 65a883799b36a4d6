"""The self-check knows every field of the tables, and what it prints is what it saw."""

from collections.abc import Mapping

import pytest

from gateway.check.answers import Api
from gateway.check.probes import MAY_BE_REFUSED, PROBES, UNSEEN
from gateway.check.report import as_json, table
from gateway.check.run import ApiReport, ModelReport
from gateway.check.verdicts import Verdict, accepted, failed, refused, seen
from gateway.openai.fields import CHAT, COMPLETION, Fate, Field
from gateway.triton.contract import Backend

URL = "http://triton:8000"
MODEL = ("llama", "llama-8b")


@pytest.mark.parametrize(("api", "fields"), [("chat", CHAT), ("completions", COMPLETION)])
def test_every_field_that_is_forwarded_or_done_has_a_probe(api: Api, fields: Mapping[str, Field]) -> None:
    assert PROBES[api].keys() == {f.name for f in fields.values() if f.fate in (Fate.FORWARDED, Fate.DONE)}


def test_what_is_said_of_fields_is_said_of_fields_that_exist() -> None:
    assert MAY_BE_REFUSED | UNSEEN.keys() <= PROBES["chat"].keys() | PROBES["completions"].keys()


def report(**chat: Verdict) -> ModelReport:
    return ModelReport(URL, *MODEL, backend=Backend.OURS, apis={"chat": ApiReport(fields=chat)})


def test_a_table_has_a_row_for_each_field_and_wraps_what_is_long() -> None:
    found = report(seed=seen("it came again"), stop=failed("very " * 20 + "long"))
    found.apis["completions"] = ApiReport(
        fields={"seed": seen("it came again"), "stop": refused("no"), "prompt": accepted("who knows")}
    )
    lines = table(found, 70).splitlines()
    assert lines[0] == f"llama on {URL}: this project's vllm_backend"
    assert lines[2:5] == [
        "field   chat    completions  how",
        "seed    seen    seen         it came again",
        "stop    FAILED  refused      chat: very very very very very very very",
    ]
    assert lines[5].strip() == "very very very very very very very very"
    assert (lines[6].split()[-1], lines[7].strip()) == ("long;", "completions: no")
    assert lines[8] == "prompt          accepted     who knows"
    assert lines[-1] == "2 seen, 1 accepted, 1 refused, 1 FAILED"
    assert all(len(line) <= 70 for line in lines)


def test_a_model_is_sound_if_it_is_ready_and_nothing_failed() -> None:
    assert report(seed=refused("no"), stop=accepted("yes"), n=seen("3")).is_sound
    assert not report(seed=failed("no")).is_sound
    assert not ModelReport(URL, *MODEL, not_ready="it sleeps").is_sound
    plain = report()
    plain.apis["chat"].plain = refused("no template")
    assert plain.is_sound
    plain.apis["chat"].plain = failed("dead")
    assert not plain.is_sound


def test_what_could_not_be_asked_is_said() -> None:
    assert table(ModelReport(URL, *MODEL, not_ready="it sleeps."), 80) == f"llama on {URL}: not ready: it sleeps.\n"
    plain = report()
    plain.apis["chat"].plain = failed("The engine is not running.")
    assert "chat: a plain request is FAILED: The engine is not running." in table(plain, 80)


def test_json_holds_what_the_table_holds() -> None:
    found = as_json([report(seed=seen("it came again")), ModelReport(URL, *MODEL, not_ready="it sleeps")])
    assert not found["sound"]
    ready, sleeping = found["models"]
    assert ready["requests"]["chat"]["fields"] == {"seed": {"verdict": "effect seen", "how": "it came again"}}
    assert (ready["name"], ready["triton"], ready["backend"]) == ("llama", URL, "ours")
    assert (sleeping["ready"], sleeping["reason"]) == (False, "it sleeps")
