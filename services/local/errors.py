"""What a person can mend; the message says what is wrong, the next step what to do about it."""


class AdvisedError(Exception):
    """Said to a person as `message; next step`, to a machine as both apart."""

    reason = "UNEXPECTED"

    def __init__(self, message: str, *, next_step: str = "") -> None:
        super().__init__("; ".join(filter(None, (message, next_step))))
        self.message = message
        self.next_step = next_step


class LocalError(AdvisedError):
    """The suite cannot run on this machine as things stand."""

    reason = "LOCAL_ERROR"
