"""Runs the probes over one Triton: model by model, field by field, one request at a time, since some compare answers
and an engine that computes several at once is free to word them otherwise.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import orjson

from gateway.app import Gateway
from gateway.check.answers import Answer, Api
from gateway.check.client import InProcessClient
from gateway.check.probes import MAY_BE_REFUSED, PROBES
from gateway.check.probes.ask import Probe, Tokens, find_end, find_tokens, plain_request
from gateway.check.verdicts import Kind, Verdict, failed, refused
from gateway.models import ServedModel
from gateway.openai.fields import CHAT, COMPLETION, Fate, Field
from gateway.routing.instances import NOT_YET
from gateway.settings import Settings
from gateway.triton.contract import Backend
from service_base.errors import SettingsError

DEADLINE_S = 60.0
"""For one request: an engine on the CPU may compile for half of that at its first one."""
_MOST_TOO_LATE = 3
"""Requests of one type without an answer in time; then no more are sent."""
_POLL_S = 0.02

_TABLES: Mapping[Api, Mapping[str, Field]] = {"chat": CHAT, "completions": COMPLETION}
_PATHS: Mapping[Api, str] = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}
# Refusals that say what the deployment lacks, whatever the field.
_LACKING = ("model_without_chat_template", "model_without_tokenizer")

Progress = Callable[[str], None]
_Found = TypeVar("_Found")


@dataclass(slots=True)
class ApiReport:
    """What was seen of one request type. `plain` says why not even a plain request is answered: then no field was
    tried."""

    plain: Verdict | None = None
    fields: dict[str, Verdict] = field(default_factory=dict)


@dataclass(slots=True)
class ModelReport:
    """What was seen of one model on one Triton. `name` is what clients ask for, `not_ready` why nothing was seen."""

    url: str
    name: str
    triton_model: str
    not_ready: str | None = None
    backend: Backend | None = None
    apis: dict[Api, ApiReport] = field(default_factory=dict)

    @property
    def verdicts(self) -> list[Verdict]:
        plain = [api.plain for api in self.apis.values() if api.plain is not None]
        return plain + [verdict for api in self.apis.values() for verdict in api.fields.values()]

    @property
    def is_sound(self) -> bool:
        return self.not_ready is None and all(verdict.kind is not Kind.FAILED for verdict in self.verdicts)


def probed(api: Api) -> dict[str, Field]:
    """The fields of one request type that are forwarded or done."""
    return {name: row for name, row in _TABLES[api].items() if row.fate in (Fate.FORWARDED, Fate.DONE)}


async def check_triton(
    settings: Settings,
    url: str,
    progress: Progress,
    done: Callable[[ModelReport], None],
    fields: Collection[str] | None = None,
) -> None:
    """Calls `done` for each model; of these fields alone, where they are given. Raises `SettingsError`."""
    limit = min(settings.request_timeout, DEADLINE_S)
    only = {"triton": [url], "request_timeout": limit, "keys_file": None, "otlp_endpoint": None}
    gateway = Gateway(settings.model_copy(update=only))
    if not gateway.models and not gateway.models.broken:
        repositories = ", ".join(map(str, settings.model_repository))
        raise SettingsError(f'--model-repository {repositories} holds no model with backend "vllm" to check.')
    async with InProcessClient(gateway) as client:
        (instance,) = gateway.table.instances.values()
        for name in gateway.models.broken:
            done(ModelReport(url, name, name, gateway.models.broken[name].removesuffix(".")))
        for model in gateway.models:
            report = ModelReport(url, model.names[0], model.triton_model)
            target = instance.targets[model.triton_model]
            # Until the control plane has had its first look at the server.
            while target.reason == NOT_YET:  # noqa: ASYNC110
                await asyncio.sleep(_POLL_S)
            contract = gateway.table.contract(model.triton_model)
            if contract is None:
                report.not_ready = target.reason
            else:
                report.backend = contract.backend
                for api in _TABLES:
                    wanted = [row for name, row in probed(api).items() if fields is None or name in fields]
                    asker = _Asker(client, api, model, contract.backend)
                    report.apis[api] = await _check_api(asker, wanted, progress)
            done(report)


async def _check_api(asker: "_Asker", wanted: list[Field], progress: Progress) -> ApiReport:
    report = ApiReport()
    progress(f"{asker.name}: {asker.api}")
    try:
        asker.plain = await asker()
    except _NoAnswer as no_answer:
        report.plain = no_answer.verdict(asker.backend, None)
        return report
    asker.end = await _unless_refused(find_end(asker))
    asker.tokens = await _unless_refused(find_tokens(asker))
    for number, row in enumerate(wanted):
        progress(f"{asker.name}: {asker.api} {row.name} ({number} of {len(wanted)})")
        if asker.too_late >= _MOST_TOO_LATE:
            report.fields[row.name] = failed("not tried: the engine gives no answers in time")
        else:
            report.fields[row.name] = await _probe(asker, PROBES[asker.api][row.name], row)
    return report


async def _unless_refused(finding: Awaitable[_Found]) -> _Found | None:
    try:
        return await finding
    except (_NoAnswer, LookupError, TypeError, ValueError):
        return None


async def _probe(asker: "_Asker", probe: Probe, row: Field) -> Verdict:
    try:
        return await probe(asker)
    except _NoAnswer as no_answer:
        return no_answer.verdict(asker.backend, row)
    except (LookupError, TypeError, ValueError) as error:
        return failed(f"the answer has another form than it should: {error!r}")


class _NoAnswer(Exception):
    """The gateway's error to a request of a probe."""

    def __init__(self, status: int, error: dict[str, Any]) -> None:
        super().__init__(error["message"])
        self._status = status
        self._message = str(error["message"])
        self._code = error["code"]

    def verdict(self, backend: Backend, row: Field | None) -> Verdict:
        """What it says of a field; without one, of the plain request."""
        if self._status != 400:
            return failed(self._message)
        if self._code in _LACKING:
            return refused(self._message)
        if self._code == "unsupported_parameter" and backend is Backend.STOCK:
            # What the stock backend lacks, the gateway knows.
            return refused(self._message)
        if row is None or row.name not in MAY_BE_REFUSED or (self._code == "unsupported_parameter" and _reaches(row)):
            return failed(f"refused: {self._message}")
        return refused(self._message)


def _reaches(row: Field) -> bool:
    """Whether it has to reach the engine: where our backend does not support it, that is an older one."""
    return row.fate is Fate.FORWARDED or row.needs is not None


class _Asker:
    """Asks one model by one request type (`probes.ask.Ask`)."""

    def __init__(self, client: InProcessClient, api: Api, model: ServedModel, backend: Backend) -> None:
        self._client = client
        self.api: Api = api
        self.model = model
        self.name = model.names[0]
        self.backend = backend
        self.plain: Answer
        self.tokens: Tokens | None = None
        self.end: int | None = None
        self.too_late = 0
        self._greedy: dict[bytes, Answer] = {}

    async def __call__(self, **changes: Any) -> Answer:
        request = plain_request(self.api, self.name) | changes
        key = orjson.dumps(request)
        if (known := self._greedy.get(key)) is not None:
            return known
        response = await self._client.post(_PATHS[self.api], request)
        body = response.bodies[-1]
        if "error" in body:
            self.too_late += body["error"]["code"] == "deadline_exceeded"
            raise _NoAnswer(response.status, body["error"])
        answer = Answer(self.api, response)
        if request["temperature"] == 0:
            # Several probes compare with the same answer, which would come again.
            self._greedy[key] = answer
        return answer
