"""Handlers in processes of their own: `executor="process"`.

A pool of our own (docs/decisions/0044). The worker's side: `pool`, `slot`, `launch`. The child's side: `child`,
`running`, `forwarding`. Both: `messages`, `channel`, `codec`, `lines`.
"""
