"""A screen for operators: pages over any store, rendered by the server, live, and acts that are recorded.

`asgi` makes an application to mount; `leasemill dashboard` serves it on loopback. What must never happen here: a page
whose cost grows with the number of jobs, an act without a name and a reason, a request to another origin.
"""

from leasemill.dashboard.access import Principal, ViewerRole
from leasemill.dashboard.app import Dashboard, asgi

__all__ = ["Dashboard", "Principal", "ViewerRole", "asgi"]
