"""A worker's numbers for Prometheus: `leasemill worker --metrics ADDRESS`.

    catalogue  every metric: its name, type, labels and help
    samples    numbers by metric and labels: bounded, subtracted, added up, written as text; pure
    measures   an observer that counts what a worker reports
    queues     reads the queues, in the one worker of all that is elected for it
    endpoint   serves it by HTTP

It needs no other package, and `leasemill serve` writes its own metrics with it. What must never happen: a label with a
value for every job, or a wait for the event loop. Why it is cut like this: docs/decisions/0034.
"""
