"""Makes a tiny random Llama with its own tokenizer: `python -I tiny_model.py FOLDER`.

Runs in the services' environment: no torch. The same folder comes out everywhere, byte for byte.
On purpose, the tokenizer adds a BOS by itself and the chat template writes one too: whoever sends a rendered prompt
through the tokenizer without care doubles it.
"""

import json
import random
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

_SEED = 20
_VOCABULARY = 1536
_HIDDEN = 64
_INTERMEDIATE = 128
_LAYERS = 2
_HEADS = 2  # Of 32 each: the smallest that the attention kernel for CPUs has.
_MAX_POSITIONS = 8192

_BOS, _EOS, _START, _END = "<s>", "</s>", "<|start|>", "<|end|>"

_CHAT_TEMPLATE = """\
{{- bos_token }}
{%- for message in messages %}
{{- '<|start|>' + message['role'] + '\\n' + message['content'] + '<|end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|start|>assistant\\n' }}
{%- endif %}"""

_TEXT = """
a about after all also an and any are as at back be because before between both but by can city colour come
count country data date day do each early east end even every far few first for from garden get give go good
green ground group half hand have he her here high home house how if in into is it its item just keep kind
know land large last late leaf left light like line list little long look low made make man many map may mean
measure model moment month more morning most mountain move name near need never new next night north not now
number of off old on one only open order other our out over own page part people place plan plant point price
question quick rain read red right river road round same say school sea second see sentence set she short side
small so some south star state step still stone street such sun take tell than that the their them then there
these they thing think this three through time to token tree true turn two under unit up use value very walk
want warm water way we week well west what when where which while white who why wind window winter with word
work world year yellow yes you young über café naïve señor straße Ωmega мир слово 世界 言葉 数 🌍 🎉
"""
_WORDS = _TEXT.split()


def _corpus() -> list[str]:
    """Sentences and JSON texts, enough of them that pairs repeat and merges are found."""
    choose = random.Random(_SEED)

    def sentence() -> str:
        words = " ".join(choose.choice(_WORDS) for _ in range(choose.randint(4, 14)))
        return words[:1].upper() + words[1:] + choose.choice(".?!")

    def document() -> dict[str, object]:
        return {
            choose.choice(_WORDS): choose.choice(
                [sentence(), choose.randint(0, 9999), True, None, [choose.choice(_WORDS)], choose.random()]
            )
            for _ in range(choose.randint(1, 5))
        }

    return [sentence() for _ in range(3000)] + [
        json.dumps(document(), ensure_ascii=False, indent=choose.choice([None, 2])) for _ in range(1000)
    ]


def _tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCABULARY,
        special_tokens=[_BOS, _EOS, _START, _END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_corpus(), trainer)
    bos = tokenizer.token_to_id(_BOS)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{_BOS} $A", pair=f"{_BOS} $A {_BOS} $B", special_tokens=[(_BOS, bos)]
    )
    return tokenizer


def _weights() -> dict[str, np.ndarray]:
    """Random tensors under the names that `LlamaForCausalLM` reads."""
    generator = np.random.Generator(np.random.PCG64(_SEED))

    def matrix(rows: int, columns: int) -> np.ndarray:
        return (generator.standard_normal((rows, columns)) * 0.05).astype(np.float32)

    tensors = {"model.embed_tokens.weight": matrix(_VOCABULARY, _HIDDEN)}
    for layer in range(_LAYERS):
        prefix = f"model.layers.{layer}."
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            tensors[f"{prefix}self_attn.{name}.weight"] = matrix(_HIDDEN, _HIDDEN)
        tensors[prefix + "mlp.gate_proj.weight"] = matrix(_INTERMEDIATE, _HIDDEN)
        tensors[prefix + "mlp.up_proj.weight"] = matrix(_INTERMEDIATE, _HIDDEN)
        tensors[prefix + "mlp.down_proj.weight"] = matrix(_HIDDEN, _INTERMEDIATE)
        tensors[prefix + "input_layernorm.weight"] = np.ones(_HIDDEN, np.float32)
        tensors[prefix + "post_attention_layernorm.weight"] = np.ones(_HIDDEN, np.float32)
    tensors["model.norm.weight"] = np.ones(_HIDDEN, np.float32)
    tensors["lm_head.weight"] = matrix(_VOCABULARY, _HIDDEN)
    return tensors


def make(target: Path) -> None:
    tokenizer = _tokenizer()
    if (size := tokenizer.get_vocab_size()) != _VOCABULARY:
        raise SystemExit(f"the corpus gives {size} tokens, not {_VOCABULARY}")
    ids = {"bos_token_id": tokenizer.token_to_id(_BOS), "eos_token_id": tokenizer.token_to_id(_EOS)}
    target.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(target / "tokenizer.json"))
    (target / "chat_template.jinja").write_text(_CHAT_TEMPLATE)
    _write_json(
        target / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": _BOS,
            "eos_token": _EOS,
            "clean_up_tokenization_spaces": False,
            "model_max_length": _MAX_POSITIONS,
        },
    )
    _write_json(
        target / "config.json",
        {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "dtype": "float32",
            "vocab_size": _VOCABULARY,
            "hidden_size": _HIDDEN,
            "intermediate_size": _INTERMEDIATE,
            "num_hidden_layers": _LAYERS,
            "num_attention_heads": _HEADS,
            "num_key_value_heads": _HEADS,
            "head_dim": _HIDDEN // _HEADS,
            "hidden_act": "silu",
            "max_position_embeddings": _MAX_POSITIONS,
            "rms_norm_eps": 1e-5,
            "tie_word_embeddings": False,
            **ids,
        },
    )
    _write_json(target / "generation_config.json", ids)
    save_file(_weights(), target / "model.safetensors", metadata={"format": "pt"})


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")


if __name__ == "__main__":
    make(Path(sys.argv[1]))
