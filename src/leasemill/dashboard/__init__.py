"""A screen for operators: pages over any store, rendered by the server, live, and actions that are recorded.

`asgi` makes an application to mount; `leasemill dashboard` serves it on loopback. What must never happen here: a page
whose cost grows with the number of jobs, an action without a name and a reason, a request to another origin.
"""

try:
    import jinja2 as _templates  # noqa: F401
    import starlette as _starlette  # noqa: F401
except ModuleNotFoundError as error:
    message = f"leasemill.dashboard needs {error.name}: pip install 'leasemill[server]'"
    raise ModuleNotFoundError(message, name=error.name) from error

from leasemill.dashboard.access import Principal, ViewerRole
from leasemill.dashboard.app import Dashboard, asgi

__all__ = ["Dashboard", "Principal", "ViewerRole", "asgi"]
