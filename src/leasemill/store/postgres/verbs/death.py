"""death: leases whose holders are proved to have ended. Rare, so the kernel decides them all."""

from __future__ import annotations

from collections.abc import Sequence

from leasemill.kernel import commands as c
from leasemill.store.postgres.context import VerbContext
from leasemill.store.postgres.known import Known
from leasemill.store.postgres.steps import Steps, Verb
from leasemill.store.postgres.verbs.reports import report


def death(context: VerbContext, command: c.Death) -> Verb[list[c.DeathOutcome]]:
    return report(context, command.reports, _none, c.Death)


def _none(_known: Known, _reports: Sequence[c.DeathReport]) -> Steps[dict[str, c.DeathOutcome]]:
    """No statement decides on deaths."""
    yield from ()
    return {}
