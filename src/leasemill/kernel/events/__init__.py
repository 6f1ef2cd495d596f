"""The events of the kernel: everything that can happen, as facts. State changes by applying these and in no other way.

An event carries everything that was chosen, drawn or measured (tokens, fences, times), so that applying it never
decides, draws or measures again. The numbers are the events' names in stored logs: never reuse one.
Other packages import events from here, never from the parts.
"""

from __future__ import annotations

from typing import TypeAlias

from leasemill.kernel.events.jobs import *
from leasemill.kernel.events.jobs import JobEvent
from leasemill.kernel.events.rules import *
from leasemill.kernel.events.rules import RuleEvent

AnyEvent: TypeAlias = JobEvent | RuleEvent
