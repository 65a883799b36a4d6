"""What a command shows while it works: one rewritten status line on a terminal, plain lines elsewhere."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

# Elsewhere than on a terminal a long step says so again this often (seconds), so that a CI log shows life.
PLAIN_INTERVAL = 20.0


class Step:
    """One step on the screen. `say` changes what stands behind its title."""

    def __init__(self, title: str, out: TextIO) -> None:
        self._title = title
        self._out = out
        self._detail = ""
        self._terminal = out.isatty()
        self._started = self._last_plain = time.monotonic()
        self._stop = threading.Event()
        self._ticker = threading.Thread(target=self._tick, daemon=True)

    def say(self, detail: str) -> None:
        self._detail = detail

    def start(self) -> None:
        if not self._terminal:
            print(f"{self._title} …", file=self._out, flush=True)
        self._ticker.start()

    def end(self, result: str) -> None:
        self._stop.set()
        self._ticker.join()
        line = f"{self._title}: {result} ({self._seconds():.0f} s)"
        print(f"\r\x1b[K{line}" if self._terminal else line, file=self._out, flush=True)

    def _seconds(self) -> float:
        return time.monotonic() - self._started

    def _line(self) -> str:
        detail = f" {self._detail}" if self._detail else ""
        return f"{self._title} …{detail} ({self._seconds():.0f} s)"

    def _tick(self) -> None:
        while not self._stop.wait(0.2):
            now = time.monotonic()
            if self._terminal:
                print(f"\r\x1b[K{self._line()[: _columns()]}", end="", file=self._out, flush=True)
            elif now - self._last_plain >= PLAIN_INTERVAL:
                self._last_plain = now
                print(self._line(), file=self._out, flush=True)


@contextmanager
def step(title: str) -> Iterator[Callable[[str], None]]:
    """Shows `title` with the seconds until the block ends; yields a function that sets the detail."""
    shown = Step(title, sys.stderr)
    shown.start()
    try:
        yield shown.say
    except BaseException:
        shown.end("stopped")
        raise
    shown.end("done")


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _columns() -> int:
    import shutil

    return max(20, shutil.get_terminal_size().columns - 1)
