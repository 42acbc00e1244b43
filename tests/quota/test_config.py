"""Settings that make no sense are refused at the start, in one line."""

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("GLOSSA_LIMITS", "{bad", 'error parsing value for field "limits"'),
        ("GLOSSA_LIMITS", '{"gold": {"*": {"hard": 1}}}', "'gold' is none of"),
        ("GLOSSA_LIMITS", '{"free": {"fly": {"hard": 1}}}', "'fly' is none of"),
        ("GLOSSA_LIMITS", '{"free": {"*": {"hrd": 1}}}', "HRD"),
        ("GLOSSA_LIMITS", '{"free": {"*": {"hard": 0}}}', "greater than or equal to 1"),
        ("GLOSSA_PLAN_UNITS", '{"free": -1}', "GLOSSA_PLAN_UNITS"),
        ("GLOSSA_DAILY_CEILING_DOLLARS", "-1", "GLOSSA_DAILY_CEILING_DOLLARS"),
        ("GLOSSA_ANSWER_WITHIN_SECONDS", "0", "GLOSSA_ANSWER_WITHIN_SECONDS"),
    ],
)
def test_a_setting_that_makes_no_sense_is_one_line(variable: str, value: str, words: str) -> None:
    needed = {"GLOSSA_DATABASE_URL": "postgresql://nowhere", "GLOSSA_VERIFY_KEY_FILE": "none"}
    result = subprocess.run(
        [sys.executable, "-m", "services.quota"],
        env={**os.environ, **needed, variable: value},
        capture_output=True,
        text=True,
        check=False,
    )

    [line] = result.stderr.splitlines()
    assert result.returncode == 1
    assert line.startswith("quota cannot start: ")
    assert words in line
