"""Command line messages: no password from any argument, and control characters shown as codes."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from queuehint.backends.base import BackendOptions
from queuehint.backends.redis.backend import RedisBackend
from queuehint.backends.redis.doctor import doctor
from queuehint.cli import opening
from queuehint.cli import said as typed
from queuehint.cli.app import PANELS, app
from queuehint.cli.said import hidden, mentions_url, said
from queuehint.errors import BackendUnavailableError
from queuehint.shown import plain
from tests.commands import CliRunner
from tests.each import for_each
from tests.support import until_sync
from tests.urls import ODD, SECRET, URL, WITH_SECRETS

STATES = ["ls", "--state", "{}", "-t", "sqlite:///x.db"]
PLACES = [
    ["{}"],
    ["stats", "{}"],
    ["worker", "app:sched", "{}"],
    ["worker", "{}"],
    ["ls", "--{}"],
    ["ls", "-{}"],
    ["ls", "--target", "{}", "--limit", "1"],
    ["ls", "--target={}"],
    STATES,
    ["ls", "--since", "{}", "-t", "sqlite:///x.db"],
    ["ls", "--limit", "{}"],
    ["cancel", "--path", "{}"],
    ["limits", "{}"],
    ["limits", "set", "{}", "x"],
    ["check-trace", "{}"],
    ["check-intervals", "{}"],
    ["doctor", "{}", "--passes", "{}"],
    ["doctor", "{}", "--json"],
    ["simulate", "{}"],
    ["export", "{}", "{}"],
]
TAKING_URLS = [["{}"], ["ls", "--target={}"], ["worker", "{}"], ["doctor", "{}", "--json"]]


@pytest.fixture(autouse=True)
def no_store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    for name in ("QUEUEHINT_URL", "QUEUEHINT_SCHEDULER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)

    def away(backend: RedisBackend, *_: Any, **__: Any) -> Any:
        raise BackendUnavailableError(f"{backend.session.address.shown} cannot be reached")

    monkeypatch.setattr(RedisBackend, "call_sync", away)
    monkeypatch.setattr(doctor, "diagnose", away)
    yield
    typed._typed.clear()


def run(*words: str) -> Result:
    return CliRunner().invoke(app, list(words), env={"COLUMNS": "2000"})


def told(result: Result) -> str:
    """Return all that was printed, without the frames and breaks of the parser's boxes."""
    return re.sub(r"[│\s]", "", result.stdout + result.stderr) + repr(result.exception)


@for_each(
    "words, url",
    [
        *[(words, URL) for words in PLACES],
        *[(words, url) for words in PLACES if words in TAKING_URLS for url in ODD[1:]],
    ],
)
def test_a_password_is_shown_nowhere(words: list[str], url: str) -> None:
    result = run(*[word.format(url) for word in words])
    assert result.exit_code in {1, 2, 3}, told(result)
    assert result.stdout + result.stderr, "it says what is wrong"
    assert SECRET.casefold() not in told(result).casefold()


@pytest.mark.parametrize("words", [["{}"], ["stats", "{}"], ["limits", "{}"], ["ls", "{}"], STATES])
def test_misplaced_url_is_answered_with_the_right_option(words: list[str]) -> None:
    result = run(*[word.format(URL) for word in words])
    assert "--target" in told(result)
    assert "***@127.0.0.1:1/0" in told(result)


@for_each("command", [command for commands in PANELS.values() for command in commands])
def test_commands_with_an_excess_url_hide_its_password(command: object) -> None:
    name = getattr(command, "__name__", "").replace("_", "-")
    for words in ([name, URL, URL, URL], [name, f"--{URL}"]):
        result = run(*words)
        assert result.exit_code == 2, told(result)
        assert SECRET not in told(result)


def test_environment_secrets_are_masked_like_typed_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUEUEHINT_URL", f"redis:/ann:{SECRET}@db")
    monkeypatch.setenv("QUEUEHINT_HEALTH_PORT", URL)
    for words in (["ls"], ["ls", "--json"], ["worker", "app:sched"], ["doctor"]):
        result = run(*words)
        assert result.exit_code, told(result)
        assert SECRET not in told(result)


@for_each("sign", ["\u202e", "\u2066", "\x1b[31m", "\n", "\x9b", "\u200f"])
@for_each(
    "words",
    [["{}"], ["tree", "{}"], ["ls", "{}"], ["ls", "--{}"], ["ls", "-t", "{}"], ["worker", "{}"], ["show", "{}"]],
)
def test_control_characters_are_printed_as_codes(words: list[str], sign: str) -> None:
    result = run(*[word.format(f"{sign}txt.exe") for word in words])
    assert result.exit_code == 2, told(result)
    assert f"{sign}txt" not in told(result)


def test_errors_are_said_alike_as_json() -> None:
    result = run("ls", "--json", "--target", f"nosuch://ann:{SECRET}@db")
    assert "no backend serves 'nosuch'" in json.loads(result.stdout)["error"]
    assert SECRET not in result.stdout


def test_a_silent_server_is_told_of_without_its_password(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "SILENCE_S", 0.01)
    monkeypatch.setattr(opening, "LOOK_EVERY_S", 0.001)
    url = "redis://ann:canary@nowhere.invalid:6379/0"
    backend = RedisBackend.from_url(url, BackendOptions())
    with opening.trying_is_said(backend, url):
        time.sleep(0.02)
        assert capsys.readouterr().err == "", "nothing was asked"
        backend.session.outages.asked_s = time.monotonic()
        told = until_sync(lambda: capsys.readouterr().err, "it is told")
    assert told == "queuehint: trying redis://***@nowhere.invalid:6379/0: no answer for 0.01 s\n"


def test_help_for_a_narrow_terminal_has_no_boxes(monkeypatch: pytest.MonkeyPatch) -> None:
    for columns, has_boxes in (("50", False), ("100", True), ("69", False)):
        monkeypatch.setenv("COLUMNS", columns)
        for words in (["--help"], ["ls", "--help"], ["cron", "ls", "--help"], ["nope"]):
            shown = CliRunner().invoke(app, words).output
            assert ("╭" in shown) == has_boxes, (columns, words)
            assert "--help" not in words or max(map(len, shown.splitlines())) <= int(columns)


def test_help_and_valid_commands_are_unchanged_by_masking() -> None:
    assert run("--version").exit_code == 0
    assert "Look after" not in run().stderr
    assert "Runworkers" in told(run())
    assert "Nosuchcommand'sats'.Didyoumean'stats'?" in told(run("sats"))
    assert "Nosuchoption:--nothing" in told(run("ls", "--nothing"))


def test_masked_text_is_not_masked_again() -> None:
    typed._typed[:] = ["ls", "--target", URL]
    for text in ("redis://***@db:6379/0: is away", "redis://db/0?password=***, is away", "a: b@c", "at 10:30"):
        assert hidden(text) == text
    assert said(f"no {URL.upper()}\n") == r"no redis://***@127.0.0.1:1/0\n"


@for_each("url", [*ODD, *WITH_SECRETS])
def test_message_that_quotes_a_url_hides_its_password(url: str) -> None:
    typed._typed[:] = ["ls", "--target", url]
    parts = re.split("[:/@?#&;=,]", url)
    texts = [url, repr(url), url[url.casefold().index(SECRET.casefold()) :], *url.split("@"), *url.split("?"), *parts]
    if mentions_url(url):
        for text in texts:
            assert SECRET.casefold() not in said(f"what is {text}, please").casefold()


@pytest.mark.parametrize("word", [f"queued,{URL}", f"--state=queued,{URL}", f"-t={URL}", f"--{URL}", URL])
def test_a_url_within_a_word_is_known_as_one(word: str) -> None:
    typed._typed[:] = ["ls", word]
    assert SECRET not in said(f"what is {SECRET}?")


def test_a_url_of_the_environment_is_known_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUEUEHINT_URL", URL)
    assert SECRET not in said(f"what is {SECRET}?")


def test_a_url_that_nobody_typed_is_masked() -> None:
    assert said(f"{URL}: is away, '{URL}'.") == "redis://***@127.0.0.1:1/0: is away, 'redis://***@127.0.0.1:1/0'."


def test_a_url_that_is_quoted_with_escapes_is_known() -> None:
    typed._typed[:] = ["ls", f"redis://ann:{SECRET}\n\x1b{SECRET}@db"]
    for text in (f"{SECRET}\n\x1b{SECRET}", repr(f"{SECRET}\n\x1b{SECRET}"), plain(f"ann:{SECRET}\n\x1b{SECRET}")):
        assert SECRET not in said(f"no {text}")
