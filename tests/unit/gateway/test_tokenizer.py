"""A model's tokenizer: ids, texts, and the exact bytes of single tokens, for each kind of tokenizer."""

import json
import threading
from functools import cache

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, processors

from gateway.tokenizer import ModelTokenizer
from tests.support import tokenizers as kinds
from tests.support.tokenizers import ASCII_WORDS, WORDS, Make

BYTE_LEVEL = [kinds.byte_level, kinds.split_byte_level]
FALLBACK = [kinds.prepended_fallback, kinds.plain_fallback, kinds.metaspace_fallback]
OF_WORDS = [kinds.metaspace_unigram, kinds.words_without_decoder]
LOSSY = [kinds.word_piece, kinds.suffixed_bpe]

EXAMPLES = [
    "Hello world",
    "a 🌍 b👩‍👩‍👧\u200d🎉",
    "世界 言葉",
    "नमस्ते e\u0301 \u0301",
    "\x00\t\r\n\x7f\x80\u2028",
    "<0x41>",
    "  two  blanks  ",
    "\U0010ffff\ufffd",
    "<",
    "",
]


@cache
def made(make: Make) -> ModelTokenizer:
    return ModelTokenizer(make())


def spelled(tokenizer: ModelTokenizer, ids: list[int]) -> bytes:
    """The bytes of a whole text: the first token's, then the others'."""
    first = [tokenizer.first_token_bytes(token_id) for token_id in ids[:1]]
    parts = first + [tokenizer.token_bytes(token_id) for token_id in ids[1:]]
    return b"".join(part for part in parts if part is not None)


def names(make: Make) -> str:
    return make.__name__


PIECES = [*WORDS, " ", "<", "<0x41>", "a"]
CHARACTERS = st.characters(exclude_categories=["Cs"])


@pytest.mark.parametrize("make", BYTE_LEVEL, ids=names)
@given(text=st.text(CHARACTERS) | st.lists(st.sampled_from([*PIECES, "<s>", "<|begin｜of▁text|>"])).map("".join))
def test_the_tokens_bytes_are_the_texts(make: Make, text: str) -> None:
    tokenizer = made(make)
    assert spelled(tokenizer, tokenizer.encode(text, add_special_tokens=False)) == text.encode()


# Some of these put a blank before a text, or take one there for their own, and before what follows a special token;
# all write "▁" for it.
WITHOUT_MARKS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="▁"))


@pytest.mark.parametrize("make", FALLBACK, ids=names)
@given(text=(WITHOUT_MARKS | st.lists(st.sampled_from(PIECES)).map("".join)).filter(lambda text: text[:1] != " "))
def test_the_tokens_bytes_are_the_texts_with_byte_fallback(make: Make, text: str) -> None:
    tokenizer = made(make)
    assert spelled(tokenizer, tokenizer.encode(text, add_special_tokens=False)) == text.encode()


@pytest.mark.parametrize("make", [*BYTE_LEVEL, *FALLBACK], ids=names)
@pytest.mark.parametrize("text", EXAMPLES)
def test_the_tokens_bytes_in_the_middle_of_a_text_are_the_texts(make: Make, text: str) -> None:
    tokenizer = made(make)
    ids = tokenizer.encode(f"the {text} then", add_special_tokens=False)
    assert spelled(tokenizer, ids) == f"the {text} then".encode()


@pytest.mark.parametrize("make", OF_WORDS, ids=names)
@given(words=st.lists(st.sampled_from(ASCII_WORDS), min_size=1))
def test_the_tokens_bytes_are_the_words(make: Make, words: list[str]) -> None:
    tokenizer = made(make)
    text = " ".join(words)
    assert spelled(tokenizer, tokenizer.encode(text, add_special_tokens=False)) == text.encode()


@pytest.mark.parametrize("make", [*BYTE_LEVEL, *FALLBACK, *OF_WORDS, *LOSSY], ids=names)
@given(parts=st.lists(st.integers(0, 399) | CHARACTERS))
def test_the_bytes_of_any_tokens_are_those_of_the_text_that_they_make(make: Make, parts: list[int | str]) -> None:
    tokenizer = made(make)
    ids = []
    for part in parts:
        if isinstance(part, str):
            ids += tokenizer.encode(part, add_special_tokens=False)
        elif is_whole(tokenizer, part):
            ids.append(part)
    # The last word of a text may lose its mark.
    ids += tokenizer.encode("the", add_special_tokens=False)
    text = tokenizer.decode(ids, skip_special_tokens=False)
    assert spelled(tokenizer, ids).decode().rstrip() == text.rstrip()


def is_whole(tokenizer: ModelTokenizer, token_id: int) -> bool:
    """Whether a token has all bytes of its characters."""
    try:
        return (tokenizer.token_bytes(token_id) or b"\xff").decode() != ""
    except UnicodeDecodeError:
        return False


@given(ids=st.lists(st.integers(0, 399)))
@example(ids=[])
def test_bytes_that_are_no_text_are_shown_as_a_byte_level_decoder_shows_them(ids: list[int]) -> None:
    tokenizer = made(kinds.byte_level)
    ids = [token_id for token_id in ids if token_id < tokenizer.vocabulary_size]
    assert spelled(tokenizer, ids).decode(errors="replace") == tokenizer.decode(ids, skip_special_tokens=False)


@pytest.mark.parametrize("make", [*BYTE_LEVEL, *FALLBACK], ids=names)
def test_each_byte_of_a_character_that_no_token_covers_has_a_token(make: Make) -> None:
    tokenizer = made(make)
    ids = tokenizer.encode("a\U0010fffe", add_special_tokens=False)
    assert [tokenizer.token_bytes(token_id) for token_id in ids[-4:]] == [b"\xf4", b"\x8f", b"\xbf", b"\xbe"]


def test_special_tokens_are_their_text() -> None:
    for make, name in ((kinds.byte_level, "<|begin｜of▁text|>"), (kinds.prepended_fallback, "</s>")):
        tokenizer = made(make)
        (token_id,) = tokenizer.encode(name, add_special_tokens=False)
        assert tokenizer.token_bytes(token_id) == name.encode()
        assert token_id in tokenizer.special_ids


@pytest.mark.parametrize("token_id", [-1, 10_000, 2**31, 2**32, 2**63])
def test_an_id_that_the_vocabulary_lacks(token_id: int) -> None:
    tokenizer = made(kinds.byte_level)
    assert tokenizer.token_bytes(token_id) is None
    assert tokenizer.first_token_bytes(token_id) is None
    with pytest.raises(ValueError, match=f"no token {token_id}$"):
        tokenizer.decode([5, token_id], skip_special_tokens=True)
    with pytest.raises(ValueError, match=f"no token {token_id}$"):
        tokenizer.token_strings([5, token_id])


@pytest.mark.parametrize(
    "decoder",
    [
        decoders.CTC(),
        # A pattern that may lie across two tokens of a text that is joined already.
        decoders.Sequence([decoders.Fuse(), decoders.Replace("ab", "c")]),
        decoders.Sequence([decoders.ByteLevel(), decoders.Replace("ab", "c")]),
    ],
)
def test_bytes_that_depend_on_the_neighbours_are_not_known(decoder: decoders.Decoder) -> None:
    made_of_words = kinds.words_without_decoder()
    made_of_words.decoder = decoder
    tokenizer = ModelTokenizer(made_of_words)
    assert tokenizer.token_bytes(1) is None
    assert tokenizer.first_token_bytes(1) is None


def test_a_byte_token_is_a_byte_only_where_the_decoder_makes_it_one() -> None:
    tokenizer = Tokenizer(models.BPE({"a": 0, "<0x41>": 1}, []))
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse()])
    assert ModelTokenizer(tokenizer).token_bytes(1) == b"<0x41>"
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    assert ModelTokenizer(tokenizer).token_bytes(1) == b"A"


def test_the_blank_before_the_first_word_is_dropped_where_the_decoder_drops_it() -> None:
    for make, first in (
        (kinds.prepended_fallback, b"the"),
        (kinds.metaspace_unigram, b"the"),
        (kinds.plain_fallback, b" the"),
    ):
        tokenizer = made(make)
        ids = tokenizer.encode("low the", add_special_tokens=False)
        while tokenizer.token_bytes(ids[0]) != b" the":
            ids = ids[1:]
        assert tokenizer.first_token_bytes(ids[0]) == first


def test_special_tokens_that_only_the_configuration_names_are_special() -> None:
    tokenizer = ModelTokenizer(kinds.words_without_decoder(), ["the", "[special]"])
    the, hello, special = tokenizer.encode("the hello[special]", add_special_tokens=False)
    assert tokenizer.special_ids == {the, special}
    assert tokenizer.added_tokens["[special]"] == special
    assert "hello" not in tokenizer.added_tokens
    assert tokenizer.decode([the, hello, special], skip_special_tokens=True) == "hello"


def test_tokens_that_are_added_but_not_special_stay_in_the_text() -> None:
    tokenizer = made(kinds.words_without_decoder)
    ids = tokenizer.encode("hello[plain][special]", add_special_tokens=False)
    assert tokenizer.decode(ids, skip_special_tokens=True) == "hello [plain]"


def test_the_tokenizers_own_special_tokens_are_added_on_request() -> None:
    tokenizer = made(kinds.prepended_fallback)
    with_bos = tokenizer.encode("the", add_special_tokens=True)
    assert with_bos == [1, *tokenizer.encode("the", add_special_tokens=False)]
    assert tokenizer.token_strings(with_bos[:1]) == ["<s>"]


def test_no_prompt_is_cut_or_filled_up() -> None:
    padding = kinds.words_without_decoder()
    padding.enable_truncation(2)
    padding.enable_padding(length=8)
    tokenizer = ModelTokenizer(Tokenizer.from_str(padding.to_str()))
    assert len(tokenizer.encode("the the the", add_special_tokens=True)) == 3


def test_other_threads_run_while_a_long_text_is_encoded() -> None:
    tokenizer = made(kinds.byte_level)
    text = "the lowest world " * 100_000
    turns = 0
    encoding = threading.Thread(target=tokenizer.encode, args=(text,), kwargs={"add_special_tokens": False})
    encoding.start()
    while encoding.is_alive():
        encoding.join(0.001)
        turns += 1
    assert turns > 10


def test_spellings_are_the_vocabularys_own() -> None:
    tokenizer = made(kinds.byte_level)
    ids = tokenizer.encode("hello the", add_special_tokens=False)
    assert "Ġthe" in tokenizer.token_strings(ids)
    assert json.dumps(tokenizer.token_strings([]), ensure_ascii=False) == "[]"


def test_a_post_processors_token_is_the_vocabularys() -> None:
    made_of_words = kinds.words_without_decoder()
    made_of_words.post_processor = processors.TemplateProcessing(single="$A the", special_tokens=[("the", 1)])
    tokenizer = ModelTokenizer(made_of_words)
    assert tokenizer.encode("hello", add_special_tokens=True)[-1] == 1
