"""A worker that is killed between two chunks: the next one pays only for what is missing."""

import os
import signal

from glossa.cache.v1 import cache_pb2

from tests import fake_openai as fake
from tests.e2e.conftest import Street
from tests.fake_openai import Answer, Question
from tests.worker.pages import LONG_TEXT, Sheet, document
from tests.worker.test_lease_loop import until_ended


async def test_what_a_killed_worker_had_explained_is_not_paid_for_again(street: Street) -> None:
    suite, model = street.suite, street.model
    silent = True

    def answer(question: Question) -> Answer:
        """Everything is answered but the second chunk, until the worker has been killed."""
        asked = [one for one in model.questions if one.about == "stickers"]
        if silent and len(asked) == 2:
            return Answer(hang=True)
        return fake.usual(question)

    model.answer = answer
    page = Sheet(text=LONG_TEXT, pictures=[1, 2])
    uploaded = await suite.upload("alice", document(page))
    asked = await suite.explain("alice", uploaded.file.pdf_hash)
    await model.wait_for_calls(4)  # two pictures, the first chunk, the second one

    os.kill(street.up.pid_of("services.worker"), signal.SIGKILL)
    silent = False
    await street.up.reads("worker is back")
    generation = await until_ended(suite, asked.generation_id)

    assert (generation.status, generation.attempts) == (cache_pb2.GENERATION_STATUS_READY, 2)
    about = [question.about for question in model.questions]
    assert (about.count("image"), about.count("stickers")) == (2, 3)
    texts = [one.material["page_text"] for one in model.questions if one.about == "stickers"]
    assert texts[1] == texts[2] != texts[0]
    assert await street.balance("alice") == 999
