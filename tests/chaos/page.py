"""Write `docs/reference/chaos.md` from the figures of a long run: ``python -m tests.chaos.page``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "docs" / "reference"
FIGURES = FOLDER / "chaos.json"
TRACE = FOLDER / "chaos-trace.jsonl.gz"
TIMES = FOLDER / "chaos-times.jsonl.gz"
PAGE = FOLDER / "chaos.md"

_WHAT = {
    "clock set back": "the clock of all servers, by up to 4 s",
    "clock set forward": "the clock of all servers, by up to 4 s",
    "connections reset": "all connections of the primary, its replicas' too, three times",
    "failover ordered": "`SENTINEL FAILOVER`",
    "failover paused": "the same after `CLIENT PAUSE 5000 WRITE` on the primary",
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

NOT_NONE = (
    "**None of this brings the losses to none**: a primary knows that replicas were there a moment ago, not that they "
    "have what it acknowledges. `WAIT` would tell, and queuehint does not send it yet."
)
OUTBOX = (
    "**If no job may be lost, keep the request where it cannot be lost**: in your database, with the id of the job. "
    "After a failover, and now and then, [enqueue again, with the same id, what is not done](../how-to/redis.md"
    "#outbox-if-no-job-may-be-lost): a job that is there is not enqueued twice."
)

_TEXT = Path(__file__).with_name("page.txt").read_text("utf-8")


def text(figures: dict[str, Any]) -> str:
    """Return the page for the figures of a run."""
    faults, violations = figures["faults"], len(figures["violations"])
    cut_off, answers, kinds = figures["cut_off"], figures["answers"], figures["events_by_kind"]
    min_replicas, because, failovers = figures["min_replicas"], figures["lost_because"], figures["failovers"]
    totals = [
        ("acknowledgements", f"{answers.get('acknowledged', 0):,}"),
        ("acknowledged, and lost by a failover", f"{figures['acknowledged_and_lost']:,}"),
        ("… not replicated when the replica was promoted", f"{because['not_replicated']:,}"),
        ("… acknowledged by a replaced primary", f"{because['replaced']:,}"),
        ("failovers", f"{failovers['count']}, of which {failovers['with_losses']} lost jobs"),
        ("longest time in which an old primary did not know its successor", f"{failovers['old_primary_stayed_s']:g} s"),
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
        f"| {kind} | {_WHAT[kind]} | {each['count']} | {each['seen']} | {each['lost']} | {each['outage_s']} s "
        f"| {each['settled_s']} s |"
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
        lost=figures["acknowledged_and_lost"],
        acknowledged=answers["acknowledged"],
        lost_share=_share(figures),
        load="\n".join(f"    - {line}" for line in _load(figures["load"])),
        commands="\n".join(_commands(figures)),
        workers=figures["workers"],
        lease_s=figures["lease_s"],
        rate=figures["rate"],
        totals="\n".join(f"| {name} | {value} |" for name, value in totals),
        kinds="\n".join(rows),
        notes="\n".join(f"- {note}" for note in _notes(figures)),
    )


def _load(load: dict[str, Any]) -> list[str]:
    """Return a sentence for each kind of record."""
    found = [
        f"the git history of `{history['repository']}`, {history['commits']:,} commits with {history['changes']:,} "
        "changed files, over and over: each changed file is a job at the file's place; after every fourth commit a "
        "check at the root is a barrier, and a report depends on it;"
        for history in load["histories"]
    ]
    found += [
        f"the document `{each['name']}`, {each['edits']:,} recorded edits: each is a job at the document's place;"
        for each in load["documents"]
    ]
    return [*found[:-1], f"{found[-1].removesuffix(';')}."]


def _commands(figures: dict[str, Any]) -> list[str]:
    """Return the commands that repeat a run."""
    words = [f"--min-replicas {figures['min_replicas']}"] if figures["min_replicas"] else []
    words += [f"--edits {each['name'].removeprefix('trace-')}.json.gz" for each in figures["load"]["documents"]]
    repository = figures["load"]["histories"][0]["repository"]
    found = []
    if is_public := "/" in repository:
        found.append(f"$ git clone https://github.com/{repository}")
    found += [
        f"$ curl -LO https://github.com/josephg/editing-traces/raw/master/sequential_traces/{name}.json.gz"
        for name in (each["name"].removeprefix("trace-") for each in figures["load"]["documents"])
    ]
    repo = f" REPO={repository.rpartition('/')[2]}" if is_public else ""
    arguments = f' ARGS="{" ".join(words)}"' if words else ""
    return [*found, f"$ make chaos MINUTES={round(figures['seconds'] / 60)} SEED={figures['seed']}{repo}{arguments}"]


def _share(figures: dict[str, Any]) -> str:
    return f"{100 * figures['acknowledged_and_lost'] / figures['answers']['acknowledged']:.1f}\u00a0%"


def _notes(figures: dict[str, Any]) -> list[str]:
    found = []
    without, with_all = figures.get("without_min_replicas"), figures.get("with_all_replicas")
    if without is not None:
        found.append(
            "**Set `min-replicas-to-write` to 1** (and `min-replicas-max-lag` to a few seconds). A primary that was "
            "frozen or cut off, and replaced, loses its replicas within a second or so, and then refuses all changes. "
            f"Lost: {_lost(figures)}. Without the setting it goes on beside its successor until Sentinel turns it, "
            f"some ten seconds later: {_lost(without)}, in a run of {_minutes(without)} minutes with the same seed."
        )
    if with_all is not None:
        each = list(with_all["faults"].values())
        found.append(
            "**`min-replicas-to-write` as high as the number of replicas** (2 here) closes nearly all of that second: "
            f"the promoted replica is missing at once. Lost: {_lost(with_all)}, in a run of {_minutes(with_all)} "
            f"minutes with {with_all['failovers']['count']} failovers (ordered, frozen, cut off). The price: nothing "
            "can be enqueued while any "
            "replica is away, so a failover is an outage of up to "
            f"{max(fault['outage_s'] for fault in each):g} s, until Sentinel has turned the old primary."
        )
    ordered, paused = (figures["faults"].get(f"failover {how}") for how in ("ordered", "paused"))
    if ordered is not None and paused is not None:
        found.append(
            "**Before you order a failover yourself, let writes wait**: `CLIENT PAUSE 5000 WRITE` on the primary, then "
            f"`SENTINEL FAILOVER`. {paused['count']} failovers of that kind lost {paused['lost']} jobs, "
            f"{ordered['count']} without the pause {ordered['lost']}."
        )
    return [*found, NOT_NONE, OUTBOX]


def _lost(figures: dict[str, Any]) -> str:
    lost, asked = figures["acknowledged_and_lost"], figures["answers"]["acknowledged"]
    return f"{lost:,} of {asked:,} acknowledged jobs ({_share(figures)})"


def _minutes(figures: dict[str, Any]) -> str:
    return f"{figures['seconds'] / 60:.0f}"


def main() -> None:
    """
    Write the page.

    Three arguments are the figures of a run, of one without `min-replicas-to-write`, and of one with as many as there
    are replicas: they are stored first.
    """
    if sys.argv[1:]:
        figures, without, with_all = (json.loads(Path(name).read_text("utf-8")) for name in sys.argv[1:])
        found = figures | {"without_min_replicas": without, "with_all_replicas": with_all}
        FIGURES.write_text(json.dumps(found, indent=2) + "\n", "utf-8")
    PAGE.write_text(text(json.loads(FIGURES.read_text("utf-8"))), "utf-8")


if __name__ == "__main__":
    main()
