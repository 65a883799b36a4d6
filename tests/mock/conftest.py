"""The gateway in front of mock engines: one of each for all tests, and what they serve."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from bench.mock_engine.running import MockEngine, running_mock_engine
from tests.support.chat import MODEL
from tests.support.gateway import Gateway, running_gateway
from tests.support.mock_tokenizer import mock_tokenizer
from tests.support.tool_cases import FORMATS
from tests.support.tools import THOUGHTS, Talk

TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
    # What tells the gateway that the model writes calls as Hermes does.
    """{# <tool_call>{"name": … } #}"""
    "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}{{ reasoning_effort or '' }}"
    "{% for document in documents or [] %}{{ document['title'] }}{% endfor %}{{ mood or '' }}"
)


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model repository with one model, whose tokenizer adds the BOS that its template writes too."""
    folder = tmp_path_factory.mktemp("mock")
    hf = folder / "hf"
    hf.mkdir()
    vocabulary = {token: i for i, token in enumerate(["<s>", *sorted(pre_tokenizers.ByteLevel.alphabet())])}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.add_special_tokens(["<s>"])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    tokenizer.save(str(hf / "tokenizer.json"))
    (hf / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "chat_template": TEMPLATE}))
    (hf / "generation_config.json").write_text(json.dumps({"top_p": 0.9}))
    model = folder / "repository" / MODEL
    (model / "1").mkdir(parents=True)
    (model / "config.pbtxt").write_text('backend: "vllm"\n')
    engine = {"model": str(hf), "max_model_len": 512, "structured_outputs_config": {"backend": "guidance"}}
    (model / "1" / "model.json").write_text(json.dumps(engine))
    return folder / "repository"


@pytest.fixture(scope="session")
def paced(repository: Path) -> Iterator[MockEngine]:
    """An engine whose tokens come one by one."""
    with running_mock_engine(model_repository=repository, token_interval_ms=5) as engine:
        yield engine


@pytest.fixture
def slow(paced: MockEngine) -> MockEngine:
    paced.reset()
    return paced


@pytest.fixture(scope="session")
def engine_process(repository: Path) -> Iterator[MockEngine]:
    with running_mock_engine(model_repository=repository, scheduling_policy="priority") as engine:
        yield engine


@pytest.fixture(scope="session")
def stock_process(repository: Path) -> Iterator[MockEngine]:
    with running_mock_engine(model_repository=repository, stock=True) as engine:
        yield engine


@pytest.fixture(scope="session")
def gateway(engine_process: MockEngine, repository: Path) -> Iterator[Gateway]:
    with running_gateway("--triton", engine_process.url, "--model-repository", str(repository)) as running:
        yield running.wait_until_ready()


@pytest.fixture(scope="session")
def stock_gateway(stock_process: MockEngine, repository: Path) -> Iterator[Gateway]:
    with running_gateway("--triton", stock_process.url, "--model-repository", str(repository)) as running:
        yield running.wait_until_ready()


@pytest.fixture
def engine(engine_process: MockEngine) -> MockEngine:
    """The engine behind `gateway`, without a past."""
    engine_process.reset()
    return engine_process


@pytest.fixture
def stock(stock_process: MockEngine) -> MockEngine:
    """The engine behind `stock_gateway`, without a past."""
    stock_process.reset()
    return stock_process


# A client that reads the system's certificates costs more than a request; there is no TLS here.


@pytest.fixture
def client(gateway: Gateway, engine: MockEngine) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=gateway.url, timeout=30, verify=False) as opened:
        yield opened


@pytest.fixture
def stock_client(stock_gateway: Gateway, stock: MockEngine) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=stock_gateway.url, timeout=30, verify=False) as opened:
        yield opened


# Shows everything of the tools and of earlier calls, and ends as a request says.
TOOL_TEMPLATE = (
    "{{ bos_token }}{% for tool in tools or [] %}<|tool|>{{ tool | tojson }}{% endfor %}"
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}"
    "{% if message.reasoning_content %}<|thought|>{{ message.reasoning_content }}{% endif %}"
    "{% for call in message.tool_calls or [] %}"
    "<|call|>{{ call.id }} {{ call.function.name }} {{ call.function.arguments | tojson }}{% endfor %}"
    "{% if message.tool_call_id %}<|of|>{{ message.tool_call_id }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
    "{% if reasoning_effort %}<|effort|>{{ reasoning_effort }}{% endif %}{{ opening or '' }}"
)


@pytest.fixture(scope="session")
def tool_models(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """A model repository and settings for a model of each family, one of no known family, and one whose template
    shows no tools."""
    folder = tmp_path_factory.mktemp("tools")
    hf = folder / "hf"
    shutil.copytree(repository.parent / "hf", hf)
    (hf / "tokenizer.json").write_text(mock_tokenizer(text for texts in THOUGHTS.values() for text in texts))
    template, toolless = folder / "tools.jinja", folder / "toolless.jinja"
    template.write_text(TOOL_TEMPLATE)
    toolless.write_text("{% for message in messages %}{{ message.content }}{% endfor %}")
    models = [
        {"triton_model": name, "tool_parser": form.tool_parser or "none", "chat_template": str(template)}
        | {"reasoning_parser": form.reasoning_parser or "none"}
        for name, form in FORMATS.items()
    ]
    models.append({"triton_model": "unknown", "chat_template": str(template)})
    models.append({"triton_model": "toolless", "chat_template": str(toolless), "tool_parser": "hermes"})
    for model in models:
        place = folder / "repository" / model["triton_model"]
        (place / "1").mkdir(parents=True)
        (place / "config.pbtxt").write_text('backend: "vllm"\n')
        engine = {"model": str(hf), "max_model_len": 32768, "structured_outputs_config": {"backend": "guidance"}}
        (place / "1" / "model.json").write_text(json.dumps(engine))
    return folder / "repository", models


@contextmanager
def _talking(folder: Path, served: list[dict[str, Any]], **engine: Any) -> Iterator[Talk]:
    with (
        running_mock_engine(model_repository=folder, **engine) as running,
        running_gateway(
            "--triton", running.url, "--model-repository", str(folder), "--models", json.dumps(served)
        ) as gateway,
    ):
        yield Talk(gateway.wait_until_ready(), running)


@pytest.fixture(scope="session")
def talk_to_all(tool_models: tuple[Path, list[dict[str, Any]]]) -> Iterator[Talk]:
    with _talking(*tool_models) as talk:
        yield talk


@pytest.fixture
def talk(talk_to_all: Talk) -> Talk:
    """A client, a gateway and an engine without a past, with a model of each family (`tests.support.tool_cases`)."""
    talk_to_all.engine.reset()
    return talk_to_all


@pytest.fixture(scope="session")
def thinking_process(tool_models: tuple[Path, list[dict[str, Any]]]) -> Iterator[Talk]:
    folder, models = tool_models
    served = [model for model in models if model["triton_model"] == "qwen3"]
    with _talking(folder, served, models=["qwen3"], reasoning_parser="deepseek_r1") as talk:
        yield talk


@pytest.fixture
def thinker(thinking_process: Talk) -> Talk:
    """As `talk`, with the model qwen3 alone, in an engine that knows how it thinks: what binds an answer begins behind
    the thinking."""
    thinking_process.engine.reset()
    return thinking_process
