from queuehint import conflict
from queuehint.testing import TraceJob, check_queue


class Queue:
    def __init__(self) -> None:
        self.waiting: list[TraceJob] = []
        self.running: dict[str, TraceJob] = {}

    def enqueue(self, job: TraceJob) -> None:
        self.waiting.append(job)

    def start(self) -> str | None:
        for job in self.waiting:
            if not any(conflict(job.claims, other.claims) for other in self.running.values()):
                self.waiting.remove(job)
                self.running[job.id] = job
                return job.id
        return None

    def end(self, job_id: str, outcome: str) -> None:
        del self.running[job_id]


check_queue(Queue, outcomes=["finished"])
