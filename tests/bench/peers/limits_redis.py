"""Decisions per second of `limits` with a Redis moving window; run by .venv-bench.

Usage: limits_redis.py REDIS_URL SECONDS THREADS USERS
"""

import random
import sys
import threading
import time

from limits import parse
from limits.storage import RedisStorage
from limits.strategies import MovingWindowRateLimiter

# High enough that everybody passes: every decision writes, on both sides of the comparison.
TIERS = (parse("60000/minute"), parse("10000/10 seconds"), parse("100000/day"))


def main() -> None:
    url, seconds, threads, users = sys.argv[1], *map(int, sys.argv[2:5])
    storage = RedisStorage(url)
    storage.reset()
    limiter = MovingWindowRateLimiter(storage)
    counts = [0] * threads
    stop_at = time.perf_counter() + seconds

    def run(number: int) -> None:
        dice = random.Random(number)
        while time.perf_counter() < stop_at:
            user = f"user-{dice.randrange(users)}"
            for tier in TIERS:
                assert limiter.hit(tier, user, "explain_page")
            counts[number] += 1

    workers = [threading.Thread(target=run, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    print(sum(counts) / seconds)


main()
