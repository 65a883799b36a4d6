r"""Regular expressions inside a JSON Schema: what they mean by ECMA-262, and a form that engines read alike.

Engines read `pattern` in dialects of their own, and some constructs mean something else there
(`[a&&b]`, `(?i)`, `\s`), are dropped in silence (look-ahead under xgrammar) or leak. So a pattern is
parsed here as ECMA-262 (with code points, as JSON Schema asks), anything outside the common core is
refused with a sentence, and the core is written out again for the engine with the same meaning or a
narrower one; narrower is safe, since every answer still obeys the client's pattern.
"""

import re
from dataclasses import dataclass
from typing import Final


class PatternError(ValueError):
    """The pattern cannot be used; the text is a sentence for the client."""


MAX_PATTERN_LENGTH: Final = 4_096
"""Characters. The longest patterns met in the wild (e-mail, URI by RFC) have some hundreds."""

_QUANTIFIER = re.compile(r"\{(\d{1,6})(,(\d{0,6}))?\}")
_GROUP_NAME = re.compile(r"\?P?<[A-Za-z_]\w{0,60}>")
_PROPERTY = re.compile(r"\{\^?([A-Za-z_]+(?:=[A-Za-z_]+)?)\}")
_CONTROL_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "v": "\v"}
_SYNTAX = set("^$\\.*+?()[]{}|/-")

_DIGIT = frozenset(range(0x30, 0x3A))
_WORD = frozenset([*_DIGIT, *range(0x41, 0x5B), *range(0x61, 0x7B), 0x5F])
_SPACE = frozenset([9, 10, 11, 12, 13, 32])
_ASCII = frozenset(range(128))
# ECMA-262's white space beyond ASCII. Unicode's own class lacks U+FEFF and has U+0085.
_SPACE_BEYOND_ASCII = r"\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"

# shorthand: (its text inside a class, its ASCII members). `\s` leaves out what dialects disagree about.
_SHORTHANDS = {
    "d": ("0-9", _DIGIT),
    "w": ("0-9A-Za-z_", _WORD),
    "s": (r"\t\n\x0b\x0c\r ", _SPACE),
    "D": ("[^0-9]", _ASCII - _DIGIT),
    "W": ("[^0-9A-Za-z_]", _ASCII - _WORD),
    "S": (rf"[^\t\n\x0b\x0c\r \x85{_SPACE_BEYOND_ASCII}]", _ASCII - _SPACE),
}
_QUOTE_AND_BACKSLASH = frozenset(b'"\\')
_RAW = frozenset(range(32, 127)) - _QUOTE_AND_BACKSLASH


@dataclass(frozen=True, slots=True)
class Pattern:
    r"""A parsed pattern.

    `text`: the same language or a narrower one, for engines that read a pattern over the string's
    *characters* and write JSON escapes themselves (guidance).
    `raw_safe`: xgrammar 0.2.8 holds it. That engine puts the pattern's characters into the JSON text as
    they are, so only ASCII without `"`, `\` and controls will do, by themselves or in positive classes;
    and it goes wrong on an alternative that is empty or ends in a repeat of varying length, and on
    `{n,}` around such an end (`(?:a|[0-9]{0,2})b`, `(?:x[0-9]{1,3}){2,}`).
    """

    text: str
    raw_safe: bool


def parse(pattern: str) -> Pattern:
    """Parse an ECMA-262 pattern; raises `PatternError` for what the engines cannot be trusted with."""
    if len(pattern) > MAX_PATTERN_LENGTH:
        raise PatternError(f"the pattern is longer than {MAX_PATTERN_LENGTH} characters")
    try:
        parser = _Parser(pattern)
        text = parser.alternatives(top=True)
    except RecursionError:
        raise PatternError("the groups of the pattern are nested too deeply") from None
    if parser.at < len(pattern):
        raise PatternError(f"unbalanced ')' at position {parser.at}")
    return Pattern(text, parser.raw_safe)


def none_of(names: list[str]) -> str:
    """A pattern for every string that is none of `names`, without look-ahead (engines have none)."""
    trie: dict[str, dict] = {}  # type: ignore[type-arg]
    for name in names:
        node = trie
        for char in name:
            node = node.setdefault(char, {})
        node[""] = {}
    return f"^{_complement(trie)}$"


def _complement(node: dict[str, dict]) -> str:  # type: ignore[type-arg]
    heads = [char for char in node if char]
    excluded = _subset_without_nul("^" + "".join(_class_char(ord(c)) for c in heads), _excluded(heads))
    ways = [] if "" in node else [""]
    ways.append(rf"{excluded}[\x00-\x{{10ffff}}]*" if heads else r"[\x00-\x{10ffff}]+")
    ways += [_char(ord(char)) + _complement(node[char]) for char in heads]
    return f"(?:{'|'.join(ways)})"


def _excluded(heads: list[str]) -> frozenset[int]:
    return _ASCII - {ord(c) for c in heads}


class _Parser:
    """Recursive descent over one pattern; each method returns the engine's text of what it read."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.at = 0
        self.raw_safe = True
        self.depth = 0
        self.open_end = False
        """Does what was read last end in a repeat of varying length?"""

    def peek(self, text: str) -> bool:
        return self.pattern.startswith(text, self.at)

    def alternatives(self, top: bool = False) -> str:
        parts = [self.sequence(top)]
        open_ends = [self.open_end]
        while self.peek("|"):
            self.at += 1
            parts.append(self.sequence(top))
            open_ends.append(self.open_end)
        self.open_end = any(open_ends)
        if len(parts) > 1 and (self.open_end or any(part in ("", "^", "$", "^$") for part in parts)):
            self.raw_safe = False
        return "|".join(parts)

    def sequence(self, top: bool) -> str:
        out = ""
        self.open_end = False
        if top and self.peek("^"):
            self.at += 1
            out = "^"
        while self.at < len(self.pattern) and self.pattern[self.at] not in "|)":
            char = self.pattern[self.at]
            if char == "$" and top and self.pattern[self.at + 1 : self.at + 2] in ("", "|"):
                self.at += 1
                return out + "$"
            if char in "^$":
                raise PatternError(
                    f"'{char}' at position {self.at} stands in the middle; it is supported at the ends of "
                    "the pattern or of one of its outermost alternatives"
                )
            out += self.quantified()
        return out

    def quantified(self) -> str:
        self.open_end = False
        atom = self.atom()
        rest = self.pattern[self.at : self.at + 20]
        if rest[:1] and rest[0] in "*+?":
            # xgrammar 0.2.8 loses the head of an optional group that ends in a repeat: (?:x[0-9]+)?
            quantifier = "{0,1}" if rest[0] == "?" else rest[0]
            self.at += 1
        elif match := _QUANTIFIER.match(rest):
            quantifier = match.group(0)
            if match.group(3) and int(match.group(3)) < int(match.group(1)):
                raise PatternError(f"the bounds of {quantifier} are the wrong way round")
            self.at += match.end()
        else:
            return atom
        if self.open_end and quantifier.endswith(",}"):
            self.raw_safe = False
        self.open_end = self.open_end or quantifier in "*+" or "," in quantifier
        if self.peek("?"):  # laziness chooses among matches, it does not change which strings match
            self.at += 1
        if self.at < len(self.pattern) and self.pattern[self.at] in "*+?":
            raise PatternError(f"nothing to repeat at position {self.at}")
        return atom + quantifier

    def atom(self) -> str:
        char = self.pattern[self.at]
        if char == "(":
            return self.group()
        if char == "[":
            return self.char_class()
        if char == ".":
            self.at += 1
            self.raw_safe = False
            return r"[^\n\r\u2028\u2029]"
        if char == "\\":
            return self.escape_outside_class()
        if char in "*+?{":
            raise PatternError(f"nothing to repeat at position {self.at} (write \\{char} for the character)")
        self.at += 1
        return self.one(ord(char))

    def one(self, code: int) -> str:
        self.raw_safe = self.raw_safe and code in _RAW
        return _char(code)

    def group(self) -> str:
        start = self.at
        self.at += 1
        self.depth += 1
        if self.depth > 50:
            raise PatternError("the groups of the pattern are nested too deeply")
        if self.peek("?"):
            if self.peek("?:"):
                self.at += 2
            elif name := _GROUP_NAME.match(self.pattern, self.at):
                self.at = name.end()
            elif any(self.peek(look) for look in ("?=", "?!", "?<=", "?<!")):
                raise PatternError(
                    f"look-around at position {start} cannot be enforced while generating; write the pattern without it"
                )
            else:
                raise PatternError(f"the group at position {start} is no ECMA-262 syntax (flags are not)")
        inner = self.alternatives()
        if not self.peek(")"):
            raise PatternError(f"the group at position {start} is not closed")
        self.at += 1
        self.depth -= 1
        return f"(?:{inner})"

    def escape_outside_class(self) -> str:
        letter = self.pattern[self.at + 1 : self.at + 2]
        if letter in _SHORTHANDS:
            self.at += 2
            text, members = _SHORTHANDS[letter]
            self.raw_safe = self.raw_safe and members <= _RAW
            return f"[{text}]"
        if letter and letter in "bB":
            raise PatternError(f"the word boundary at position {self.at} cannot be enforced; remove it")
        if letter and (letter in "123456789k"):
            raise PatternError(f"the back-reference at position {self.at} cannot be enforced; remove it")
        if letter and letter in "pP":
            self.raw_safe = False
            return self.property_class()[0]
        return self.one(self.escaped_char())

    def escaped_char(self) -> int:
        start = self.at
        letter = self.pattern[start + 1 : start + 2]
        self.at += 2
        if letter in _CONTROL_ESCAPES:
            return ord(_CONTROL_ESCAPES[letter])
        if letter == "x":
            return self.hex_digits(2, start)
        if letter == "u":
            code = self.hex_digits(4, start)
            if 0xD800 <= code < 0xDC00 and self.peek("\\u"):
                self.at += 2
                low = self.hex_digits(4, start)
                if 0xDC00 <= low < 0xE000:
                    return 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00)
            if 0xD800 <= code < 0xE000:
                raise PatternError(f"half of a surrogate pair at position {start}")
            return code
        if letter and not letter.isalnum():
            return ord(letter)
        raise PatternError(f"unknown escape {self.pattern[start : start + 2]} at position {start}")

    def hex_digits(self, count: int, start: int) -> int:
        digits = self.pattern[self.at : self.at + count]
        if not re.fullmatch(r"[0-9A-Fa-f]+", digits) or len(digits) < count:
            raise PatternError(f"the escape at position {start} needs {count} hexadecimal digits")
        self.at += count
        return int(digits, 16)

    def property_class(self) -> tuple[str, frozenset[int]]:
        start = self.at
        match = _PROPERTY.match(self.pattern, start + 2)
        if not match:
            raise PatternError(f"the property at position {start} must be written like \\p{{L}}")
        self.at = match.end()
        # Which ASCII characters belong is left open: no general category or script has NUL and
        # lacks a quote, except categories of controls, and a negated property has both.
        negated = self.pattern[start + 1] == "P"
        return self.pattern[start : self.at], _ASCII if negated else frozenset()

    def char_class(self) -> str:
        start = self.at
        self.at += 1
        negated = self.peek("^")
        if negated:
            self.at += 1
        body, members = "", frozenset[int]()
        while not self.peek("]"):
            if self.at >= len(self.pattern):
                raise PatternError(f"the class at position {start} is not closed")
            text, low, ascii_members = self.class_item(start)
            if low is not None and self.peek("-") and not self.peek("-]"):
                self.at += 1
                high_text, high, _ = self.class_item(start)
                if high is None or high < low:
                    raise PatternError(f"wrong range in the class at position {start}")
                text, ascii_members = f"{text}-{high_text}", frozenset(range(low, min(high, 127) + 1))
            body += text
            members |= ascii_members
        self.at += 1
        if not body:
            raise PatternError(f"the class at position {start} is empty")
        if negated or not members <= _RAW or not body.isascii():
            self.raw_safe = False
        return _subset_without_nul(("^" if negated else "") + body, _ASCII - members if negated else members)

    def class_item(self, start: int) -> tuple[str, int | None, frozenset[int]]:
        if self.at >= len(self.pattern):
            raise PatternError(f"the class at position {start} is not closed")
        char = self.pattern[self.at]
        if char == "\\":
            letter = self.pattern[self.at + 1 : self.at + 2]
            if letter in _SHORTHANDS:
                self.at += 2
                text, members = _SHORTHANDS[letter]
                return text, None, members
            if letter and letter in "pP":
                text, members = self.property_class()
                return text, None, members
            code = self.escaped_char()
        elif char == "[" and self.pattern[self.at + 1 : self.at + 2] in (":", ".", "="):
            raise PatternError(f"POSIX classes such as [:alpha:] at position {self.at} are no ECMA-262 syntax")
        else:
            self.at += 1
            code = ord(char)
        return _class_char(code), code, frozenset([code]) & _ASCII


def _subset_without_nul(body: str, members: frozenset[int]) -> str:
    r"""The class `[body]`, less NUL where guidance would leak.

    llguidance 1.7 lets `"` and `\` through a class that has NUL and should exclude them
    (`^[^\\]{1,12}$` returned a backslash); without NUL the same class holds.
    """
    if 0 in members and not members >= _QUOTE_AND_BACKSLASH:
        return rf"[[{body}]&&[^\x00]]"
    return f"[{body}]"


def _char(code: int) -> str:
    char = chr(code)
    if code < 32 or 127 <= code < 160 or code in (0x2028, 0x2029, 0xFEFF):
        return f"\\u{code:04x}" if code > 0xFF else f"\\x{code:02x}"
    return f"\\{char}" if char in _SYNTAX else char


def _class_char(code: int) -> str:
    # Every ASCII character that is no letter, digit or blank is escaped: `&&`, `--`, `~~` and `[` mean
    # set operations in the engines' dialect.
    char = chr(code)
    if code < 128 and not char.isalnum() and char != " ":
        return f"\\x{code:02x}"
    return _char(code)
