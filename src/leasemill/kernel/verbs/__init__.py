"""The verbs, one module for each: the command, its outcomes, its check, its decide, and the applying of its events.

    check(command)                   refuses what is not well formed, before any state is looked at
    decide(state, command, now, do)  reads the state and hands decisions to `do`, which applies their events: an item of
                                     a batch sees what the items before it did
    apply(state, event)              changes the state as the event says; an event that cannot follow is a broken log

What must never happen in a decide: a change of state, a clock, a draw. What must never happen in an apply: a decision.
A verb may refuse (raise) only before its first decision is handed to `do`.
"""
