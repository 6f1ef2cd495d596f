"""The contract as code: pure functions over a state in memory.

No clock, no randomness, no input or output, no threads: time, tokens and jitter come in with the commands and are
written in the events. A store holds a `State`, calls `machine.run` for each command and stores the events.

    command ──▶ verbs/<verb>.decide (reads) ──▶ events ──▶ verbs/<verb>.apply (the only change)
                read                        ◀── answer
"""
