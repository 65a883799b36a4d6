"""The proxy's own settings: one sentence for everything that is wrong with one."""

from pathlib import Path

import pytest

from devtools.paths import ROOT
from metrics_proxy.settings import PolicySettings, Settings, SourceSettings, load, parser
from tests.support.refusals import refusal, refusal_of_process

PAGE = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")


def test_sources_win_over_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "proxy.yaml"
    file.write_text("sources: [{kind: directory, path: /a}]\n")
    assert load(["--config", str(file)]).source_names == ["directory"]
    monkeypatch.setenv("METRICS_PROXY_SOURCES", "triton=http://b:1/metrics")
    assert load(["--config", str(file)]).sources[0].url == "http://b:1/metrics"
    assert load(["--source", "exporter=http://c/x"]).source_names == ["exporter"]


def test_sources_in_every_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = '{"kind": "exporter", "url": "http://[::1]:9/m?x[]=1", "name": "gpu", "labels": {"pod": "p"}}'
    forms = ("triton=http://a:8002/metrics", "directory=/d", "directory=/e", gpu)
    settings = load([argument for form in forms for argument in ("--source", form)])
    assert settings.source_names == ["triton", "directory", "directory-2", "gpu"]
    assert settings.sources[3].labels == {"pod": "p"}
    monkeypatch.setenv("METRICS_PROXY_SOURCES", '[{"kind": "directory", "path": "/d", "same_series": "label"}]')
    assert load([]).sources[0].same_series == "label"
    file = tmp_path / "proxy.yaml"
    file.write_text(
        "sources:\n- {kind: triton, url: 'http://a/metrics', name: t}\npolicies:\n  'vllm:a': {rename: {t: 'b:a'}}\n"
    )
    monkeypatch.delenv("METRICS_PROXY_SOURCES")
    assert load(["--config", str(file)]).policies["vllm:a"].rename == {"t": "b:a"}
    assert load([]).sources[0].url == "http://127.0.0.1:8002/metrics"


def sentence(*arguments: str) -> str:
    """The one sentence that refuses these flags and the environment."""
    return refusal(lambda: load(arguments))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--prot", "1"], "--prot"),
        (["--source-timeout", "0"], "'source_timeout' (--source-timeout)"),
        (["--compact-after", "-1"], "'compact_after' (--compact-after)"),
        (["--host", "a b"], "'host' (--host)"),
        (["--source", "x"], "'sources' (--source) is wrong: 'x' is neither KIND=ADDRESS nor a JSON object"),
        (["--source", "{"], "'sources' (--source) is wrong: it is not valid JSON"),
        (["--source", "node=http://a/metrics"], "'sources[0].kind' (--source)"),
        (["--source", "triton="], "'sources[0].url' (--source)"),
        (["--source", "triton=http://a:8002"], "is not the URL of a page such as http://127.0.0.1:8002/metrics"),
        (["--source", "triton=http://u:secret@a/metrics"], "must not hold user:password@"),
        (["--source", "triton=http://a:0/metrics"], "between 1 and 65535"),
        (["--source", "triton=ftp://a/metrics"], "is not the URL"),
        (["--source", "directory="], "'sources[0].path' (--source)"),
        (["--source", '{"kind":"directory","url":"http://a/m"}'], "a source of the kind directory needs a path"),
        (["--source", '{"kind":"triton","url":"http://a/m","path":"/a"}'], "has no path"),
        (["--source", '{"kind":"triton","url":"http://a/m","same_series":"sum"}'], "are for directories"),
        (["--source", '{"kind":"directory","path":"/a","x":1}'], "'sources[0].x' (--source) is wrong: it does not"),
        (["--source", '{"kind":"directory","path":"/a","labels":{"le":"1"}}'], "cannot be a label"),
        (["--source", '{"kind":"directory","path":"/a","labels":{"a":1}}'], "'sources[0].labels.a' (--source)"),
        (["--source", '{"kind":"directory","path":"/a","name":"a b"}'], "is no name of a source"),
        (
            ["--source", '{"kind":"triton","url":"http://a/m","name":"a"}'] * 2,
            "contradict each other: two sources are called 'a'; give each a name",
        ),
        (["--policies", "x"], "'policies' (--policies) is wrong: it is not valid JSON"),
        (["--policies", '{"a":{"prefer":"x"}}'], "names the source 'x', which does not exist"),
        (["--policies", '{"a":{"rename":{"triton":"b c"}}}'], "is no name of a metric"),
    ],
)
def test_a_wrong_flag_is_one_sentence_that_names_it(arguments: list[str], message: str) -> None:
    text = sentence(*arguments)
    assert message in text
    assert "secret" not in text


@pytest.mark.parametrize(
    ("yaml", "message"),
    [
        ("prot: 1", "'prot' (FILE) does not exist"),
        ("sources: []", "'sources' (FILE)"),
        ("sources: [1]", "'sources[0]' (FILE) is wrong: it must be a mapping"),
        ("sources: [{kind: triton}]", "a source of the kind triton needs a url"),
        ("policies: {a: {prefer: 1}}", "'policies.a.prefer' (FILE)"),
        ("fail_when_down: 1", "'fail_when_down' (FILE)"),
    ],
)
def test_a_wrong_file_is_one_sentence_that_names_it(yaml: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "proxy.yaml"
    file.write_text(yaml)
    assert message.replace("FILE", str(file)) in sentence("--config", str(file))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("METRICS_PROXY_PORT", "tcp://10.0.0.1:9401", "Kubernetes injects for a Service named 'metrics-proxy'"),
        ("METRICS_PROXY_SOURCES", "", "'sources' (METRICS_PROXY_SOURCES)"),
        ("METRICS_PROXY_SOURCES", "[1]", "'sources[0]' (METRICS_PROXY_SOURCES)"),
        ("METRICS_PROXY_TYPO", "1", "METRICS_PROXY_TYPO"),
    ],
)
def test_a_wrong_variable_is_one_sentence_that_names_it(
    name: str, value: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    assert message in sentence()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--host", ""], "'host' (--host)"),
        (["--source", "x"], "'sources' (--source)"),
        (["--config", "/"], "Is a directory"),
        (["clean", "--all"], "Unrecognized arguments: --all"),
    ],
)
def test_the_process_ends_with_the_sentence_and_code_2(arguments: list[str], message: str) -> None:
    assert message in refusal_of_process("metrics_proxy", *arguments)


def test_a_flag_names_one_source() -> None:
    text = " ".join(parser().format_help().split())
    assert "--source KIND=ADDRESS" in text
    assert "--sources" not in text
    assert "(default: triton=http://127.0.0.1:8002/metrics)" in text


def test_every_setting_is_documented_with_its_default() -> None:
    for name, field in Settings.model_fields.items():
        row = next((line for line in PAGE.splitlines() if line.startswith(f"| `{name}` |")), None)
        assert row, f"docs/metrics.md has no row for {name}"
        if isinstance(field.default, int | float | str) and not isinstance(field.default, bool):
            assert f"| {field.default} |" in row
    for name in (*SourceSettings.model_fields, *PolicySettings.model_fields):
        assert f"`{name}`" in PAGE
