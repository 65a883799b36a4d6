"""The gateway as one ASGI application: the routes that read a body ahead, FastAPI for all the rest.

FastAPI documents these routes too; requests for them never reach it (its routing and dependency solver cost
more than the whole translation).
"""

import asyncio
import contextlib
import gc
import logging
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException

from gateway.access.authentication import Access
from gateway.api import admin, document
from gateway.api.admin_models import model_routes
from gateway.api.chat import Chat
from gateway.api.completions import Completions
from gateway.api.direct import ChatForm, Direct
from gateway.api.forms import Forms
from gateway.api.generate import GenerateRoute
from gateway.api.http import Receive, Scope, Send, send_error
from gateway.api.relay import Relay
from gateway.api.tokenize import Tokenization
from gateway.aside import keep_freed_memory, switch_early
from gateway.checker import Checker
from gateway.checker_lane import CannotStart
from gateway.desk.link import RemoteDesk
from gateway.desk.local import LocalDesk
from gateway.models import BROKEN, ServedModel, named, not_ready
from gateway.observe import instances, loop, multiprocess
from gateway.observe.metrics import REGISTRY
from gateway.observe.record import Record, ServiceLevel, begin, naming, record_of
from gateway.observe.requests import Requests
from gateway.observe.tracing import Tracing
from gateway.openai.errors import ApiError, bad_request, forget_where
from gateway.openai.schema import ChatRequest, CompletionRequest, DetokenizeRequest, TokenizeRequest
from gateway.reload import Source
from gateway.settings import Settings

_log = logging.getLogger(__name__)

_CHAT = "/v1/chat/completions"
_COMPLETIONS = "/v1/completions"
_TOKENIZE = "/tokenize"
_DETOKENIZE = "/detokenize"
# A request has some 30, and leaves none that only the collector would find. By default it would look at those of a
# thousand that come at once again and again, which is a fifth of all the work there is with them.
_YOUNG_OBJECTS = 50_000
# For the running requests to say that the gateway goes, and for their clients to read it.
_LAST_WORDS_S = 1.0
_LATER = ("/v1/embeddings", "/v1/responses", "/v1/moderations", "/v1/images/generations")


class Gateway:
    """Reads the models' files when made (raises `SettingsError`); connects when its lifespan starts.

    `models` are the served ones, `table` the state of the Triton servers. `remote` is the desk where that is in another
    process, and `worker` the number of this one among those that serve; else the gateway has its own desk, which reads
    `source` again when told.
    """

    def __init__(
        self, settings: Settings, source: Source | None = None, remote: RemoteDesk | None = None, worker: int = 0
    ) -> None:
        self._settings = settings
        self._worker = worker
        self.access = Access(settings.keys_file)
        self._tracing = Tracing(settings.otlp_endpoint) if settings.otlp_endpoint else None
        self._requests = Requests(ServiceLevel(settings.slo_ttft, settings.slo_itl), self._tracing)
        self._desk = remote or LocalDesk(settings, source)
        self.models = self._desk.served
        self._front = self._desk.front
        self._loop: asyncio.AbstractEventLoop | None = None
        self.table = self._front.table
        self._checker = Checker()
        self._relay = Relay()
        shared = (settings, self.models, self._front, self._checker, self._relay)
        forms = Forms[ChatForm](_CHAT, settings.max_body_bytes)
        chat = GenerateRoute(Chat(), *shared, forms)
        self.direct = Direct(
            chat, forms, settings.request_timeout, self.models, self._front, self.access, self._requests, self._relay
        )
        """What the server may hand requests of known forms to, past `__call__`."""
        tokenization = Tokenization(settings, self.models)
        self._ahead: dict[str, Callable[[Scope, Receive, Send], Awaitable[None]]] = {
            _CHAT: chat,
            _COMPLETIONS: GenerateRoute(Completions(), *shared),
            _TOKENIZE: tokenization.tokenize,
            _DETOKENIZE: tokenization.detokenize,
        }
        self._rest = self._fastapi(settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._rest(scope, receive, send)
            return
        record = Record(scope)
        self._requests.begin(record)
        begin(scope, record)
        send = naming(record, send)
        try:
            record.key = self.access.authenticate(scope)
            route = self._ahead.get(scope["path"]) if scope["method"] == "POST" else None
            await (route or self._rest)(scope, receive, send)
        except ApiError as error:
            forget_where(error)
            record.error = error
            await send_error(send, error)
        finally:
            self._requests.end(record)

    @contextlib.asynccontextmanager
    async def _lifespan(self, _: FastAPI) -> AsyncIterator[None]:
        try:
            await self._checker.start()
        except CannotStart as error:
            _log.critical("the schema checker does not start: %s", error)
            await self._checker.close()
            # Nothing is served yet; an exception here would only become a stack trace of uvicorn's.
            os._exit(1)
        switch_early()
        keep_freed_memory()
        self._loop = asyncio.get_running_loop()
        self._relay.open()
        await self._desk.start()
        if self._tracing is not None:
            self._tracing.start()
        watching = [asyncio.create_task(self.access.follow()), asyncio.create_task(loop.watch(self._worker))]
        # What is there now stays for good; looking through it took a quarter of all time that requests took.
        gc.collect()
        gc.freeze()
        gc.set_threshold(_YOUNG_OBJECTS)
        try:
            yield
        finally:
            for watch in watching:
                watch.cancel()
            await self._desk.close()
            await self._checker.close()
            self._relay.close()
            if self._tracing is not None:
                await asyncio.to_thread(self._tracing.close)

    def reload_on_signal(self) -> None:
        """From now on SIGHUP reads again what may change while the gateway runs. To be called in the event loop."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._reload)

    def _reload(self) -> None:
        self._desk.reload()
        self.access.reload()

    def shut_down(self) -> None:
        """Take no new requests, and end the running ones when their time is over. May be called by a signal's
        handler."""
        self._front.is_closing = True
        if self._loop is not None:
            timeout = self._settings.shutdown_timeout
            # Ahead of the server, which only cuts them off.
            seconds = timeout - min(_LAST_WORDS_S, timeout / 5)
            self._loop.call_soon_threadsafe(self._loop.call_later, seconds, self._front.end_all)

    def _ready_version(self, name: str) -> ServedModel | None:
        """The first of a name's versions that can answer."""
        return next((model for model in self.models.versions(name) if self.table.is_ready(model.triton_model)), None)

    def _fastapi(self, settings: Settings) -> FastAPI:
        app = FastAPI(
            title="Gateway",
            description="OpenAI-compatible API in front of Triton Inference Server and vLLM. Every known field reaches "
            "the engine, is done by the gateway, is refused with a 400 that names it, or, where it cannot change the "
            "answer, is ignored with a warning header.",
            lifespan=self._lifespan,
            redirect_slashes=False,
        )
        app.add_exception_handler(ApiError, _on_api_error)
        app.add_exception_handler(HTTPException, _on_http_exception)
        created = int(time.time())

        def entry(name: str, model: ServedModel) -> dict[str, Any]:
            return {
                "id": name,
                "object": "model",
                "created": created,
                "owned_by": "triton",
                "root": model.triton_model,
                "max_model_len": model.max_model_len,
            }

        @app.post(_CHAT, summary="Create a chat completion", response_class=JSONResponse, responses=document.GENERATE)
        async def chat_completions(request: ChatRequest) -> Response:
            raise AssertionError("this route stands ahead of FastAPI")

        @app.post(_COMPLETIONS, summary="Create a completion", response_class=JSONResponse, responses=document.GENERATE)
        async def completions(request: CompletionRequest) -> Response:
            raise AssertionError("this route stands ahead of FastAPI")

        @app.post(
            _TOKENIZE, summary="Token ids of a text", response_class=JSONResponse, responses=document.TOKENIZATION
        )
        async def tokenize(request: TokenizeRequest) -> Response:
            raise AssertionError("this route stands ahead of FastAPI")

        @app.post(
            _DETOKENIZE, summary="The text of token ids", response_class=JSONResponse, responses=document.TOKENIZATION
        )
        async def detokenize(request: DetokenizeRequest) -> Response:
            raise AssertionError("this route stands ahead of FastAPI")

        @app.get("/v1/models", summary="List the served models")
        async def models(request: Request) -> dict[str, Any]:
            key = record_of(request.scope).key
            ready = {name: model for name in self.models.names if (model := self._ready_version(name)) is not None}
            return {"object": "list", "data": [entry(n, m) for n, m in ready.items() if key.may_use(m.names)]}

        @app.get("/v1/models/{name:path}", summary="One served model", responses=document.ONE_MODEL)
        async def model(name: str, request: Request) -> dict[str, Any]:
            found = named(self.models, name, record_of(request.scope).key)
            ready = self._ready_version(name)
            if ready is None:
                raise not_ready(name, self.table.why_not_ready(found.triton_model))
            return entry(name, ready)

        @app.head("/health/live", include_in_schema=False)
        @app.get("/health/live", summary="Is the process alive?")
        async def live() -> dict[str, str]:
            return {"status": "live"}

        @app.head("/health/ready", include_in_schema=False)
        @app.get("/health/ready", summary="Can any model be served?", responses=document.READY)
        async def ready(response: Response) -> dict[str, Any]:
            states = self._states() | dict.fromkeys(self.models.broken, BROKEN)
            is_ready = any(state == "ready" for state in states.values()) and not self._front.is_closing
            response.status_code = 200 if is_ready else 503
            status = "shutting down" if self._front.is_closing else "ready" if is_ready else "not ready"
            answer: dict[str, Any] = {"status": status, "models": states}
            return answer if states else answer | {"reason": "no model is served: the model repositories hold none"}

        @app.get(
            "/metrics", summary="Prometheus metrics of the gateway", response_class=Response, responses=document.METRICS
        )
        async def metrics() -> Response:
            own = await asyncio.to_thread(multiprocess.page, REGISTRY)
            desks = instances.page(await self._front.instances(), await self._front.waiting())
            return Response(own + desks, media_type=CONTENT_TYPE_LATEST)

        app.include_router(
            model_routes(
                lambda: {instance.name: instance.url for instance in self.table.instances.values()},
                settings.load_timeout,
            )
        )
        app.include_router(admin.routes(self._front))
        for path in _LATER:

            @app.post(path, include_in_schema=False)
            async def later(request: Request) -> Response:
                raise bad_request(f"{request.url.path} is not supported yet.", code="unsupported_endpoint")

        document.complete(app.openapi())
        return app

    def _states(self) -> dict[str, str]:
        """`ready`, or why not, by the models' first names; a name with several versions is ready where one is."""
        states: dict[str, str] = {}
        for model in self.models:
            name = model.names[0]
            if states.get(name) != "ready":
                is_ready = self.table.is_ready(model.triton_model)
                states[name] = "ready" if is_ready else self.table.why_not_ready(model.triton_model)
        return states


async def _on_api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    record_of(request.scope).error = error
    return JSONResponse(error.as_dict(), error.status, error.headers)


async def _on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    what = f"{request.method} {request.url.path}"
    said = {404: f"{what} does not exist; see /docs.", 405: f"{what}: the method is not allowed; see /docs."}
    message = said.get(error.status_code, str(error.detail))
    shown = record_of(request.scope).error = ApiError(error.status_code, message)
    return JSONResponse(shown.as_dict(), error.status_code, error.headers)
