"""Payloads that are encrypted, or kept outside the store of jobs."""

from __future__ import annotations

import json
import os
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from queuehint import (
    Backoff,
    BlobCodec,
    DirectoryStore,
    EncryptedCodec,
    InvalidJobError,
    InvalidJobTypeError,
    PayloadError,
    Scheduler,
    template,
)
from queuehint.cli.app import app
from tests.each import for_each

OLD, NEW = b"o" * 32, b"n" * 32
MAX = 1 << 20
VALUES = {"doc": "secret", "n": 5}


def written(codec: EncryptedCodec | BlobCodec, values: dict[str, Any] = VALUES) -> bytes:
    return codec.dumps(values, {}, bytes_max=MAX)


# --- encrypted -------------------------------------------------------------------------------------------------------


@given(st.dictionaries(st.text(), st.integers() | st.text()))
def test_encrypted_values_round_trip_and_never_repeat(values: dict[str, Any]) -> None:
    codec = EncryptedCodec({"a": OLD})
    assert codec.loads(written(codec, values), {}) == values
    assert written(codec, values) != written(codec, values)


def test_nothing_of_a_payload_can_be_read_without_the_key() -> None:
    payload = written(EncryptedCodec({"a": OLD}))
    assert b"secret" not in payload
    with pytest.raises(PayloadError, match="was changed, or its key 'a' is another one"):
        EncryptedCodec({"a": NEW}).loads(payload, {})


def test_keys_are_rotated() -> None:
    before = EncryptedCodec({"2025": OLD})
    after = EncryptedCodec({"2025": OLD, "2026": NEW}, encrypts="2026")
    assert after.loads(written(before), {}) == VALUES
    assert EncryptedCodec({"2026": NEW}).loads(written(after), {}) == VALUES
    with pytest.raises(PayloadError, match="is encrypted with key '2026', and the keys are '2025'"):
        before.loads(written(after), {})


def test_no_byte_of_an_encrypted_payload_can_be_changed() -> None:
    codec = EncryptedCodec({"a": OLD, "b": NEW}, encrypts="a", reads_plain=False)
    payload = written(codec)
    for place in range(len(payload)):
        for changed in (payload[:place] + bytes([payload[place] ^ 3]) + payload[place + 1 :], payload[:place]):
            with pytest.raises(PayloadError):
                codec.loads(changed, {})


def test_plain_payloads_are_read_only_where_that_is_asked_for() -> None:
    plain = b'{"n":5}'
    assert EncryptedCodec({"a": OLD}, reads_plain=True).loads(plain, {}) == {"n": 5}
    with pytest.raises(PayloadError, match="is not encrypted; reads_plain=True"):
        EncryptedCodec({"a": OLD}).loads(plain, {})


def test_an_encrypted_payload_keeps_the_limit() -> None:
    codec = EncryptedCodec({"a": OLD})
    room = MAX - len(written(codec, {})) + len(b"{}")
    assert len(written(codec, {"n": "x" * (room - len(b'{"n":""}'))})) == MAX
    with pytest.raises(PayloadError, match=f"limit {room}"):
        written(codec, {"n": "x" * (room - len(b'{"n":""}') + 1)})


@for_each(
    "case",
    [
        ((["a"],), "keys must be a dict"),
        (({},), "keys must hold 1 to 100 keys, got 0"),
        (({"ä": OLD},), "an id must be 1 to 64 of A-Z"),
        (({"a": "o" * 32},), r"keys\['a'\] must be bytes, got str"),
        (({"a": OLD[1:]},), r"keys\['a'\] must be 32 bytes, got 31"),
    ],
)
def test_keys_are_checked_and_never_shown(case: tuple[tuple[Any], str]) -> None:
    arguments, message = case
    with pytest.raises((InvalidJobError, InvalidJobTypeError), match=message) as refused:
        EncryptedCodec(*arguments)
    assert "ooo" not in str(refused.value)
    assert "ooo" not in repr(EncryptedCodec({"a": OLD}))


def test_the_key_that_encrypts_is_named_where_there_are_several() -> None:
    with pytest.raises(InvalidJobError, match="encrypts is required with several keys: the id of one of 'a', 'b'"):
        EncryptedCodec({"a": OLD, "b": NEW})
    with pytest.raises(InvalidJobError, match="encrypts must be the id of a key, one of 'a', 'b', got 'c'"):
        EncryptedCodec({"a": OLD, "b": NEW}, encrypts="c")
    with pytest.raises(InvalidJobTypeError, match="inner must be a codec"):
        EncryptedCodec({"a": OLD}, inner=object())  # type: ignore[arg-type]


# --- outside the store -----------------------------------------------------------------------------------------------


def large(size: int = 2000) -> dict[str, Any]:
    return {"text": "x" * size}


def test_encrypted_codec_around_blobs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidJobError, match=r"inner must not be a BlobCodec, .* BlobCodec\(store, inner=Encr"):
        EncryptedCodec({"a": OLD}, inner=BlobCodec(DirectoryStore(tmp_path)))


def test_large_payload_becomes_a_reference_and_a_small_one_stays(tmp_path: Path) -> None:
    codec = BlobCodec(DirectoryStore(tmp_path), over=1024)
    assert written(codec) == b'{"doc":"secret","n":5}'
    assert len(written(codec, large())) == 44
    assert codec.loads(written(codec, large()), {}) == large()
    assert codec.loads(written(codec), {}) == VALUES


def test_a_blob_may_be_longer_than_a_payload(tmp_path: Path) -> None:
    codec = BlobCodec(DirectoryStore(tmp_path), blob_bytes_max=2 * MAX)
    assert codec.loads(written(codec, large(MAX)), {}) == large(MAX)
    with pytest.raises(PayloadError, match=f"{2 * MAX} bytes, the limit"):
        written(codec, large(2 * MAX + 1))


def test_equal_payloads_are_one_file(tmp_path: Path) -> None:
    codec = BlobCodec(DirectoryStore(tmp_path), over=1024)
    assert written(codec, large()) == written(codec, large())
    assert len([*tmp_path.glob("*/*")]) == 1


def test_a_blob_that_is_gone_or_changed_cannot_be_read(tmp_path: Path) -> None:
    codec = BlobCodec(DirectoryStore(tmp_path), over=1024)
    payload = written(codec, large())
    (file,) = tmp_path.glob("*/*")
    blob = file.read_bytes()
    for changed in (b"{}", blob[:-3] + b"?" + blob[-2:]):
        file.write_bytes(changed)
        with pytest.raises(PayloadError, match="was changed"):
            codec.loads(payload, {})
    file.unlink()
    with pytest.raises(PayloadError, match="is not in the store of blobs any more"):
        codec.loads(payload, {})
    with pytest.raises(PayloadError, match="is not a whole reference"):
        codec.loads(payload[:-1], {})


class Imitation:
    """A codec whose payloads begin like references."""

    def dumps(self, values: Any, annotations: Any, *, bytes_max: int) -> bytes:
        text: str = values["text"]
        return b"qhB1" + text.encode()

    def loads(self, payload: bytes, annotations: Any) -> dict[str, Any]:
        return {"text": payload[4:].decode()}


def test_reference_lookalike_is_returned_as_data(tmp_path: Path) -> None:
    codec = BlobCodec(DirectoryStore(tmp_path), inner=Imitation())
    assert codec.loads(written(codec, {"text": "y" * 40}), {}) == {"text": "y" * 40}


def test_prune_deletes_old_blobs_and_keeps_reused_ones(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    codec = BlobCodec(store, over=1024)
    first, second = written(codec, large()), written(codec, large(3000))
    for file in tmp_path.glob("*/*"):
        os.utime(file, (time.time() - 100,) * 2)
    assert written(codec, large()) == first
    assert store.prune(timedelta(seconds=50)) == 1
    assert codec.loads(first, {}) == large()
    with pytest.raises(PayloadError):
        codec.loads(second, {})


@for_each(
    "case",
    [
        (lambda: BlobCodec(object()), "store must be a store of blobs"),  # type: ignore[arg-type]
        (lambda: BlobCodec(DirectoryStore("x"), over=1023), "over must be from 1024"),
        (lambda: BlobCodec(DirectoryStore("x"), over=MAX + 1), "over must be"),
        (lambda: BlobCodec(DirectoryStore("x"), blob_bytes_max=1 << 31), "blob_bytes_max must be"),
        (lambda: DirectoryStore(5), "path must be a path, got int"),  # type: ignore[arg-type]
        (lambda: DirectoryStore("x").prune(-1), "older_than"),
    ],
)
def test_the_settings_of_blobs_are_checked(case: tuple[Any, str]) -> None:
    with pytest.raises((InvalidJobError, InvalidJobTypeError), match=case[1]):
        case[0]()


def contents(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in folder.glob("*/*"))


# --- in a scheduler --------------------------------------------------------------------------------------------------


async def test_jobs_exchange_results_encrypted_outside_the_store(tmp_path: Path) -> None:
    sched = Scheduler(codec=BlobCodec(DirectoryStore(tmp_path), over=1024, inner=EncryptedCodec({"a": OLD})))

    @sched.job
    async def make(size: int) -> str:
        return "x" * size

    @sched.job
    async def measure(text: str) -> int:
        return len(text)

    async with sched.worker():
        first = await make.enqueue(5000)
        second = await measure.using(after=[first]).enqueue(template("{{" + first.id + "}}"))
        assert await second.result(timeout=30) == 5000
    assert await first.result() == "x" * 5000
    record = await sched.records.get(second.id)
    assert b"x" * 20 not in record.spec.arguments
    assert b"x" * 20 not in contents(tmp_path)
    await sched.close()


class Away(DirectoryStore):
    """A store of blobs that does not answer at first."""

    tries = 0

    def get(self, name: str) -> bytes:
        self.tries += 1
        if self.tries == 1:
            raise TimeoutError
        return super().get(name)


async def test_attempt_with_an_unreachable_blob_is_retried(tmp_path: Path) -> None:
    sched = Scheduler(codec=BlobCodec(Away(tmp_path), over=1024))

    @sched.job(retry=Backoff(base=0.001, jitter=0))
    async def measure(text: str) -> int:
        return len(text)

    async with sched.worker():
        job = await measure.enqueue("x" * 5000)
        assert await job.result(timeout=30) == 5000
    assert (await sched.records.get(job.id)).attempts == 2
    await sched.close()


def test_the_doctor_names_payloads_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "app_with_keys.py").write_text(
        "from queuehint import EncryptedCodec, Scheduler\n"
        "sched = Scheduler('memory://', codec=EncryptedCodec({'2026': b'n' * 32}))\n"
    )
    sched = Scheduler(url, codec=EncryptedCodec({"2025": OLD}))
    tidy = sched.job(name="tidy")(lambda: None)
    job, ended = tidy.enqueue_sync(), tidy.enqueue_sync()
    ended.cancel_sync()
    sched.close_sync()
    result = CliRunner().invoke(app, ["doctor", url, "--app", "app_with_keys:sched"])
    why = "is encrypted with key '2025', and the keys are '2026'"
    assert f"error: job {job.id}: arguments of tidy: {why}" in result.output
    assert f"warning: job {ended.id}: arguments of tidy: {why}" in result.output
    assert result.exit_code == 1
    assert CliRunner().invoke(app, ["doctor", url]).exit_code == 0
    missing = CliRunner().invoke(app, ["doctor", url, "--app", "app_with_keys:other"])
    assert (missing.exit_code, "has no 'other'" in missing.output) == (2, True)


def test_doctor_examines_the_namespace_of_the_application(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "app_with_namespace.py").write_text(
        "from queuehint import Scheduler\nsched = Scheduler('memory://', namespace='docs')\n"
    )
    sched = Scheduler(url, namespace="docs")
    sched.job(name="tidy")(lambda: None).enqueue_sync()
    sched.close_sync()
    asked = ["doctor", "--app", "app_with_namespace:sched", "--json"]
    result = CliRunner().invoke(app, [*asked, url])
    assert (result.exit_code, json.loads(result.stdout)["namespace"]) == (0, "docs")
    assert CliRunner().invoke(app, [*asked, url, "-n", "other"]).exit_code == 2
