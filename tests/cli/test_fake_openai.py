"""`glossa fake-openai`: the loopback model server, run by hand."""

import json
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from services.local.fake_answers import FAILURES
from services.runtime.settings import ExplanationSettings
from services.worker import model
from services.worker.domain import Page
from services.worker.openai_explainer import open_openai_explainer

GLOSSA = [sys.executable, "-m", "services.cli", "fake-openai"]
PAGE = Page(page=1, text="A heap is a tree.\nParents are larger than children.", locale="en")


@contextmanager
def server(*arguments: str) -> Iterator[tuple[str, "subprocess.Popen[str]"]]:
    with subprocess.Popen([*GLOSSA, *arguments], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip(), process
        finally:
            process.send_signal(signal.SIGINT)
            process.wait()


async def explain(url: str) -> Any:
    settings = ExplanationSettings.model_validate({"openai_api_key": "any", "openai_base_url": url})
    async with open_openai_explainer(settings, call_seconds=30) as explainer:
        return await explainer.explain(PAGE)


def count(url: str) -> dict[str, int]:
    with urllib.request.urlopen(f"{url.removesuffix('/v1')}/count") as page:
        counted: dict[str, int] = json.load(page)
    return counted


async def test_it_speaks_about_the_page_and_counts_what_it_bills() -> None:
    with server() as (url, process):
        explanation = await explain(url)
        counted = count(url)

    assert explanation.stickers[0].quote == "A heap is a tree."
    usage = explanation.usage
    assert counted == {
        "calls": 1,
        "input_tokens": usage.input_tokens,
        "cached_tokens": usage.cached_tokens,
        "output_tokens": usage.output_tokens,
    }
    assert process.returncode == 0


async def test_it_fails_as_told_as_often_as_told() -> None:
    with server("--fail", "rate-limit", "--times", "1", "--retry-after", "7") as (url, process):
        with pytest.raises(model.ModelRateLimited) as caught:
            await explain(url)
        await explain(url)
        assert process.stdout is not None
        said = [process.stdout.readline() for _ in range(4)]

    assert caught.value.retry_after is not None
    assert caught.value.retry_after.total_seconds() == 7
    assert "OPENAI_BASE_URL" in said[0]
    assert said[2:] == ["call 1: stickers rate-limit\n", "call 2: stickers answered\n"]


async def test_every_second_call_fails_if_told_so() -> None:
    with server("--fail", "refusal", "--every", "2") as (url, _):
        for expected in (None, model.ContentRefused, None, model.ContentRefused):
            if expected is None:
                await explain(url)
            else:
                with pytest.raises(expected):
                    await explain(url)


def test_an_unknown_failure_is_refused_with_those_there_are() -> None:
    result = subprocess.run(
        [*GLOSSA, "--fail", "tantrum"], capture_output=True, text=True, check=False
    )

    assert (result.returncode, result.stdout) == (1, "")
    assert all(name in result.stderr for name in FAILURES)
    assert len(result.stderr.strip().splitlines()) == 1


def test_a_port_that_is_taken_is_told_in_one_line() -> None:
    with server() as (url, _):
        port = url.rpartition(":")[2].removesuffix("/v1")
        result = subprocess.run(
            [*GLOSSA, "--port", port], capture_output=True, text=True, check=False
        )

    assert result.returncode == 1
    assert "cannot be used" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
