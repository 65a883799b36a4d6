"""The tokenizer, as far as catalogues need it: the tokens of a plain text, and which tokenizer it is."""

import hashlib
from collections.abc import Iterable
from typing import Any


def backend_of(tokenizer: Any) -> Any:
    """The `tokenizers.Tokenizer` within a tokenizer of transformers. Raises ValueError if there is none."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise ValueError(f"the tokenizer {type(tokenizer).__name__} is not one of the tokenizers library")
    return backend


def plain(backend: Any) -> Any:
    """A copy of the tokenizer for plain text: in it, what looks like a special token is none, and nothing is cut."""
    copy = type(backend).from_str(backend.to_str())
    copy.encode_special_tokens = True
    copy.no_truncation()
    copy.no_padding()
    return copy


def encode(tokenizer: Any, texts: list[str]) -> list[list[int]]:
    """Token ids of each text, by a tokenizer that `plain` made."""
    encodings: Iterable[Any] = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    return [encoding.ids for encoding in encodings]


class Joined:
    """Encodes many texts in one go, each as if it were alone. Per text, that makes fewer objects than `encode`."""

    # Two code points that are no characters and never will be.
    _SEPARATOR = "\U0010fffe\uffff"

    def __init__(self, backend: Any) -> None:
        # Here and not above: an engine does not need it.
        from tokenizers import AddedToken

        self._plain = plain(backend)
        self._separating = plain(backend)
        # Whatever stands on its two sides is normalized and split by itself.
        self._separating.add_tokens([AddedToken(self._SEPARATOR, normalized=False)])
        self.end: int = self._separating.token_to_id(self._SEPARATOR)
        """The token that ends each text, and is no other one's."""

    def encode(self, texts: list[str]) -> list[int]:
        """The token ids of the texts, and `end` after those of each."""
        if any(self._SEPARATOR in text for text in texts):
            return [token for ids in encode(self._plain, texts) for token in (*ids, self.end)]
        # Words of one text, to the library: it takes them one by one.
        words = [text + self._SEPARATOR for text in texts]
        (encoding,) = self._separating.encode_batch_fast([words], is_pretokenized=True, add_special_tokens=False)
        ids: list[int] = encoding.ids
        return ids


def vocabulary_size(backend: Any) -> int:
    """One more than the largest token id."""
    return 1 + max(int(index) for index in backend.get_vocab(with_added_tokens=True).values())


def fingerprint(backend: Any) -> bytes:
    """32 bytes that two tokenizers share if they mean the same by every token id."""
    digest = hashlib.sha256()
    for token, index in sorted(backend.get_vocab(with_added_tokens=True).items(), key=lambda item: item[1]):
        digest.update(f"{index}\0{token}\n".encode("utf-8", "surrogatepass"))
    return digest.digest()
