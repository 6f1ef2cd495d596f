"""Handlers in processes of their own: `executor="process"`.

A pool of our own (docs/decisions/0044). The worker's side: `pool`, `slot`, `launch`. The child's side: `child`,
`handler_runner`, `interruption`. Both: `messages`, `channel`, `codec`, `log_relay`, `store_relay`.
"""
