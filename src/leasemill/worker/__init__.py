"""The worker: claims jobs, runs their handlers, extends their leases, reports how they ended.

    worker        builds the parts, starts and stops them (settings, shutdown)
    store_loop    claims jobs when there is room, and sends reports (claims, decisions: what it does next, pure)
    runner        puts claimed jobs (run) into slots and has their handlers called (handler, threads, error_text)
    watchdog      stops handlers at their timeout and when their lease is lost; stalls notices a blocked event loop
    unmatched     gives back jobs that this code cannot run
    reporter      holds starts and ends until they are sent, and delivers them
    settlement    what the store answered, for the log, hooks and observers (joblog)
    heartbeat     extends leases, in a thread of its own
    housekeeping  the reaper, the worker's presence (records) and the queues' policies, in a thread of its own
    pacing        when and how much of everything, pure; timing: the rules between times, pure
    process       a worker that is the whole of its process: an end in time, or when it has done enough (signals)
    supervisor/   several processes of one worker (process_ends: what follows the end of one)

It knows the Store protocol and handlers, and nothing of what is behind the store. `leasemill.Worker` is the way in.
"""
