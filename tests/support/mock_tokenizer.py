"""A `tokenizer.json` with the mock engine's own tokens, for a gateway that is to know what each token says.

A prompt is one token a byte, an answer is made of pieces of up to three bytes; of these there are those of some texts.
"""

import json
from collections.abc import Iterable

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from bench.mock_engine.tokens import BOS, EOS, pieces, token_id


def mock_tokenizer(texts: Iterable[str]) -> str:
    """The file's content. BOS is `<s>`, the end `</s>`."""
    single = {_spelled(bytes([byte])): byte for byte in range(256)}
    tokenizer = Tokenizer(models.BPE(single | {"</s>": EOS, "<s>": BOS}, []))
    tokenizer.add_special_tokens(["</s>", "<s>"])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", BOS)])
    tokenizer.decoder = decoders.ByteLevel()
    content = json.loads(tokenizer.to_str())
    content["model"]["vocab"] |= {_spelled(piece): token_id(piece) for text in texts for piece in pieces(text.encode())}
    return json.dumps(content)


def _spelled(data: bytes) -> str:
    """The byte-level alphabet's spelling of some bytes."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return "".join(chr(byte) if byte in printable else chr(0x100 + others.index(byte)) for byte in data)
