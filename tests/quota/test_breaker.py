"""When calls are stopped and let through again: a table of times and answers."""

from datetime import timedelta

import pytest

from services.quota.breaker import Breaker, Circuit


def failing(times: int, *, at: float = 0.0) -> Breaker:
    breaker = Breaker(failures_to_open=3, pause=timedelta(seconds=1))
    for _ in range(times):
        breaker.failed(at)
    return breaker


@pytest.mark.parametrize(("failures", "passes"), [(0, True), (2, True), (3, False), (9, False)])
def test_failures_in_a_row_open_it(failures: int, passes: bool) -> None:
    assert failing(failures).may_pass(0.5) is passes


def test_a_success_between_failures_starts_the_count_again() -> None:
    breaker = failing(2)
    breaker.succeeded()
    breaker.failed(0.0)
    breaker.failed(0.0)
    assert breaker.may_pass(0.0)


def test_after_the_pause_one_call_alone_is_the_probe() -> None:
    breaker = failing(3)
    assert [breaker.may_pass(at) for at in (0.999, 1.0, 1.0, 5.0)] == [False, True, False, False]
    assert breaker.circuit is Circuit.HALF_OPEN


def test_a_probe_that_succeeds_lets_everybody_through() -> None:
    breaker = failing(3)
    breaker.may_pass(1.0)
    breaker.succeeded()
    assert [breaker.may_pass(1.0), breaker.may_pass(1.0)] == [True, True]


def test_a_probe_that_fails_starts_the_pause_again() -> None:
    breaker = failing(3)
    breaker.may_pass(1.0)
    breaker.failed(1.5)
    assert [breaker.may_pass(at) for at in (2.0, 2.4, 2.5)] == [False, False, True]


def test_latecomers_that_fail_do_not_prolong_the_pause() -> None:
    breaker = failing(3)
    breaker.failed(0.9)
    assert breaker.may_pass(1.0)


@pytest.mark.parametrize(("at", "seconds"), [(0.0, 1.0), (0.6, 0.4), (0.95, 0.1), (7.0, 0.1)])
def test_who_is_refused_learns_when_to_come_again(at: float, seconds: float) -> None:
    assert failing(3).retry_after(at) == timedelta(seconds=seconds)
