"""The app that the files beside it deploy. Put yours in its place."""

from __future__ import annotations

from leasemill import App, Context

app = App()


@app.job(queue="mail")
async def work(ctx: Context, number: int) -> int:
    ctx.logger.info("working", extra={"number": number})
    return number
