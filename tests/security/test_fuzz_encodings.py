"""Keys of the response cache: equal questions share one, and no two others do."""

import os
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from services.cache.canonical import response_key

EXAMPLES = int(os.environ.get("GLOSSA_FUZZ_EXAMPLES", "10"))

words = st.text(st.characters(exclude_categories=["Cs"]), max_size=4)
# Few values, so that two questions that were drawn apart are often the same one.
leaves = (
    st.none()
    | st.booleans()
    | st.sampled_from([0.0, -0.0, 1.0, 1e21, 5e-324, 0.1 + 0.2])
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["", "0", "null", "true", "é", "e\u0301"])
    | words
)
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=6,
)
questions = st.dictionaries(st.sampled_from(["a", "b", ""]) | words, values, max_size=3)
names = st.sampled_from(["", "a", "b", "user:alice", '","scope":"'])


def meaning(value: Any) -> Any:
    """What two equal questions have in common, told without any encoding."""
    if isinstance(value, dict):
        return frozenset((name, meaning(inner)) for name, inner in value.items())
    if isinstance(value, list):
        return ("list", *map(meaning, value))
    # Python holds True and 1.0 for equal.
    return type(value).__name__, value


def shuffled(value: Any, order: Any) -> Any:
    """The same, written in another order."""
    if isinstance(value, dict):
        pairs = [(name, shuffled(inner, order)) for name, inner in value.items()]
        order.shuffle(pairs)
        return dict(pairs)
    return [shuffled(inner, order) for inner in value] if isinstance(value, list) else value


@settings(max_examples=20 * EXAMPLES, deadline=None)
@given(
    one=st.tuples(names, questions, names),
    other=st.tuples(names, questions, names),
    order=st.randoms(use_true_random=False),
)
def test_equal_questions_share_a_key_and_no_others(one: Any, other: Any, order: Any) -> None:
    operation, question, scope = one
    key = response_key(operation, question, scope)

    assert key == response_key(operation, shuffled(question, order), scope)
    alike = [(operation, meaning(question), scope) for operation, question, scope in (one, other)]
    assert (response_key(*other) == key) == (alike[0] == alike[1])
