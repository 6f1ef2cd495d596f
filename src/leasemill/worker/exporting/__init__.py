"""A worker's numbers for Prometheus: `leasemill worker --metrics ADDRESS`.

    catalogue  every metric: its name, type, labels and help
    samples    numbers by metric and labels: bounded, subtracted, added up; pure
    measures   an observer that counts what a worker reports
    queues     reads the queues, in the one worker of all that is elected for it
    text       the exposition format
    endpoint   serves it by HTTP

Needs no package but this one. What must never happen: a label with a value for every job, or a wait for the event loop.
Why it is cut like this: docs/decisions/0034.
"""
