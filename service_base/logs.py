"""Log lines: plain text on a terminal, one JSON object a line elsewhere."""

import asyncio
import functools
import json
import logging
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, TextIO

import orjson

_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "color_message"}


class _Lines(logging.StreamHandler[TextIO]):
    """Writes every line of the service, changed as `change_lines` says."""

    change: Callable[[bytes], bytes] | None = None

    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record)
        # As stderr itself writes what is half a surrogate pair.
        return line if self.change is None else self.change(line.encode(errors="backslashreplace")).decode()

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        # Threads that log take what the loop's thread has added.
        self._waiting: deque[bytes] = deque()
        self._flushes_in: asyncio.AbstractEventLoop | None = None

    def write(self, line: bytes) -> None:
        """One that was formatted elsewhere. In an event loop those of one turn leave together: to write is a system
        call."""
        self._waiting.append(line if self.change is None else self.change(line))
        if self._flushes_in is not None and not self._flushes_in.is_closed():
            return
        try:
            self._flushes_in = asyncio.get_running_loop()
        except RuntimeError:
            self.flush()
        else:
            self._flushes_in.call_soon(self._end_turn)

    def emit(self, record: logging.LogRecord) -> None:
        # What was said before stands before it.
        if self._waiting:
            self.flush()
        super().emit(record)

    def flush(self) -> None:
        waiting = self._waiting
        self.acquire()
        try:
            if waiting:
                lines = b"".join([waiting.popleft() + b"\n" for _ in range(len(waiting))])
                if (buffer := getattr(self.stream, "buffer", None)) is None:
                    self.stream.write(lines.decode())
                else:
                    buffer.write(lines)
            super().flush()
        except (OSError, ValueError):
            # What cannot be told must not end the request that it is about.
            pass
        finally:
            self.release()

    def _end_turn(self) -> None:
        self._flushes_in = None
        self.flush()


_LEVELS = {level: logging.getLevelName(level).lower() for level in logging.getLevelNamesMapping().values()}

_json_lines: _Lines | None = None
"""The handler of all lines, where they are JSON."""


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = {k: v for k, v in record.__dict__.items() if k not in _STANDARD}
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return _line(record.created, record.levelno, record.name, record.getMessage(), fields).decode()


def event(logger: logging.Logger, level: int, message: str, fields: Mapping[str, Any]) -> None:
    """`logger.log(level, message, extra=fields)`, at a fifth of its cost where lines are JSON: for a line that is
    written for each request."""
    if not logger.isEnabledFor(level):
        return
    if _json_lines is None:
        logger.log(level, message, extra=fields)
        return
    _json_lines.write(_line(time.time(), level, logger.name, message, fields))


def _line(at: float, level: int, logger: str, message: str, fields: Mapping[str, Any]) -> bytes:
    second = int(at)
    line = {
        "time": f"{_second(second)}.{int((at - second) * 1000):03}Z",
        "level": _LEVELS.get(level) or logging.getLevelName(level).lower(),
        "logger": logger,
        "message": message,
        **fields,
    }
    try:
        return orjson.dumps(line)
    except TypeError:
        # Values that are no JSON, half a surrogate pair, an integer of more than 64 bits.
        return json.dumps(line, default=str).encode()


@functools.lru_cache(1)
def _second(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))


def configure(level: str) -> None:
    # What no line shows is not looked up either ("Optimization" in the Logging HOWTO of Python's documentation): a
    # service may write a line for each request.
    logging._srcfile = None
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    global _json_lines
    handler = _Lines(sys.stderr)
    _json_lines = None if sys.stderr.isatty() else handler
    if _json_lines is not None:
        handler.setFormatter(_JsonFormatter())
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def change_lines(change: Callable[[bytes], bytes]) -> None:
    """Every line passes through `change` from now on, whatever wrote it."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, _Lines):
            handler.change = change
