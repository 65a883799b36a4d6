"""The served models: settings made whole from the model repository and the tokenizer's folder, and how a request
finds one by name.

Reads files when a model is made (`gateway.model_list` says when); what a request needs later is values. Raises
`SettingsError` with a sentence that names the setting or the file.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from tokenizers import Tokenizer

from gateway.access.keys import ANONYMOUS, Key
from gateway.files import is_folder, read_json, read_text
from gateway.openai.errors import ApiError, unavailable
from gateway.output.parsers import OutputFormat, recognise
from gateway.output.tools import FAMILIES
from gateway.repository import EngineArguments
from gateway.settings import NO_PARSER, BatchedEgress, ModelSettings
from gateway.tokenizer import ModelTokenizer
from gateway.translate.prompt import ChatTemplate
from gateway.translate.sampling import model_defaults
from service_base.errors import SettingsError, mistake, shown

_TOKEN_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class _GenerationConfig(BaseModel):
    """The members of `generation_config.json` that become defaults, with the engine's bounds
    (vLLM's `SamplingParams._verify_args`)."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    temperature: Annotated[float, Field(ge=0)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0)] | None = None
    max_new_tokens: Annotated[int, Field(ge=1)] | None = None


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What the gateway knows of one model. `grammar_backend` is empty where unknown; `no_chat` says, in
    a sentence for the client, why the model has no chat template. `added_bos` is the text that the
    tokenizer itself puts before every prompt, empty where it puts none. `max_model_len` is the context
    length where settings or engine arguments say it; `trained_len` what the model's own configuration
    says, which the engine may stretch or cut. `no_tokenizer` says, in a sentence for the client, why there is no
    `tokenizer`. `output` is how its answers write calls and thinking; `tool_structural_tag` whether calls that it
    may make are kept valid by the engine; `weight` its part of the requests for a name that it shares with others;
    `batched_egress` how its tokens come back (`gateway.triton.paths`)."""

    names: tuple[str, ...]
    triton_model: str
    template: ChatTemplate | None
    no_chat: str
    tokenizer: ModelTokenizer | None
    no_tokenizer: str
    grammar_backend: str
    max_model_len: int | None
    trained_len: int | None
    defaults: Mapping[str, Any]
    added_bos: str
    output: OutputFormat
    tool_structural_tag: bool
    weight: int | None = None
    batched_egress: BatchedEgress = "auto"

    def chat_template(self) -> ChatTemplate:
        """Raises a 400 where it has none."""
        if self.template is None:
            raise ApiError(400, self.no_chat, param="model", code="model_without_chat_template")
        return self.template


def read_model(model: ModelSettings, engine: EngineArguments) -> ServedModel:
    """Raises `SettingsError`."""
    folder = _tokenizer_folder(model, engine)
    name = (model.names or [model.triton_model])[0]
    template, no_chat, tokenizer, no_tokenizer, added_bos, defaults, trained_len = None, "", None, "", "", {}, None
    if folder is None:
        no_chat = no_tokenizer = (
            f"The model {name!r} has no tokenizer in the gateway's settings; "
            "set models[].tokenizer to the folder with its files."
        )
    else:
        config = read_json(folder / "tokenizer_config.json")
        special = _special_tokens(folder, config)
        tokenizer = _tokenizer(folder, special.values())
        if tokenizer is None:
            no_tokenizer = (
                f"The tokenizer of {name!r} has no tokenizer.json; set models[].tokenizer to a folder with one."
            )
        added_bos = _added_bos(tokenizer, special.get("bos_token", ""), config)
        defaults = model_defaults(_generation_config(folder, engine))
        trained_len = _positive(read_json(folder / "config.json").get("max_position_embeddings"))
        place, source = _template_source(model, folder, config)
        if source is None:
            no_chat = (
                f"The tokenizer of {model.triton_model!r} has no chat template; set models[].chat_template to a "
                "Jinja file."
            )
        else:
            template = _template(place, source, special)
    structured = engine.structured_outputs_config
    grammar_backend = model.structured_outputs_backend or (structured and structured.backend) or ""
    output = _output_format(model, template)
    if model.tool_structural_tag:
        _check_structural_tag(model, output, grammar_backend)
    return ServedModel(
        names=tuple(model.names or [model.triton_model]),
        triton_model=model.triton_model,
        template=template,
        no_chat=no_chat,
        tokenizer=tokenizer,
        no_tokenizer=no_tokenizer,
        grammar_backend=grammar_backend,
        max_model_len=model.max_model_len or _positive(engine.max_model_len),
        trained_len=trained_len,
        defaults=defaults,
        added_bos=added_bos,
        output=output,
        tool_structural_tag=model.tool_structural_tag,
        weight=model.weight,
        batched_egress=model.batched_egress,
    )


def _check_structural_tag(model: ModelSettings, output: OutputFormat, grammar_backend: str) -> None:
    setting = f"models: tool_structural_tag of {model.triton_model!r}"
    if grammar_backend != "xgrammar":
        raise SettingsError(
            f"{setting} needs the grammar backend xgrammar, which alone enforces structural tags; it has "
            f"{grammar_backend or 'an unknown one'} (structured_outputs_backend)."
        )
    family = FAMILIES.get(output.tool_parser or "")
    if family is None or family.frame is None:
        raise SettingsError(
            f"{setting} needs a tool parser whose calls have one certain form, such as hermes; it has "
            f"{output.tool_parser or NO_PARSER} (tool_parser)."
        )


def _output_format(model: ModelSettings, template: ChatTemplate | None) -> OutputFormat:
    """Set, or recognised from the chat template."""
    recognised = recognise(template.source) if template else OutputFormat(None, None, "there is no chat template")

    def chosen(setting: str | None, found: str | None) -> str | None:
        return found if setting is None else None if setting == NO_PARSER else setting

    return OutputFormat(
        chosen(model.tool_parser, recognised.tool_parser),
        chosen(model.reasoning_parser, recognised.reasoning_parser),
        "as set" if model.tool_parser and model.reasoning_parser else recognised.why,
    )


def _tokenizer_folder(model: ModelSettings, engine: EngineArguments) -> Path | None:
    if model.tokenizer:
        if not is_folder(model.tokenizer):
            raise SettingsError(
                f"models: the tokenizer folder {model.tokenizer} of {model.triton_model!r} does not exist or is a file."
            )
        return model.tokenizer
    # `model` may also be the name of a hub repository, which the gateway does not fetch.
    for name in (engine.tokenizer, engine.model):
        if name and is_folder(Path(name)):
            return Path(name)
    if model.chat_template:
        raise SettingsError(
            f"models: {model.triton_model!r} has a chat_template but no tokenizer; set models[].tokenizer too."
        )
    return None


def _positive(value: Any) -> int | None:
    # The engine takes -1 and "auto" too: then the length is not known here.
    return value if type(value) is int and value > 0 else None


def _generation_config(folder: Path, engine: EngineArguments) -> dict[str, Any]:
    """The model's own sampling defaults, from where the engine arguments say that vLLM's server takes them."""
    source = engine.generation_config or "auto"
    file = (folder if source in ("auto", "vllm") else Path(source)) / "generation_config.json"
    values = {} if source == "vllm" else read_json(file)
    values |= engine.override_generation_config or {}
    try:
        _GenerationConfig.model_validate(values)
    except ValidationError as error:
        place, what = mistake(error)
        raise SettingsError(f"{file} is wrong: {place}: {what}.") from None
    return values


def _special_tokens(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    token_map = read_json(folder / "special_tokens_map.json")
    tokens = {}
    for name in _TOKEN_NAMES:
        value = config.get(name) or token_map.get(name)
        if isinstance(value, dict):
            value = value.get("content")
        if isinstance(value, str):
            tokens[name] = value
        elif value is not None:
            raise SettingsError(f"{folder}: the tokenizer's {name} must be text, not {shown(value)}.")
    return tokens


def _template_source(model: ModelSettings, folder: Path, config: Mapping[str, Any]) -> tuple[Path, str | None]:
    """The file that has the chat template, and the template."""
    file = model.chat_template or folder / "chat_template.jinja"
    source = read_text(file)
    if source is not None:
        return file, source
    if model.chat_template:
        raise SettingsError(f"models: the chat template {file} does not exist.")
    file = folder / "tokenizer_config.json"
    value = config.get("chat_template")
    if not value:
        file = folder / "chat_template.json"
        value = read_json(file).get("chat_template")
    return file, _default_template(file, value)


def _default_template(file: Path, value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    # Several named templates: `default` is the one for plain chat.
    if isinstance(value, list) and all(isinstance(named, dict) for named in value):
        value = next((named.get("template") for named in value if named.get("name") == "default"), None)
        if value is None or isinstance(value, str):
            return value
    raise SettingsError(f"{file} is wrong: chat_template: it must be text or a list of named templates.")


def _template(file: Path, source: str, special_tokens: Mapping[str, str]) -> ChatTemplate:
    try:
        return ChatTemplate(source, special_tokens)
    except ValueError as error:
        raise SettingsError(f"{file} is wrong: {' '.join(str(error).split())}.") from None
    except (RecursionError, SyntaxError):
        # Jinja compiles to Python, which has limits of its own.
        raise SettingsError(f"{file} is wrong: the chat template is nested too deeply.") from None


def _tokenizer(folder: Path, special_tokens: Iterable[str]) -> ModelTokenizer | None:
    """`None` where there is no `tokenizer.json`: files of other libraries, such as SentencePiece's, are not read."""
    file = folder / "tokenizer.json"
    text = read_text(file)
    if text is None:
        return None
    try:
        tokenizer = Tokenizer.from_str(text)
        # Shows what the post-processor lacks.
        tokenizer.encode("a")
        return ModelTokenizer(tokenizer, special_tokens)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        # tokenizers raises no class of its own, and for a post-processor without its token a panic, which is
        # no `Exception`.
        raise SettingsError(f"{file} is not a tokenizer: {' '.join(str(error).split())}.") from None


def _added_bos(tokenizer: ModelTokenizer | None, bos: str, config: Mapping[str, Any]) -> str:
    """What the tokenizer itself puts before a prompt: the BOS or nothing."""
    if tokenizer is None:
        return bos if config.get("add_bos_token") else ""
    ids = tokenizer.encode("a", add_special_tokens=True)
    return bos if bos and tokenizer.token_strings(ids[:1]) == [bos] else ""


class ServedModels:
    """The models that clients may ask for. One object for as long as the process lives; what it holds changes. Several
    may share a name as its versions, each with a weight."""

    def __init__(self, models: Iterable[ServedModel] = ()) -> None:
        self._models: tuple[ServedModel, ...] = ()
        self._by_name: dict[str, dict[str, ServedModel]] = {}
        self.broken: Mapping[str, str] = {}
        """Models whose files cannot be used: by their name, the sentence that says why. It names files, so it is for
        the operator."""
        self.replace(models, {})

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(self._models)

    def __len__(self) -> int:
        return len(self._models)

    @property
    def names(self) -> Iterable[str]:
        return self._by_name

    def versions(self, name: str) -> Iterable[ServedModel]:
        return self._by_name.get(name, {}).values()

    def get(self, name: str, version: str | None = None) -> ServedModel | None:
        """In this version (Triton's name), or in its first."""
        versions = self._by_name.get(name)
        if versions is None:
            return None
        return versions.get(version or "") or next(iter(versions.values()))

    def weights(self) -> dict[str, dict[str, int]]:
        """The versions' weights as they are set, of the names that have any."""
        return {
            name: {version: model.weight or 0 for version, model in versions.items()}
            for name, versions in self._by_name.items()
            if any(model.weight is not None for model in versions.values())
        }

    def replace(self, models: Iterable[ServedModel], broken: Mapping[str, str]) -> None:
        """All at once. Raises `SettingsError` where two have one name and no weights; then nothing changes."""
        whole = tuple(models)
        by_name: dict[str, dict[str, ServedModel]] = {}
        for model in whole:
            for name in model.names:
                versions = by_name.setdefault(name, {})
                if versions and (model.weight is None or any(other.weight is None for other in versions.values())):
                    raise SettingsError(
                        f"models: the name {name!r} is given to two models; give each a weight, or one another name."
                    )
                if versions.setdefault(model.triton_model, model) is not model:
                    raise SettingsError(f"models: the name {name!r} is given to {model.triton_model!r} twice.")
        self._models, self._by_name, self.broken = whole, by_name, broken


BROKEN = "its files cannot be used, the gateway's log says why"


def not_ready(name: str, reason: str) -> ApiError:
    """A model that exists and cannot answer now; `reason` without a full stop."""
    return unavailable(f"The model {name!r} is not ready: {reason}.")


def named(models: ServedModels, name: str, key: Key = ANONYMOUS, version: str | None = None) -> ServedModel:
    """The model that a client asks for, in this version (Triton's name) or in its first. Raises a 404, the same where
    it exists and the key may not use it, and a 503 where its files are wrong."""
    model = models.get(name, version)
    if model is not None and key.may_use(model.names):
        return model
    if model is None and name in models.broken and key.may_use((name,)):
        raise not_ready(name, BROKEN)
    unknown = "does not exist" if key.models is None else "does not exist, or this key may not use it"
    raise ApiError(
        404,
        f"The model {name!r} {unknown}; GET /v1/models lists those to ask for.",
        param="model",
        code="model_not_found",
    )
