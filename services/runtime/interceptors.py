"""What happens around every call: id, token, scopes, errors, metrics and one log line."""

import asyncio
import inspect
import time
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Mapping,
)
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, TypeVar

import grpc
import structlog

from services.runtime import request, tracing
from services.runtime.auth import TokenVerifier
from services.runtime.errors import Forbidden, GlossaError, InvalidInput, Unauthenticated
from services.runtime.messages import Receive, all_messages, hear_out, only_message, tolerant
from services.runtime.metrics import MethodMetrics, RequestMetrics
from services.runtime.status import status_code, trailing_metadata

log = structlog.get_logger()

# Probes have no token, and health tells nothing about anybody; watching it for long needs one.
OPEN_METHOD = "/grpc.health.v1.Health/Check"
# How long somebody without a token may take to say what they want.
OPEN_SECONDS = 5.0
# Any good token may ask what the contract is, and how we are.
FOR_ANY_TOKEN = ("/grpc.reflection.", "/grpc.health.v1.Health/")

# What our own services call themselves.
SERVICE_SCOPES = frozenset({"registry", "cache", "worker"})

# On a handler's method: how its messages are read, where parsing all of them would cost too much,
# and that its answers may be bytes already.
DESERIALIZER_ATTRIBUTE = "__glossa_deserializer__"
SERIALIZED_ATTRIBUTE = "__glossa_serialized__"

if TYPE_CHECKING:
    Context = grpc.aio.ServicerContext[Any, Any]
    MethodHandler = grpc.RpcMethodHandler[Any, Any]
else:  # not generic at run time
    Context = grpc.aio.ServicerContext
    MethodHandler = grpc.RpcMethodHandler

Policies = Mapping[str, frozenset[str]]
_Method = TypeVar("_Method", bound=Callable[..., Any])


def deserialized_by(deserialize: Callable[[bytes], Any]) -> Callable[[_Method], _Method]:
    """Declare how the messages of an RPC are read, instead of as protobuf does it."""

    def mark(method: _Method) -> _Method:
        setattr(method, DESERIALIZER_ATTRIBUTE, deserialize)
        return method

    return mark


def answers_bytes(method: _Method) -> _Method:
    """Declare that an RPC's answers are serialized by who makes them."""
    setattr(method, SERIALIZED_ATTRIBUTE, True)
    return method


class CallGuard:
    """Lets a call in, and sees to it that it leaves with a clean status.

    It stands where methods are registered, in the place of a server. An interceptor would be asked
    anew for each call, at a fifth of what a cache hit costs.
    """

    def __init__(
        self, *, verifier: TokenVerifier, policies: Policies, metrics: RequestMetrics
    ) -> None:
        self._verifier = verifier
        self._policies = policies
        self._metrics = metrics

    def before(self, server: grpc.aio.Server) -> "GuardedServer":
        return GuardedServer(server, self)

    def wrap(self, handler: MethodHandler, method: str) -> MethodHandler:
        """The handler behind the guard, reading its messages by itself.

        Left to gRPC, the one message of a unary call is waited for before anybody sees a token, and
        for ever: whoever may not call could take up all places by sending none.
        """
        asked = "stream" if handler.request_streaming else "unary"
        told = "stream" if handler.response_streaming else "unary"
        behaviour = getattr(handler, f"{asked}_{told}")
        receive = all_messages if handler.request_streaming else only_message
        guarded: Callable[[Any, Context], Any]
        if method == OPEN_METHOD:
            guarded = _open(behaviour)
        elif inspect.isasyncgenfunction(behaviour):
            guarded = self._guard_stream(behaviour, method, receive)
        else:
            guarded = self._guard_unary(behaviour, method, receive)
        make = getattr(grpc, f"stream_{told}_rpc_method_handler")
        serialized = getattr(behaviour, SERIALIZED_ATTRIBUTE, False)
        wrapped: MethodHandler = make(
            guarded,
            request_deserializer=tolerant(
                getattr(behaviour, DESERIALIZER_ATTRIBUTE, handler.request_deserializer)
            ),
            response_serializer=None if serialized else handler.response_serializer,
        )
        return wrapped

    def _guard_unary(
        self, behaviour: Callable[[Any, Context], Awaitable[Any]], method: str, receive: Receive
    ) -> Callable[[Any, Context], Awaitable[Any]]:
        metrics = self._metrics.of_method(method)

        async def guarded(messages: AsyncIterable[Any], context: Context) -> Any:
            call = _Call(method, metrics)
            try:
                self._admit(call, context)
                answer = await behaviour(await receive(messages, context), context)
            except BaseException as error:
                if isinstance(error, GlossaError) and receive is all_messages:
                    await hear_out(messages)
                await call.fail(error, context)
                raise
            call.end("OK")
            return answer

        return guarded

    def _guard_stream(
        self,
        behaviour: Callable[[Any, Context], AsyncGenerator[Any, None]],
        method: str,
        receive: Receive,
    ) -> Callable[[Any, Context], AsyncIterator[Any]]:
        metrics = self._metrics.of_method(method)

        async def guarded(messages: AsyncIterable[Any], context: Context) -> AsyncIterator[Any]:
            call = _Call(method, metrics)
            try:
                self._admit(call, context)
                asked = await receive(messages, context)
                # Closed here and now, so that what the handler holds is not left to the collector.
                async with aclosing(behaviour(asked, context)) as answers:
                    async for answer in answers:
                        yield answer
            except BaseException as error:
                await call.fail(error, context)
                raise
            call.end("OK")

        return guarded

    def _admit(self, call: "_Call", context: Context) -> None:
        method = call.method
        metadata = dict(context.invocation_metadata() or ())
        request.request_id.set(
            request.accept_request_id(_text(metadata.get(request.REQUEST_ID_HEADER)))
        )
        request.set_deadline(context.time_remaining())
        scheme, _, token = _text(metadata.get("authorization")).partition(" ")
        if scheme.lower() != "bearer" or not token:
            raise Unauthenticated("send a token as 'authorization: Bearer …' metadata")
        caller = self._verifier.verify(token)
        allowed = self._policies.get(method, frozenset())
        if not caller.scopes & allowed and not method.startswith(FOR_ANY_TOKEN):
            raise Forbidden(f"this token may not call {method}")
        request.caller.set(caller)
        call.trace(_text(metadata.get(tracing.TRACEPARENT_HEADER)), caller)


class GuardedServer:
    """Takes methods as generated code registers them, and puts the guard before each."""

    def __init__(self, server: grpc.aio.Server, guard: CallGuard) -> None:
        self._server = server
        self._guard = guard

    def add_generic_rpc_handlers(self, _: object) -> None:
        """The same methods come by name as well; a second way in, past the guard, is not made."""

    def add_registered_method_handlers(
        self, service: str, handlers: Mapping[str, MethodHandler]
    ) -> None:
        guarded = {
            name: self._guard.wrap(handler, f"/{service}/{name}")
            for name, handler in handlers.items()
        }
        self._server.add_registered_method_handlers(service, guarded)


def _open(behaviour: Callable[[Any, Context], Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """For everybody who says at once what they want, so that nobody holds a place by silence."""

    async def opened(messages: AsyncIterable[Any], context: Context) -> Any:
        try:
            async with asyncio.timeout(OPEN_SECONDS):
                return await behaviour(await only_message(messages, context), context)
        except TimeoutError:
            await _abort(context, grpc.StatusCode.DEADLINE_EXCEEDED, "nothing was asked", ())
        except InvalidInput as error:
            await _abort(context, status_code(error), error.message, trailing_metadata(error))

    return opened


class _Call:
    """One call's beginning and end: metrics, log line, and the status the client sees."""

    def __init__(self, method: str, metrics: MethodMetrics) -> None:
        self.method = method
        self._metrics = metrics
        self._started = time.perf_counter()
        self._span: tracing.ServedCall | None = None

    def trace(self, parent: str, caller: request.Caller) -> None:
        """Whoever comes from outside begins a trace; what services do by themselves is none."""
        may_begin = not caller.scopes & SERVICE_SCOPES
        self._span = tracing.served_call(self.method, parent, may_begin=may_begin)

    def end(self, code: str, reason: str = "") -> None:
        seconds = time.perf_counter() - self._started
        self._metrics.count(code, seconds)
        caller = request.caller.get()
        log.info(
            "call",
            method=self.method,
            code=code,
            milliseconds=round(seconds * 1000, 1),
            caller=caller.subject if caller and not caller.is_user else "user" if caller else None,
            **({"reason": reason} if reason else {}),
        )
        if self._span is not None:
            self._span.end(code, reason)

    async def fail(self, error: BaseException, context: Context) -> None:
        """Record the failure and answer it; returns only for errors that must go on up."""
        if isinstance(error, GlossaError):
            self.end(error.code, reason=error.reason)
            await _abort(context, status_code(error), error.message, trailing_metadata(error))
        elif isinstance(error, asyncio.CancelledError | GeneratorExit):
            self.end("CANCELLED")
        elif isinstance(error, Exception):
            # The text of an unexpected error may hold anything: it stays in the log.
            log.exception("unexpected_error", method=self.method)
            self.end("INTERNAL")
            await _abort(context, grpc.StatusCode.INTERNAL, "internal error", ())


async def _abort(
    context: Context,
    code: grpc.StatusCode,
    message: str,
    metadata: tuple[tuple[str, str | bytes], ...],
) -> None:
    already = tuple(context.trailing_metadata() or ())
    await context.abort(code, message, already + metadata)


def _text(value: str | bytes | None) -> str:
    return value if isinstance(value, str) else ""
