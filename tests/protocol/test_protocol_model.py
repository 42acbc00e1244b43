"""The protocol as a model: it holds, and each of its rules is needed."""

import os

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.protocol.bugs import Bug, ProtocolBroken
from tests.protocol.machine import CallsMachine, ProtocolMachine

# How many examples the protocol must survive; `make faults` asks for many more.
EXAMPLES = int(os.environ.get("GLOSSA_MODEL_EXAMPLES", "200"))
THOROUGH = "GLOSSA_MODEL_EXAMPLES" in os.environ
# A fresh start now and then: hypothesis remembers every example of a run.
EXAMPLES_PER_RUN = 1_000

# These need a dozen steps in one order of two calls with the same id.
RARE = frozenset({Bug.R6_NONCE_UNCHECKED, Bug.HIT_ANSWERS_FOR_ITS_TWIN, Bug.ABORTED_HIDES_A_HIT})
# Where workers, retention or foreign ids come in; the others show in the narrow machine at once.
WIDE = frozenset(
    {
        Bug.R1_ID_MAY_CHANGE_ITS_MEANING,
        Bug.R8_STATE_UNFENCED,
        Bug.ATTEMPT_UNFENCED,
        Bug.ATTEMPT_REUSED,
        Bug.R10_SHORT_RETENTION,
    }
)


def run(
    machine: type[CallsMachine],
    *,
    bug: Bug | None = None,
    examples: int,
    shrink: bool = False,
) -> None:
    """Try so many sequences of events, always the same ones."""
    for number, first in enumerate(range(0, examples, EXAMPLES_PER_RUN)):
        chosen = type("Machine", (machine,), {"bug": bug})
        run_state_machine_as_test(
            seed(number)(chosen),
            settings=settings(
                max_examples=min(EXAMPLES_PER_RUN, examples - first),
                stateful_step_count=50,
                deadline=None,
                database=None,
                phases=(Phase.generate, Phase.shrink) if shrink else (Phase.generate,),
                report_multiple_bugs=False,
                suppress_health_check=list(HealthCheck),
            ),
        )


@pytest.mark.timeout(0)
@pytest.mark.parametrize("machine", [CallsMachine, ProtocolMachine])
def test_the_protocol_holds(machine: type[CallsMachine]) -> None:
    run(machine, examples=EXAMPLES)


@pytest.mark.timeout(0)
@pytest.mark.parametrize("bug", list(Bug), ids=lambda bug: bug.name.lower())
def test_without_any_one_rule_the_protocol_breaks(bug: Bug) -> None:
    if bug in RARE and not THOROUGH:
        pytest.skip("takes thousands of examples to find; test_protocol_traces.py plays it")
    with pytest.raises(ProtocolBroken):
        run(ProtocolMachine if bug in WIDE else CallsMachine, bug=bug, examples=20_000)
