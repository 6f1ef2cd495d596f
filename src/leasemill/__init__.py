"""Leasemill: durable jobs for Python, held by a lease, fenced by a token, applied once.

The public names live here. Nothing heavy may be imported by this module: `leasemill --help` pays for it.
"""

__version__ = "0.1.0"
