"""The contract, carried out: pure functions over a state kept in memory.

No clock, no randomness, no input or output, no threads: time, tokens and jitter come in with the commands and are
written in the events. Stores hold a `State`, call `run` for each command and keep the events.

    commands ──▶ decide / operate (read only) ──▶ events ──▶ state.apply (the only change)
                 read                         ◀── answers
"""
