"""The fast path: each verb that is common in one statement, guarded in SQL, for as many items as there are.

Each function returns what it could answer, and leaves the rest (reports that are refused or repeated, final ends,
repeated offsets) to the exact path. What must never happen here: a rule that the kernel does not have.
"""
