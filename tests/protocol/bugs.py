"""The rules of the protocol that the model can be told to break, one at a time."""

from enum import StrEnum


class Bug(StrEnum):
    """Each value says what the broken protocol does; R-numbers are the rules of the fault model."""

    R1_ID_MAY_CHANGE_ITS_MEANING = "a request_id may come back with other parameters"
    R2_CHARGE_BEFORE_INTENT = "the charge is sent before the intent is written"
    R3_CHARGE_EVERY_TIME = "Quota charges again for a request_id it knows"
    R4_NO_TOMBSTONE = "a refund of an unknown request_id leaves no void"
    R5_DEAD_IDS_REVIVE = "Quota charges a request_id that was refunded or voided"
    R6_STATE_UNCHECKED = "attaching does not look at the intent's state"
    R6_NONCE_UNCHECKED = "an intent obeys whoever once held it"
    R7_ATTACH_IN_TWO_STEPS = "the generation is found in one transaction, the waiter written later"
    R7_TWO_LIVE_GENERATIONS = "no unique index over live generations"
    R8_SETTLE_IN_TWO_STEPS = "a generation ends in one transaction, its waiters settle later"
    R8_STATE_UNFENCED = "a finished generation can be completed or failed again"
    ATTEMPT_UNFENCED = "any worker that ever had a lease may end the generation"
    ATTEMPT_REUSED = "a lease that ran out gives its attempt number back"
    REFUND_EVERY_TIME = "a refund delivered twice pays twice"
    REFUND_LOST = "an outbox message is deleted before Quota has acknowledged it"
    R10_SHORT_RETENTION = "requests and ledger are forgotten while clients still retry"
    HIT_ANSWERS_FOR_ITS_TWIN = "a hit answers with a charge that belongs to a twin's intent"
    ABORTED_HIDES_A_HIT = "a given-up intent hides that its id was served as a hit"
    R12_FAIL_OPEN = "without an answer from Quota the request is enqueued anyway"


class ProtocolBroken(AssertionError):
    """A property of the protocol does not hold."""


def must(holds: bool, sentence: str, *about: object) -> None:
    if not holds:
        raise ProtocolBroken(f"{sentence}: {about}")
