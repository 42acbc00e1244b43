"""The process in which strangers' PDFs are opened, one task at a time.

Started by `sandbox.py`, never imported by the service. Tasks arrive on a socket (fd 0), each with
a read-only descriptor; answers leave through a pipe (fd 1) as a four-byte length and JSON.
"""

import json
import os
import socket
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from services.registry import pdf_pages
from services.registry.confinement import allow_cpu_seconds, confine, silence

LONGEST_TASK = 1 << 16


class Limits(NamedTuple):
    """What the parent grants, in the order of the command line."""

    parent_pid: int
    memory_bytes: int
    cpu_seconds: int
    answer_bytes: int
    pages: int


def main(arguments: list[str]) -> None:
    """Give everything up, say that we are ready, and work until the parent closes its side."""
    limits = Limits(*map(int, arguments))
    tasks = socket.socket(fileno=os.dup(0))
    answers = silence()
    pdf_pages.rehearse()
    confine(parent_pid=limits.parent_pid, memory_bytes=limits.memory_bytes)
    answer(answers, {"ready": True}, limits)
    while task := receive(tasks):
        for told in perform(*task, limits):
            answer(answers, told, limits)


def receive(tasks: socket.socket) -> tuple[dict[str, Any], int] | None:
    """The next task and the descriptor of its file; nothing once the parent is done with us."""
    message, descriptors, _, _ = socket.recv_fds(tasks, LONGEST_TASK, 1)
    return (json.loads(message), descriptors[0]) if message else None


def perform(
    task: dict[str, Any], descriptor: int, limits: Limits
) -> Iterator[dict[str, dict[str, Any]]]:
    """What is told about a task: its parts if it has any, then the result or the refusal."""
    allow_cpu_seconds(limits.cpu_seconds)
    try:
        with pdf_pages.opened(descriptor) as document:
            if task["act"] == "describe":
                yield from describe(document, task["pages"], limits)
                yield {"result": {}}
            else:
                yield attempted(lambda: act(document, task, limits))
    except Exception as error:  # the file cannot even be opened
        yield refusal(error)
    finally:
        os.close(descriptor)
        pdf_pages.forget()


def describe(
    document: Any, pages: list[int], limits: Limits
) -> Iterator[dict[str, dict[str, Any]]]:
    """Page by page, so that one that kills us is known by those that came before it."""
    for page in pages:
        allow_cpu_seconds(limits.cpu_seconds)
        part = attempted(lambda page=page: pdf_pages.describe(document, page))  # type: ignore[misc]
        yield {"part": part}
        if part.get("refused") == "PDF_TOO_COMPLEX":
            return  # out of memory once: the next pages deserve a new child


def act(document: Any, task: dict[str, Any], limits: Limits) -> dict[str, Any]:
    """The one thing asked about an open file."""
    if task["act"] == "inspect":
        return pdf_pages.inspect(document, most_pages=limits.pages)
    assert task["act"] == "read"
    return pdf_pages.read(
        document,
        task["page"],
        neighbours=task["neighbours"],
        include_images=task["include_images"],
        include_render=task["include_render"],
    )


def attempted(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The result of some work, or the reason why the PDF is refused."""
    try:
        return {"result": work()}
    except Exception as error:
        return refusal(error)


def refusal(error: Exception) -> dict[str, Any]:
    """The reason alone, and the type: messages of MuPDF may quote the document."""
    if isinstance(error, pdf_pages.Refused):
        return {"refused": error.reason}
    if isinstance(error, MemoryError):
        return {"refused": "PDF_TOO_COMPLEX"}
    return {"refused": pdf_pages.reason_of(error), "detail": type(error).__name__}


def answer(answers: int, body: dict[str, Any], limits: Limits) -> None:
    """Write one frame; what would be longer than agreed is refused instead."""
    frame = json.dumps(body).encode()
    if len(frame) > limits.answer_bytes:
        frame = json.dumps({"refused": "PDF_TOO_COMPLEX"}).encode()
    whole = memoryview(len(frame).to_bytes(4, "big") + frame)
    while whole:
        whole = whole[os.write(answers, whole) :]


if __name__ == "__main__":
    main(sys.argv[1:])
