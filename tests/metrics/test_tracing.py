"""One trace from the gateway's call to the model's answer, over four real processes."""

import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass

import grpc
import pytest
from glossa.cache.v1 import cache_pb2

from services.runtime.tracing import is_wanted
from tests.e2e.conftest import keys_of, reachable_folder
from tests.fake_openai import FakeOpenAI, fake_openai
from tests.local.up import started
from tests.metrics.collector import Collector, Span, running_collector
from tests.suite import Suite, lecture, metadata

PAGE = "Entropy is a measure of disorder."
TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
GATEWAY_SPAN = "00f067aa0ba902b7"
TRACEPARENT = f"00-{TRACE_ID}-{GATEWAY_SPAN}-01"

EXPLAIN = "glossa.cache.v1.CacheService/ExplainPage"
RESOLVE = "glossa.registry.v1.RegistryService/ResolvePage"
CONTENT = "glossa.registry.v1.RegistryService/GetPageContent"
ADMIT = "glossa.quota.v1.QuotaService/AdmitMany"
COMPLETE = "glossa.cache.v1.JobService/CompleteJobs"


@dataclass(frozen=True, kw_only=True)
class Traced:
    suite: Suite
    collector: Collector
    model: FakeOpenAI

    async def explain(self, user: str, pdf_hash: str, **more: str) -> cache_pb2.ExplainPageResponse:
        request = cache_pb2.ExplainPageRequest(user_id=user, pdf_hash=pdf_hash, page=1, locale="en")
        bearer = metadata(self.suite.keys.token("gateway"))
        for name, value in more.items():
            bearer.add(name, value)
        return await self.suite.cache.ExplainPage(request, metadata=bearer)


@pytest.fixture(scope="module")
async def traced() -> AsyncIterator[Traced]:
    folder = reachable_folder()
    async with AsyncExitStack() as stack:
        model = await stack.enter_async_context(fake_openai())
        collector, url = await stack.enter_async_context(running_collector())
        up = await stack.enter_async_context(
            started(
                folder,
                OTEL_EXPORTER_OTLP_ENDPOINT=url,
                OTEL_BSP_SCHEDULE_DELAY="100",
                OPENAI_API_KEY="secret",
                OPENAI_BASE_URL=model.url,
            )
        )
        suite = Suite(addresses=up.ports.addresses(), keys=keys_of(up.state), exits=stack)
        yield Traced(suite=suite, collector=collector, model=model)
    shutil.rmtree(folder)


async def test_one_trace_leads_from_the_gateway_to_the_model(traced: Traced) -> None:
    uploaded = await traced.suite.upload("alice@example.org", lecture(PAGE))
    pdf_hash = uploaded.file.pdf_hash
    await traced.explain("alice@example.org", pdf_hash, traceparent=TRACEPARENT)

    def trace() -> list[Span]:
        return [span for span in traced.collector.spans if span.trace_id == TRACE_ID]

    await traced.collector.until(lambda _: {"attempt", COMPLETE} <= {one.name for one in trace()})

    spans = trace()
    by_id = {span.span_id: span for span in spans}
    tree = {
        (
            span.service,
            span.name,
            by_id[span.parent_id].name if span.parent_id in by_id else span.parent_id,
        )
        for span in spans
    }
    assert tree == {
        ("glossa-cache", EXPLAIN, GATEWAY_SPAN),
        ("glossa-registry", RESOLVE, EXPLAIN),
        ("glossa-cache", "batch", EXPLAIN),
        ("glossa-quota", ADMIT, "batch"),
        ("glossa-cache", "queue", EXPLAIN),
        ("glossa-worker", "attempt", EXPLAIN),
        ("glossa-registry", CONTENT, "attempt"),
        ("glossa-worker", "model explain", "attempt"),
        ("glossa-worker", "batch", "attempt"),
        ("glossa-cache", COMPLETE, "batch"),
    }
    said = repr(traced.collector.spans)
    assert all(secret not in said for secret in ("alice", pdf_hash, "Entropy", "disorder"))


async def test_a_call_from_outside_begins_a_trace_and_a_refusal_is_an_error(
    traced: Traced,
) -> None:
    with pytest.raises(grpc.aio.AioRpcError):
        await traced.explain("mallory", "0" * 64)

    def refused() -> list[Span]:
        return [span for span in traced.collector.spans if span.name == EXPLAIN and span.error]

    await traced.collector.until(lambda _: bool(refused()))
    [span] = refused()
    assert span.parent_id == ""
    assert span.error == "FILE_NOT_FOUND"
    assert span.attributes["rpc.grpc.status_code"] == "NOT_FOUND"


async def test_what_services_do_by_themselves_is_no_trace(traced: Traced) -> None:
    """Renewals, reports and streams would bury what users did."""

    def made() -> int:
        return sum(span.name == "attempt" for span in traced.collector.spans)

    before = made()
    uploaded = await traced.suite.upload("bob", lecture("Enthalpy is heat."))
    await traced.explain("bob", uploaded.file.pdf_hash)
    await traced.collector.until(lambda _: made() > before)

    roots = {span.name.rpartition("/")[2] for span in traced.collector.spans if not span.parent_id}
    assert roots == {"UploadDocument", "ExplainPage"}


async def test_a_header_that_is_no_traceparent_is_ignored(traced: Traced) -> None:
    uploaded = await traced.suite.upload("carol", lecture(PAGE))

    answer = await traced.explain("carol", uploaded.file.pdf_hash, traceparent="'; DROP TABLE")

    assert answer.generation_id


def test_while_it_is_off_nothing_of_it_is_imported() -> None:
    code = (
        "import sys\n"
        "import services.registry.__main__, services.cache.__main__, services.quota.__main__\n"
        "import services.worker.__main__\n"
        "from services.runtime import tracing\n"
        "with tracing.tracing('cache', None):\n"
        "    assert tracing.traceparent() == ''\n"
        "    with tracing.span('nothing', parent='00-1-1-01'), tracing.batch(['x']): pass\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]\n"
    )
    environment = {name: value for name, value in os.environ.items() if "OTEL" not in name}

    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


def test_wanted_but_not_installed_says_what_to_do() -> None:
    code = (
        "import importlib.util, sys\n"
        "from services.runtime import server, settings\n"
        "find = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name: None if name == 'opentelemetry' else find(name)\n"
        "with server.starting('cache', settings.ServiceSettings): pass\n"
    )
    environment = {
        **os.environ,
        "GLOSSA_TRACING": "true",
        "GLOSSA_DATABASE_URL": "postgresql://x",
        "GLOSSA_VERIFY_KEY_FILE": "none",
    }

    ended = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )

    assert ended.returncode == 1
    assert "pip install 'glossa[tracing]'" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_collector_that_is_away_holds_nobody_up() -> None:
    code = (
        "import time\n"
        "from services.runtime import tracing\n"
        "with tracing.tracing('cache', True):\n"
        "    call = tracing.served_call('/a.B/C', '', may_begin=True)\n"
        "    call.end('OK', '')\n"
        "    began = time.monotonic()\n"
        "print(time.monotonic() - began)\n"
    )
    environment = {
        **os.environ,
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1",
        "OTEL_EXPORTER_OTLP_TIMEOUT": "600",
    }

    ended = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )

    # Left to itself, OpenTelemetry would try for 30 seconds.
    assert float(ended.stdout.split()[-1]) < 25


@pytest.mark.parametrize(
    ("setting", "environment", "wanted"),
    [
        (None, {}, False),
        (True, {}, True),
        (False, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317"}, False),
        (None, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317"}, True),
        (None, {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4317"}, True),
        (None, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_TRACES_EXPORTER": "none"}, False),
        (True, {"OTEL_SDK_DISABLED": "true"}, False),
    ],
)
def test_who_decides_whether_traces_are_made(
    setting: bool | None, environment: dict[str, str], wanted: bool
) -> None:
    assert is_wanted(setting, environment) is wanted
