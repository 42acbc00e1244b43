"""The loopback model server under the names tests know it by; it lives in services/local."""

from services.local.fake_answers import (
    FAILURES,
    HOSTILE,
    NOTES,
    Answer,
    Question,
    error,
    lifelike,
    notes,
    ok,
    picture,
    refusal,
    response,
    truncated,
    usual,
)
from services.local.fake_openai import Count, FakeOpenAI, fake_openai

__all__ = [
    "FAILURES",
    "HOSTILE",
    "NOTES",
    "Answer",
    "Count",
    "FakeOpenAI",
    "Question",
    "error",
    "fake_openai",
    "lifelike",
    "notes",
    "ok",
    "picture",
    "refusal",
    "response",
    "truncated",
    "usual",
]
