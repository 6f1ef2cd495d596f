"""The structures that find a job without a search: by time, by sequence, under limits, by unique key.

`State` is made of them. They know nothing of verbs and events, and nothing here decides anything.
"""
