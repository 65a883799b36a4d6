"""Hosts and URLs of settings."""

import re

import pytest

from service_base.addresses import PATH_CHARACTERS, check_base_url, check_host, check_url


@pytest.mark.parametrize(
    "url",
    [
        "http://a",
        "https://a.b:1",
        "HTTP://A_b-1.:65535/",
        "http://127.0.0.1:8000/x/y",
        "http://[::1]:8000",
        "http://[::1]",
    ],
)
def test_base_urls(url: str) -> None:
    assert check_base_url(url) == url


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", "not a base URL"),
        ("localhost:8000", "http://127.0.0.1:8000"),
        ("ftp://a", "not a base URL"),
        ("http://", "not a base URL"),
        ("http://127.0.0.1:99999", "between 1 and 65535"),
        ("http://127.0.0.1:0", "between 1 and 65535"),
        ("http://127.0.0.1:abc", "not a base URL"),
        ("http://127.0.0.1:", "not a base URL"),
        ("http://127.0.0.1:٣", "not a base URL"),
        ("http://127.0.0.999", "not a base URL"),
        ("http://a b:1", "not a base URL"),
        ("http://a:1/x y", "not a base URL"),
        ("http://a\n:1", "not a base URL"),
        ("http://a..b", "not a base URL"),
        (f"http://{'a' * 64}", "not a base URL"),
        (f"http://{'a.' * 150}a", "not a base URL"),
        (f"http://{'a' * 300}", "not a base URL"),
        ("http://é", "not a base URL"),
        ("http://[::1", "not a base URL"),
        ("http://[::g]", "not a base URL"),
        ("http://::1", "not a base URL"),
        ("http://a?b=c", "query or a fragment"),
        ("http://a#b", "query or a fragment"),
        ("http://user:secret@a", "user:password@"),
        ("http://user@a", "user:password@"),
        ("http://user:sec/ret@[a", "user:password@"),
        ("http://user:sec?ret@a", "user:password@"),
    ],
)
def test_what_is_no_base_url_is_refused(url: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        check_base_url(url)
    assert "sec" not in str(caught.value)


def test_what_follows_the_port_is_the_callers() -> None:
    page = re.compile(rf"/[{PATH_CHARACTERS}]+(\?[{PATH_CHARACTERS}@]*)?", re.ASCII)
    for url in ("http://a/b-c", "http://[::1]:9/m?x=y@z"):
        assert check_url(url, page, "a page") == url
    for url in ("http://a", "http://a/", "http://a/b<c", "http://a/b?c<d", "http://a/b?c d"):
        with pytest.raises(ValueError, match="is not a page"):
            check_url(url, page, "a page")
    with pytest.raises(ValueError, match="user:password@"):
        check_url("http://u:secret@a/b", page, "a page")


@pytest.mark.parametrize("host", ["localhost", "0.0.0.0", "::", "a-b.c"])
def test_hosts(host: str) -> None:
    assert check_host(host) == host


@pytest.mark.parametrize("host", ["", " ", "a b", "[::1]", "a" * 64, "1.2.3", "a:1", "http://a"])
def test_what_is_no_host_is_refused(host: str) -> None:
    with pytest.raises(ValueError, match="neither an IP address nor a host name"):
        check_host(host)
