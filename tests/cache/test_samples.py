"""Samples on their way to the Worker: once each, kept while it is away, counted when lost."""

from collections.abc import Sequence
from uuid import UUID, uuid4

import pytest
from prometheus_client import REGISTRY

from services.cache import samples as module
from services.cache.domain import Ask, Outcome, ResolvedPage
from services.cache.samples import Groups, SampleKey, Samples
from services.runtime.errors import DependencyDown, InvalidInput

KEY = SampleKey("page_explanation", "a" * 64, 1, "en", "text_only", Outcome.GENERATED, 2, 3)


class Line:
    """The way to the Worker: what arrives, and what goes wrong before it does."""

    def __init__(self, *troubles: Exception) -> None:
        self.troubles = list(troubles)
        self.tried: list[UUID] = []
        self.arrived: list[Groups] = []

    async def send(self, batch_id: UUID, groups: Groups) -> None:
        self.tried.append(batch_id)
        if self.troubles:
            raise self.troubles.pop(0)
        self.arrived.append(groups)

    @property
    def latencies(self) -> Sequence[int]:
        return [one for groups in self.arrived for both in groups.values() for one in both[0]]


def lost(why: str) -> float:
    return REGISTRY.get_sample_value("glossa_cache_samples_lost_total", {"why": why}) or 0


async def test_samples_of_one_page_travel_together() -> None:
    line = Line()
    samples = Samples(line.send)
    other = KEY._replace(page=2)
    samples.note_served([(KEY, 10), (other, 20), (KEY, 30)])

    await samples.send_waiting()

    [groups] = line.arrived
    assert {key: both[0] for key, both in groups.items()} == {KEY: [10, 30], other: [20]}
    assert all(age >= 0 for _, ages in groups.values() for age in ages)
    await samples.send_waiting()
    assert len(line.tried) == 1  # nothing is sent for nothing


async def test_a_hit_is_a_sample_without_chunks() -> None:
    line = Line()
    samples = Samples(line.send)
    ask = Ask(request_id=uuid4(), user_id="u", file_id=None, pdf_hash="a" * 64, page=1, locale="en")
    page = ResolvedPage(pdf_hash="a" * 64, page=1, effective_mode="with_images", images_count=4)

    samples.note_hit(ask, page)
    await samples.send_waiting()

    [key] = line.arrived[0]
    assert (key.outcome, key.images_count, key.chunks) == (Outcome.CACHED, 4, 0)
    assert key.effective_mode == "with_images"


async def test_a_batch_keeps_its_name_until_it_has_arrived() -> None:
    line = Line(DependencyDown("away"), DependencyDown("away"))
    samples = Samples(line.send)
    samples.note_served([(KEY, 10)])

    for _ in range(2):
        with pytest.raises(DependencyDown):
            await samples.send_waiting()
        samples.note_served([(KEY, 20)])
    await samples.send_waiting()

    first, *others = line.tried
    assert line.tried.count(first) == 3
    assert len(set(others) - {first}) == 1
    assert sorted(line.latencies) == [10, 20, 20]


async def test_what_is_refused_is_counted_and_does_not_hold_up_the_rest() -> None:
    line = Line(InvalidInput("no"))
    samples = Samples(line.send)
    before = lost("refused")
    samples.note_served([(KEY, 10)] * 3)

    await samples.send_waiting()
    samples.note_served([(KEY, 20)])
    await samples.send_waiting()

    assert lost("refused") == before + 3
    assert line.latencies == [20]


async def test_memory_is_bounded_and_what_does_not_fit_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MOST_WAITING", 5)
    monkeypatch.setattr(module, "SAMPLES_PER_CALL", 2)
    line = Line()
    samples = Samples(line.send)
    before = lost("overflow")

    samples.note_served([(KEY, number) for number in range(8)])
    await samples.send_waiting()

    assert lost("overflow") == before + 3
    assert [len(groups[KEY][0]) for groups in line.arrived] == [2, 2, 1]


async def test_the_last_ones_are_sent_at_the_end_or_counted() -> None:
    line, before = Line(), lost("stopped")
    samples = Samples(line.send)
    async with samples.reporting():
        samples.note_served([(KEY, 10)])
    assert line.latencies == [10]

    dead = Samples(Line(*[DependencyDown("away")] * 9).send)
    async with dead.reporting():
        dead.note_served([(KEY, 10)] * 4)
    assert lost("stopped") == before + 4


async def test_without_a_worker_nothing_is_kept() -> None:
    samples = Samples(None)
    samples.note_served([(KEY, 10)])

    await samples.send_waiting()

    assert len(samples._waiting) == 0
