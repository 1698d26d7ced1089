"""The client for Node, of `examples/node`, asks a board that a process of its own serves."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from queuehint import Scheduler
from tests.boards import served

CLIENT = Path(__file__).parents[2] / "examples/node/queuehint.mjs"
SCRIPT = """
import { Client, Problem } from "%(client)s";
const client = new Client("%(root)s");
const found = {};
const stop = new AbortController();
const events = client.events({ kinds: "canceled" }, { after: 0, signal: stop.signal });
const jobs = [{ id: "a/b c".replace(" ", "_"), task: "ship", claims: [{ path: ["c1"] }], arguments: { n: 17 } }];
found.created = (await client.enqueue(jobs)).jobs.map((job) => job.created);
found.again = (await client.enqueue(jobs)).jobs.map((job) => job.created);
found.arguments = (await client.job("a/b_c", { arguments: 1 })).spec.arguments.value;
found.counted = (await client.get("/stats", { path: "c1" })).states.QUEUED;
found.paused = (await client.post("/places/c1/pause")).changed;
const first = events.next();
await client.get("/scale", { pool: "default" });
found.canceled = (await client.post("/jobs/a%%2Fb_c/cancel", { reason: "no more" })).state;
const { value } = await first;
found.event = [value.id, value.kind, value.cause];
stop.abort();
try {
  await client.job("gone");
} catch (problem) {
  found.problem = [problem instanceof Problem, problem.status, problem.error, problem.facts.job_id];
}
console.log(JSON.stringify(found));
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("node") is None, reason="needs node, release 20 or later")
def test_client_for_node_enqueues_asks_orders_and_follows(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    sched = Scheduler(url)
    with sched.events_sync(), served(url) as root:
        script = SCRIPT % {"client": CLIENT.as_uri(), "root": root}
        done = subprocess.run(
            ["node", "--input-type=module", "-e", script], capture_output=True, text=True, timeout=240, check=False
        )
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) == {
            "created": [True],
            "again": [False],
            "arguments": {"n": 17},
            "counted": 1,
            "paused": True,
            "canceled": "CANCELED",
            "event": ["a/b_c", "canceled", "no more"],
            "problem": [True, 404, "JobNotFoundError", "gone"],
        }
    sched.close_sync()
