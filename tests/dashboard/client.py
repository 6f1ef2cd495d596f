"""A browser without a screen: keeps cookies, and calls the application without a network."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx


class Client:
    """`base_url`: how the browser names the site."""

    def __init__(self, app: Any, base_url: str = "http://testserver", *, follow_redirects: bool = True) -> None:
        self._app = app
        self._base_url = base_url
        self._follows = follow_redirects
        self._cookies = httpx.Cookies()

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self._request("GET", path, **options)

    def post(self, path: str, **options: Any) -> httpx.Response:
        return self._request("POST", path, **options)

    def cookie(self, name: str) -> str:
        return self._cookies[name]

    def _request(self, method: str, path: str, **options: Any) -> httpx.Response:
        return asyncio.run(self._arequest(method, path, **{"follow_redirects": self._follows, **options}))

    async def _arequest(self, method: str, path: str, **options: Any) -> httpx.Response:
        transport = httpx.ASGITransport(self._app)
        async with httpx.AsyncClient(transport=transport, base_url=self._base_url, cookies=self._cookies) as client:
            response = await client.request(method, path, **options)
            self._cookies = client.cookies
            return response
