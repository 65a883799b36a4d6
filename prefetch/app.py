"""The service as one FastAPI application: the webhook, the jobs, pins and leases, the page, metrics and health.

Reading is open, as `/metrics` is; what changes anything needs a token, or a sender's own signature on the webhook.
"""

import asyncio
import contextlib
import json
import logging
import os
import time
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any

import aiohttp
from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse, StreamingResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException

from prefetch import adapters, metrics
from prefetch.adapters import bearer
from prefetch.adapters.outcome import Announced, Confirm, Ignored, Refused, Trust, parse
from prefetch.errors import JobError
from prefetch.jobs import ENDED, Job, Jobs
from prefetch.names import check_model, check_version
from prefetch.page import PAGE
from prefetch.pull import Engine
from prefetch.sqs import Queue
from prefetch.worker import Worker

_log = logging.getLogger(__name__)

_FETCH_SECONDS = 10
_CERTIFICATE_BYTES = 64 * 1024
_BODY_SECONDS = 30
# How often a stream of events looks for a change; a comment keeps proxies from closing an idle one.
_EVENT_SECONDS = 0.3
_COMMENT_SECONDS = 15.0
_SENDERS = "Our own JSON, MLflow, Hugging Face, Amazon SNS or EventBridge; each by its own headers."
_ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"description": "Not JSON"},
    401: {"description": "Not authentic"},
    403: {"description": "An SNS topic or host that is not allowed"},
    413: {"description": "The body is too large"},
    422: {"description": "A field is wrong, or there is no allowed s3:// source; `param` names the field"},
    503: {"description": "The queue or a certificate cannot be reached; announce again"},
}


class Version(BaseModel):
    """A published version."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: Annotated[str, AfterValidator(check_model)]
    version: Annotated[str, AfterValidator(check_version)]


class Lease(Version):
    """Who uses a version: it is not removed meanwhile."""

    # Printable ASCII: percent-encoded, it is a file's name.
    holder: str = Field(min_length=1, max_length=60, pattern=r"^[\x20-\x7e]+$")


class TakenLease(Lease):
    seconds: float = Field(gt=0, le=7 * 24 * 3600)


class Service:
    """`app` is the ASGI application; its lifespan starts and ends the worker."""

    def __init__(
        self,
        engine: Engine,
        jobs: Jobs,
        worker: Worker,
        queue: Queue | None,
        trust: Trust,
        max_body_bytes: int,
        clock: Callable[[], float] = time.time,
        fetch: adapters.Fetch | None = None,
    ) -> None:
        """`clock` gives the Unix time against which signatures are judged; `fetch` gets SNS's certificates and confirms
        its subscriptions, over https unless given."""
        self._engine = engine
        self._jobs = jobs
        self._worker = worker
        self._queue = queue
        self._trust = trust
        self._max_body_bytes = max_body_bytes
        self._clock = clock
        self._fetch = fetch or _fetch
        self._closing = False
        self._certificates: dict[str, bytes] = {}
        self.app = self._fastapi()

    @contextlib.asynccontextmanager
    async def _lifespan(self, _: FastAPI) -> AsyncIterator[None]:
        self._worker.start()
        try:
            yield
        finally:
            await asyncio.to_thread(self._worker.close)
            self._jobs.close()

    def stop_streams(self) -> None:
        """Lets the streams of events end, so that the server can."""
        self._closing = True

    # The webhook.

    async def _announce(self, request: Request) -> Response:
        sender, status = "unread", 500
        try:
            received = adapters.Request(_headers(request), await self._body(request))
            sender = adapters.sender(received)
            response = await self._act(await adapters.read(received, self._trust, self._clock(), self._certificate))
            status = response.status_code
        except Refused as refused:
            status = refused.status
            raise
        finally:
            metrics.announcements_total.labels(sender, status).inc()
        return response

    async def _act(self, outcome: Announced | Ignored | Confirm) -> Response:
        if isinstance(outcome, Ignored):
            return JSONResponse({"ignored": outcome.reason})
        if isinstance(outcome, Confirm):
            try:
                await self._fetch(outcome.url)
            except OSError as error:
                raise Refused(503, f"The subscription cannot be confirmed: {error}.") from None
            return JSONResponse({"confirmed": True})
        return await asyncio.to_thread(self._queue_job, outcome)

    def _queue_job(self, announced: Announced) -> Response:
        job, is_new = self._jobs.add(announced.announcement, announced.delivery)
        if is_new:
            self._send(job)
        return JSONResponse(job.as_dict(), 202, {"Location": f"/v1/jobs/{job.id}"})

    def _send(self, job: Job) -> None:
        if self._queue is None:
            self._worker.wake()
            return
        try:
            self._queue.send(job.id, job.announcement, job.announced)
        except JobError as error:
            # As if it had never come: the sender announces again after a 503.
            self._jobs.forget(job.id)
            raise Refused(503, str(error)) from None

    async def _body(self, request: Request) -> bytes:
        body = bytearray()
        try:
            async with asyncio.timeout(_BODY_SECONDS):
                async for chunk in request.stream():
                    body += chunk
                    if len(body) > self._max_body_bytes:
                        raise Refused(413, f"The body is larger than {self._max_body_bytes} bytes ('max_body_bytes').")
        except TimeoutError:
            raise Refused(408, f"The body did not come within {_BODY_SECONDS} s.") from None
        return bytes(body)

    async def _certificate(self, url: str) -> bytes:
        """SNS's certificates have their serial in the URL and do not change."""
        if url not in self._certificates:
            self._certificates[url] = await self._fetch(url)
        return self._certificates[url]

    async def _authorized(self, request: Request) -> bytes:
        """The body of a request with a token. Raises Refused."""
        bearer.authenticate(adapters.Request(_headers(request), b""), self._trust.tokens)
        return await self._body(request)

    # Jobs.

    def _found(self, job_id: str) -> Job:
        job = self._jobs.get(job_id)
        if job is None:
            raise Refused(404, f"There is no job {job_id!r}; GET /v1/jobs lists the jobs.")
        return job

    def _shown(self, job: Job) -> dict[str, Any]:
        shown = job.as_dict()
        running = self._worker.running.get(job.id)
        shown["progress"] = running.progress.snapshot() if running else job.report
        if self._queue and job.state == "queued":
            # Another machine may have done it: what is published on the file system is the truth.
            with contextlib.suppress(JobError):
                published = self._engine.store.published(job.announcement.model, job.announcement.version)
                if published:
                    shown |= {"state": "published", "finished": published.ready["published"]}
        return shown

    async def _events(self, job_id: str) -> AsyncIterator[bytes]:
        last, silent = "", 0.0
        while not self._closing:
            job = await asyncio.to_thread(self._shown, self._found(job_id))
            text = json.dumps(job)
            if text != last:
                last, silent = text, 0.0
                yield f"data: {text}\n\n".encode()
            elif silent > _COMMENT_SECONDS:
                silent = 0.0
                yield b": still here\n\n"
            if job["state"] in ENDED:
                return
            await asyncio.sleep(_EVENT_SECONDS)
            silent += _EVENT_SECONDS

    def _cancel(self, job_id: str) -> dict[str, Any]:
        job = self._found(job_id)
        # One that failed and that nobody wants any more would be late for ever.
        if not (self._worker.cancel(job.id) or self._jobs.change(job.id, ("queued", "failed"), "cancelled")):
            raise Refused(409, f"The job is {job.state}; one that waits, failed or runs here can be cancelled.")
        return self._shown(self._found(job_id))

    def _retry(self, job_id: str) -> dict[str, Any]:
        job = self._found(job_id)
        if not self._jobs.change(job.id, ("failed", "cancelled"), "queued"):
            raise Refused(409, f"The job is {job.state}; only one that failed or was cancelled can be retried.")
        self._send(self._found(job_id))
        return self._shown(self._found(job_id))

    # Versions.

    def _versions(self) -> list[dict[str, Any]]:
        return [
            {
                "model": candidate.model,
                "version": candidate.version,
                "bytes": candidate.bytes,
                "last_used": candidate.last_used,
                "kept": candidate.kept,
            }
            for candidate in self._engine.candidates()
        ]

    def _check_published(self, wanted: Version) -> None:
        try:
            published = self._engine.store.published(wanted.model, wanted.version)
        except JobError as error:
            raise Refused(409, str(error)) from None
        if published is None:
            raise Refused(404, f"{wanted.model} {wanted.version} is not published; GET /v1/models lists what is.")

    def _fastapi(self) -> FastAPI:
        app = FastAPI(
            title="prefetch",
            description="Copies the weights of announced models from S3 to a shared file system, verified and whole.",
            lifespan=self._lifespan,
            redirect_slashes=False,
        )
        app.add_exception_handler(Refused, _on_refused)
        app.add_exception_handler(HTTPException, _on_http_exception)

        @app.post(
            "/v1/announcements", status_code=202, summary="Announce a model", description=_SENDERS, responses=_ERRORS
        )
        async def announce(request: Request) -> Response:
            return await self._announce(request)

        @app.get("/v1/jobs", summary="The newest jobs")
        def jobs() -> dict[str, Any]:
            return {"jobs": [self._shown(job) for job in self._jobs.list()]}

        @app.get("/v1/jobs/{job_id}", summary="One job: bytes, rate, ETA, each file, retries, the error")
        def job(job_id: str) -> dict[str, Any]:
            return self._shown(self._found(job_id))

        @app.get("/v1/jobs/{job_id}/events", summary="The same as server-sent events, one for each change")
        async def events(job_id: str) -> Response:
            self._found(job_id)
            return StreamingResponse(
                self._events(job_id), media_type="text/event-stream", headers={"Cache-Control": "no-store"}
            )

        @app.post("/v1/jobs/{job_id}/cancel", summary="Cancel a job; what is copied stays for a retry")
        async def cancel(job_id: str, request: Request) -> dict[str, Any]:
            await self._authorized(request)
            return await asyncio.to_thread(self._cancel, job_id)

        @app.post("/v1/jobs/{job_id}/retry", status_code=202, summary="Queue a failed or cancelled job again")
        async def retry(job_id: str, request: Request) -> dict[str, Any]:
            await self._authorized(request)
            return await asyncio.to_thread(self._retry, job_id)

        @app.get("/v1/models", summary="The published versions, and why each is kept")
        def models() -> dict[str, Any]:
            return {"models": self._versions()}

        @app.put("/v1/pins", summary="Never remove a version to make room")
        async def pin(request: Request) -> dict[str, Any]:
            wanted = parse(Version, await self._authorized(request))
            self._check_published(wanted)
            await asyncio.to_thread(self._engine.store.pin, wanted.model, wanted.version)
            return {"pinned": True}

        @app.delete("/v1/pins", summary="Remove a pin")
        async def unpin(request: Request) -> dict[str, Any]:
            wanted = parse(Version, await self._authorized(request))
            self._check_published(wanted)
            return {"was_pinned": await asyncio.to_thread(self._engine.store.unpin, wanted.model, wanted.version)}

        @app.put("/v1/leases", summary="Keep a version for a time; again prolongs it")
        async def lease(request: Request) -> dict[str, Any]:
            wanted = parse(TakenLease, await self._authorized(request))
            self._check_published(wanted)
            store = self._engine.store
            until = await asyncio.to_thread(store.lease, wanted.model, wanted.version, wanted.holder, wanted.seconds)
            return {"until": until}

        @app.delete("/v1/leases", summary="Give a lease back")
        async def release(request: Request) -> dict[str, Any]:
            wanted = parse(Lease, await self._authorized(request))
            self._check_published(wanted)
            store = self._engine.store
            return {"was_held": await asyncio.to_thread(store.release, wanted.model, wanted.version, wanted.holder)}

        @app.get("/", include_in_schema=False)
        async def page() -> Response:
            return HTMLResponse(PAGE)

        @app.head("/health/live", include_in_schema=False)
        @app.get("/health/live", summary="Is the process alive?")
        async def live() -> dict[str, str]:
            return {"status": "live"}

        @app.head("/health/ready", include_in_schema=False)
        @app.get("/health/ready", summary="Can models be copied?")
        def ready(response: Response) -> dict[str, str]:
            target = self._engine.config.target
            if os.access(target, os.W_OK):
                return {"status": "ready"}
            response.status_code = 503
            return {"status": "not ready", "reason": f"{target} cannot be written"}

        @app.get("/metrics", summary="Prometheus metrics", response_class=Response)
        def scrape() -> Response:
            self._worker.observe()
            return Response(generate_latest(metrics.REGISTRY), media_type=CONTENT_TYPE_LATEST)

        return app


def _headers(request: Request) -> dict[str, bytes]:
    """As they came: a secret need not be ASCII."""
    return {name.decode("latin-1"): value for name, value in request.scope["headers"]}


async def _fetch(url: str) -> bytes:
    """A small document. Raises OSError."""
    try:
        timeout = aiohttp.ClientTimeout(total=_FETCH_SECONDS)
        # A redirect would lead away from the host that was allowed.
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url, allow_redirects=False) as answer:
            if answer.status != 200:
                raise OSError(f"HTTP {answer.status}")
            return await answer.content.read(_CERTIFICATE_BYTES)
    except aiohttp.ClientError as error:
        raise OSError(str(error)) from None


def _error(status: int, message: str, param: str | None = None) -> Response:
    return JSONResponse({"error": {"message": message, "param": param}}, status)


async def _on_refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    response = _error(error.status, error.message, error.param)
    if error.status == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


async def _on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    what = f"{request.method} {request.url.path}"
    said = {404: f"{what} does not exist; see /docs.", 405: f"{what}: the method is not allowed; see /docs."}
    return _error(error.status_code, said.get(error.status_code, str(error.detail)))
