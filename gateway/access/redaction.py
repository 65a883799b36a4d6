"""No key in any log line, wherever it came from: a path that holds one, a header of another name, an exception."""

import logging
import re

# Also where it is cut off: any part of the secret behind the id.
_KEY = re.compile(r"(gw-[0-9a-f]{8}-)[A-Za-z0-9_-]+")


class _Redacting(logging.Formatter):
    def __init__(self, inner: logging.Formatter) -> None:
        super().__init__()
        self._inner = inner

    def format(self, record: logging.LogRecord) -> str:
        line = self._inner.format(record)
        return _KEY.sub(r"\1…", line) if "gw-" in line else line


def redact_logs() -> None:
    """For the handlers that there are now."""
    for handler in logging.getLogger().handlers:
        if handler.formatter is not None and not isinstance(handler.formatter, _Redacting):
            handler.setFormatter(_Redacting(handler.formatter))
