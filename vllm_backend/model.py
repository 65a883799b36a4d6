"""Triton's side: the Python backend's entry points, and the course of a request between Triton and the engine.

Triton's Python backend loads this file from the folder of the backend `vllm` and calls `TritonPythonModel`. It runs
on several threads: Triton's calls `execute`, which only reads the tensors; the event loop runs the engine's client and
sends every response of an admitted request, but the rows of batched egress, which each subscriber's own thread sends
(`egress.py`); sweeps ask for cancellations (`cancel.py`)."""

import asyncio
import json
import os
import threading
import traceback
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import triton_python_backend_utils as pb_utils

from vllm_backend import alive, contract, egress
from vllm_backend.cancel import BATCHED_SWEEP_SHARE, Channel, Sweeper
from vllm_backend.contract import Internal, InvalidArgument, RequestError, StartError, Unavailable
from vllm_backend.model_json import read_model_json
from vllm_backend.orphan import end_with_parent
from vllm_backend.request import Acknowledgement, GenerateRequest, Request, SubscriptionRequest, parse_request
from vllm_backend.response import ResponseBuilder, RowOutputs, Tensors, text_tensors
from vllm_backend.versions import check_version, installed_version

if TYPE_CHECKING:
    from vllm_backend.engine import Engine, Generation

_T = TypeVar("_T")

UNLOADING = "the model is being unloaded."


class Call:
    """One open request: its channel to the client, and the task that serves it."""

    def __init__(self, channel: Channel, client_id: str) -> None:
        self.channel = channel
        self.client_id = client_id
        """The id that the client gave its request, for the log alone."""
        self.tokens = 0
        """Tokens sent so far."""
        self.stream: egress.Stream | None = None
        """Where its output goes if it is not sent in responses of its own."""
        self.delivered = asyncio.Event()
        """Set when the stream's output has got to the client."""
        self.task: asyncio.Task[None] | None = None
        self.cancelled_by_client = False
        self.error: RequestError = Unavailable(UNLOADING)
        """Why it was cancelled, if not by its client."""
        self._is_aborted = False

    def cancel(self) -> None:
        """The client has gone away. On the event loop."""
        self.abort(None)

    def abort(self, error: RequestError | None) -> None:
        """Ends it with an error; None: its client has gone away. On the event loop. Once: what then frees the engine
        must not be cancelled itself."""
        if not self._is_aborted:
            self._is_aborted = True
            self.cancelled_by_client = error is None
            self.error = error or self.error
            assert self.task is not None
            self.task.cancel()


class TextWay:
    """A channel for texts. `closed` is called when it has been finished."""

    def __init__(self, channel: Channel, closed: Callable[[Channel], None] = lambda channel: None) -> None:
        self._channel = channel
        self._closed = closed

    def send(self, text: bytes) -> None:
        self._channel.send(_response(text_tensors(text)))

    def finish(self, text: bytes | None) -> None:
        self._channel.finish(None if text is None else _response(text_tensors(text)))
        self._closed(self._channel)


class TritonPythonModel:
    """One instance of a model: one engine, one event loop, any number of open requests."""

    @staticmethod
    def auto_complete_config(config: Any) -> Any:
        """Completes a `config.pbtxt` that only says `backend: "vllm"`. Called in a process of its own: imports no
        vLLM."""
        for tensor in contract.INPUTS:
            config.add_input(
                {
                    "name": tensor.name,
                    "data_type": tensor.data_type,
                    "dims": list(tensor.dims),
                    "optional": tensor.optional,
                }
            )
        for tensor in contract.OUTPUTS:
            config.add_output({"name": tensor.name, "data_type": tensor.data_type, "dims": list(tensor.dims)})
        config.set_max_batch_size(0)
        config.set_model_transaction_policy({"decoupled": True})
        return config

    def initialize(self, args: dict[str, str]) -> None:
        """Starts the engine. Returns once it has generated a token; otherwise the load fails with one sentence."""
        end_with_parent()
        self._calls: set[Call] = set()
        self._closing = False
        try:
            self._read_config(json.loads(args["model_config"]))
            values = read_model_json(Path(args["model_repository"]) / args["model_version"] / "model.json")
            check_version(installed_version())
            if args["model_instance_kind"] in ("GPU", "KIND_GPU"):
                # Before vLLM is imported: it counts the devices then. KIND_MODEL leaves the choice to vLLM.
                os.environ["CUDA_VISIBLE_DEVICES"] = args["model_instance_device_id"]
            metrics = os.environ.get(alive.VARIABLE)
            if metrics:
                alive.claim(Path(metrics))
            self._loop = asyncio.new_event_loop()
            self._loop_thread = threading.Thread(target=self._loop.run_forever, name="engine-client", daemon=True)
            self._loop_thread.start()
            self._engine = self._on_loop(self._start_engine(values))
            if metrics and (problem := alive.hold(Path(metrics))):
                pb_utils.Logger.log_warn(problem)
        except StartError as error:
            raise pb_utils.TritonModelException(str(error)) from None
        self._sweeper = Sweeper()
        self._batched_sweeper = Sweeper(BATCHED_SWEEP_SHARE)
        for sweeper in (self._sweeper, self._batched_sweeper):
            sweeper.start()
        # Only now: auto-completion must not pay for it.
        from msgspec import json as msgspec_json

        self._registry = egress.Registry(
            encode=msgspec_json.Encoder().encode,
            call_soon=self._loop.call_soon,
            call_soon_threadsafe=self._loop.call_soon_threadsafe,
            log=pb_utils.Logger.log_info,
        )
        self._ticks: asyncio.TimerHandle | None = None
        self._watcher = asyncio.run_coroutine_threadsafe(self._watch_engine(), self._loop)

    def execute(self, requests: list[Any]) -> None:
        """Takes requests in and returns at once; their responses are sent from the event loop."""
        for request in requests:
            channel = Channel(request.get_response_sender(), pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
            try:
                parsed = parse_request({tensor.name(): tensor.as_numpy() for tensor in request.inputs()})
            except RequestError as error:
                channel.finish(_error_response(error))
                continue
            except Exception as error:
                channel.finish(_unexpected(request.request_id(), error))
                continue
            call = Call(channel, request.request_id())
            self._loop.call_soon_threadsafe(self._begin, call, parsed)

    def finalize(self) -> None:
        """Ends open requests with UNAVAILABLE, then the engine and its processes.

        Triton calls it when no request is open any more, or when its exit timeout has passed.
        """
        self._watcher.cancel()
        for sweeper in (self._sweeper, self._batched_sweeper):
            sweeper.stop()
        self._on_loop(self._end_calls())
        self._on_loop(self._engine.shutdown())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._loop_thread.join()
        self._loop.close()

    def _start_engine(self, values: dict[str, Any]) -> Coroutine[Any, Any, "Engine"]:
        """The start of the engine with the arguments of a `model.json`, to be awaited on the event loop. Raises
        StartError, as the coroutine does. The benchmarks' model has another engine behind the same interface."""
        # Here and not at the top: auto-completion must not pay for it, and a wrong version must not get this far.
        from vllm_backend.engine import Engine, engine_args

        return Engine.start(engine_args(values))

    def _read_config(self, config: dict[str, Any]) -> None:
        if not config.get("model_transaction_policy", {}).get("decoupled"):
            raise StartError("config.pbtxt must say model_transaction_policy { decoupled: true }.")
        if config.get("max_batch_size"):
            raise StartError("config.pbtxt must say max_batch_size: 0; the engine batches requests itself.")

        def is_set(parameter: str) -> bool:
            value = config.get("parameters", {}).get(parameter, {}).get("string_value", "")
            return value.lower() in ("yes", "true")

        self._name: str = config["name"]
        self._unload_when_stopped = is_set("ENABLE_VLLM_HEALTH_CHECK")
        if self._unload_when_stopped and not _server_unloads_on_request():
            # In another mode the attempt would end the whole server with signal 11.
            self._unload_when_stopped = False
            pb_utils.Logger.log_warn(
                "ENABLE_VLLM_HEALTH_CHECK has no effect without tritonserver's --model-control-mode=explicit: "
                "the model stays ready when its engine has stopped, and refuses every request"
            )
        if is_set("REPORT_CUSTOM_METRICS"):
            pb_utils.Logger.log_warn(
                "REPORT_CUSTOM_METRICS has no effect: set PROMETHEUS_MULTIPROC_DIR in tritonserver's environment, "
                "and vLLM writes all of its metrics there"
            )

    def _on_loop(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    # From here on, everything runs on the event loop.

    def _begin(self, call: Call, request: Request) -> None:
        try:
            if self._closing:
                raise Unavailable(UNLOADING)
            if isinstance(request, SubscriptionRequest):
                self._subscribe(call.channel, request)
            elif isinstance(request, Acknowledgement):
                self._registry.acknowledge(request)
                call.channel.finish(_response(text_tensors(b"")))
            else:
                self._generate(call, request)
        except RequestError as error:
            call.channel.finish(_error_response(error))

    def _subscribe(self, channel: Channel, request: SubscriptionRequest) -> None:
        way = TextWay(channel, self._sweeper.forget)
        self._sweeper.watch(channel, lambda: self._loop.call_soon_threadsafe(self._lose, request.subscriber, way))
        self._registry.subscribe(request, way)
        self._keep_ticking()

    def _lose(self, subscriber: str, way: TextWay) -> None:
        """The client of a subscription has gone away, perhaps with its requests."""
        self._registry.lose(subscriber, way)
        self._batched_sweeper.hurry()

    def _generate(self, call: Call, request: GenerateRequest) -> None:
        if request.batched is not None:
            own = TextWay(call.channel)
            call.stream = self._registry.open(request.batched, own, call.delivered.set, call.abort)
            self._keep_ticking()
        self._calls.add(call)
        call.task = self._loop.create_task(self._serve(call, request))

    def _keep_ticking(self) -> None:
        if self._ticks is None:
            self._ticks = self._loop.call_later(egress.TICK, self._tick)

    def _tick(self) -> None:
        self._ticks = None
        self._registry.tick()
        if len(self._registry):
            self._keep_ticking()

    async def _serve(self, call: Call, request: GenerateRequest) -> None:
        """The whole course of one request. Whatever happens, the channel is finished exactly once."""
        last: Any = None
        sweeper = self._sweeper if call.stream is None else self._batched_sweeper
        try:
            # Only now: a task that is cancelled before its first step would never get to the end of this function.
            sweeper.watch(call.channel, lambda: self._loop.call_soon_threadsafe(call.cancel))
            generation = await self._engine.admit(request)
            last = await self._answer(call, request, generation)
        except asyncio.CancelledError:
            if not call.cancelled_by_client:
                last = _error_response(call.error)
        except RequestError as error:
            if isinstance(error, Internal):
                _log_failure(call.client_id, error.text, error.__cause__)
            last = _error_response(error)
        except Exception as error:
            last = _unexpected(call.client_id, error)
        finally:
            sweeper.forget(call.channel)
            self._calls.discard(call)
            call.channel.finish(last)
            if call.stream is not None:
                call.stream.close()
        is_complete = call.stream is not None and call.stream.finish_reason is not None
        if call.cancelled_by_client and not is_complete:
            pb_utils.Logger.log_info(
                f"request {call.client_id!r} cancelled by its client after {call.tokens} tokens; "
                f"open: {len(self._calls)} in the backend, {self._engine.unfinished} in the engine"
            )

    async def _answer(self, call: Call, request: GenerateRequest, generation: "Generation") -> Any:
        """Sends every response but the last one, which is returned. Aborts the request in the engine if it is not
        finished."""
        finished = False
        try:
            builder = ResponseBuilder(request, generation)
            if request.send_admission:
                call.channel.send(_response(builder.admission()))
            if call.stream is not None:
                call.stream.outputs = RowOutputs.of(request, generation)
                generation.follow(call.stream.put)
                last = await self._delivered(call, call.stream, builder)
                finished = True
                return last
            while True:
                output = await generation.next_output()
                response = _response(builder.build(output))
                call.tokens += len(output.token_ids)
                if output.finish_reason is not None:
                    finished = True
                    return response
                call.channel.send(response)
        finally:
            if not finished:
                if call.stream is not None:
                    # First: nobody is told of the abortion.
                    call.stream.close()
                await generation.abort()

    async def _delivered(self, call: Call, stream: egress.Stream, builder: ResponseBuilder) -> Any:
        """The last response of a request whose output goes by rows, when these have got to the client."""
        try:
            await call.delivered.wait()
        finally:
            call.tokens = stream.tokens
        if stream.error is not None:
            raise stream.error
        assert stream.finish_reason is not None
        return _response(builder.final(stream.finish_reason, stream.tokens, stream.characters))

    async def _watch_engine(self) -> None:
        """Says once in the log that the engine has died, and takes the model out of service if it is set up so."""
        await self._engine.stopped()
        pb_utils.Logger.log_error(f"the engine of model {self._name} has stopped; unload the model and load it again")
        if self._unload_when_stopped:
            # Blocks until Triton has taken it up, and Triton may by then wait for this loop in finalize().
            await self._loop.run_in_executor(None, pb_utils.unload_model, self._name)

    async def _end_calls(self) -> None:
        self._closing = True
        # Every task has begun by then, and so will see its cancellation.
        await asyncio.sleep(0)
        tasks = [call.task for call in self._calls if call.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._ticks is not None:
            self._ticks.cancel()
        self._registry.unload()


def _response(tensors: Tensors) -> Any:
    return pb_utils.InferenceResponse([pb_utils.Tensor(name, values) for name, values in tensors])


def _error_response(error: RequestError) -> Any:
    codes = {InvalidArgument: pb_utils.TritonError.INVALID_ARG, Unavailable: pb_utils.TritonError.UNAVAILABLE}
    code = codes.get(type(error), pb_utils.TritonError.INTERNAL)
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(error.text, code))


def _unexpected(client_id: str, error: Exception) -> Any:
    """The answer to a failure that nothing else has a sentence for; what it was is for the log alone."""
    answer = Internal("the backend failed on this request; the cause is in the server's log.")
    _log_failure(client_id, answer.text, error)
    return _error_response(answer)


def _log_failure(client_id: str, text: str, cause: BaseException | None) -> None:
    trace = "" if cause is None else f" Cause: {''.join(traceback.format_exception(cause))}"
    pb_utils.Logger.log_error(f"request {client_id!r} failed: {text}{trace}")


def _server_unloads_on_request() -> bool:
    """Whether this process's parent is a tritonserver with explicit model control, as far as its command line tells."""
    command = Path(f"/proc/{os.getppid()}/cmdline").read_bytes().split(b"\0")
    return any(argument.endswith(b"explicit") for argument in command)
