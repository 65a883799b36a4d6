"""A missing precondition is one sentence that says what to do."""

import platform
import socket
from collections import namedtuple
from pathlib import Path

import pytest

from devtools import preconditions
from devtools.errors import DevError
from devtools.preconditions import GIB
from devtools.stack import HOST, Ports


def sentence(error: pytest.ExceptionInfo[DevError]) -> str:
    text = str(error.value)
    assert text.endswith(".")
    assert "\n" not in text
    return text


def test_a_taken_port_is_named_with_its_flag() -> None:
    ports = Ports.free()
    with socket.create_server((HOST, ports.triton_grpc)), pytest.raises(DevError) as error:
        preconditions.check_ports(ports, ("gateway", "triton_grpc"))
    assert sentence(error) == f"Port {ports.triton_grpc} is taken; choose another with --triton-grpc-port."


def test_a_port_that_is_not_used_may_be_taken() -> None:
    ports = Ports.free()
    with socket.create_server((HOST, ports.triton_grpc)):
        preconditions.check_ports(ports, ("gateway", "triton_http"))


def test_a_port_of_a_part_that_is_not_started_is_named() -> None:
    ports = Ports(gateway=9009, metrics_proxy=9409, triton_http=8009)
    used = ("gateway", "triton_http")
    assert preconditions.ports_without_effect(ports, used) == ["--metrics-port"]
    assert preconditions.ports_without_effect(Ports(), used) == []


def test_a_port_on_all_addresses_is_taken_too() -> None:
    ports = Ports.free()
    with socket.create_server(("", ports.gateway)), pytest.raises(DevError, match="is taken"):
        preconditions.check_ports(ports, ("gateway",))


def test_two_parts_on_one_port() -> None:
    with pytest.raises(DevError) as error:
        preconditions.check_ports(Ports(gateway=8000), ("gateway", "triton_http"))
    assert sentence(error) == "--port and --triton-http-port are both 8000; give each a port of its own."


def test_no_space(tmp_path: Path) -> None:
    with pytest.raises(DevError) as error:
        preconditions.check_disk(tmp_path / "not" / "there", 2**60)
    assert "TVS_HOME" in sentence(error)
    preconditions.check_disk(tmp_path / "not" / "there", 1)


def test_no_memory() -> None:
    with pytest.raises(DevError) as error:
        preconditions.check_memory(2**60)
    assert "GiB are free" in sentence(error)
    preconditions.check_memory(1)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("machine", "aarch64", "x86-64"),
        ("libc_ver", ("glibc", "2.31"), "glibc 2.35 or newer"),
        ("libc_ver", ("", ""), "another C library"),
    ],
)
def test_the_engine_s_platform(monkeypatch: pytest.MonkeyPatch, name: str, value: object, says: str) -> None:
    monkeypatch.setattr(platform, name, lambda: value)
    with pytest.raises(DevError) as error:
        preconditions.check_engine_platform()
    assert says in sentence(error)
    assert "--engine mock" in sentence(error)


def test_another_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    with pytest.raises(DevError) as error:
        preconditions.check_linux()
    assert "Darwin" in sentence(error)


def test_the_disk_that_counts_is_the_one_of_the_nearest_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    usage = namedtuple("usage", "free")
    asked: list[Path] = []

    def disk_usage(path: Path) -> object:
        asked.append(path)
        return usage(GIB)

    monkeypatch.setattr("shutil.disk_usage", disk_usage)
    preconditions.check_disk(tmp_path / "a" / "b", GIB)
    assert asked == [tmp_path]
