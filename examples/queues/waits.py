import threading

from queuehint import conflict
from queuehint.testing import TraceJob, check_queue


class Queue:
    def __init__(self) -> None:
        self.jobs: dict[str, TraceJob] = {}
        self.running: set[str] = set()
        self.changed = threading.Condition()

    def enqueue(self, job: TraceJob) -> None:
        with self.changed:
            self.jobs[job.id] = job
            self.changed.notify()

    def find(self) -> str | None:
        before: list[TraceJob] = []
        for job in self.jobs.values():
            if job.id not in self.running and not any(conflict(job.claims, other.claims) for other in before):
                return job.id
            before.append(job)
        return None

    def take(self) -> str | None:
        with self.changed:
            while (found := self.find()) is None:
                self.changed.wait()
            self.running.add(found)
            return found

    def end(self, job_id: str, outcome: str) -> None:
        with self.changed:
            self.running.remove(job_id)
            if outcome != "retried":
                del self.jobs[job_id]
            self.changed.notify()


check_queue(Queue, wakes=True)
