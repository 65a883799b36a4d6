"""`POST /tokenize` and `POST /detokenize`, as vLLM's server has them: text or messages to token ids and back.

Answered with the gateway's own copy of a model's tokenizer: no engine is asked. Plain ASGI callables, as the
generate routes are, so that a body is read, limited and judged in the same way.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

import orjson
from orjson import Fragment

from gateway.access.keys import Key
from gateway.api.generate import bug
from gateway.api.http import ClientGone, Receive, Scope, Send, read_body, send_error, send_json, warning_headers
from gateway.api.in_flight import InFlight
from gateway.aside import aside
from gateway.models import ServedModel, ServedModels, named
from gateway.observe.record import CLIENT_GONE, record_of
from gateway.openai import giving_way
from gateway.openai.errors import ApiError, bad_request, forget_where
from gateway.openai.fields import DETOKENIZE, TOKENIZE, judge_extras
from gateway.openai.schema import TokenizeRequest, parse_detokenize, parse_tokenize
from gateway.openai.writing import array
from gateway.settings import Settings
from gateway.tokenizer import ModelTokenizer

# A text of some megabytes takes seconds. The event loop goes on meanwhile, if it gets its share of the cores.
_THREADS = 2

_Endpoint = Callable[[bytes, Key], Awaitable[tuple[bytes, list[str]]]]
"""A body, and whose it is → the answer and the warnings."""


class Tokenization:
    """Both endpoints."""

    def __init__(self, settings: Settings, models: ServedModels) -> None:
        self._settings = settings
        self._models = models
        # Apart from the generate routes' limit: texts that wait here do not keep answers from being asked for.
        self._in_flight = InFlight(settings.max_in_flight)
        self._threads = ThreadPoolExecutor(_THREADS, "tokenize")

    async def tokenize(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._respond(scope, receive, send, self._tokenize)

    async def detokenize(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._respond(scope, receive, send, self._detokenize)

    async def _respond(self, scope: Scope, receive: Receive, send: Send, endpoint: _Endpoint) -> None:
        limit = self._settings.request_timeout
        record = record_of(scope)
        late: ApiError | None = ApiError(408, f"The body took longer than {limit:g} s.", code="body_timeout")
        try:
            async with asyncio.timeout(limit):
                body = await read_body(scope, receive, self._settings.max_body_bytes)
                late = ApiError(504, f"The answer took longer than {limit:g} s.", code="deadline_exceeded")
                record.body_at = time.monotonic()
                answer, warnings = await endpoint(body, record.key)
            late = None
            # A client that does not read its answer is let go.
            async with asyncio.timeout(limit):
                await send_json(send, 200, answer, warning_headers(warnings))
        except (ClientGone, OSError):
            # OSError: a send after the client is gone, as ASGI servers raise it.
            record.status = CLIENT_GONE
        except ApiError as error:
            forget_where(error)
            record.error = error
            await send_error(send, error)
        except TimeoutError:
            if late is not None:
                record.error = late
                await send_error(send, late)
        except Exception:
            record.error = bug()
            await send_error(send, record.error)

    async def _tokenize(self, body: bytes, key: Key) -> tuple[bytes, list[str]]:
        request = await aside(len(body), lambda: parse_tokenize(body))
        model, tokenizer = self._tokenizer(request.model, key)
        warnings = judge_extras(request.model_extra or {}, TOKENIZE, strict=self._settings.strict_fields)
        if request.prompt is not None:
            text, adds = request.prompt, request.add_special_tokens is not False
        else:
            text = await aside(len(body), lambda: _rendered(request, model, warnings))
            adds = request.add_special_tokens is True

        def work() -> bytes:
            ids = tokenizer.encode(text, add_special_tokens=adds)
            strings = tokenizer.token_strings(ids) if request.return_token_strs else None
            answer = {
                "count": len(ids),
                "max_model_len": model.max_model_len or model.trained_len,
                "tokens": Fragment(array(ids)),
                "token_strs": None if strings is None else Fragment(array(strings)),
            }
            giving_way.empty(ids, strings)
            return orjson.dumps(answer)

        return await self._in_thread(model, work), warnings

    async def _detokenize(self, body: bytes, key: Key) -> tuple[bytes, list[str]]:
        request = await aside(len(body), lambda: parse_detokenize(body))
        model, tokenizer = self._tokenizer(request.model, key)
        warnings = judge_extras(request.model_extra or {}, DETOKENIZE, strict=self._settings.strict_fields)

        def work() -> bytes:
            try:
                return orjson.dumps({"prompt": tokenizer.decode(request.tokens, skip_special_tokens=False)})
            except ValueError as error:
                raise bad_request(f"tokens: {error}.", "tokens", "invalid_value") from None

        return await self._in_thread(model, work), warnings

    def _tokenizer(self, name: str, key: Key) -> tuple[ServedModel, ModelTokenizer]:
        model = named(self._models, name, key)
        if model.tokenizer is None:
            raise ApiError(400, model.no_tokenizer, param="model", code="model_without_tokenizer")
        return model, model.tokenizer

    async def _in_thread(self, model: ServedModel, work: Callable[[], bytes]) -> bytes:
        with self._in_flight.admitted(model, 1):
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)


def _rendered(request: TokenizeRequest, model: ServedModel, warnings: list[str]) -> str:
    prompt = model.chat_template().render(
        request.messages or [],
        add_generation_prompt=request.add_generation_prompt,
        continue_final_message=request.continue_final_message,
        chat_template_kwargs=request.chat_template_kwargs,
    )
    warnings += prompt.warnings
    return prompt.text
