"""The verbs, one module for each: the command, its outcomes, its check, its decide, and the applying of its events.

    check(command)                  refuses what is not well formed, before any state is looked at
    decide(state, item, now)        reads the state and returns the events to apply and the outcome for the caller
    apply(state, event)             changes the state as the event says; an event that cannot follow is a broken log
    steps(state, command, now, do)  for a command of several decisions: `do` applies the events of each

What must never happen in a decide: a change of state, a clock, a draw. What must never happen in an apply: a decision.
A command may be refused (raise) only before its first event is applied.
"""
