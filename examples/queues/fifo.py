from queuehint.testing import TraceJob, check_queue


class Queue(list[TraceJob]):
    def enqueue(self, job: TraceJob) -> None:
        self.append(job)

    def start(self) -> str | None:
        return self.pop(0).id if self else None

    def end(self, job_id: str, outcome: str) -> None: ...


check_queue(Queue, outcomes=["finished"])
