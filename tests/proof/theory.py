"""Faults planted in the theory, each of which must make a proof fail."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Final, NamedTuple

from tests.proof.programs import PROOF

AFTER: Final = {
    "Trie.v": ("Agreement.v", "Operations.v", "Promises.v", "Progress.v"),
    "edges/Jobs.v": ("edges/Safety.v", "edges/NoDeadlock.v", "edges/WithGates.v", "edges/Uncut.v", "edges/Cycles.v"),
}
"""The files that are compiled after a changed one, in this order."""
BEFORE: Final = ("Claims.v", "Walks.v", "Settled.v", "Normalise.v")


class Fault(NamedTuple):
    """A text that stands once in a file of the theory, and what is put in its place."""

    name: str
    file: str
    old: str
    new: str


_STOPS = "match line x with [] => clashes (held x) m | _ :: _ => true end."
_PUT_BACK = "| S n, At_once => Some (Queued, [], n, Keeps)"
_REDRIVE = "| Failed, Redrive n => Some (Queued, [], n, if placed w j then Keeps else Joins)"
_EXPIRY = "| Failed, Prune => Some (Gone, [], tries x, Leaves)"

FAULTS: Final = tuple(
    [
        Fault(name, "Trie.v", old, new)
        for name, old, new in [
            ("A walk overtakes a line", _STOPS, "clashes (held x) m."),
            ("A walk ignores what is held", _STOPS, "match line x with [] => false | _ :: _ => true end."),
            ("S fits IX", "  | Sh => (0 <? nIX h) || (0 <? nX h)", "  | Sh => (0 <? nX h)"),
            (
                "S does not fit S",
                "  | Sh => (0 <? nIX h) || (0 <? nX h)",
                "  | Sh => (0 <? nIX h) || (0 <? nS h) || (0 <? nX h)",
            ),
            ("A line is last in, first out", "(line x ++ [c])", "(c :: line x)"),
            (
                "A walk that passes is not counted",
                "else walk_on n' (put g q (Gate (add (held x) (wants c i)) (line x) (to_advance x))) c (S i)",
                "else walk_on n' g c (S i)",
            ),
            (
                "A walk that leaves a line is not counted",
                "Gate (add (held x) m) rest (to_advance x)",
                "Gate (held x) rest (to_advance x)",
            ),
            (
                "A walk that passes stays in line",
                "Gate (add (held x) m) rest (to_advance x)",
                "Gate (add (held x) m) (line x) (to_advance x)",
            ),
            (
                "A walk that leaves a line begins at the root",
                "walk_on (depth c - length q) g1 c (S (length q))",
                "walk_on (S (depth c)) g1 c 0",
            ),
            (
                "A line that was cut waits no more",
                "else if budget <=? used then (st, (used, true, arrived))",
                "else if budget <=? used then (fst over, (used, true, arrived))",
            ),
            ("A line waits for ever", "Gate (held x) (line x) false)", "Gate (held x) (line x) (to_advance x))"),
            ("A job that leaves looks at no line", "else Gate (held x) (line x) true", "else x"),
            (
                "A job that leaves keeps its counts",
                "Gate (sub (held x) (wants c i)) (line x) (to_advance x)",
                "Gate (held x) (line x) (to_advance x)",
            ),
            (
                "A job that leaves stays in line",
                "Gate (held x) (without (num c) (line x)) (to_advance x)",
                "Gate (held x) (line x) (to_advance x)",
            ),
            (
                "A job that leaves looks at the lowest line only",
                "(recheck i (left_at c p i (find g q)))",
                "(if i =? min p (depth c) then recheck i (left_at c p i (find g q)) else left_at c p i (find g q))",
            ),
            (
                "Empty nodes stay",
                "if is_empty x && negb (eqb_path q []) then drop g q else",
                "if false then drop g q else",
            ),
            (
                "Nodes that are held are deleted",
                "match x with Gate (Counts 0 0 0 0) [] _ => true | _ => false end.",
                "match x with Gate _ [] _ => true | _ => false end.",
            ),
            ("Claims are not normalised", "(normalise cs)", "cs"),
            ("IX fits S", "  | IX => (0 <? nS h) || (0 <? nX h)", "  | IX => (0 <? nX h)"),
            ("A count is taken away twice", "| IX => Counts a (pred b) c d", "| IX => Counts a (pred (pred b)) c d"),
        ]
    ]
    + [
        Fault(name, "edges/Jobs.v", old, new)
        for name, old, new in [
            (
                "A parent keeps its place",
                "Some (Parent, es, tries x, Leaves) else None",
                "Some (Parent, es, tries x, Keeps) else None",
            ),
            (
                "A place is taken with open edges",
                "  | Deferred, Place => match open x with [] => Some (Queued, [],",
                "  | Deferred, Place => match needs x with [] => Some (Queued, open x,",
            ),
            (
                "A job starts whether it is ready or not",
                "if ready r (claims_before w j) (claims x) then Some (Started",
                "if true then Some (Started",
            ),
            ("Jobs behind are looked at", "before j (line w)).", "before j (rev (line w)))."),
            ("A redrive gives a second place", _REDRIVE, "| Failed, Redrive n => Some (Queued, [], n, Joins)"),
            ("A redrive gives no place", _REDRIVE, "| Failed, Redrive n => Some (Queued, [], n, Keeps)"),
            ("A job that is put back loses its place", _PUT_BACK, "| S n, At_once => Some (Queued, [], n, Leaves)"),
            ("Tries are not counted", _PUT_BACK, "| S n, At_once => Some (Queued, [], S n, Keeps)"),
            (
                "Children are not searched",
                "(negb (children_checked r) || closes_no_cycle w j es)\n      then",
                "true\n      then",
            ),
            (
                "What a job that leaves waits for is not searched",
                "(negb (children_checked r) || closes_no_cycle w j es)\n               then",
                "true\n               then",
            ),
            (
                "A job that leaves to be run again keeps its place",
                "(Deferred, es, n, Leaves)",
                "(Deferred, es, n, Keeps)",
            ),
            ("A job leaves again and again", "(Deferred, es, n, Leaves)", "(Deferred, es, S n, Leaves)"),
            (
                "A revival is not checked",
                "| When_none_waits => negb (waited_for w j)",
                "| When_none_waits => true",
            ),
            (
                "A revival is not searched",
                "| When_no_cycle => closes_no_cycle w j (needs (jobs w j))",
                "| When_no_cycle => true",
            ),
            ("A search that gives up accepts", "  | 0 => false\n", "  | 0 => true\n"),
            (
                "A finished job keeps its place",
                "Started, Finish => Some (Finished, [], tries x, Leaves)",
                "Started, Finish => Some (Finished, [], tries x, Keeps)",
            ),
            (
                "A stopped job keeps its place",
                "Started, Stop => Some (Canceled, [], tries x, Leaves)",
                "Started, Stop => Some (Canceled, [], tries x, Keeps)",
            ),
            (
                "A canceled job keeps its place",
                "Cancel => Some (Canceled, [], tries x, Leaves)",
                "Cancel => Some (Canceled, [], tries x, Keeps)",
            ),
            ("A finished job is waited for", "| Finished => drop (if_finished e)", "| Finished => Wait"),
            ("A canceled job is waited for", "| Canceled => drop (if_canceled e)", "| Canceled => Wait"),
            (
                "An expired job is waited for",
                "| Gone => match if_failed e with Drop => Drop | _ => Cancels end",
                "| Gone => match if_failed e with Drop => Drop | Cancels => Cancels | Wait => Wait end",
            ),
            (
                "A job that waits for its time keeps its place",
                "| Backing, Put_off => Some (Scheduled, [], tries x, Leaves)",
                "| Backing, Put_off => Some (Scheduled, [], tries x, Keeps)",
            ),
            ("Dead jobs never expire", _EXPIRY, "| Failed, Prune => None"),
            ("An expired job keeps its place", _EXPIRY, "| Failed, Prune => Some (Gone, [], tries x, Keeps)"),
            ("A back-off never ends", "  | Backing, Due => Some (Queued, [], tries x, Keeps)\n", ""),
            (
                "A canceled job keeps its edges",
                "| Cancels => Some (Canceled, [], tries x, Leaves)\n",
                "| Cancels => Some (Canceled, open x, tries x, Leaves)\n",
            ),
            (
                "A resolved edge stays",
                "Some (state x, remove_edge i (open x), tries x, Keeps)",
                "Some (state x, open x, tries x, Keeps)",
            ),
        ]
    ]
)


def compile_into(folder: Path, *files: str) -> str | None:
    """Compile some files of the theory in a folder; return the first error, None if all proofs go through."""
    for file in files:
        name = file.removeprefix("edges/")
        done = subprocess.run(
            ["coqc", "-q", "-R", ".", "QueueHint", name], cwd=folder, capture_output=True, text=True, check=False
        )
        if done.returncode:
            return done.stderr
    return None


def try_fault(fault: Fault | None, file: str, compiled: Path, folder: Path) -> str | None:
    """Return the proof that a fault stops, None if all go through; *compiled* has what comes before the file."""
    for name in BEFORE:
        shutil.copy(compiled / name.replace(".v", ".vo"), folder)
    for name in (file, *AFTER[file]):
        shutil.copy(PROOF / name, folder)
    if fault is not None:
        changed = folder / file.removeprefix("edges/")
        changed.write_text(changed.read_text("utf-8").replace(fault.old, fault.new), "utf-8")
    return compile_into(folder, file, *AFTER[file])
