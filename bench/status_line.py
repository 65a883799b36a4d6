"""On a terminal, what a command does now, in a line that is written over; elsewhere nothing of it."""

import shutil
import sys


class StatusLine:
    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()

    def say(self, what: str) -> None:
        self._write(what[: max(20, shutil.get_terminal_size().columns - 1)])

    def note(self, sentence: str) -> None:
        """A line that stays, elsewhere than on a terminal, too."""
        self.clear()
        print(sentence, file=sys.stderr, flush=True)

    def clear(self) -> None:
        self._write("")

    def _write(self, text: str) -> None:
        if self._terminal:
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
