"""The format of the log that each verb needs (W16); what an event needs is in `machine.EVENTS`.

Versions that do not know a verb cannot read a record that holds it: a verb that stores one calls `require_verb`.
`invariants` finds a verb that was stored without.
"""

from __future__ import annotations

from typing import Final

from leasemill.kernel.model import Verb
from leasemill.kernel.state import DEATHS_FORMAT, ORDERS_FORMAT, PLAIN_FORMAT, RULES_FORMAT, State

VERB_FORMATS: Final = {
    Verb.ENQUEUE: PLAIN_FORMAT,
    Verb.CLAIM: PLAIN_FORMAT,
    Verb.START: PLAIN_FORMAT,
    Verb.EXTEND: PLAIN_FORMAT,
    Verb.COMMIT: PLAIN_FORMAT,
    Verb.ACK: PLAIN_FORMAT,
    Verb.NACK: PLAIN_FORMAT,
    Verb.RELEASE: PLAIN_FORMAT,
    Verb.EXPIRE: PLAIN_FORMAT,
    Verb.DEATH: DEATHS_FORMAT,
    Verb.ACQUIRE: PLAIN_FORMAT,
    Verb.CANCEL: PLAIN_FORMAT,
    Verb.REDRIVE: PLAIN_FORMAT,
    Verb.PAUSE: PLAIN_FORMAT,
    Verb.RESUME: PLAIN_FORMAT,
    Verb.SET_POLICY: PLAIN_FORMAT,
    Verb.PURGE: PLAIN_FORMAT,
    Verb.PRUNE: PLAIN_FORMAT,
    Verb.SET_LIMIT: RULES_FORMAT,
    Verb.CLEAR_LIMIT: RULES_FORMAT,
    Verb.DECLARE_LIMIT: RULES_FORMAT,
    Verb.SET_SCHEDULE: RULES_FORMAT,
    Verb.REMOVE_SCHEDULE: RULES_FORMAT,
    Verb.PAUSE_SCHEDULE: RULES_FORMAT,
    Verb.RESUME_SCHEDULE: RULES_FORMAT,
    Verb.FIRE: RULES_FORMAT,
    Verb.BACKFILL: RULES_FORMAT,
    Verb.SEAL_GROUP: RULES_FORMAT,
    Verb.QUIET_WORKER: ORDERS_FORMAT,
    Verb.RESUME_WORKER: ORDERS_FORMAT,
    Verb.STOP_WORKER: ORDERS_FORMAT,
}


def require_verb(state: State, verb: Verb) -> None:
    """A record holds this verb from now on."""
    if (number := VERB_FORMATS[verb]) > state.format:
        state.require_format(number)
