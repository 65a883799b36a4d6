"""What every service's settings have: precedence, one sentence for everything that is wrong, flags and their help."""

from pathlib import Path
from typing import Annotated, ClassVar, Self

import pytest
from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_settings import SettingsConfigDict

from service_base.flags import Flag, Parser, add_flags
from service_base.settings import ServiceSettings, read
from service_base.types import Bytes, Count, FolderPath, FromJson, Host, Listed, LogLevel, Port, Seconds
from tests.support.refusals import refusal


class Cup(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    size: int
    saucer: FolderPath | None = None


class Settings(ServiceSettings):
    """Of a service that is called `tea-room` in Kubernetes: a kind of setting each."""

    model_config = SettingsConfigDict(env_prefix="TEA_ROOM_")

    help_command: ClassVar[str] = "tea --help"

    host: Host = Field("127.0.0.1", description="the host")
    port: Port = Field(9000, description="the port")
    guests: Listed[str] = Field(["Ann", "Bob"], min_length=1, description="who comes")
    cups: FromJson[list[Cup]] = Field([], description="the cups")
    spoons: Annotated[list[str], Flag("METAL", name="spoon", default="tin")] = Field(["tin"], description="the spoons")
    garden: FolderPath | None = Field(None, description="the garden")
    tables: Count = Field(3, description="the tables")
    sugar: Bytes = Field(0, ge=0, description="the sugar, 100% of it")
    steep: Seconds = Field(180, description="how long")
    outside: bool = Field(False, description="in the garden")
    log_level: LogLevel = Field("info", description="what is logged")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if len(self.cups) > self.tables:
            raise ValueError("there are more cups than tables")
        return self


def parser() -> Parser:
    flags = Parser(prog="tea", epilog=Settings.epilog("lists hold commas"), allow_abbrev=False)
    add_flags(flags, Settings)
    return flags


def load(*arguments: str) -> Settings:
    return read(Settings, vars(parser().parse_args(arguments)))


def sentence(*arguments: str) -> str:
    """The one sentence that refuses these flags and the environment."""
    return refusal(lambda: load(*arguments))


def test_flags_win_over_the_environment_and_that_over_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "tea.yaml"
    file.write_text("port: 1001\nhost: 0.0.0.1\ntables: 5\nguests: [Cid]\n")
    monkeypatch.setenv("TEA_ROOM_PORT", "1002")
    monkeypatch.setenv("TEA_ROOM_HOST", "0.0.0.2")
    settings = load("--config", str(file), "--port", "1003")
    assert (settings.port, settings.host, settings.tables) == (1003, "0.0.0.2", 5)
    assert settings.guests == ["Cid"]
    monkeypatch.setenv("TEA_ROOM_GUESTS", "Dan, Eve")
    assert load("--config", str(file)).guests == ["Dan", "Eve"]
    assert load("--guests", "Fay", "--guests", "Gus, Jr.").guests == ["Fay", "Gus, Jr."]


def test_variables_are_converted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "tea.yaml"
    file.write_text("tables: 5")
    for name, value in {
        "CONFIG": str(file),
        "PORT": "1",
        "OUTSIDE": "yes",
        "STEEP": "1.5",
        "GARDEN": "g",
        "CUPS": '[{"size": 2, "saucer": "s"}]',
    }.items():
        monkeypatch.setenv(f"TEA_ROOM_{name}", value)
    settings = load()
    assert (settings.port, settings.outside, settings.steep, settings.tables) == (1, True, 1.5, 5)
    assert (settings.garden, settings.cups) == (Path("g"), [Cup(size=2, saucer=Path("s"))])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--port", "x"], "'port' (--port)"),
        (["--port", "65536"], "'port' (--port)"),
        (["--port"], "Argument --port: expected one argument; `tea --help` shows what can be given."),
        (["--prot", "1"], "Unrecognized arguments: --prot 1"),
        (["--por", "1"], "Unrecognized arguments: --por 1"),
        (["--log-level", "loud"], "'log_level' (--log-level)"),
        (["--tables", "0"], "'tables' (--tables)"),
        (["--steep", "inf"], "'steep' (--steep)"),
        (["--steep", "nan"], "'steep' (--steep)"),
        (["--steep", "0"], "'steep' (--steep)"),
        (["--cups", "["], "'cups' (--cups) is wrong: it is not valid JSON: "),
        (["--cups", "[" * 100_000], "'cups' (--cups) is wrong: it is not valid JSON: it is nested too deeply"),
        (["--cups", '[{"size": NaN}]'], "'cups' (--cups) is wrong: it is not valid JSON: NaN is no JSON"),
        (["--cups", '[{"size":1,"size":2}]'], "a name stands twice: 'size'"),
        (["--cups", "[{}]"], "'cups[0].size' (--cups) is wrong: it is required"),
        (["--cups", '[{"size":true}]'], "'cups[0].size' (--cups)"),
        (["--garden", ""], "'garden' (--garden)"),
        (["--garden", "a\0b"], "'garden' (--garden)"),
        (["--tables", "1", "--cups", '[{"size":1},{"size":2}]'], "The settings contradict each other: there are more"),
        (["--config", ""], "'config'"),
        (["--config", "/"], "/ cannot be read: Is a directory"),
        (["--config", "nowhere.yaml"], "nowhere.yaml cannot be read: No such file"),
        (["--config", "x" * 5000], "File name too long"),
    ],
)
def test_a_wrong_flag_is_one_sentence_that_names_it(arguments: list[str], message: str) -> None:
    assert message in sentence(*arguments)


@pytest.mark.parametrize(
    ("yaml", "message"),
    [
        ("prot: 1", "'prot' (FILE) does not exist; `tea --help` lists all"),
        ("[1]", "FILE must hold a YAML mapping"),
        ("a: [", "FILE is not valid YAML: line 1"),
        ("\x01", "FILE is not valid YAML"),
        ("[ " * 5000, "FILE is nested too deeply"),
        (b"host: \xff", "FILE cannot be read: it is not UTF-8 text"),
        ("1: 2", "line 1: a key must be text"),
        ("~: 2", "line 1: a key must be text"),
        ("cups: [{1: 2}]", "line 1: a key must be text"),
        ("port: 1\nport: 2", "line 2: the key 'port' stands there twice"),
        ("cups: [{size: 1, size: 2}]", "'size' stands there twice"),
        ("port: true", "'port' (FILE)"),
        ("port: '1'", "'port' (FILE) is wrong: it must be a valid integer, without quotes (got '1')"),
        ("port: 1.0", "'port' (FILE)"),
        ("port:", "'port' (FILE)"),
        ("host: 2020-01-01", "'host' (FILE)"),
        ("outside: 1", "'outside' (FILE)"),
        ("steep: true", "'steep' (FILE)"),
        ("steep: .inf", "'steep' (FILE)"),
        ("steep: .nan", "'steep' (FILE)"),
        ("guests: []", "'guests' (FILE)"),
        ("guests: [1]", "'guests[0]' (FILE)"),
        ("garden: [a]", "'garden' (FILE)"),
        ("garden: ' '", "'garden' (FILE)"),
        ("cups: &a [*a]", "'cups[0]' (FILE) is wrong: it must be a mapping"),
        ("cups: [{size: 1, colour: x}]", "'cups[0].colour' (FILE) is wrong: it does not exist"),
        ("cups: [{size: 1, saucer: ''}]", "'cups[0].saucer' (FILE)"),
        ("cups: [{size: 1, saucer: 5}]", "'cups[0].saucer' (FILE)"),
    ],
)
def test_a_wrong_file_is_one_sentence_that_names_it(yaml: str | bytes, message: str, tmp_path: Path) -> None:
    file = tmp_path / "tea.yaml"
    file.write_bytes(yaml if isinstance(yaml, bytes) else yaml.encode())
    assert message.replace("FILE", str(file)) in sentence("--config", str(file))


def test_a_file_may_be_empty_and_merge_mappings(tmp_path: Path) -> None:
    file = tmp_path / "tea.yaml"
    file.write_text("# nothing\n")
    assert load("--config", str(file)).tables == 3
    file.write_text("cups:\n- &first {size: 1, saucer: s}\n- {<<: *first, size: 2}\n")
    assert load("--config", str(file)).cups[1] == Cup(size=2, saucer=Path("s"))


def test_what_a_flag_overrides_must_be_right_too(tmp_path: Path) -> None:
    file = tmp_path / "tea.yaml"
    file.write_text("port: true")
    assert "'port'" in sentence("--config", str(file), "--port", "1")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("TEA_ROOM_PORT", "x", "'port' (TEA_ROOM_PORT)"),
        ("TEA_ROOM_PORT", "true", "'port' (TEA_ROOM_PORT)"),
        (
            "TEA_ROOM_PORT",
            "tcp://10.0.0.1:9000",
            "Kubernetes injects for a Service named 'tea-room'; set enableServiceLinks: false in the pod's spec, set "
            "TEA_ROOM_PORT in the container's env, or give --port",
        ),
        ("TEA_ROOM_HOST", "", "'host' (TEA_ROOM_HOST)"),
        ("TEA_ROOM_CUPS", "x", "'cups' (TEA_ROOM_CUPS) is wrong: it is not valid JSON"),
        ("TEA_ROOM_CUPS", "", "'cups' (TEA_ROOM_CUPS)"),
        ("TEA_ROOM_GARDEN", "", "'garden' (TEA_ROOM_GARDEN)"),
        ("TEA_ROOM_GUESTS", "Ann,", "'guests' (TEA_ROOM_GUESTS) is wrong: the comma-separated list has an empty item"),
        ("TEA_ROOM_GUESTS", " ", "'guests' (TEA_ROOM_GUESTS)"),
        ("TEA_ROOM_STEEP", "nan", "'steep' (TEA_ROOM_STEEP)"),
        ("TEA_ROOM_OUTSIDE", "maybe", "'outside' (TEA_ROOM_OUTSIDE)"),
        ("TEA_ROOM_CONFIG", "nowhere.yaml", "nowhere.yaml cannot be read"),
        ("TEA_ROOM_CONFIG", "", "'config'"),
        ("TEA_ROOM_TYPO", "1", "The variable TEA_ROOM_TYPO is no setting; `tea --help` lists all"),
        ("TEA_ROOM_TYPO_PORT", "1", "TEA_ROOM_TYPO_PORT"),
        ("TEA_ROOM_", "1", "TEA_ROOM_ "),
        ("tea_room_port", "1", "must be written in capitals: TEA_ROOM_PORT"),
    ],
)
def test_a_wrong_variable_is_one_sentence_that_names_it(
    name: str, value: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    assert message in sentence()


def test_what_kubernetes_injects_for_services_of_a_like_name_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    address = "tcp://10.0.0.1:9000"
    for service in ("TEA_ROOM", "TEA_ROOM_API", "TEA_ROOM_2"):
        values = {"SERVICE_HOST": "10.0.0.1", "SERVICE_PORT": "9000", "SERVICE_PORT_HTTP_API": "9000", "PORT": address}
        tcp = {"": address, "_PROTO": "tcp", "_PORT": "9000", "_ADDR": "10.0.0.1"}
        for name, value in (values | {f"PORT_9000_TCP{part}": value for part, value in tcp.items()}).items():
            monkeypatch.setenv(f"{service}_{name}", value)
    assert load("--port", "1").port == 1


def test_every_setting_is_a_flag_with_a_help_text() -> None:
    text = " ".join(parser().format_help().split())
    for flag in (
        "--config FILE YAML file with settings",
        "--host ADDRESS the host (default: 127.0.0.1)",
        "--guests VALUE who comes (default: Ann, Bob)",
        "--cups JSON the cups --",
        "--spoon METAL the spoons (default: tin)",
        "--garden DIR the garden --",
        "--tables COUNT the tables (default: 3)",
        "--sugar BYTES the sugar, 100% of it (default: 0)",
        "--steep SECONDS how long (default: 180)",
        "--outside, --no-outside in the garden --",
        "--log-level {debug,info,warning,error} what is logged (default: info)",
        "TEA_ROOM_PORT; lists hold commas",
    ):
        assert flag in text
    assert load("--spoon", "tin", "--spoon", "silver").spoons == ["tin", "silver"]
