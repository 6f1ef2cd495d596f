"""Several processes of one worker: `leasemill worker --processes N`.

    supervisor          starts the processes, notices their ends, passes signals on; one loop
    child               one process as its supervisor sees it
    channel             the control channel between the two: JSON, one message a line
    metrics_aggregator  the metrics of all processes, added up for one endpoint
    supervised          the worker's side of the channel

The supervisor opens no store, imports no app and runs no handler, so nothing that a job does can take it down.
Why it is cut like this: docs/decisions/0032.
"""
