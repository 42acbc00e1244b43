"""What can be wrong with this machine; the message is the one sentence a person reads."""


class LocalError(Exception):
    """The suite cannot run here as things stand, and the message says what to do about it."""
