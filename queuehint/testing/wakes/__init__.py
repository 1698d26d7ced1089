"""
Queues with a blocking `take`, driven by concurrent callers: lost wake-ups and missing locks.

`story` plays one history: a producer and workers, whose calls are interleaved as a plan says, and judges it. The calls
are made by a crew: `tasks` on a loop that runs one step at a time, or `threads`, one of which runs at a time, with
`locks` that it knows of in place of those of `threading`. `check` searches for a history that breaks a rule.
"""
