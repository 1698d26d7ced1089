"""
Steps of a running job: calls whose results are stored, and are not repeated by later attempts.

A step counts once its result is stored. So of the steps of a job only those under way when an attempt ends are made
again: each is made at least once, and never after its result was stored. Only the holder of the newest grant stores a
result, and the first result of a name is kept: a call that is made again because a reply was lost returns what is
stored.

An attempt begins with the results of all attempts before it, which the worker has read; for a job without steps it
asks for nothing. What can be refused by what is known here (a name, a second call, a bound) is refused before the store
is asked.
"""
