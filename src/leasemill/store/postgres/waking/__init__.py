"""How callers that wait are woken: LISTEN and NOTIFY, the jobs they wait for, and what they wait on."""
