"""The promises, one SQL file each: `invariants/<schema>/<name>.sql`, in words and as a query."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).with_name("invariants")
# In the order of a request: what stands alone first, what holds between services last.
SCHEMAS = ("registry", "cache", "quota", "worker", "across")
_ADVICE = "If not: "
_NEEDS = "Needs: "


@dataclass(frozen=True, kw_only=True)
class Invariant:
    """A query that returns no row while its promise is kept."""

    # Like "cache/lease_is_whole".
    name: str
    promise: str
    advice: str
    sql: str
    # A role whose rights the query needs to see anything.
    needs: str = ""


@cache
def all_invariants() -> Sequence[Invariant]:
    return tuple(
        _read(f"{schema}/{file.stem}", file.read_text("utf-8"))
        for schema in SCHEMAS
        for file in sorted((FOLDER / schema).glob("*.sql"))
    )


def is_meant(name: str, wanted: Collection[str]) -> bool:
    """Whether `cache/lease_is_whole` is among those wanted: by name, last part or schema."""
    schema, _, short = name.partition("/")
    return not wanted or not {name, schema, short}.isdisjoint(wanted)


def _read(name: str, text: str) -> Invariant:
    """The comment on top says what is promised, then what to do if it is not kept."""
    lines = text.splitlines()
    begins = next(place for place, line in enumerate(lines) if not line.startswith("-- "))
    comment = [line.removeprefix("-- ") for line in lines[:begins]]
    needs = [line.removeprefix(_NEEDS) for line in comment if line.startswith(_NEEDS)]
    told = " ".join(line for line in comment if not line.startswith(_NEEDS))
    promise, _, advice = told.partition(f" {_ADVICE}")
    assert advice, f"{name} does not say what to do"
    sql = "\n".join(lines[begins:]).rstrip().removesuffix(";")
    return Invariant(
        name=name, promise=promise, advice=advice, sql=sql, needs=needs[0] if needs else ""
    )
