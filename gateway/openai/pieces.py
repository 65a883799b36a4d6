"""Megabytes of JSON, read in pieces, between which other threads get the interpreter.

A parser holds the interpreter for as long as its call takes, so that one call for a body of some megabytes keeps the
event loop from its work for tens of milliseconds. Here each call is for one piece: a piece is cut before a comma, and
made a text of its own by opening what was open where it begins and closing what is open where it ends; what comes of it
is added to what the pieces ahead of it made. A string that is longer than a piece is read in parts. The values and the
words of an error are those of one call for the whole. Pure: no I/O.
"""

import gc
import re
import secrets
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jiter
import orjson

from gateway.openai.giving_way import empty

MAX_CONTAINERS = 60_000
MAX_MEMBERS = 80_000
"""Lists and objects in one body, and members of one object, about: more than any request has. The garbage collector
looks at all of the former at once, and an object that grows beyond 87,381 (of CPython's sizes the one that this is for)
moves its members into four megabytes of new memory in one call."""
LONGEST = 256 * 1024
"""Bytes between two commas, but for spaces and for texts that are values: more than any name or number has, which are
read in one call."""

_LONG = 50_000
"""Elements of a list: so many are looked at by the garbage collector in parts of a millisecond."""

PIECE = 16 * 1024
"""Bytes. Of the costliest there is a millisecond in it."""

# Names that no body has, of a member that stands for what came before a piece, and for what comes behind it.
_BEFORE, _BEHIND = f"before-{secrets.token_hex(8)}", f"behind-{secrets.token_hex(8)}"
_OPEN = {"{": f'{{"{_BEFORE}":', "[": "["}
_CLOSE = {"{": "}", "[": "]"}
_CLOSES = {"}": "{", "]": "["}
# A value, and what ends it: the comma that does so in the body too.
_NEXT = {"{": f',"{_BEHIND}":0', "[": ",0"}
_SOMETHING = '""'

_DEEPEST = 200
"""Levels that the parser goes down."""
_LOOKED_AT = 32
"""Bytes that a parser may look at ahead of a mistake."""

_SPACE = b" \t\r\n"
_A_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_NO_BRACKET = bytes(set(range(256)) - set(b"[]{}"))
# Of a string, whole characters but for those of several bytes: an escape, or a pair of surrogates.
_HIGH = rb"[dD][89abAB]"
_CHARACTERS = re.compile(
    rb'[^"\\]*+(?:\\(?:[^u]|u(?!%b)[0-9a-fA-F]{4}|u%b[0-9a-fA-F]{2}\\u[0-9a-fA-F]{4})[^"\\]*+)*+' % (_HIGH, _HIGH),
    re.DOTALL,
)
_LONGEST_CHARACTER = len(r"\ud83d\ude00")
# What the parser says of a beginning.
_NO_MISTAKE_YET = "EOF while parsing "
_PLACE = re.compile(r"(.*) at line (\d+) column (\d+)", re.DOTALL)


class TooMuch(ValueError):
    """More than `MAX_CONTAINERS`, `MAX_MEMBERS` or `LONGEST`. `beginning` is what stands ahead of that, if anything;
    the lists and objects in `unfinished` may go on behind it."""

    def __init__(self, beginning: Any, unfinished: Sequence[Any]) -> None:
        super().__init__(
            f"it holds more than {MAX_CONTAINERS} lists and objects, an object of more than {MAX_MEMBERS} members, or "
            f"a name or a number of more than {LONGEST} bytes"
        )
        self.beginning = beginning
        self.unfinished = unfinished


class _Piece(NamedTuple):
    """`body[begin:end]`, whose brackets leave `stack` open. `string`: it ends where one begins that is read in parts,
    the bounds of its characters. `brackets` are those in it, if anything follows it. `is_part`: what it is the
    beginning of is longer than `LONGEST`."""

    begin: int
    end: int
    stack: str
    string: tuple[int, int] | None
    brackets: bytes
    is_part: bool = False


def at_once(text: bytes, *, allow_inf_nan: bool = False) -> Any:
    """The value of JSON text, in one call. Raises `ValueError`."""
    # Of a hundred thousand lists the collector looks at all that there are over and over, which takes longer than
    # parsing.
    collects = gc.isenabled()
    gc.disable()
    try:
        # A key that stands twice has two values, of which every parser silently drops one.
        return jiter.from_json(text, allow_inf_nan=allow_inf_nan, cache_mode="keys", catch_duplicate_keys=True)
    finally:
        if collects:
            gc.enable()


def from_json(body: bytes, *, allow_inf_nan: bool = False, piece: int = PIECE, is_limited: bool = True) -> Any:
    """The same as `at_once`. Raises `ValueError` with the same words, or `TooMuch`, which are fewer things where it is
    not the clients' (`is_limited`). `piece`: in bytes."""
    reader = _Reader(body, allow_inf_nan, piece)
    try:
        for one in _pieces(body, piece):
            reader.read(one)
            if is_limited and (reader.containers > MAX_CONTAINERS or reader.members > MAX_MEMBERS):
                raise reader.too_much()
    except TooMuch:
        raise
    except ValueError:
        empty(reader.root)
        raise
    return reader.root


class _Reader:
    def __init__(self, body: bytes, allow_inf_nan: bool, piece: int) -> None:
        self.root: Any = None
        self.containers = 0
        self.members = 0
        """Of the largest object that goes on from one piece into another."""
        self._body = body
        self._allow_inf_nan = allow_inf_nan
        self._piece = piece
        self._stack = ""
        self._open: list[Any] = []
        """The lists and objects that are open, from the outermost on."""
        self._old: Any = None
        """Of them the last one that grew long."""

    def too_much(self) -> TooMuch:
        return TooMuch(self.root, self._open)

    def read(self, piece: _Piece) -> None:
        text = self._body[piece.begin : piece.end]
        behind = self._behind(piece)
        try:
            value = self._value(self._before(piece) + text + behind)
        except ValueError:
            mistake = self._first_mistake(piece, text + behind)
            if piece.is_part and str(mistake).startswith(_NO_MISTAKE_YET):
                raise self.too_much() from None
            raise mistake from None
        if piece.is_part:
            raise self.too_much()
        if any(type(one) is dict and not one.keys().isdisjoint(new) for one, new in self._continued(value)):
            raise self._first_mistake(piece, text + behind)
        if piece.begin == 0:
            self.root = value
        self._add(value, len(piece.stack))
        self._stack = piece.stack
        self.containers += piece.brackets.count(b"[") + piece.brackets.count(b"{")
        if piece.string is not None:
            self._put(self._long_string(*piece.string))
        for one in self._open:
            if len(one) > _LONG and one is not self._old:
                # Where the collector looks seldom, before there is so much in it that a look takes milliseconds.
                self._old = one
                gc.collect(1)

    def _value(self, text: bytes) -> Any:
        return at_once(text, allow_inf_nan=self._allow_inf_nan)

    def _before(self, piece: _Piece, *seen: list[str]) -> bytes:
        """What stands for all that comes ahead of a piece; `seen`: with members of these names in each object."""
        if piece.begin == 0:
            return b""
        opened = [_OPEN[bracket] for bracket in self._stack]
        for level, names in enumerate(seen):
            if names:
                members = "".join(f"{orjson.dumps(name).decode()}:0," for name in names)
                opened[level] = f"{{{members}{opened[level][1:]}"
        return ("".join(opened) + _SOMETHING).encode()

    @staticmethod
    def _behind(piece: _Piece) -> bytes:
        stack = piece.stack
        value = _SOMETHING if piece.string is not None else ""
        return (value + (_NEXT[stack[-1]] if stack else "") + "".join(_CLOSE[one] for one in reversed(stack))).encode()

    def _continued(self, value: Any) -> Iterator[tuple[Any, Any]]:
        """Each list and object that was open, and what a piece adds to it, behind a first element that is not new."""
        for one in self._open:
            yield one, value
            value = value[_BEFORE] if type(value) is dict else value[0]

    def _add(self, value: Any, depth: int) -> None:
        """What came of a piece, which leaves so many lists and objects open."""
        path: list[Any] = []
        last = None if self._open else value
        for level, (one, new) in enumerate(list(self._continued(value))):
            is_open = last is None and level < depth
            if is_open and level == depth - 1:
                _pop(new)
            if type(new) is dict:
                del new[_BEFORE]
                one.update(new)
                self.members = max(self.members, len(one))
            else:
                del new[0]
                one.extend(new)
            if is_open:
                path.append(one)
                if new and level < depth - 1:
                    last = _last(new)
        while len(path) < depth:
            path.append(last)
            if len(path) == depth:
                _pop(last)
            else:
                last = _last(last)
        self._open = path

    def _put(self, text: str) -> None:
        """In place of the last value."""
        if not self._open:
            self.root = text
            return
        into = self._open[-1]
        into[next(reversed(into)) if type(into) is dict else -1] = text

    def _long_string(self, begin: int, end: int) -> str:
        parts: list[str] = []
        while begin < end:
            cut = min(_characters(self._body, begin, self._piece), end)
            try:
                # One that is not closed ends with the body.
                parts.append(self._value(b'"%b%b' % (self._body[begin:cut], b'"' if cut < len(self._body) else b"")))
            except ValueError:
                # Of a mistake the parser may look at what is behind the string.
                raise self._mistake(b'"', begin, self._body[begin : cut + _LOOKED_AT]) from None
            begin = cut
        return "".join(parts)

    def _first_mistake(self, piece: _Piece, text: bytes) -> ValueError:
        """It may be that a key stands there that an earlier piece has too."""
        strings = set()
        for found in _strings(text):
            try:
                strings.add(self._value(found))
            except ValueError:
                continue
        seen = [list(one.keys() & strings) if type(one) is dict else [] for one in self._open]
        return self._mistake(self._before(piece, *seen), piece.begin, text)

    def _mistake(self, before: bytes, begin: int, text: bytes) -> ValueError:
        """What the parser says of a text that is the body's from `begin` on, behind `before`."""
        try:
            self._value(before + text)
        except ValueError as error:
            return ValueError(self._placed(str(error), begin, len(before)))
        raise AssertionError("a mistake that the parser does not find")

    def _placed(self, words: str, begin: int, ahead: int) -> str:
        """An error in a text that is the body's from `begin` on, with so many bytes ahead of it."""
        found = _PLACE.fullmatch(words)
        if found is None:
            return words
        line, column = int(found[2]), int(found[3])
        if line == 1:
            column += begin - (self._body.rfind(b"\n", 0, begin) + 1) - ahead
        lines = sum(self._body.count(b"\n", at, min(at + PIECE, begin)) for at in range(0, begin, PIECE))
        return f"{found[1]} at line {lines + line} column {column}"


def _strings(text: bytes) -> Iterator[bytes]:
    """Those that are closed."""
    # Not by one call for all: from each quote of one that is not closed it would go to the end again.
    at = text.find(b'"')
    while at >= 0 and (found := _A_STRING.match(text, at)):
        yield found[0]
        at = text.find(b'"', found.end())


def _last(value: Any) -> Any:
    return value[next(reversed(value))] if type(value) is dict else value[-1]


def _pop(value: Any) -> None:
    """What stands for all that comes behind a piece."""
    if type(value) is dict:
        del value[_BEHIND]
    else:
        del value[-1]


def _pieces(body: bytes, size: int) -> Iterator[_Piece]:
    """Of a text that is no JSON at least those up to its first mistake, which the last one shows."""
    begin, stack = 0, ""
    while True:
        end, string, brackets = _cut(body, begin, size, stack)
        if brackets is None:
            yield _Piece(begin, end, "", None, b"", is_part=True)
            return
        nested = None if end == len(body) else _nested(stack, brackets)
        if nested is None or len(nested) > _DEEPEST or (not nested and string is None):
            # The end, or a mistake: a bracket too many, or a comma behind the end.
            yield _Piece(begin, min(end + 1, len(body)), "", None, b"")
            return
        yield _Piece(begin, end, nested, string, brackets)
        begin = end if string is None else string[1] + 1
        stack = nested


def _cut(body: bytes, begin: int, size: int, stack: str) -> tuple[int, tuple[int, int] | None, bytes | None]:
    """Where the piece that begins there ends, the bounds of the string that it ends at, and its brackets;
    None where it is a part of what is longer than `LONGEST`."""
    at, brackets, length = begin, b"", 0
    while True:
        text = body[at : at + size]
        # Every other one is in a string.
        parts = _no_escapes(text).split(b'"')
        comma = _last_comma(parts)
        if comma is not None and at + comma[0] > begin:
            parts = parts[: comma[1] + 1]
            parts[-1] = parts[-1][: comma[2]]
            return at + comma[0], None, brackets + _brackets(parts)
        brackets += _brackets(parts)
        behind = at + size
        if len(parts) % 2 == 0:
            quote = at + len(text) - len(parts[-1]) - 1
            close = _string_end(body, quote + 1, size)
            if close - quote > size and _is_value(body[begin:quote].rstrip(), stack, brackets):
                return quote, (quote + 1, close), brackets
            if close - quote > LONGEST:
                return quote + 1, None, None
            text = text[: quote - at]
            length += close - quote
            behind = close + 1
        length += len(text.translate(None, _SPACE))
        if length > LONGEST:
            return min(behind, len(body)), None, None
        if behind >= len(body):
            return len(body), None, brackets
        at = behind


def _no_escapes(text: bytes) -> bytes:
    """One as long, in whose strings nothing looks like their end."""
    return text.replace(rb"\\", b"__").replace(rb"\"", b"__") if b"\\" in text else text


def _last_comma(parts: list[bytes]) -> tuple[int, int, int] | None:
    """The last one that is in no string: where it is in all, in which part, and where in that."""
    end = sum(map(len, parts)) + len(parts) - 1
    for number in range(len(parts) - 1, -1, -1):
        begin = end - len(parts[number])
        if number % 2 == 0 and (comma := parts[number].rfind(b",")) >= 0:
            return begin + comma, number, comma
        end = begin - 1
    return None


def _brackets(parts: list[bytes]) -> bytes:
    return b"".join(parts[::2]).translate(None, _NO_BRACKET)


def _string_end(body: bytes, at: int, size: int) -> int:
    """Where its closing quote is; the body's end where it has none."""
    while at < len(body):
        text = body[at : at + size]
        if (len(text) - len(text.rstrip(b"\\"))) % 2:
            # What it escapes is behind it.
            text += b"_"
        if (quote := _no_escapes(text).find(b'"')) >= 0:
            return at + quote
        at += len(text)
    return len(body)


def _is_value(ahead: bytes, stack: str, brackets: bytes) -> bool:
    """Whether a string behind it is no key."""
    if ahead.endswith(b","):
        return (_nested(stack, brackets) or "").endswith("[")
    return ahead.endswith((b":", b"[")) or not ahead


def _nested(stack: str, brackets: bytes) -> str | None:
    """What is open behind them; None where one closes what is not open."""
    opened = list(stack)
    for bracket in brackets.decode():
        if bracket in _OPEN:
            opened.append(bracket)
        elif not opened or opened.pop() != _CLOSES[bracket]:
            return None
    return "".join(opened)


def _characters(body: bytes, begin: int, size: int) -> int:
    """Where some whole characters of a string end that begin there; behind the first mistake, where there is one."""
    end = min(begin + size, len(body))
    if b"\\" in body[max(begin, end - _LONGEST_CHARACTER) : end]:
        found = _CHARACTERS.match(body, begin, end)
        if found is not None and found.end() > begin:
            end = found.end()
    for _ in range(3):
        # The rest of a character.
        if end < len(body) and body[end] & 0xC0 == 0x80 and end > begin + 1:
            end -= 1
    return end
