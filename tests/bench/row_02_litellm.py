"""Row 2: charged cache hits, against cache hits of the LiteLLM proxy with Redis.

Both answer 128 requests at a time from their cache; ours also charges each one durably. Bar: 20
times as many. LiteLLM runs as its documentation says, with one worker, as one Cache does; the
model behind it is a server of ours, and is asked once.
"""

import asyncio
import json
import re
import sys
import tempfile
import threading
import urllib.request
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from services.local.free_ports import free_ports
from tests.bench.hits import EXPLAIN_PAGE, IN_FLIGHT, Hits, load
from tests.bench.peer import debian_program, program, redis, running, until_open
from tests.bench.report import Figure, median_ratio, standalone
from tests.bench.stand import UNLIMITED, open_stand

ROUNDS, REQUESTS, PEER_REQUESTS, BAR = 3, 5_000, 256, 20
KEY = "sk-bench"
COMPLETION = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "gpt-4.1-mini",
    "choices": [
        {
            "index": 0,
            "finish_reason": "stop",
            "message": {"role": "assistant", "content": "Entropy measures disorder. " * 40},
        }
    ],
    "usage": {"prompt_tokens": 10, "completion_tokens": 200, "total_tokens": 210},
}
QUESTION = {"model": "page", "messages": [{"role": "user", "content": "Explain entropy."}]}


class Model(ThreadingHTTPServer):
    """Answers every question alike, from a thread of its own, and counts them."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answering)
        self.calls = 0
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Answering(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        assert isinstance(self.server, Model)
        self.server.calls += 1
        self.rfile.read(int(self.headers["content-length"]))
        body = json.dumps(COMPLETION).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@asynccontextmanager
async def litellm(folder: Path) -> AsyncIterator[int]:
    """The port of a proxy whose cache holds the answer to our question."""
    port = free_ports().port("registry")
    async with redis() as redis_port:
        model = Model()
        config = {
            "model_list": [
                {
                    "model_name": "page",
                    "litellm_params": {
                        "model": "openai/gpt-4.1-mini",
                        "api_base": f"http://127.0.0.1:{model.server_port}/v1",
                        "api_key": KEY,
                    },
                }
            ],
            "litellm_settings": {
                "cache": True,
                "cache_params": {"type": "redis", "host": "127.0.0.1", "port": redis_port},
            },
            "general_settings": {"master_key": KEY},
        }
        settings = folder / "litellm.yaml"
        settings.write_text(json.dumps(config))  # JSON is YAML
        command = (program("litellm"), "--config", settings, "--host", "127.0.0.1")
        async with running(*command, "--port", str(port), "--telemetry", "False"):
            await until_open(port)
            await asyncio.to_thread(ask, port)
            await asyncio.to_thread(ask, port)
            assert model.calls == 1, f"{model.calls} calls: the proxy does not cache"
            yield port
        assert model.calls == 1, "the proxy has asked the model again"
        model.shutdown()


def ask(port: int) -> None:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/chat/completions",
        data=json.dumps(QUESTION).encode(),
        headers={"authorization": f"Bearer {KEY}", "content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert answer.status == 200


async def peer_hits(port: int, folder: Path) -> float:
    """Hits a second, as h2load counts them."""
    question = folder / "question.json"
    question.write_text(json.dumps(QUESTION))
    process = await asyncio.create_subprocess_exec(
        *(debian_program("h2load", "nghttp2-client"), "--h1", "-n", str(PEER_REQUESTS)),
        *("-c", str(IN_FLIGHT), "-d", str(question)),
        *("-H", f"authorization: Bearer {KEY}", "-H", "content-type: application/json"),
        f"http://127.0.0.1:{port}/v1/chat/completions",
        stdout=PIPE,
    )
    out, _ = await process.communicate()
    told = out.decode()
    assert f"{PEER_REQUESTS} 2xx" in told, told
    found = re.search(r"finished in [\d.]+m?s, ([\d.]+) req/s", told)
    assert found is not None, told
    return float(found[1])


async def run() -> list[Figure]:
    ours, theirs = [], []
    debian_program("h2load", "nghttp2-client")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        async with open_stand() as stand, litellm(folder) as port:
            await stand.start_all({"quota": UNLIMITED})
            hits = Hits(stand, folder)
            await hits.open()
            await peer_hits(port, folder)
            for _ in range(ROUNDS):
                asked = hits.write_requests(REQUESTS, own_ids=False)
                done = await load(stand.addresses["cache"], EXPLAIN_PAGE, asked, token=hits.token)
                ours.append(done.per_second)
                theirs.append(await peer_hits(port, folder))
    return [
        Figure(
            row=2,
            what="charged hits, 128 in flight",
            ours=f"{max(ours):,.0f}/s",
            reference=f"LiteLLM proxy + Redis hits {max(theirs):,.0f}/s",
            value=median_ratio(ours, theirs),
            unit="x",
            bar=BAR,
            at_least=True,
        )
    ]


if __name__ == "__main__":
    sys.exit(standalone(run))
