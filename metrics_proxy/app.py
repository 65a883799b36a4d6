"""The proxy as one ASGI application."""

import asyncio
import gzip
import json
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import aiohttp

from metrics_proxy import render, status_page
from metrics_proxy.directory import Directory
from metrics_proxy.families import Labels
from metrics_proxy.merge import Policy
from metrics_proxy.negotiation import takes_gzip, time_budget, wants_openmetrics
from metrics_proxy.page import Conflicts, Page, build
from metrics_proxy.parse import Parser
from metrics_proxy.settings import Settings
from metrics_proxy.sources import DirectorySource, HttpSource, Outcome, Source, read_all

_log = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

# Above it, merging and rendering would hold up other requests.
_SAMPLES_IN_LOOP = 5000
# The fastest: a page shrinks to a tenth all the same.
_GZIP_LEVEL = 1
_MIN_GZIP_BYTES = 1000


class MetricsProxy:
    """Connects when its lifespan starts."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._sources = self._made()
        self._policies = {
            family: Policy(policy.prefer, policy.rename, {name: _labels(r) for name, r in policy.relabel.items()})
            for family, policy in settings.policies.items()
        }
        self._conflicts = Conflicts()
        self._page: Page | None = None
        self._session: aiohttp.ClientSession | None = None
        self._was_up: dict[str, bool] = {}
        self._told: set[tuple[str, str]] = set()
        self._routes = {
            "/": self._status,
            "/metrics": self._metrics,
            "/health/live": self._live,
            "/health/ready": self._ready,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            route = self._routes.get(scope["path"])
            if route is None:
                said = f"{scope['path']} does not exist; there are {', '.join(self._routes)}\n"
                await _answer(scope, send, 404, said.encode(), "text/plain; charset=utf-8")
            elif scope["method"] not in ("GET", "HEAD"):
                await _answer(scope, send, 405, b"only GET\n", "text/plain; charset=utf-8", ((b"allow", b"GET, HEAD"),))
            else:
                headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
                await route(scope, headers, send)

    async def collect(self, seconds: float) -> Page:
        """What the sources give now, within this time; whoever asks meanwhile gets the same."""
        outcomes = await read_all(self._sources, seconds)
        page = self._page
        if page is not None and all(a is b for a, b in zip(outcomes, page.outcomes, strict=True)):
            return page
        self._log(outcomes)
        arguments = (self._sources, outcomes, self._policies, self._conflicts)
        if sum(outcome.samples for outcome in outcomes) > _SAMPLES_IN_LOOP:
            page = await asyncio.to_thread(build, *arguments)
        else:
            page = build(*arguments)
        self._page = page
        return page

    def _made(self) -> list[Source]:
        settings = self._settings
        sources: list[Source] = []
        for name, source in zip(settings.source_names, settings.sources, strict=True):
            labels = _labels(source.labels)
            if source.path is not None:
                directory = Directory(
                    source.path,
                    labels,
                    shared_pid_namespace=source.shared_pid_namespace,
                    with_places=source.same_series == "label",
                    compact_after=settings.compact_after,
                    max_bytes=settings.max_body_bytes,
                    max_samples=settings.max_samples,
                )
                sources.append(DirectorySource(name, settings.source_timeout, str(source.path), directory))
            elif source.url is not None:
                sources.append(
                    HttpSource(
                        name,
                        settings.source_timeout,
                        source.url,
                        Parser(labels, settings.max_samples),
                        self._connected,
                        max_bytes=settings.max_body_bytes,
                        is_triton=source.kind == "triton",
                    )
                )
        return sources

    def _connected(self) -> aiohttp.ClientSession:
        assert self._session is not None, "the application's lifespan has not started"
        return self._session

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                # The page is unpacked within its limit by the source itself, and cookies are no part of a scrape.
                self._session = aiohttp.ClientSession(auto_decompress=False, cookie_jar=aiohttp.DummyCookieJar())
                await send({"type": "lifespan.startup.complete"})
            elif message["type"] == "lifespan.shutdown":
                await self._connected().close()
                await send({"type": "lifespan.shutdown.complete"})
                return

    def _log(self, outcomes: list[Outcome]) -> None:
        """Each change once, not each scrape."""
        for outcome in outcomes:
            is_up = outcome.content is not None
            if self._was_up.get(outcome.source) is not is_up:
                self._was_up[outcome.source] = is_up
                if is_up:
                    _log.info("the source %s is up", outcome.source)
                else:
                    _log.warning("the source %s is down: %s", outcome.source, outcome.error)
            report = outcome.content.report if outcome.content else None
            if report is None:
                continue
            for name, problem in report.bad.items():
                self._tell(outcome.source, f"{name} is left out: {problem}")
            if report.tidying:
                self._tell(outcome.source, report.tidying)
            if report.processes["unknown"]:
                self._tell(
                    outcome.source,
                    "whether its processes live cannot be known, so gauges of dead ones stay; use this project's "
                    "backend, or share the pid namespace and set shared_pid_namespace",
                )
            if report.combined.shared:
                self._tell(outcome.source, "several processes write the same series; see the setting same_series")

    def _tell(self, source: str, what: str) -> None:
        if (source, what) not in self._told and len(self._told) < 1000:
            self._told.add((source, what))
            _log.warning("%s: %s", source, what)

    async def _metrics(self, scope: Scope, headers: dict[str, str], send: Send) -> None:
        longest = self._settings.source_timeout
        page = await self.collect(time_budget(headers.get("x-prometheus-scrape-timeout-seconds", ""), longest))
        as_openmetrics = wants_openmetrics(headers.get("accept", ""))
        packed = takes_gzip(headers.get("accept-encoding", ""))
        if page.samples > _SAMPLES_IN_LOOP:
            body, is_packed = await asyncio.to_thread(_body, page, as_openmetrics, packed)
        else:
            body, is_packed = _body(page, as_openmetrics, packed)
        more = [(b"vary", b"accept, accept-encoding"), (b"cache-control", b"no-store")]
        if is_packed:
            more.append((b"content-encoding", b"gzip"))
        status = 503 if self._settings.fail_when_down and not page.is_whole else 200
        await _answer(scope, send, status, body, render.OPENMETRICS if as_openmetrics else render.TEXT, tuple(more))

    async def _status(self, scope: Scope, headers: dict[str, str], send: Send) -> None:
        page = await self.collect(self._settings.source_timeout)
        body = status_page.html(self._sources, page, self._conflicts).encode()
        more = (
            (b"cache-control", b"no-store"),
            (b"content-security-policy", b"default-src 'none'; style-src 'unsafe-inline'"),
        )
        await _answer(scope, send, 200, body, "text/html; charset=utf-8", more)

    async def _live(self, scope: Scope, headers: dict[str, str], send: Send) -> None:
        await _json(scope, send, 200, {"status": "live"})

    async def _ready(self, scope: Scope, headers: dict[str, str], send: Send) -> None:
        page = await self.collect(self._settings.source_timeout)
        states = {outcome.source: outcome.error or "up" for outcome in page.outcomes}
        is_ready = any(outcome.content for outcome in page.outcomes)
        said = {"status": "ready" if is_ready else "not ready", "sources": states}
        await _json(scope, send, 200 if is_ready else 503, said)


def _labels(labels: dict[str, str]) -> Labels:
    return tuple(labels.items())


def _body(page: Page, as_openmetrics: bool, packed: bool) -> tuple[bytes, bool]:
    body = page.openmetrics if as_openmetrics else page.text
    if packed and len(body) >= _MIN_GZIP_BYTES:
        return gzip.compress(body, _GZIP_LEVEL), True
    return body, False


async def _json(scope: Scope, send: Send, status: int, content: dict[str, Any]) -> None:
    await _answer(scope, send, status, json.dumps(content).encode(), "application/json")


async def _answer(
    scope: Scope,
    send: Send,
    status: int,
    body: bytes,
    content_type: str,
    more: tuple[tuple[bytes, bytes], ...] = (),
) -> None:
    headers = [(b"content-type", content_type.encode()), (b"content-length", str(len(body)).encode()), *more]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})
