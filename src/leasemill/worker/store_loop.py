"""The worker's exchange with the store: claims jobs while there is room for them, and sends the reports of their ends.

It is one loop without a task: `_turn` brings the state up to date, asks `decisions.next` what to do, does it, and asks
again until the answer is to wait. Whatever happens (a run ended, a call was answered, a job was enqueued, there is
room, an operator or a signal stops the worker) is noted in the state and makes a turn; so does the one timer, at the
time that a decision named. Up to two calls are under way at a time, each in its own task: a batch of reports, perhaps
with a claim (C8), and beside it a claim, a question or the wait for jobs.

All of it is on the event loop, so nothing changes during a turn; between two turns anything may. What must never happen
here: a call that is waited for in a turn, something that happened without a turn after it, or a claim whose reply was
lost that is forgotten before it is stale (C5: what it was granted would be orphaned).
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import math
import time
from collections.abc import Callable, Coroutine
from typing import Any, assert_never

from leasemill.errors import Unavailable
from leasemill.kernel import commands as c
from leasemill.operator.wording import counted
from leasemill.store.base import Watch
from leasemill.worker import decisions, pacing
from leasemill.worker.claims import Claims
from leasemill.worker.coroutines import new_task
from leasemill.worker.policies import QueuePolicies, is_limited
from leasemill.worker.reporter import Batch, Granted, Reporter
from leasemill.worker.runner import Runner
from leasemill.worker.settings import Settings

log = logging.getLogger("leasemill.worker")


class StoreLoop:
    """Carries out what `decisions.next` decides, and notes what comes of it."""

    def __init__(
        self, settings: Settings, policies: QueuePolicies, on_failure: Callable[[BaseException], None]
    ) -> None:
        self._settings = settings
        self._policies = policies
        self._worker_id = settings.worker_id
        self._store = settings.app.store
        self._claims = Claims(settings)
        self._state = decisions.LoopState(
            slots=settings.concurrency,
            takes_jobs=False,
            must_claim=True,
            drains=settings.drains,
            drain_wait_us=settings.drain_wait_us,
        )
        """Changed by what happens, and by nothing that is decided: see `decisions.next`."""
        self._on_failure = on_failure
        self._loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()
        """It belongs to no job: what is sent and logged must not depend on the handler that happened to end last."""
        self._reporter: Reporter
        self._runner: Runner
        self._watch: Watch
        # How it is woken.
        self._is_closed = False
        self._next_turn: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        # What is under way: a batch of reports, and beside it a claim, a question or a watch.
        self._sending: asyncio.Task[None] | None = None
        self._call: asyncio.Task[None] | None = None
        self._claim: c.Claim | None = None
        """The claim that is under way, or whose reply was lost."""
        self._empty_claims = 0
        self._was_idle = False
        """Nothing was left in hand when the latest claim was sent."""
        self._end: asyncio.Future[None] = self._loop.create_future()
        """Done when the claims have ended."""
        self.failure: BaseException | None = None
        """Why reports cannot be sent any more."""

    def connect(self, reporter: Reporter, runner: Runner) -> None:
        """Where the reports wait, and where the jobs go."""
        self._reporter, self._runner = reporter, runner

    async def run(self) -> None:
        """Claim jobs until it is stopped or, when draining, until no job is due. Reports are sent from the first one
        that comes until `close`, whether it runs or not."""
        self._watch = await self._claims.watch()
        self._state.takes_jobs = True
        self.changed()
        try:
            await self._end
            if not self._state.is_stopping:
                await self._claims.log_waiting_jobs()
        finally:
            self._state.takes_jobs = False
            if self._call is not None:
                self._call.cancel()
            self._watch.close()

    # Events ------------------------------------------------------------------------------------------------------

    def changed(self) -> None:
        """Something happened that may change the decision: look in the loop's next turn, together with what else
        happens in this one. On the event loop, as all that follows."""
        if self._next_turn is None and not self._is_closed:
            self._next_turn = self._loop.call_soon(self._turn, context=self._context)

    def wake(self) -> None:
        """Something changed that may have made a job claimable: do not go on waiting."""
        if not self._state.must_claim:
            self._state.must_claim, self._state.wanted_since = True, time.monotonic()
        self.changed()

    def stop(self) -> None:
        """Claim no more; `run` returns when a claim under way has been answered."""
        self._state.is_stopping = True
        self.changed()

    async def send_last(self, until: float) -> None:
        """Wait until everything is reported, no longer than until this monotonic time."""
        self._state.sends_all = True
        self.changed()
        while not self._reporter.is_empty and self.failure is None and (left_s := until - time.monotonic()) > 0:
            # A batch under way is waited for; what is left otherwise waits for an extension to be answered.
            if self._sending is None or self._sending.done():
                await asyncio.sleep(0.001)
            else:
                await asyncio.wait([self._sending], timeout=left_s)
        if left := self._reporter.unreported:
            leases = "its lease" if left == 1 else "their leases"
            fields = {"worker": self._worker_id}
            log.warning("%s could not be sent: %s will expire", counted(left, "report"), leases, extra=fields)

    def close(self) -> None:
        """Send nothing any more."""
        self._is_closed = True
        for handle in (self._next_turn, self._timer, self._sending):
            if handle is not None:
                handle.cancel()

    # Turns -------------------------------------------------------------------------------------------------------

    def look(self) -> decisions.LoopState:
        """The state at this moment: what the events have left in it, and what others know now."""
        state, reporter, runner = self._state, self._reporter, self._runner
        reporter.hold_back()
        slots = runner.slots
        state.now = time.monotonic()
        state.active, state.queued = len(slots.active), len(slots.queued)
        state.prefetch = slots.prefetch.wanted(self._policies.most_ahead)
        state.set_aside, state.is_quiet, state.has_limit = runner.set_aside, runner.is_quiet, self._policies.has_limit
        state.is_idle = state.drains and runner.has_nothing_left
        state.shortest_lease_s = self._settings.times.shortest_lease_s
        state.unreported, state.reports, state.acks = reporter.unreported, len(reporter.ends), reporter.acks
        state.are_lanes, state.has_starts = reporter.are_lanes, bool(reporter.starts)
        state.reports_since, state.urgent_since = reporter.since, reporter.urgent_since
        return state

    def _turn(self) -> None:
        """Carry out decisions until there is nothing to do but to wait.

        Each of them changes the state so that the next one differs: a call is under way, or the claims have ended.
        """
        self._next_turn = None
        if self._is_closed:
            return
        try:
            self._carry_out()
        except BaseException as error:
            self._fail(error)  # without another turn nothing would happen any more: the worker must not seem to work
            raise

    def _carry_out(self, *own: type[decisions.Decision]) -> decisions.Decision | None:
        """Carry out decisions until there is nothing to do but to wait, or until one of the caller's own, which is
        returned: a call that was answered goes on with the next of its kind in the same step. A turn of the loop runs
        every handler that is ready, so a call that waited for one would leave the store idle for milliseconds."""
        while not self._is_closed:
            decision = decisions.next(self.look())
            if isinstance(decision, decisions.Wait):
                self._set_timer(decision.until)
                return None
            if isinstance(decision, own):
                return decision
            self._do(decision)
        return None

    def _do(self, decision: decisions.Decision) -> None:
        match decision:
            case decisions.Send(claim):
                self._sending = new_task(self._send_batches(*self._next_batch(claim)))
                self._sending.add_done_callback(self._delivered)
            case decisions.ClaimJobs() | decisions.RepeatClaim():
                self._next_claim(decision)
                self._begin(self._claim_jobs())
            case decisions.AskWhenDue():
                self._begin(self._ask())
                self._state.is_asking = True
            case decisions.WatchForJobs(timeout_s):
                self._begin(self._watch_for_jobs(timeout_s))
                self._state.is_watching = True
            case decisions.StopWatching():
                assert self._call is not None
                self._call.cancel()
                self._state.is_watch_ending = True
            case decisions.EndClaims():
                self._state.takes_jobs = False
                if not self._end.done():  # else `run` was cancelled, and has not noticed it yet
                    self._end.set_result(None)
            case decisions.Wait():
                pass
            case _:
                assert_never(decision)

    def _set_timer(self, until: float) -> None:
        """One that is set for an earlier time stays: its turn finds nothing to do, which is cheaper than to replace it
        whenever the time moves, as it does with every claim that goes along."""
        if until == math.inf:
            return
        if self._timer is not None:
            if self._timer.when() <= until:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(until, self._timed, context=self._context)

    def _timed(self) -> None:
        self._timer = None
        self.changed()

    def _begin(self, call: Coroutine[Any, Any, None]) -> None:
        """Have a call under way: its coroutine notes what comes of it, in the step in which the store answers."""
        self._call = new_task(call)
        self._call.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            if task is self._call:  # it may have been cancelled before its first step, and has noted nothing then
                self._state.is_watching = self._state.is_watch_ending = False
        elif (error := task.exception()) is not None:
            self._fail(error)
        self.changed()

    def _fail(self, error: BaseException) -> None:
        """The store cannot be trusted, or something is broken here: `run` raises it, and the worker stops."""
        self._state.takes_jobs = False
        if not self._end.done():
            self._end.set_exception(error)
        else:
            self._on_failure(error)

    # Reports -----------------------------------------------------------------------------------------------------

    def _next_batch(self, size: int) -> tuple[Batch, c.Claim | None]:
        """Take the reports that wait, and a claim of this many jobs to send with them (C8)."""
        state, batch, claim = self._state, self._reporter.take(), None
        state.is_sending = True
        if size:
            claim = self._claims.new(size, self._runner.free_slots())
            state.asked_along = size
            self._claim_covers_all()
        return batch, claim

    async def _send_batches(self, batch: Batch, claim: c.Claim | None) -> None:
        """Send a batch, and those that follow it without a pause."""
        while True:
            await self._deliver(batch, claim)
            decision = self._carry_out(decisions.Send)
            if not isinstance(decision, decisions.Send):
                return
            batch, claim = self._next_batch(decision.claim)

    async def _deliver(self, batch: Batch, claim: c.Claim | None) -> None:
        """Meanwhile handlers end, and their reports make the next batch. A claim of its own may be under way beside it,
        but none that was begun before this one with a claim along (along-4)."""
        state = self._state
        try:
            granted = await self._reporter.deliver(batch, claim)
        finally:
            state.is_sending, state.asked_along = False, 0
            self._reporter.sent()
        state.wanted_since = -math.inf  # reports are on record: a claim that waited for them waits no longer (claim-2)
        if claim is not None and granted is not None and granted.leases is not None:
            self._granted_along(granted.leases, claim, granted)
        elif claim is not None and granted is not None and state.unanswered_since is None and not state.is_claiming:
            # claim-5: its reply was lost, and it may have been granted jobs. It is repeated as it is.
            self._claim, state.unanswered_since, state.retry_at = claim, granted.sent_at, time.monotonic()
            self._was_idle = False
        elif claim is not None or (batch.ends and (state.are_limited or state.has_limit)):
            self.wake()  # what these ends have made claimable, nobody has claimed
            state.wanted_since = -math.inf

    def _delivered(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.failure, self._state.is_broken = error, True
            self._on_failure(error)
        self.changed()

    def _granted_along(self, leases: list[c.Lease], claim: c.Claim, granted: Granted) -> None:
        self._state.fed_at = time.monotonic()
        self._claims.note(leases, granted.took_s)
        self._take_over(leases, claim, granted.sent_at)
        if not leases:
            self.wake()  # a claim of its own sees more: jobs that another caller had locked

    # Claims ------------------------------------------------------------------------------------------------------

    def _next_claim(self, decision: decisions.ClaimJobs | decisions.RepeatClaim) -> None:
        """Have a new claim under way, or the one whose reply was lost again."""
        if isinstance(decision, decisions.ClaimJobs):
            self._claim = self._claims.new(decision.size, self._runner.free_slots())
            self._state.unanswered_since = time.monotonic()
            self._was_idle = self._settings.drains and self._runner.has_nothing_left
            self._claim_covers_all()
        self._state.is_claiming = True

    async def _claim_jobs(self) -> None:
        """Send the claim, and those that follow it without a pause."""
        while True:
            await self._call_claim()
            decision = self._carry_out(decisions.ClaimJobs, decisions.RepeatClaim)
            if not isinstance(decision, decisions.ClaimJobs | decisions.RepeatClaim):
                return
            self._next_claim(decision)

    def _claim_covers_all(self) -> None:
        """Whatever has happened by now, the claim that is sent now sees it. What happens while it is under way, it may
        not see."""
        self._state.must_claim = self._state.is_asked = False

    async def _call_claim(self) -> None:
        """Send it, for the first time or again as it is: the reply that was lost may have granted jobs (C5).

        Meanwhile jobs may have ended, so there may be more room than it asks for, and never less: no other claim goes
        beside it.
        """
        state, claim, sent_at, called_at = self._state, self._claim, self._state.unanswered_since, time.monotonic()
        assert claim is not None
        assert sent_at is not None
        try:
            leases = await self._store.arun(claim)
        except Unavailable as error:
            state.retry_at = time.monotonic() + self._claims.failed(error)
            return
        finally:
            state.is_claiming = False
        state.unanswered_since = None
        self._claims.answered()
        now = time.monotonic()
        self._claims.note(leases, now - called_at)
        self._empty_claims = 0 if leases else self._empty_claims + 1
        state.rest_until = now + pacing.pause_s(self._empty_claims)
        state.found_nothing = self._was_idle and not leases
        self._take_over(leases, claim, sent_at)

    def _take_over(self, leases: list[c.Lease], claim: c.Claim, sent_at: float) -> None:
        """Give the jobs to the runner, and note what they say about those that are left."""
        state = self._state
        self._runner.accept(leases, sent_at)
        state.has_more = len(leases) == claim.limit
        if leases:
            state.are_limited = any(is_limited(lease) for lease in leases)
            state.granted_at, state.found_nothing = time.monotonic(), False
        if state.has_more:
            self.wake()

    # Waiting for jobs --------------------------------------------------------------------------------------------

    async def _ask(self) -> None:
        """What cannot be known now is asked again after the next claim."""
        state = self._state
        try:
            state.due_in_us = await self._store.arun(self._claims.due_in())
            state.is_due_known = True
        except Unavailable:
            state.due_in_us, state.is_due_known = None, False
        finally:
            state.is_asking = False
        state.is_asked = True

    async def _watch_for_jobs(self, timeout_s: float) -> None:
        """Wait until the store notifies of jobs, or one may be due; or until what happens here cancels it (wait-3)."""
        state = self._state
        try:
            is_notified = await self._watch.wait_async(timeout_s)
        except Unavailable:
            state.rest_until, is_notified = time.monotonic() + decisions.POLL_S, False
        finally:
            state.is_watching = state.is_watch_ending = False
        if not is_notified:
            self._empty_claims = 0
        self.wake()
