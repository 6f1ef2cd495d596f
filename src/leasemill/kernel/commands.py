"""What can be asked of a store, and the answers: the one place from which everybody imports them.

A command carries its own randomness (tokens, jitter, request ids), drawn by whoever sends it; repeated as it is after
a lost reply, it gives the same answer. Commands on many items return one outcome for each, in order; an expected
alternative (a duplicate, a lost lease) is an outcome, not an exception.
"""

from __future__ import annotations

from leasemill.kernel.command import *
from leasemill.kernel.fence import *
from leasemill.kernel.filter import *
from leasemill.kernel.grant import *
from leasemill.kernel.lanes import *
from leasemill.kernel.limit_views import *
from leasemill.kernel.read import *
from leasemill.kernel.read_leases import *
from leasemill.kernel.read_schedules import *
from leasemill.kernel.verbs.ack import *
from leasemill.kernel.verbs.acquire import *
from leasemill.kernel.verbs.cancel import *
from leasemill.kernel.verbs.claim import *
from leasemill.kernel.verbs.commit import *
from leasemill.kernel.verbs.death import *
from leasemill.kernel.verbs.enqueue import *
from leasemill.kernel.verbs.expire import *
from leasemill.kernel.verbs.extend import *
from leasemill.kernel.verbs.group import *
from leasemill.kernel.verbs.limits import *
from leasemill.kernel.verbs.nack import *
from leasemill.kernel.verbs.orders import *
from leasemill.kernel.verbs.purge import *
from leasemill.kernel.verbs.queues import *
from leasemill.kernel.verbs.redrive import *
from leasemill.kernel.verbs.release import *
from leasemill.kernel.verbs.schedules import *
from leasemill.kernel.verbs.start import *
from leasemill.kernel.verbs.ticks import *
