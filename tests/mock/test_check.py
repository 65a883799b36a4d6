"""The self-check against mock engines: it sees what works, and finds out what does not."""

import json
import signal
import subprocess
from pathlib import Path

import pytest

from bench.mock_engine.running import MockEngine, running_mock_engine
from devtools.paths import ROOT
from gateway.check.command import main
from gateway.check.probes import PROBES, UNSEEN
from gateway.check.run import ModelReport, check_triton
from gateway.check.verdicts import Kind
from gateway.settings import Settings, parser
from tests.support.chat import MODEL
from tests.support.check import check, command

ALL = PROBES["chat"].keys() | PROBES["completions"].keys()
# No single answer of a mock engine shows these; its template does not know the variable of chat_template_kwargs.
ACCEPTED = UNSEEN.keys() | {
    "chat_template_kwargs", "spaces_between_special_tokens", "parallel_tool_calls", "include_reasoning",
}  # fmt: skip


async def look(engine: MockEngine, repository: Path, *fields: str, **settings: object) -> ModelReport:
    """The check in this process, of some fields alone."""
    reports: list[ModelReport] = []
    chosen = Settings(triton=[engine.url], model_repository=[repository], **settings)  # type: ignore[arg-type]
    await check_triton(chosen, engine.url, lambda _: None, reports.append, fields or None)
    (report,) = reports
    return report


def kinds(report: ModelReport, field: str) -> set[Kind]:
    """What was seen of it in either request type."""
    return {api.fields[field].kind for api in report.apis.values() if field in api.fields}


def hows(report: ModelReport, field: str) -> str:
    return " ".join(api.fields[field].how for api in report.apis.values() if field in api.fields)


def fields_with(report: ModelReport, kind: Kind) -> set[str]:
    return {name for api in report.apis.values() for name, verdict in api.fields.items() if verdict.kind is kind}


async def test_our_backend_does_everything(engine: MockEngine, repository: Path) -> None:
    engine.add_fault(token_interval_ms=0)
    report = await look(engine, repository)
    assert fields_with(report, Kind.ACCEPTED) == ACCEPTED
    assert fields_with(report, Kind.SEEN) == ALL - ACCEPTED
    assert report.is_sound


async def test_the_stock_backend_does_what_it_can(stock: MockEngine, repository: Path) -> None:
    stock.add_fault(token_interval_ms=0)
    report = await look(stock, repository)
    only_ours = {
        "logit_bias", "stream_interval", "thinking_token_budget", "repetition_detection", "watermarking", "priority",
        "cache_salt", "session_id", "truncate_prompt_tokens", "truncation_side", "logprob_token_ids", "prompt_logprobs",
        "return_token_ids", "constraints",
    }  # fmt: skip
    # Token ids cannot be had from its tokenizer without the BOS, which a rendered chat has already.
    assert fields_with(report, Kind.REFUSED) == only_ours | {"add_special_tokens"}
    assert kinds(report, "add_special_tokens") == {Kind.SEEN, Kind.REFUSED}
    # Without logit_bias the end cannot be brought about early.
    assert fields_with(report, Kind.ACCEPTED) == (ACCEPTED - only_ours) | {"min_tokens"}
    assert report.is_sound


def test_the_command_prints_a_table(engine: MockEngine, repository: Path) -> None:
    engine.add_fault(token_interval_ms=0)
    flags = ("--triton", engine.url, "--model-repository", str(repository))
    ended = subprocess.run(command(*flags), cwd=ROOT, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")
    lines = ended.stdout.splitlines()
    assert lines[0] == f"{MODEL} on {engine.url}: this project's vllm_backend"
    rows = {line.split()[0]: line.split()[1:3] for line in lines[3:] if line and not line.startswith(" ")}
    assert rows.keys() >= ALL
    assert rows["seed"] == ["seen", "seen"]


# What a backend may forget at once without spoiling how the others are looked at.
TOGETHER = {
    "temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty", "seed",
    "stop", "stop_token_ids", "include_stop_str_in_output", "min_tokens", "bad_words", "skip_special_tokens",
    "stream_interval", "repetition_detection", "truncate_prompt_tokens", "truncation_side", "prompt_logprobs",
    "logprob_token_ids",
}  # fmt: skip
ALONE = {
    "logit_bias": "logit_bias", "allowed_token_ids": "allowed_token_ids", "ignore_eos": "ignore_eos",
    "max_tokens": "max_tokens", "logprobs": "logprobs", "top_logprobs": "logprobs",
    "return_token_ids": "return_token_ids", "response_format": "structured_outputs",
    "structured_outputs": "structured_outputs", "guided_json": "structured_outputs",
    "guided_regex": "structured_outputs", "guided_choice": "structured_outputs",
    "guided_grammar": "structured_outputs", "return_tokens_as_token_ids": "logprobs",
    "max_completion_tokens": "max_tokens", "tool_choice": "structured_outputs", "constraints": "extra_args",
}  # fmt: skip
# They need not change an answer: that they are forgotten looks as if they had not.
MAY_DO_NOTHING = {"frequency_penalty", "presence_penalty", "repetition_penalty", "seed", "skip_special_tokens"}


def test_every_field_whose_effect_is_seen_is_tried_without_it() -> None:
    """But for those with which the backend has nothing to do."""
    forgettable = {name for name in ALL if name not in ACCEPTED}
    of_the_gateway = {
        "model", "messages", "prompt", "stream", "stream_options", "n", "request_id", "echo", "return_prompt_text",
        "add_generation_prompt", "continue_final_message", "documents", "add_special_tokens", "tools",
        "reasoning_effort",
    }  # fmt: skip
    assert forgettable - of_the_gateway == TOGETHER | ALONE.keys()


async def test_fields_that_a_backend_forgets_are_found_out(engine: MockEngine, repository: Path) -> None:
    engine.add_fault(forget=sorted(TOGETHER))
    report = await look(engine, repository, *TOGETHER)
    assert {name for name in TOGETHER if Kind.SEEN in kinds(report, name)} == set()
    assert {name for name in TOGETHER if kinds(report, name) != {Kind.FAILED}} == MAY_DO_NOTHING
    assert not report.is_sound


@pytest.mark.parametrize("key", sorted(set(ALONE.values())))
async def test_a_field_that_a_backend_forgets_is_found_out(key: str, engine: MockEngine, repository: Path) -> None:
    fields = [name for name, forgotten in ALONE.items() if forgotten == key]
    engine.add_fault(forget=[key])
    report = await look(engine, repository, *fields)
    assert {name: kinds(report, name) for name in fields} == {name: {Kind.FAILED} for name in fields}


async def test_an_older_backend_is_found_out(repository: Path) -> None:
    with running_mock_engine(model_repository=repository, without=["min_p", "session_id"]) as old:
        report = await look(old, repository, "min_p", "session_id", "top_k")
    assert [kinds(report, name) for name in ("min_p", "session_id", "top_k")] == [
        {Kind.FAILED}, {Kind.FAILED}, {Kind.SEEN},
    ]  # fmt: skip
    assert "is not a sampling parameter of this backend" in hows(report, "min_p")
    assert "is not taken by the vllm_backend" in hows(report, "session_id")


async def test_what_the_engines_configuration_forbids_is_refused_and_no_failure(repository: Path) -> None:
    with running_mock_engine(model_repository=repository) as first_come_first_served:
        report = await look(first_come_first_served, repository, "priority")
    assert kinds(report, "priority") == {Kind.REFUSED}
    assert "priority" in hows(report, "priority")
    assert report.is_sound


async def test_a_refusal_that_no_configuration_explains_is_a_failure(engine: MockEngine, repository: Path) -> None:
    # The plain request, and the tokens that are looked for.
    engine.add_fault(next=3, merge=1)
    engine.add_fault(error_before="INVALID_ARG sampling_parameters.stop: must be a riddle.")
    report = await look(engine, repository, "stop")
    assert kinds(report, "stop") == {Kind.FAILED}
    assert "must be a riddle" in hows(report, "stop")


async def test_an_error_of_the_engine_is_a_failure_whatever_the_field(engine: MockEngine, repository: Path) -> None:
    engine.add_fault(next=3, merge=1)
    engine.add_fault(error_before="INTERNAL: out of luck.")
    report = await look(engine, repository, "seed")
    chat = report.apis["chat"].fields["seed"]
    assert (chat.kind, "out of luck" in chat.how) == (Kind.FAILED, True)
    assert report.apis["completions"].plain is not None


async def test_a_field_without_an_answer_in_time_fails_alone(engine: MockEngine, repository: Path) -> None:
    engine.add_fault(request_id="-probe", stall_before=True)
    report = await look(engine, repository, "request_id", "stop", request_timeout=2)
    assert kinds(report, "request_id") == {Kind.FAILED}
    assert "took longer" in hows(report, "request_id")
    assert kinds(report, "stop") == {Kind.SEEN}


async def test_an_engine_that_stalls_is_not_waited_for_field_by_field(engine: MockEngine, repository: Path) -> None:
    engine.add_fault(next=3, merge=1)
    engine.add_fault(stall_before=True)
    report = await look(engine, repository, request_timeout=0.5)
    chat = report.apis["chat"]
    assert sum("took longer" in verdict.how for verdict in chat.fields.values()) == 3
    assert sum("not tried" in verdict.how for verdict in chat.fields.values()) > 30
    completions = report.apis["completions"]
    assert completions.plain is not None
    assert completions.fields == {}


def test_a_model_that_is_not_ready_is_a_failure_with_its_reason(engine: MockEngine, repository: Path) -> None:
    engine.set_state(models={MODEL: {"ready": False}})
    found = check("--triton", engine.url, "--model-repository", str(repository))
    (model,) = found.report["models"]
    assert (found.code, model["ready"], model["requests"]) == (1, False, {})
    assert "does not have the model" in model["reason"]


def test_each_triton_is_checked_and_one_that_cannot_be_reached_is_a_failure(
    stock: MockEngine, repository: Path
) -> None:
    stock.add_fault(token_interval_ms=0)
    nobody = "http://127.0.0.1:9"
    found = check("--triton", nobody, "--triton", stock.url, "--model-repository", str(repository))
    gone, there = found.report["models"]
    assert (found.code, gone["ready"], there["ready"]) == (1, False, True)
    assert gone["reason"].startswith("the Triton server does not answer")
    assert found.errors == ""


def test_a_model_without_a_chat_template_is_checked_for_completions(engine: MockEngine) -> None:
    engine.add_fault(token_interval_ms=0)
    models = json.dumps([{"triton_model": MODEL, "max_model_len": 512}])
    found = check("--triton", engine.url, "--models", models)
    (model,) = found.report["models"]
    plain = model["requests"]["chat"]["plain"]
    assert (plain["verdict"], "models[].tokenizer" in plain["how"]) == ("refused", True)
    assert found.code == 0
    assert found.verdicts(MODEL, "completions")["seed"] == "effect seen"


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--triton", "nonsense"], "triton"),
        (["--nonsense"], "python -m gateway check --help"),
        ([], "No model is configured"),
    ],
)
def test_a_wrong_setting_is_one_sentence(flags: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(flags) == 2
    out, errors = capsys.readouterr()
    assert named in errors
    assert (out, errors.count("\n")) == ("", 1)


def test_ctrl_c_ends_it_and_the_engines_work(engine: MockEngine, repository: Path) -> None:
    engine.add_fault(token_interval_ms=60_000)
    flags = ("--triton", engine.url, "--model-repository", str(repository))
    with subprocess.Popen(command(*flags), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        while not any(request["admitted"] for request in engine.requests()):
            assert run.poll() is None
        run.send_signal(signal.SIGINT)
        out, errors = run.communicate()
    assert (run.returncode, out, errors) == (130, "", "gateway check: interrupted.\n")
    (request,) = engine.wait_for_requests(1)
    assert request["ended"] == "cancelled"


def test_each_command_has_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    serving = parser().format_help()
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    checking = capsys.readouterr().out
    assert ended.value.code == 0
    assert "python -m gateway check" in serving
    assert "--json" not in serving
    assert "--json" in checking
    assert "--model-repository" in checking
