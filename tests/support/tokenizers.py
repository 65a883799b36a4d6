"""Small tokenizers of each kind that models come with, trained on a few words."""

from collections.abc import Callable

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

ASCII_WORDS = ["the", "then", "hello", "world", "low", "lower", "lowest", "newer"]
WORDS = [*ASCII_WORDS, "über", "naïve", "世界", "слово", "नमस्ते", "e\u0301", "🌍", "🎉"]
_CORPUS = [" ".join(WORDS), " ".join(reversed(WORDS))] * 20
Make = Callable[[], Tokenizer]

_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def byte_level() -> Tokenizer:
    """As of GPT-2, Llama 3 and Qwen: every byte is a character of an alphabet of its own."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<s>", "</s>", "<|begin｜of▁text|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    return tokenizer


def split_byte_level() -> Tokenizer:
    """As converted from tiktoken: a pattern of its own splits the text."""
    tokenizer = byte_level()
    pattern = Regex(r"\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+|\s+")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(pattern, "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    return tokenizer


def _fallback_bpe() -> Tokenizer:
    """A BPE model whose unknown characters become byte tokens. The words are split at each blank."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=120, show_progress=False)
    trained.train_from_iterator([" ".join(ASCII_WORDS)] * 20, trainer)
    learned = trained.get_vocab()
    names = ["<unk>", "<s>", "</s>", *_BYTES, *sorted(learned, key=lambda token: learned[token])]
    merges = [(a, b) for name in names for a, b in _halves(name) if a in learned and b in learned and name in learned]
    vocabulary = {name: i for i, name in enumerate(names)}
    tokenizer = Tokenizer(
        models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True, ignore_merges=False)
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return tokenizer


def _halves(name: str) -> list[tuple[str, str]]:
    return [(name[:i], name[i:]) for i in range(1, len(name))]


def prepended_fallback() -> Tokenizer:
    """As of Llama 2: a blank is put before the text and taken off again."""
    tokenizer = _fallback_bpe()
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer


def plain_fallback() -> Tokenizer:
    """As of Gemma: nothing is put before the text."""
    tokenizer = _fallback_bpe()
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer


def metaspace_fallback() -> Tokenizer:
    """As of Llama 2, with the blanks in the pre-tokenizer."""
    tokenizer = _fallback_bpe()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = prepended_fallback().decoder
    return tokenizer


def metaspace_unigram() -> Tokenizer:
    """As of T5: no bytes; a character that the vocabulary lacks is lost."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=120, special_tokens=["<unk>", "</s>"], unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    return tokenizer


def word_piece() -> Tokenizer:
    """As of BERT."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(
        vocab_size=150, special_tokens=["[UNK]", "[CLS]"], show_progress=False, initial_alphabet=list(".,!'n")
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    return tokenizer


def suffixed_bpe() -> Tokenizer:
    """As of the first GPT: a mark at the end of each word."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.BPEDecoder(suffix="</w>")
    trainer = trainers.BpeTrainer(
        vocab_size=150, special_tokens=["<unk>"], end_of_word_suffix="</w>", show_progress=False
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    return tokenizer


def words_without_decoder() -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel({"<unk>": 0, **{word: i for i, word in enumerate(WORDS, 1)}}, "<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_tokens([AddedToken("[plain]", special=False), AddedToken("[special]", special=True)])
    return tokenizer


def ctc() -> Tokenizer:
    """As of speech models: the decoder drops repeated tokens."""
    tokenizer = words_without_decoder()
    tokenizer.decoder = decoders.CTC(pad_token="<unk>")
    return tokenizer
