"""Decisions per second of `pyrate-limiter` with its Postgres bucket; run by .venv-bench.

It keeps one table for each bucket, so a user is a table.
Usage: pyrate_postgres.py URL SECONDS THREADS USERS
"""

import random
import sys
import threading
import time
import uuid

from psycopg_pool import ConnectionPool
from pyrate_limiter import Duration, PostgresBucket, Rate, RateItem

RATES = [
    Rate(10_000, 10 * Duration.SECOND),
    Rate(60_000, Duration.MINUTE),
    Rate(100_000, Duration.DAY),
]


def main() -> None:
    url, seconds, threads, users = sys.argv[1], *map(int, sys.argv[2:5])
    with ConnectionPool(url, min_size=threads, max_size=threads) as pool:
        run_name = uuid.uuid4().hex[:8]
        buckets = [PostgresBucket(pool, f"{run_name}_{n}", RATES) for n in range(users)]
        counts = [0] * threads
        stop_at = time.perf_counter() + seconds

        def run(number: int) -> None:
            dice = random.Random(number)
            while time.perf_counter() < stop_at:
                bucket = dice.choice(buckets)
                counts[number] += bool(bucket.put(RateItem("hit", bucket.now())))

        workers = [threading.Thread(target=run, args=(number,)) for number in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        print(sum(counts) / seconds)


main()
