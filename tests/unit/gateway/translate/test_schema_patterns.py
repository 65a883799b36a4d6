"""Patterns: what is refused, and that the text for the engine means the same or less."""

import json
import random

import jsonschema_rs
import pytest

from gateway.translate import patterns
from gateway.translate.formats import STRICT_PATTERNS
from tests.support.walk import json_grammar, walk


@pytest.mark.parametrize(
    ("pattern", "word"),
    [
        ("(?=a)b", "look-around"), ("(?!a)b", "look-around"), ("(?<=a)b", "look-around"), ("(?<!a)b", "look-around"),
        (r"(a)\1", "back-reference"), (r"(?<n>a)\k<n>", "back-reference"), (r"\ba", "word boundary"),
        (r"a\B", "word boundary"), ("(?i)a", "flags"), ("(?#c)a", "flags"), ("a$b", "middle"), ("a^", "middle"),
        ("(^a)", "middle"), ("(a", "not closed"), ("a)", "unbalanced"), ("[a", "not closed"), ("[]", "empty"),
        ("[z-a]", "range"), (r"[a-\d]", "range"), ("a{3,1}", "wrong way"), ("*a", "repeat"), ("a**", "repeat"),
        ("{a}", "repeat"), (r"\Z", "escape"), (r"\A", "escape"), (r"\0", "escape"), (r"\cA", "escape"),
        ("\\", "escape"),
        (r"\x4", "hexadecimal"), (r"\u12", "hexadecimal"), (r"\ud800", "surrogate"), ("[[:alpha:]]", "POSIX"),
        (r"\pL", r"\p{L}"), ("(" * 60 + ")" * 60, "deeply"), ("a" * 5000, "longer"),
    ],
)  # fmt: skip
def test_refused(pattern: str, word: str) -> None:
    with pytest.raises(patterns.PatternError, match=word.replace("\\", ".").replace("{", ".").replace("}", ".")):
        patterns.parse(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        "abc", "a|b", "^a|b$", "^(?:a|bc){2}$", r"^\d\D\w\W\s\S.$", r'^[^"]{2}$', r"^[^\\]{2}$", r'^[^\s"]{2}$',
        r"^[\s\S]{2}$", r"^[^a-z]{2}$", r"^[\w.+-]{2}$", r"^[a&&b]{2}$", r"^[a~~b]{2}$", "^[[a]{2}$", r"^[\]a]{2}$",
        r"^[a\-z]{2}$", r"^[\x00-\x1f]{2}$", r"^\t\n\r\f\v$", r"^\x41\u00e9\/\-$", "^é😀$", r"^[à-ÿ]{2}$", "^a#b c$",
        "^a{0}b{2,}c?$", r"^\{\}\[\]\(\)\.\*\+\?\^\$\|\\$", "", "^$", r"^\p{Lu}\P{L}$", r"^[\p{L}\d]{2}$", "^a-b/c]}$",
    ],
)  # fmt: skip
def test_the_engine_writes_only_what_the_clients_pattern_matches(pattern: str) -> None:
    validator = jsonschema_rs.validator_for({"type": "string", "pattern": pattern})
    grammar = json_grammar({"type": "string", "pattern": patterns.parse(pattern).text, "maxLength": 20})
    rng = random.Random(pattern)
    for _ in range(40):
        text, why = walk(grammar, rng, 200)
        assert why == "stop"
        assert validator.is_valid(_parsed(text)), text


def _parsed(text: bytes) -> object:
    return json.loads(text)


@pytest.mark.parametrize("names", [["a"], ["a", "ab", "b"], [""], ['q"', "b\\", "é", "a/b"], ["id", "ide", "idea"]])
def test_none_of(names: list[str]) -> None:
    grammar = json_grammar({"type": "string", "pattern": patterns.none_of(names), "maxLength": 6})
    seen = {_parsed(walk(grammar, random.Random(seed), 100)[0]) for seed in range(150)}
    assert not seen & set(names)
    assert len(seen) > 50


@pytest.mark.parametrize("name", STRICT_PATTERNS)
def test_strict_formats_are_read_alike_by_all_backends(name: str) -> None:
    assert patterns.parse(STRICT_PATTERNS[name]).raw_safe


@pytest.mark.parametrize(
    ("pattern", "safe"),
    [
        ("^[a-z]{1,3}-[0-9]+$", True), ("^(?:ab|cd)*e$", True), (r"^\w\d$", True), ("^(?:a|b)$", True),
        ("^.$", False), ("^[^a]$", False), (r"^\s$", False), ('^"$', False), (r"^\\$", False), (r"^\n$", False),
        ("^é$", False), ("^(?:a|b?)$", False), ("^(?:a|)$", False), ("^(?:ab+){2,}$", False), ('^["]$', False),
    ],
)  # fmt: skip
def test_raw_safe(pattern: str, safe: bool) -> None:
    assert patterns.parse(pattern).raw_safe is safe
