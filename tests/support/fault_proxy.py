"""A proxy in front of the S3 server that does what networks and servers do: resets, 503, wrong bytes, silence, another
answer for one object. It also counts what it let through.

Rules are tried in order; each applies to the objects and methods that it names, so many times, and changes one thing.
Requests are passed on as they came, since they are signed; a changed one is passed on without its signature (the server
lets anyone read).
"""

import http.client
import re
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import quote, unquote, urlsplit
from xml.sax.saxutils import escape, unescape

_KEY = re.compile(rb"<Key>(.*?)</Key>")
_PIECE = 64 * 1024


@dataclass
class Rule:
    """Applies `times` times to requests for `key` (every key unless given) with this method. One of the effects:

    `status` with `body` and `headers`: answered by the proxy alone. `reset_after`: that many bytes of the body, then a
    TCP reset. `corrupt_at`: the byte at that place of the object is another. `hang`: after half of the body nothing
    comes until the proxy ends. `before` and `then`: called before the request is passed on, and when it was answered.
    `only_access_key`: for those requests alone that are signed with this key.
    """

    key: str | None = None
    method: str = "GET"
    times: int = 1_000_000
    after: int = 0  # requests that are let through before
    status: int | None = None
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    reset_after: int | None = None
    corrupt_at: int | None = None
    hang: bool = False
    before: Callable[[], None] | None = None
    then: Callable[[], None] | None = None
    only_access_key: str | None = None
    used: int = 0


@dataclass(frozen=True)
class Seen:
    """A request for an object. `sent` bytes of the body were let through."""

    method: str
    key: str
    range: str | None
    if_match: str | None
    status: int
    sent: int


def error_body(code: str, message: str = "test") -> bytes:
    text = f"<Error><Code>{code}</Code><Message>{escape(message)}</Message><RequestId>TEST</RequestId></Error>"
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}'.encode()


class FaultProxy:
    """`aliases` are keys as clients see them, each with the key under which the server has the object; `etags` and
    `storage_classes` replace those of the server, by key."""

    def __init__(self, upstream_port: int) -> None:
        self.upstream_port = upstream_port
        self.rules: list[Rule] = []
        self.seen: list[Seen] = []
        self.aliases: dict[str, str] = {}
        self.etags: dict[str, str] = {}
        self.storage_classes: dict[str, str] = {}
        self.closing = threading.Event()
        self.lock = threading.Lock()
        proxy = self

        class Handler(_Handler):
            pass

        Handler.proxy = proxy
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def downloaded(self, key: str | None = None) -> int:
        """Bytes of objects that were let through."""
        return sum(one.sent for one in self.seen if one.method == "GET" and key in (None, one.key))

    def gets(self, key: str) -> int:
        return sum(1 for one in self.seen if one.method == "GET" and one.key == key)

    def reset(self) -> None:
        """As new."""
        self.rules, self.seen, self.aliases, self.etags, self.storage_classes = [], [], {}, {}, {}

    def close(self) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()

    def rule_for(self, method: str, key: str, authorization: str) -> Rule | None:
        with self.lock:
            for rule in self.rules:
                if rule.method != method or rule.key not in (None, key):
                    continue
                if rule.only_access_key and f"Credential={rule.only_access_key}/" not in authorization:
                    continue
                if rule.after:
                    rule.after -= 1
                elif rule.used < rule.times:
                    rule.used += 1
                    return rule
        return None


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    proxy: FaultProxy

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        self._answer("GET")

    def do_HEAD(self) -> None:
        self._answer("HEAD")

    def _answer(self, method: str) -> None:
        proxy = self.proxy
        parts = urlsplit(self.path)
        key = unquote(parts.path).lstrip("/").partition("/")[2]
        rule = proxy.rule_for(method, key, self.headers.get("Authorization", "")) if key else None
        if rule and rule.status is not None:
            self._note(method, key, rule.status, 0)
            self._send_head(rule.status, rule.headers | {"Content-Length": str(len(rule.body))})
            self.wfile.write(rule.body if method == "GET" else b"")
            return
        if rule and rule.before:
            rule.before()
        headers = dict(self.headers.items())
        path = self.path
        if key in proxy.aliases or key in proxy.etags:
            bucket = unquote(parts.path).lstrip("/").partition("/")[0]
            path = f"/{bucket}/{quote(proxy.aliases.get(key, key))}"
            headers = {name: value for name, value in headers.items() if not _is_signature(name)}
            if key in proxy.etags and headers.pop("If-Match", proxy.etags[key]) != proxy.etags[key]:
                self._send_head(412, {"Content-Length": "0"})
                return
        upstream = http.client.HTTPConnection("127.0.0.1", proxy.upstream_port, timeout=60)
        try:
            upstream.request(method, path, headers=headers)
            answer = upstream.getresponse()
            if key:
                self._pass_on(method, key, answer, rule)
            else:
                self._send_list(answer)
        finally:
            upstream.close()

    def _pass_on(self, method: str, key: str, answer: http.client.HTTPResponse, rule: Rule | None) -> None:
        headers = {name: value for name, value in answer.getheaders() if name.lower() not in ("connection", "date")}
        if key in self.proxy.etags:
            headers["ETag"] = self.proxy.etags[key]
        begin = int(re.findall(r"\d+", headers["Content-Range"])[0]) if "Content-Range" in headers else 0
        length = int(headers.get("Content-Length", 0))
        self._send_head(answer.status, headers)
        sent = 0
        try:
            while method == "GET" and (piece := answer.read(_PIECE)):
                piece = self._changed(piece, begin + sent, sent, length, rule)
                self.wfile.write(piece)
                sent += len(piece)
                if rule and rule.reset_after is not None and sent >= rule.reset_after:
                    # Unsent data and a linger of zero: the client gets a reset, not an orderly end.
                    self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    self.close_connection = True
                    self.connection.close()
                    return
        except OSError:
            self.close_connection = True
        finally:
            self._note(method, key, answer.status, sent)
        if rule and rule.then:
            rule.then()

    def _changed(self, piece: bytes, place: int, sent: int, length: int, rule: Rule | None) -> bytes:
        if rule is None:
            return piece
        if rule.reset_after is not None:
            return piece[: max(0, rule.reset_after - sent)]
        if rule.hang and sent + len(piece) > length // 2:
            self.proxy.closing.wait()
            self.close_connection = True
        if rule.corrupt_at is not None and place <= rule.corrupt_at < place + len(piece):
            at = rule.corrupt_at - place
            return piece[:at] + bytes([piece[at] ^ 0xFF]) + piece[at + 1 :]
        return piece

    def _send_list(self, answer: http.client.HTTPResponse) -> None:
        body = answer.read()
        presented = {stored: shown for shown, stored in self.proxy.aliases.items()}

        def renamed(match: re.Match[bytes]) -> bytes:
            key = unquote(unescape(match[1].decode()))
            return f"<Key>{quote(presented[key])}</Key>".encode() if key in presented else match[0]

        body = _KEY.sub(renamed, body)
        for tag, values in (("ETag", self.proxy.etags), ("StorageClass", self.proxy.storage_classes)):
            for key, value in values.items():
                entry = re.compile(rf"(<Key>{re.escape(quote(key))}</Key>.*?<{tag}>).*?(</{tag}>)".encode(), re.DOTALL)
                body = entry.sub(lambda match, value=value: match[1] + escape(value).encode() + match[2], body)  # type: ignore[misc]
        headers = {name: value for name, value in answer.getheaders() if name.lower() != "transfer-encoding"}
        self._send_head(answer.status, headers | {"Content-Length": str(len(body))})
        self.wfile.write(body)

    def _send_head(self, status: int, headers: dict[str, str]) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def _note(self, method: str, key: str, status: int, sent: int) -> None:
        one = Seen(method, key, self.headers.get("Range"), self.headers.get("If-Match"), status, sent)
        with self.proxy.lock:
            self.proxy.seen.append(one)


def _is_signature(header: str) -> bool:
    return header.lower() == "authorization" or header.lower().startswith("x-amz-")
