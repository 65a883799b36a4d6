"""What the parsers of all families share: text around calls, calls that begin, and calls written as JSON.

Text around calls is content as it stands, but for white space beside a call, which is part of the call's frame unless
there is text on both sides, and for end-of-turn tokens that an engine left at the end of the text.
"""

import json
import re
from collections.abc import Collection
from typing import ClassVar, Final

from gateway.output.events import MAX_HELD, CallArguments, CallStart, Content, MakeId, Tools
from gateway.output.json_scan import JsonScanner, State
from gateway.output.reader import Give, Markers, Steps, TextReader, drop

END_TOKENS: Final = (
    "<|im_end|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|eot|>",
    "<|eom|>",
    "<|user|>",
    "<|observation|>",
    "<｜end▁of▁sentence｜>",
)
"""The tokens that end a turn, of all families: none of them is anything else in another one."""
END_MARKERS: Final = Markers(*END_TOKENS)

_KEYS_BESIDE: Final = ("type", "id")
"""Members, of a call written as an object, that models add and that say nothing."""

SEPARATORS: Final = re.compile(r"[,;]*")
_CLOSING: Final = re.compile(r"[\s}\]]*")
NAME: Final = re.compile(r"[\w.\-]*")


class TrimmedText:
    """Text whose white space at the end waits until it is known what follows; so do tokens that may belong to a frame.
    A run of white space of more characters than `MAX_HELD` is text."""

    def __init__(self) -> None:
        self.begun = False
        """Whether any text was given."""
        self.token_waits = False
        self._waiting: list[str] = []
        self._size = 0
        # How many of those that wait stand ahead of the last frame, if no text came behind it.
        self._ahead_of_frame: int | None = None

    def add(self, text: str) -> str:
        """What of the text so far can be given now."""
        if not self._size and not text[-1].isspace():
            self.begun = True
            self._ahead_of_frame = None
            return text
        end = len(text.rstrip())
        given = ""
        if end:
            given = "".join([*self._waiting, text[:end]])
            self._forget()
            self.begun = True
        if end < len(text):
            given += self.wait(text[end:])
        return given

    def wait(self, text: str) -> str:
        """Let this text wait, too; what can be given now, for the limit's sake."""
        self._waiting.append(text)
        self._size += len(text)
        self.token_waits = self.token_waits or not text.isspace()
        if self._size <= MAX_HELD:
            return ""
        given = "".join(self._waiting)
        self._waiting = []
        self.token_waits = False
        self._ahead_of_frame = None
        return given

    def frame_follows(self) -> None:
        """What waits is beside a frame: tokens are part of it; so is white space between two frames, or with no text
        ahead of it."""
        kept = [text for text in self._waiting[: self._ahead_of_frame] if self.begun and text.isspace()]
        self._forget()
        self._waiting = kept
        self._size = sum(map(len, kept))
        self._ahead_of_frame = len(kept)

    def space(self) -> str:
        """The white space that waits, where the text ends."""
        return "".join(text for text in self._waiting if text.isspace())

    def _forget(self) -> None:
        self._waiting = []
        self._size = 0
        self.token_waits = False
        self._ahead_of_frame = None


class ToolParser(TextReader):
    """An `OutputParser` for one family. `_answer` reads the whole text; it may end at any mistake of the model, since
    what it leaves is content."""

    end_tokens: ClassVar[tuple[str, ...]] = END_TOKENS
    argument_keys: ClassVar[Collection[str]] = ("arguments", "parameters")
    """Where calls are JSON objects: the names of the member that holds the arguments."""
    frame: ClassVar[Markers] = END_MARKERS
    """The markers inside a call and behind it. Arguments that are no JSON end there."""

    def __init__(self, tools: Tools, make_id: MakeId) -> None:
        super().__init__()
        self._tools = tools
        self._make_id = make_id
        self._calls = 0
        self._has_arguments = True
        self._content = TrimmedText()

    def _close(self) -> None:
        if not self._calls and (space := self._content.space()):
            self._events.append(Content(space))

    # Text around calls.

    def _give_content(self, text: str) -> None:
        if given := self._content.add(text):
            self._events.append(Content(given))

    def _free_text(self, markers: Markers) -> Steps[str]:
        """Give content up to the next marker, and take that; empty at the end. End tokens are among the markers."""
        while True:
            # Behind a call or a token of its frame, what may be the beginning of a marker is one.
            is_frame = self._calls > 0 or self._content.token_waits
            marker = yield from self._until(markers, self._give_content, is_frame=is_frame)
            if marker not in self.end_tokens:
                return marker
            self._let_wait(marker)

    def _let_wait(self, token: str) -> None:
        """A token that is content only if text follows it, and not a call or the end."""
        if given := self._content.wait(token):
            self._events.append(Content(given))

    # Text of which it is not known yet whether it is a call.

    def _held_json(self) -> Steps[str]:
        """Hold one JSON value: its text; empty where it is not whole."""
        parts: list[str] = []
        state = yield from self._json(self._holding(parts), JsonScanner())
        return "".join(parts) if state is State.WHOLE else ""

    def _abandon(self) -> None:
        """What was held back stands in a frame of its own and did not become a call: it is content, unless the call
        was cut off."""
        if self._is_cut_off():
            self._forget_held()
            self._at = len(self._text)
        else:
            self.has_failed = self.has_failed or bool(self._held)
            self._release()

    def _is_cut_off(self) -> bool:
        """The text was cut off here, at most within a marker of the frame."""
        rest = len(self._text) - self._at
        return self._finish_reason == "length" and self.frame.begun(self._text, self._at) == rest

    # Calls.

    def _start(self, name: str, call_id: str | None = None) -> None:
        """What was held back is the head of a call."""
        self._forget_held()
        self._content.frame_follows()
        self._events.append(CallStart(self._calls, call_id or self._make_id(name, self._calls), name))
        self._calls += 1
        self._has_arguments = False

    def _give_arguments(self, text: str) -> None:
        self._events.append(CallArguments(self._calls - 1, text))
        self._has_arguments = True

    def _end_call(self, is_whole: bool = False) -> None:
        """No more arguments come. `is_whole`: the call's end was seen."""
        if not self._has_arguments and (is_whole or not self._is_cut_off()):
            self._give_arguments("{}")

    def _read_arguments(self) -> Steps[None]:
        """Give the arguments of the call that has begun, which come next as JSON; `{}` where nothing comes.

        What is no JSON is given as it stands, up to the end of the call: the client has to see it.
        """
        yield from self._space(drop)
        character = yield from self._next()
        is_broken = False
        if character in ("{", "["):
            state = yield from self._json(self._give_arguments, JsonScanner(), repair=True)
            is_broken = state is State.BROKEN
        elif character == '"' or character.isalnum() or character == "-":
            text = yield from self._held_json()
            if text:
                self._forget_held()
                is_broken = not _is_json(text)
                self._give_arguments(text if is_broken else _unwrapped(text))
            else:
                self._abandon()
        elif character not in ("}", "]", ","):
            is_broken = True
        if is_broken:
            self.has_failed = True
            marker = yield from self._until(self.frame, self._give_arguments)
            self._at -= len(marker)
        self._end_call()

    def _json_calls(self, space: Give) -> Steps[int]:
        """Read calls written as JSON objects with `name` and `arguments`, one or several, in a list or not. How many
        there were. What is no call is left, or held back; `space` takes the white space behind calls."""
        in_list = yield from self._literal("[", self._hold)
        calls = 0
        while True:
            yield from self._space(space if calls else self._hold)
            character = yield from self._next()
            if character == "{" and (yield from self._json_call()):
                calls += 1
                yield from self._span(SEPARATORS, drop)
            elif character == "]" and in_list and calls:
                yield from self._literal("]", drop)
                return calls
            else:
                return calls

    def _json_call(self, *, bare: bool = False) -> Steps[bool]:
        """Read one object; whether it is a call, as a whole or as far as it goes. If not, its text is held back.

        `bare`: nothing but its form says that it is a call, so it must be exact: a function that the request offers,
        with arguments, and no other members than those that models add.
        """
        yield from self._literal("{", self._hold)
        name = early = ""
        started = False
        while True:
            give = drop if started else self._hold
            yield from self._space(give)
            if (yield from self._literal("}", give)):
                break
            if (yield from self._literal(",", give)):
                continue
            key = yield from self._key(started, bare)
            yield from self._space(give)
            if key is None or not (yield from self._literal(":", give)):
                return started
            yield from self._space(give)
            if key == "name" and not name:
                name = _text_of((yield from self._member_text(started))) or ""
                if not name or (bare and name not in self._tools):
                    return False
            elif key in self.argument_keys and name and not early and not started:
                self._start(name)
                started = True
                yield from self._read_arguments()
            else:
                if bare and key in _KEYS_BESIDE and (yield from self._next()) != '"':
                    return started
                value = yield from self._member_text(started)
                if not value:
                    return started
                if key in self.argument_keys:
                    early = value
        if not started:
            if not name or (bare and not early):
                return False
            self._start(name)
            if early:
                self._give_arguments(_unwrapped(early))
            self._end_call(is_whole=True)
        return True

    def _key(self, started: bool, bare: bool) -> Steps[str | None]:
        """The next member's name; None where there is none, or where a bare call has none of that name."""
        give = drop if started else self._hold
        for key in ("name", *self.argument_keys, *_KEYS_BESIDE):
            if (yield from self._literal(f'"{key}"', give)):
                return key
        if bare:
            return None
        text = yield from self._member_text(started)
        return ("" if text else None) if started else _text_of(text)

    def _member_text(self, started: bool) -> Steps[str]:
        """The text of one value; it is held back, unless the call has begun and it says nothing any more."""
        if not started:
            return (yield from self._held_json())
        state = yield from self._json(drop, JsonScanner())
        return "null" if state is State.WHOLE else ""

    def _skip_closing(self) -> Steps[None]:
        """Brackets too many, behind a call that is whole."""
        yield from self._span(_CLOSING, drop)


class PlainText(ToolParser):
    """For a request without tools: everything is content."""

    def _answer(self) -> Steps[None]:
        yield from self._free_text(END_MARKERS)


def _text_of(json_text: str) -> str | None:
    """The value of a JSON string; None if it is none, or holds half a surrogate pair, which no answer can."""
    try:
        value = json.loads(json_text, strict=False)
        if isinstance(value, str):
            value.encode()
            return value
    except (ValueError, RecursionError):
        pass
    return None


def _is_json(text: str) -> bool:
    try:
        json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return False
    return True


def _unwrapped(arguments: str) -> str:
    """Arguments as they are, or as the string holds them that they are written in; `{}` for null and an empty one."""
    inside = _text_of(arguments)
    if inside is None:
        scanner = JsonScanner()
        text = scanner.repaired(arguments, 0, scanner.scan(arguments, 0))
    else:
        text = inside.strip()
    return "{}" if text in ("", "null") else text
