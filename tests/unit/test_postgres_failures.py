"""Errors of PostgreSQL, translated."""

from __future__ import annotations

import pytest

from queuehint.backends.postgres.sessions.failures import LostError, RefusedError, judgement, unreached
from queuehint.errors import (
    BackendDeniedError,
    BackendError,
    BackendFullError,
    BackendUnavailableError,
    CorruptStateError,
)
from tests.each import for_each


@for_each(
    "code, kind, said",
    [
        ("53100", BackendFullError, "there is no room left (problem); nothing was changed"),
        ("53200", BackendFullError, "there is no room left"),
        ("54000", BackendFullError, "more than it holds at once"),
        ("42501", BackendDeniedError, "must not be written by this user or at this server: problem"),
        ("25006", BackendDeniedError, "must not be written"),
        ("42P01", BackendUnavailableError, "the tables were removed or replaced (problem)"),
        ("3F000", BackendUnavailableError, "the tables were removed"),
        ("XX001", CorruptStateError, "db is damaged: problem"),
        ("57014", BackendUnavailableError, "db: problem; nothing was changed"),
        ("40001", BackendUnavailableError, "nothing was changed"),
        ("53300", BackendUnavailableError, "nothing was changed"),
    ],
)
def test_a_refusal_of_the_server_is_an_error_of_ours(code: str, kind: type[BackendError], said: str) -> None:
    found = judgement(RefusedError(code, "problem"), "db")
    assert type(found) is kind
    assert said in str(found)


def test_lost_connection_leaves_the_outcome_unknown() -> None:
    found = judgement(LostError("problem", is_sent=True), "db")
    assert type(found) is BackendUnavailableError
    assert str(found) == "db: problem"


@pytest.mark.parametrize(
    "problem, is_lasting",
    [
        ('FATAL:  password authentication failed for user "ann"', True),
        ('FATAL:  database "app" does not exist', True),
        ('FATAL:  no pg_hba.conf entry for host "1.2.3.4", user "ann"', True),
        ("fe_sendauth: no password supplied", True),
        ('invalid connection option "x"', True),
        ("connection refused", False),
        ("FATAL:  the database system is starting up", False),
        ("FATAL:  sorry, too many clients already", False),
        ('could not translate host name "db" to address', False),
    ],
)
def test_a_connection_that_no_repetition_makes_is_denied(problem: str, is_lasting: bool) -> None:
    found = unreached(problem, "db", {})
    assert type(found) is (BackendDeniedError if is_lasting else BackendUnavailableError)
    assert found.is_lasting is is_lasting


def test_no_password_is_shown_and_a_message_is_one_line() -> None:
    found = unreached('bad "pass word"\n\tor secret', "db", {"password": "pass word", "sslpassword": "secret"})
    assert str(found) == 'db: bad "***" or ***'
