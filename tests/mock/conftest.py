"""The gateway in front of mock engines: one of each for all tests, and what they serve."""

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from bench.mock_engine.running import MockEngine, running_mock_engine
from tests.support.chat import MODEL
from tests.support.gateway import Gateway, running_gateway

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


@pytest.fixture
def client(gateway: Gateway, engine: MockEngine) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=gateway.url, timeout=30) as opened:
        yield opened


@pytest.fixture
def stock_client(stock_gateway: Gateway, stock: MockEngine) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=stock_gateway.url, timeout=30) as opened:
        yield opened
