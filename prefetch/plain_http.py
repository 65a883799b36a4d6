"""botocore's requests over plain HTTP on connections of our own: answers are read straight into the caller's buffer.

botocore makes and signs a request and reads the answer's meaning; in between, its event `before-send` may do the
sending. urllib3, which does it otherwise, copies each byte once more and costs as much for one request as all the rest.
TLS and proxies are left to it: there decryption costs many times that, and their settings are botocore's own.
"""

import contextlib
import http.client
import socket
from collections import defaultdict
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from urllib3.util import wait_for_read


class Connections:
    """They are kept open. `send` is the handler of the event. Safe for threads."""

    def __init__(self, connect_timeout: float, read_timeout: float) -> None:
        """In seconds."""
        self._connect_timeout = connect_timeout
        self._read_timeout = read_timeout
        self._idle: defaultdict[tuple[str, int], list[http.client.HTTPConnection]] = defaultdict(list)

    def send(self, request: AWSPreparedRequest, **_: Any) -> AWSResponse | None:
        """None for a request that is not of plain HTTP: botocore sends it then. Raises OSError, HTTPException."""
        url = urlsplit(request.url)
        if url.scheme != "http":
            return None
        connection = self._take(url.hostname or "", url.port)
        try:
            target = f"{url.path}?{url.query}" if url.query else url.path
            connection.request(request.method, target, request.body, dict(request.headers.items()))
            answer = connection.getresponse()
        except BaseException:
            connection.close()
            raise
        return AWSResponse(request.url, answer.status, dict(answer.headers.items()), _Raw(self, connection, answer))

    def give_back(self, connection: http.client.HTTPConnection) -> None:
        self._idle[connection.host, connection.port].append(connection)

    def _take(self, host: str, port: int | None) -> http.client.HTTPConnection:
        idle = self._idle[host, port or http.client.HTTP_PORT]
        # Another thread may take the last one.
        with contextlib.suppress(IndexError):
            while True:
                connection = idle.pop()
                # One that can be read is one that the server has closed.
                if connection.sock and not wait_for_read(connection.sock, 0):
                    return connection
                connection.close()
        connection = http.client.HTTPConnection(host, port, self._connect_timeout)
        connection.connect()
        connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.sock.settimeout(self._read_timeout)
        return connection


class _Raw:
    """An answer as botocore reads it. At its end the connection goes back; closed before, the connection is closed."""

    def __init__(
        self, connections: Connections, connection: http.client.HTTPConnection, answer: http.client.HTTPResponse
    ) -> None:
        self._connections = connections
        self._connection: http.client.HTTPConnection | None = connection
        self._answer = answer

    def read(self, amount: int | None = None) -> bytes:
        data = self._answer.read(amount)
        self._settle()
        return data

    def readinto(self, buffer: memoryview) -> int:
        count = self._answer.readinto(buffer)
        self._settle()
        return count

    def stream(self) -> Iterator[bytes]:
        yield self.read()

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection:
            self._answer.close()
            connection.close()

    def _settle(self) -> None:
        if self._connection and self._answer.isclosed():
            connection, self._connection = self._connection, None
            # Without a socket the server has asked for the connection's end.
            if connection.sock:
                self._connections.give_back(connection)
