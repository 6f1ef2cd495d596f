"""The dashboard as a part of `leasemill serve`, for those whom the server's gate has admitted.

The gate has checked the key before a page is asked for. What must never happen here: an action under another name than
the key's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from starlette.requests import Request

from leasemill.api.redaction import SECRET_KEYS
from leasemill.dashboard.access import Principal, ViewerRole
from leasemill.dashboard.app import Dashboard, asgi
from leasemill.server.app import ADMISSION
from leasemill.server.key_authorizer import KeyAdmission
from leasemill.store.base import Store
from leasemill.wire.routes import Role

PATH: Final = "/dashboard"
WITHOUT_KEY: Final = Principal("anybody on this machine", ViewerRole.OPERATE)


def mounted_dashboard(store: Store, redact: Sequence[str] = ()) -> Dashboard:
    """Return the dashboard to mount at `PATH` of a server over this store. `redact`: keys whose values are hidden,
    besides those that look like secrets."""
    return asgi(store, authorize=admitted, redact=(*SECRET_KEYS, *redact))


def admitted(request: Request) -> Principal:
    """Return whose key was admitted. On loopback a request without a key may do what the commands may."""
    admission = request.scope["state"][ADMISSION]
    assert isinstance(admission, KeyAdmission)
    key = admission.key
    if key is None:
        return WITHOUT_KEY
    return Principal(key.name, ViewerRole.OPERATE if Role.OPERATOR in key.roles else ViewerRole.READ)
