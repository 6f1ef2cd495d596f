"""The server that `leasemill dashboard` runs: uvicorn, which ends live updates before it waits for open responses."""

from __future__ import annotations

import socket

import uvicorn

from leasemill.dashboard.app import Dashboard


class DashboardServer(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, dashboard: Dashboard) -> None:
        super().__init__(config)
        self.dashboard = dashboard

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.dashboard.end_streams()
        await super().shutdown(sockets)
