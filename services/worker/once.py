"""A worker that runs now and then: does what is waiting, within its budget, and goes."""

import asyncio
import re
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Sequence
from datetime import timedelta

import structlog

from services.worker.lease_loop import LeaseLoop

log = structlog.get_logger()

DEFAULT_BUDGET = "50s"
DEFAULT_BATCH = 10
MOST_BATCH = 100
_UNITS = {"s": 1, "m": 60, "h": 3600}


def parse_arguments(arguments: Sequence[str]) -> Namespace:
    parser = ArgumentParser(
        prog="glossa serve worker",
        description="Explain pages. Without --once it serves until it is told to stop.",
    )
    parser.add_argument("--once", action="store_true", help="do what is waiting, then exit")
    parser.add_argument(
        "--budget",
        type=_duration,
        default=DEFAULT_BUDGET,
        help="with --once: how long at the most (%(default)s), e.g. 5m; the rest is given back",
    )
    parser.add_argument(
        "--batch",
        type=_batch,
        default=DEFAULT_BATCH,
        help="with --once: how many pages at a time, 1 to 100 (%(default)s)",
    )
    return parser.parse_args(arguments)


async def run_once(loop: LeaseLoop, budget: timedelta) -> int:
    """Works until nothing is waiting or the budget is spent; answers how many jobs it took.

    What is not done by then goes back untouched: the next run, or another worker, takes it up.
    """
    taken = 0
    async with loop.renewing():
        try:
            async with asyncio.timeout(budget.total_seconds()):
                taken = await loop.run_until_empty()
        except TimeoutError:
            log.info("budget_spent", seconds=budget.total_seconds())
        finally:
            await loop.drain(timedelta())
    log.info("queue_drained", jobs=taken)
    return taken


def _duration(text: str) -> timedelta:
    match = re.fullmatch(r"(\d{1,6})([smh]?)", text)
    if match is None or int(match[1]) == 0:
        raise ArgumentTypeError("must be like 50s, 5m or 1h")
    return timedelta(seconds=int(match[1]) * _UNITS[match[2] or "s"])


def _batch(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or not 1 <= int(text) <= MOST_BATCH:
        raise ArgumentTypeError(f"must be 1 to {MOST_BATCH}")
    return int(text)
