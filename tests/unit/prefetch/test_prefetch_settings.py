"""A wrong setting is one sentence and exit code 2, from every source; and every setting is documented."""

import json
import re
from pathlib import Path

import pytest

from prefetch.assemble import engine
from prefetch.command_line import main
from prefetch.lustre import file_system
from prefetch.settings import SECRETS, Settings, load
from service_base.errors import SettingsError

_ALLOW = ["--allow", "s3://bkt/x/"]
_TOKEN = {"PREFETCH_TOKENS": "t"}
_EXPORTING = json.dumps([{"path": "/fsx", "source": "s3://bkt/x/", "auto_export": True}])


def _main(
    arguments: list[str], env: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> str:
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert main(arguments) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("prefetch: ")
    assert said.err.count("\n") == 1
    return said.err


@pytest.mark.parametrize(
    ("arguments", "env", "sentence"),
    [
        (["serve", "--target", "t", *_ALLOW], {}, "Nobody could announce"),
        (["serve", "--target", "t"], _TOKEN, "No source is allowed"),
        (["serve", *_ALLOW], _TOKEN, "Give the folder of the models with --target"),
        (["serve", *_ALLOW, "--port", "x"], _TOKEN, "The setting 'port' (--port) is wrong"),
        (["serve", "--allow", "bkt/x"], _TOKEN, "The setting 'allow[0]' (--allow) is wrong"),
        (["serve"], {"PREFETCH_ALLOW": "s3://bkt/,x"}, "The setting 'allow[1]' (PREFETCH_ALLOW) is wrong"),
        (
            ["serve", *_ALLOW],
            {"PREFETCH_TOKENS": "t,"},
            "'tokens' (PREFETCH_TOKENS) is wrong: the comma-separated list",
        ),
        (["serve", *_ALLOW], {"PREFETCH_TOKENS": ""}, "Nobody could announce"),
        (["serve", "--host", "a b"], {}, "The setting 'host' (--host) is wrong"),
        (
            ["serve", "--s3-endpoint", "http://u:hidden@x"],
            {},
            "'s3_endpoint' (--s3-endpoint) is wrong: a URL must not hold",
        ),
        (["serve"], {"PREFETCH_PROT": "1"}, "PREFETCH_PROT is no setting; `python -m prefetch serve --help` lists all"),
        (["serve"], {"PREFETCH_PORT": "tcp://10.0.0.1:9500"}, "enableServiceLinks: false"),
        (["serve", "--triton", "http://x:1"], {}, "are given together or not at all"),
        (["serve", "--low-watermark", "0.95"], {}, "'low_watermark' must not be above 'high_watermark'"),
        (["serve", "--queue", "redis://x"], {}, "neither 'local' nor sqs://"),
        (["serve", "--source-template", "s3://bkt/{x}/"], {}, "{name}, {version}, {alias} alone"),
        (["serve", "--source-template", "s3://{version}/x/"], {}, "does not name a bucket"),
        (["serve", "--tokens-file", "/nowhere", *_ALLOW], {}, "/nowhere cannot be read: No such file"),
        (["serve", "--associations", "["], {}, "it is not valid JSON"),
        (["serve", "--associations", _EXPORTING, "--target", "/fsx/models"], {}, "Put the target elsewhere"),
        (["serve", "--triton-template", "no/such"], {}, "are given together"),
        (["serve", "--por", "1"], {}, "Unrecognized arguments: --por 1"),
        (["pull", "http://x"], {}, "The source is wrong: 'http://x' is not an s3://bucket/prefix/ URL"),
        (["pull", "s3://bkt/"], {}, "does not end in MODEL/VERSION/; give --model and --version"),
        (["pull", "s3://bkt/a/b/", "--model", "../x"], {}, "a component is '..'"),
        (["pull", "s3://bkt/a/b/"], {}, "Give the folder of the models with --target"),
        (["announce", "s3://bkt/a/b/"], {}, "Give the service's token as PREFETCH_TOKENS"),
        (["fetch"], {}, "nvalid choice: 'fetch'"),
        ([], {}, "he following arguments are required: COMMAND"),
    ],
)
def test_a_wrong_setting_is_one_sentence(
    arguments: list[str],
    env: dict[str, str],
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert sentence in _main(arguments, env, monkeypatch, capsys)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("concurrency: '2'\n", "The setting 'concurrency'"),
        ("concurency: 2\n", "The setting 'concurency'"),
        ("allow: [s3://bkt/../x/]\n", "has a component that is empty, '.' or '..'"),
        ("associations: [{path: /x}]\n", "The setting 'associations[0].source'"),
    ],
)
def test_a_wrong_file_is_one_sentence(
    text: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(text)
    assert sentence in _main(["serve", "--config", str(file)], {}, monkeypatch, capsys)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('{"files": {"w": {}, "w": {}}}', "is not valid JSON: a name stands twice: 'w'."),
        ('{"files": {}', "is not valid JSON: Expecting ',' delimiter"),
        ('{"files": {"w": {"size": -1}}}', "is wrong at files.w.size: it must be greater than or equal to 0 (got -1)."),
        ("[]", "is wrong at its beginning: it must be a mapping (got [])."),
    ],
)
def test_a_wrong_manifest_is_one_sentence(
    text: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "manifest.json"
    file.write_text(text)
    said = _main(["pull", "s3://bkt/a/b/", "--manifest", str(file)], {}, monkeypatch, capsys)
    assert said.startswith(f"prefetch: The manifest {file} {sentence}")


_LOOKING = ["ls", "verify", "verify m", "verify m 1", "pin m", "unpin m 1", "gc", "gc --dry-run"]


@pytest.mark.parametrize("command", _LOOKING)
@pytest.mark.parametrize("is_file", [False, True])
def test_a_target_that_is_not_there_is_no_empty_one(
    command: str, is_file: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    target, state = tmp_path / "target", tmp_path / "state"
    if is_file:
        target.touch()
    said = _main([*command.split(), "--target", str(target)], {"PREFETCH_STATE": str(state)}, monkeypatch, capsys)
    assert said == (
        f"prefetch: The setting 'target' is wrong: there is no folder {target}; mount it, or give the right one.\n"
    )
    assert target.exists() is is_file
    assert not state.exists()


@pytest.mark.parametrize("command", _LOOKING)
def test_an_empty_target_holds_nothing(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PREFETCH_STATE", str(tmp_path / "state"))
    (tmp_path / "target").mkdir()
    names_one = " m" in command
    assert main([*command.split(), "--target", str(tmp_path / "target")]) == int(names_one)
    assert ("m is not published below" in capsys.readouterr().err.replace("m 1 is", "m is")) is names_one


@pytest.fixture
def triton(tmp_path: Path) -> dict[str, str]:
    """Settings of one, with all folders but the repository."""
    (tmp_path / "target").mkdir()
    (tmp_path / "template").mkdir()
    return {
        "PREFETCH_TARGET": str(tmp_path / "target"),
        "PREFETCH_STATE": str(tmp_path / "state"),
        "PREFETCH_TRITON": "http://127.0.0.1:9",
        "PREFETCH_TRITON_REPOSITORY": str(tmp_path / "repository"),
        "PREFETCH_TRITON_TEMPLATE": str(tmp_path / "template"),
    }


@pytest.mark.parametrize("command", ["ls", "gc", "gc --dry-run"])
def test_without_tritons_repository_nothing_is_known_of_what_is_loaded(
    command: str,
    triton: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    said = _main(command.split(), triton, monkeypatch, capsys)
    assert f"'triton_repository' is wrong: there is no folder {tmp_path / 'repository'}; mount it" in said
    (tmp_path / "repository").mkdir()
    assert main(command.split()) == 0
    capsys.readouterr()
    (tmp_path / "template").rmdir()
    said = _main(command.split(), {}, monkeypatch, capsys)
    assert f"'triton_template' is wrong: there is no folder {tmp_path / 'template'}; mount it" in said


def test_folders_may_be_given_from_home(
    triton: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "repository").mkdir()
    for name, value in triton.items():
        monkeypatch.setenv(name, value.replace(str(tmp_path), "~"))
    assert main(["ls"]) == 0
    assert (tmp_path / "state").is_dir()


_WORKING = [["serve", *_ALLOW], ["pull", "s3://bkt/a/b/"]]


@pytest.mark.parametrize("command", _WORKING)
@pytest.mark.parametrize("setting", ["target", "triton_repository"])
def test_what_a_job_could_not_write_is_told_ahead(
    command: list[str],
    setting: str,
    triton: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = triton | _TOKEN
    (tmp_path / "file").touch()
    # Where nothing can be made, not even by root.
    for folder, sentence in ((tmp_path / "file" / "x", "cannot be made: Not a directory."), (Path("/proc"), "/proc")):
        given[f"PREFETCH_{setting.upper()}"] = str(folder)
        said = _main(command, given, monkeypatch, capsys)
        assert f"The setting {setting!r} is wrong: " in said
        assert sentence in said


def test_what_jobs_write_to_is_made(
    triton: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in triton.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PREFETCH_TARGET", str(tmp_path / "new" / "target"))
    engine(load({}), for_jobs=True)
    assert list((tmp_path / "new" / "target").iterdir()) == list((tmp_path / "repository").iterdir()) == []
    assert main(["ls"]) == 0


def test_what_is_no_queue_is_told_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "jobs.sqlite3"
    file.write_bytes(b"no database, whatever else it may be")
    flags = ["--target", str(tmp_path / "target"), "--state", str(tmp_path)]
    said = _main(["serve", *_ALLOW, *flags], _TOKEN, monkeypatch, capsys)
    assert f"'state' is wrong: {file} cannot be used as the queue: file is not a database; move it away" in said


def test_secrets_are_neither_flags_nor_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PREFETCH_TOKENS", "first-secret,second-secret")
    monkeypatch.setenv("PREFETCH_MLFLOW_SECRET", "third-secret")
    settings = load({})
    assert settings.all_tokens() == ["first-secret", "second-secret"]
    assert not any(f"{place}-secret" in str(settings.effective()) for place in ("first", "second", "third"))
    assert settings.effective()["tokens"] == settings.effective()["mlflow_secret"] == "(set)"
    with pytest.raises(SystemExit):
        main(["serve", "--help"])
    page = capsys.readouterr().out
    for name in Settings.model_fields:
        assert (f"--{name.replace('_', '-')} " in page) is (name not in SECRETS)


def test_tokens_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text("# who\none\n\n two \n")
    assert load({"tokens_file": str(file)}).all_tokens() == ["one", "two"]


def test_every_setting_and_its_default_are_documented() -> None:
    page = (Path(__file__).parents[3] / "docs" / "prefetch.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]+?) \|", page, re.MULTILINE))
    settings = {name: field.default for name, field in Settings.model_fields.items()}
    assert set(settings) <= set(rows)
    for name, default in settings.items():
        shown = ", ".join(default) if isinstance(default, list) else default
        assert rows[name] == ("-" if shown in (None, "") else str(shown)), name


def test_the_state_must_be_local(monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = (
        "22 1 0:20 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n"
        "30 22 0:31 / /fsx rw,noatime shared:2 - lustre 10.0.0.1@tcp:/fsx rw,flock\n"
        "31 22 0:32 / /my\\040data rw - nfs4 server:/x rw\n"
    )
    assert file_system(Path("/fsx/models"), mounts) == "lustre"
    assert file_system(Path("/fsxx"), mounts) == "ext4"
    assert file_system(Path("/my data/x"), mounts) == "nfs4"
    monkeypatch.setattr("prefetch.lustre.file_system", lambda path: file_system(path, mounts))
    with pytest.raises(SettingsError, match=r"is on a shared file system \(lustre\)"):
        load({"state": "/fsx/state"})
    load({"state": "/var/lib/prefetch"})
