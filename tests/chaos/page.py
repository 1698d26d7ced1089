"""Write `docs/reference/chaos.md` from the figures of a long run: ``python -m tests.chaos.page``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "docs" / "reference"
FIGURES = FOLDER / "chaos.json"
TRACE = FOLDER / "chaos-trace.jsonl.gz"
PAGE = FOLDER / "chaos.md"

_WHAT = {
    "clock set back": "the clock of all servers, by up to 4 s",
    "clock set forward": "the clock of all servers, by up to 4 s",
    "connections reset": "all connections of the primary, its replicas' too, three times",
    "failover ordered": "`SENTINEL FAILOVER`",
    "link slow": "20 to 120 ms more each way, between the primary and all others",
    "memory full": "`maxmemory` below what the primary uses",
    "primary cut off": "a partition: the primary hears and answers nobody",
    "primary frozen": "SIGSTOP; it wakes up and believes it is the primary still",
    "primary killed": "SIGKILL, and started again",
    "replica cut off": "a partition of one replica",
    "replica killed": "SIGKILL, and started again",
    "replies cut": "requests are run and their replies lost, 3 to 8 times",
    "scripts flushed": "`SCRIPT FLUSH` and `FUNCTION FLUSH`",
    "sentinel frozen": "SIGSTOP of one of three",
    "worker frozen": "SIGSTOP for up to two leases",
    "worker killed": "SIGKILL, with its helper or without",
    "workers restarted": "all of them by SIGTERM, one after the other, as a deploy does",
}

_TEXT = Path(__file__).with_name("page.txt").read_text("utf-8")


def text(figures: dict[str, Any]) -> str:
    """Return the page for the figures of a run."""
    faults, violations = figures["faults"], len(figures["violations"])
    cut_off, answers, kinds = figures["cut_off"], figures["answers"], figures["events_by_kind"]
    min_replicas = figures["min_replicas"]
    totals = [
        ("acknowledgements", f"{answers.get('acknowledged', 0):,}"),
        ("acknowledged, and lost by a failover", f"{figures['acknowledged_and_lost']:,}"),
        ("jobs done, once each in the history that survived", f"{figures['done']:,}"),
        ("attempts of code, in all histories", f"{figures['attempts']:,}"),
        ("attempts that lost their worker", f"{kinds.get('lost', 0):,}"),
        ("events judged", f"{figures['events']:,}, and {cut_off['events']:,} that failovers cut off"),
        ("events missed", f"{figures['missed']:,}"),
        ("histories", f"{figures['histories']}, of which failovers cut {cut_off['histories']} off"),
        ("calls of the producer whose outcome was unknown", f"{answers.get('outcome unknown', 0):,}"),
        ("records dropped early, for full memory", f"{kinds.get('pruned', 0):,}"),
        ("calls refused for full memory", f"{answers.get('refused, memory full', 0):,}"),
        ("calls that found no primary", f"{answers.get('unavailable', 0):,}"),
        ("violations", f"{violations}"),
    ]
    rows = [
        f"| {kind} | {_WHAT[kind]} | {each['count']} | {each['outage_s']} s | {each['settled_s']} s |"
        for kind, each in faults.items()
    ]
    servers = f"with `min-replicas-to-write {min_replicas}`" if min_replicas else "without `min-replicas-to-write`"
    return _TEXT.format(
        minutes=round(figures["seconds"] / 60),
        seed=figures["seed"],
        violations="No violation" if not violations else f"{violations} violations",
        events=figures["events"] + cut_off["events"],
        jobs=figures["jobs"],
        faults=sum(each["count"] for each in faults.values()),
        server=figures["server"],
        min_replicas=servers,
        min_replicas_number=min_replicas,
        workers=figures["workers"],
        lease_s=figures["lease_s"],
        rate=figures["rate"],
        totals="\n".join(f"| {name} | {value} |" for name, value in totals),
        kinds="\n".join(rows),
        notes="\n".join(f"- {note}" for note in _notes(figures)),
    )


def _notes(figures: dict[str, Any]) -> list[str]:
    found = [
        "Ten seconds and more to settle are Sentinel's: it waits so long before it turns a primary it has replaced.",
    ]
    other = figures.get("without_min_replicas")
    if other is not None:
        lost, jobs = figures["acknowledged_and_lost"], figures["answers"]["acknowledged"]
        found.append(
            "A primary that was frozen or cut off, and replaced, has no replicas when it is back, and with "
            f"`min-replicas-to-write 1` refuses all changes: what was acknowledged was lost {lost} times of {jobs} "
            f"({100 * lost / jobs:.1f} %). **Without it, it goes on beside its successor until Sentinel turns it, and "
            f"what it acknowledges is lost**: {other['acknowledged_and_lost']} of {other['answers']['acknowledged']} "
            f"({100 * other['acknowledged_and_lost'] / other['answers']['acknowledged']:.1f} %) in a run of "
            f"{round(other['seconds'] / 60)} minutes with the same seed, which broke "
            f"{'no promise' if not other['violations'] else 'promises'} either way."
        )
    return found


def main() -> None:
    """
    Write the page.

    Two arguments are the figures of a run, and of one without `min-replicas-to-write`: they are stored first.
    """
    if sys.argv[1:]:
        figures, other = (json.loads(Path(name).read_text("utf-8")) for name in sys.argv[1:])
        FIGURES.write_text(json.dumps(figures | {"without_min_replicas": other}, indent=2) + "\n", "utf-8")
    PAGE.write_text(text(json.loads(FIGURES.read_text("utf-8"))), "utf-8")


if __name__ == "__main__":
    main()
