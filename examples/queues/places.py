from queuehint import conflict
from queuehint.testing import TraceJob, check_queue


class Queue:
    def __init__(self) -> None:
        self.jobs: dict[str, TraceJob] = {}
        self.running: set[str] = set()

    def enqueue(self, job: TraceJob) -> None:
        self.jobs[job.id] = job

    def start(self) -> str | None:
        before: list[TraceJob] = []
        for job in self.jobs.values():
            if job.id not in self.running and not any(conflict(job.claims, other.claims) for other in before):
                self.running.add(job.id)
                return job.id
            before.append(job)
        return None

    def end(self, job_id: str, outcome: str) -> None:
        self.running.remove(job_id)
        if outcome != "retried":
            del self.jobs[job_id]


check_queue(Queue)
