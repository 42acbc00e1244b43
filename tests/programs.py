"""Programs that some tests need and that not every machine has."""

import shutil

import pytest


def needs(program: str, *, package: str) -> pytest.MarkDecorator:
    """Skips a test where a program is not installed, and says which Debian package has it."""
    reason = f"{program} is not installed (Debian: apt install {package})"
    return pytest.mark.skipif(shutil.which(program) is None, reason=reason)
