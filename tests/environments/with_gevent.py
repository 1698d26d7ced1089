"""Producers in greenlets, with the standard library patched by gevent; a worker runs in another process."""

from __future__ import annotations

from gevent import monkey, spawn

monkey.patch_all()

from tests.environments.app import PATHS, calls, check_documents, edit, lengths, sched  # noqa: E402


def enqueue(caller: str) -> None:
    for call in calls(caller):
        edit.enqueue_sync(*call)


def main() -> None:
    callers = [spawn(enqueue, f"caller-{number}") for number in range(4)]
    for caller in callers:
        caller.get(timeout=60)
    found = lengths.enqueue_sync().result_sync(timeout=30)
    assert found == {str(doc): 40 for doc in range(PATHS)}, found
    check_documents(callers=4)
    with sched.exclusive_sync(["docs", "0"]):
        held = edit.enqueue_sync("0", "held", 0)
        assert str(held.state_sync()) == "QUEUED"
    held.result_sync(timeout=30)
    sched.close_sync()


if __name__ == "__main__":
    main()
    print("done")
