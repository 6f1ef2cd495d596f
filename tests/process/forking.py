"""A process that uses a store in every way, forks, and goes on in both: `python -m tests.process.forking URL`.

Both must get their answers; whichever hangs is ended by an alarm, and the exit code shows it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading

from leasemill import App, Context, Worker
from leasemill.kernel import commands as c
from leasemill.kernel.model import JobSpec

LONGEST_S = 60


def declared(app: App) -> None:
    writes = app.url.startswith("postgresql:")

    @app.job
    def written(ctx: Context, who: str) -> str:
        with ctx.commit() as tx:
            if writes:
                tx.execute("select 1")
            tx.set_result(who)
        return ""

    @app.job
    async def awritten(ctx: Context, who: str) -> str:
        async with ctx.commit() as tx:
            if writes:
                await tx.execute("select 1")
            tx.set_result(who)
        return ""


def use(app: App, who: str) -> None:
    """Sync and async calls, a watch and its wait, a worker with both kinds of handlers that commit, presence."""
    store = app.store
    watch = store.watch([who])
    later = threading.Timer(0.2, lambda: store.enqueue([JobSpec(f"for {who}", who, "unknown", b"{}")]))
    later.start()
    assert watch.wait(20), "the watch heard nothing"
    watch.close()
    later.join()
    assert who in [queue.name for queue in asyncio.run(store.arun(c.ListQueues(10)))]
    handles = [app.jobs[name].enqueue(who) for name in ("written", "awritten")]
    Worker(app, drain=True, handle_signals=False, worker_id=who).run_sync()
    results = [handle.result(20) for handle in handles]
    assert results == [who, who], results
    store.presence.publish(who, b"{}")
    assert who in [one.worker_id for one in store.presence.records()]


def main(url: str) -> int:
    signal.alarm(LONGEST_S)
    app = App(url)
    declared(app)
    use(app, "parent")
    child = os.fork()
    if child == 0:
        signal.alarm(LONGEST_S)
        use(app, "child")
        app.close()
        os._exit(0)
    use(app, "meanwhile")
    _, status = os.waitpid(child, 0)
    use(app, "alone")  # the child has closed what was its own, and nothing else
    app.close()
    left = [thread.name for thread in threading.enumerate() if thread.name.startswith("leasemill-postgres")]
    assert not left, left
    return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
