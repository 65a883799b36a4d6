"""Which requests get in, by their heads alone, and how the file of keys is followed."""

import asyncio
import io
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from gateway.access import command
from gateway.access.authentication import OPEN_PATHS, Access, check_exposure
from gateway.access.redaction import redact_logs
from gateway.openai.errors import ApiError
from gateway.settings import load
from service_base import logs
from service_base.errors import SettingsError
from tests.support.waiting import wait_for

CHAT = "/v1/chat/completions"


class File:
    """A file of keys; making one gives the key."""

    def __init__(self, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.path = path
        self._capsys = capsys

    def new(self, *arguments: str) -> str:
        assert command.main(["new", *arguments, "--keys-file", str(self.path)]) == 0
        return self._capsys.readouterr().out.strip()

    def revoke(self, name: str) -> None:
        assert command.main(["revoke", name, "--keys-file", str(self.path)]) == 0


@pytest.fixture
def file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> File:
    return File(tmp_path / "keys.yaml", capsys)


def scope(path: str, *headers: tuple[str, str]) -> dict[str, Any]:
    return {"type": "http", "path": path, "headers": [(name.encode(), value.encode()) for name, value in headers]}


def bearer(key: str, path: str = CHAT) -> dict[str, Any]:
    return scope(path, ("authorization", f"Bearer {key}"))


def refusal(access: Access, request: dict[str, Any]) -> ApiError:
    with pytest.raises(ApiError) as caught:
        access.authenticate(request)
    return caught.value


def test_without_a_file_everybody_is_anonymous_but_for_the_admin() -> None:
    access = Access(None)
    assert access.authenticate(scope(CHAT)).name == ""
    assert access.authenticate(bearer("sk-whatever")).name == ""
    error = refusal(access, scope("/admin/instances"))
    assert (error.status, error.code) == (403, "admin_key_required")
    assert "--admin" in error.message


def test_who_has_a_key_gets_in(file: File) -> None:
    key = file.new("a", "--tokens-per-minute", "9")
    access = Access(file.path)
    found = access.authenticate(bearer(key))
    assert (found.name, found.limits.tokens_per_minute) == ("a", 9)
    assert access.authenticate(scope(CHAT, ("authorization", f"bearer   {key} "))) == found


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/tokenize", "/detokenize", "/v1/models", "/nowhere", "/"])
def test_who_has_none_does_not(path: str, file: File) -> None:
    key = file.new("a")
    access = Access(file.path)
    for headers in (
        [],
        [("authorization", "")],
        [("authorization", "Bearer")],
        [("authorization", key)],
        [("authorization", f"Basic {key}")],
        [("authorization", f"Bearer {key[:-1]}")],
        [("authorization", f"Bearer {key}x")],
        [("authorization", f"Bearer {key}"), ("authorization", f"Bearer {key}")],
        [("x-api-key", key)],
    ):
        error = refusal(access, scope(path, *headers))
        assert (error.status, error.code) == (401, "invalid_api_key")
        assert error.headers == {"www-authenticate": "Bearer"}
        assert key[12:-1] not in error.message


@pytest.mark.parametrize("path", sorted(OPEN_PATHS))
def test_probes_and_scrapers_need_no_key(path: str, file: File) -> None:
    file.new("a")
    assert Access(file.path).authenticate(scope(path)).name == ""


def test_an_admin_key_is_for_the_admin_routes_and_only_these(file: File) -> None:
    plain, admin = file.new("a"), file.new("ops", "--admin")
    access = Access(file.path)
    assert access.authenticate(bearer(admin, "/admin/instances")).admin
    assert refusal(access, bearer(admin)).code == "admin_key_not_allowed"
    error = refusal(access, bearer(plain, "/admin/instances"))
    assert (error.status, error.code) == (403, "admin_key_required")
    assert refusal(access, scope("/admin/instances")).status == 401


def test_a_change_of_the_file_is_followed(file: File, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    old = file.new("a")
    access = Access(file.path)

    def name_of(key: str) -> str:
        try:
            return access.authenticate(bearer(key)).name
        except ApiError:
            return "nobody"

    def change() -> None:
        new = file.new("b")
        wait_for(lambda: name_of(new) == "b")
        file.revoke("a")
        wait_for(lambda: name_of(old) == "nobody")
        # As an editor does that puts another file in its place, here with the same length and time.
        status = file.path.stat()
        other = file.path.with_suffix(".new")
        other.write_text(file.path.read_text().replace("\nb:", "\nc:"))
        os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
        other.replace(file.path)
        wait_for(lambda: name_of(new) == "c")
        file.path.write_text("c: [")
        wait_for(lambda: "the old keys stay in force" in caplog.text)
        assert name_of(new) == "c"
        file.path.unlink()
        wait_for(lambda: caplog.text.count("the old keys stay in force") == 2)
        assert name_of(new) == "c"
        file.path.write_text("")
        wait_for(lambda: name_of(new) == "nobody")

    async def follow() -> None:
        following = asyncio.create_task(access.follow())
        await asyncio.to_thread(change)
        following.cancel()

    asyncio.run(follow())
    assert "c: [" not in caplog.text


def test_a_reload_reads_at_once(file: File) -> None:
    file.new("a")
    access = Access(file.path)
    key = file.new("b")
    assert refusal(access, bearer(key)).status == 401
    access.reload()
    assert access.authenticate(bearer(key)).name == "b"


def test_a_start_with_a_broken_file_is_refused(file: File) -> None:
    with pytest.raises(SettingsError, match="cannot be read"):
        Access(file.path)
    file.path.write_text("a: b")
    with pytest.raises(SettingsError, match="The key a in"):
        Access(file.path)


@pytest.mark.parametrize(
    ("address", "is_exposed"),
    [("127.0.0.1", False), ("127.8.9.1", False), ("::1", False), ("::ffff:127.0.0.1", False), ("0.0.0.0", True),
     ("::", True), ("192.168.1.4", True), ("fe80::1%eth0", True), ("::ffff:10.0.0.1", True)],
)  # fmt: skip
def test_another_address_than_loopback_needs_keys_or_a_word(address: str, is_exposed: bool, file: File) -> None:
    file.new("a")
    check_exposure(address, load(["--keys-file", str(file.path)]))
    check_exposure(address, load(["--allow-anonymous"]))
    if is_exposed:
        with pytest.raises(SettingsError, match="--allow-anonymous"):
            check_exposure(address, load([]))
    else:
        check_exposure(address, load([]))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("kind", [io.StringIO, Terminal])
def test_no_log_line_shows_a_key(kind: type[io.StringIO], file: File, monkeypatch: pytest.MonkeyPatch) -> None:
    key = file.new("a")
    stream = kind()
    monkeypatch.setattr("sys.stderr", stream)
    root, log = logging.getLogger(), logging.getLogger("x")
    # What `configure` changes for the whole process.
    monkeypatch.setattr(root, "handlers", [])
    for name in ("_srcfile", "logThreads", "logProcesses", "logMultiprocessing"):
        monkeypatch.setattr(logging, name, getattr(logging, name))
    monkeypatch.setattr(logs, "_json_lines", None)
    logs.configure("info")
    redact_logs()
    log.error("a %s and b", key, extra={"path": f"/v1/models/{key}"})
    log.error("cut %s", key[:30])
    logs.event(log, logging.INFO, f"event {key}", {"path": f"/v1/models/{key}"})
    try:
        raise ValueError(key)
    except ValueError:
        log.exception("failed")
    log.error("none")
    lines = stream.getvalue()
    assert key[12:30] not in lines
    assert lines.count(f"gw-{key[3:11]}-…") >= 4
    assert "none" in lines
