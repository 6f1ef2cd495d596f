"""`leasemill wal`: inspect the log of a `file:` store, and take a snapshot of it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from leasemill.cli.output import emit, json_instant, print_fields, print_json
from leasemill.cli.progress import MEGABYTES, ShownProgress, quiet_option
from leasemill.cli.store_options import json_option
from leasemill.kernel.model import NEVER, SECOND
from leasemill.operator.wording import counted, instant
from leasemill.operator.workers import ahead_or_behind, are_apart
from leasemill.store.file.disk import holds_log
from leasemill.store.file.options import parse_folder_url
from leasemill.store.system import WallClock
from leasemill.store.url import choose_url, hidden_password

if TYPE_CHECKING:
    from leasemill.kernel.events import AnyEvent
    from leasemill.store.file.format import Frame
    from leasemill.store.file.inspect import Examiner

EXIT_DAMAGED = 1
TIMES = ("_at", "at")


def as_folder(value: str) -> Path:
    """The folder of a `file:` store, named by its path or its URL."""
    if "://" in value and not value.startswith("file:"):
        raise click.BadParameter(f"{hidden_password(value)} is not a folder: name the folder of a file: store")
    path = parse_folder_url(value)[0] if value.startswith("file:") else Path(value)
    if not holds_log(path):
        raise click.BadParameter(f"{path} holds no Leasemill log: name the folder of a file: store")
    return path


def as_folder_with_clock(value: str) -> Path:
    if value.startswith(("postgresql:", "postgres:")):
        raise click.BadParameter(
            f"{hidden_password(value)} is not a folder: the clock of a PostgreSQL store is its server's, set it there"
        )
    return as_folder(value)


folder_argument = click.argument("folder", type=as_folder, default=lambda: choose_url(None))


@click.group()
def wal() -> None:
    """Inspect the log of a file: store.

    FOLDER is its path, or its URL. Default: LEASEMILL_URL, then file:./.leasemill. Only `snapshot` and `clock --set`
    change anything; all of these commands can be used while workers run. Exit codes: 0 sound, 1 damaged, 2 usage error.
    """


@wal.command()
@folder_argument
@quiet_option
@json_option
def verify(folder: Path, is_quiet: bool, as_json: bool) -> None:
    """Read and replay the whole log, and check every invariant."""
    from leasemill.store.file.inspect import examine

    with ShownProgress("read", MEGABYTES, is_quiet=is_quiet or as_json) as progress:
        facts = examine(folder, progress.reach)
    if as_json:
        print_json({**msgspec.to_builtins(facts), "is_sound": facts.is_sound})
    else:
        frames = sum(segment.frames for segment in facts.segments)
        events = sum(segment.events for segment in facts.segments)
        click.echo(
            f"{folder}: {counted(len(facts.segments), 'segment')}, "
            f"{counted(frames, 'frame')}, {counted(events, 'event')}"
        )
        if facts.damage is not None:
            at = f"{facts.damage.segment} byte {facts.damage.byte} (position {facts.damage.position})"
            kind = "torn tail, cut off at the next opening" if facts.damage.is_torn_tail else "DAMAGED"
            click.echo(f"{kind}: {at}: {facts.damage.what}")
        for violation in facts.violations:
            click.echo(f"BROKEN: {violation}")
        click.echo("sound" if facts.is_sound else "not sound: restore the folder from a backup")
    if not facts.is_sound:
        sys.exit(EXIT_DAMAGED)


@wal.command()
@folder_argument
@click.option("--from", "first", type=int, default=0, help="Start at this position.")
@click.option("--job", help="Only events of this job.")
@click.option("--limit", type=int, help="Stop after this many events.")
@json_option
def dump(folder: Path, first: int, job: str | None, limit: int | None, as_json: bool) -> None:
    """Print the events, one per line.

    With --json, one JSON object per line.
    """
    from leasemill.store.file.inspect import Examiner

    examiner = Examiner(folder)
    try:
        shown = 0
        for frame, event in _events(examiner, first):
            if job is not None and job not in _job_ids(event):
                continue
            if limit is not None and shown == limit:
                return
            click.echo(_as_json(frame, event) if as_json else _as_text(frame, event))
            shown += 1
        if examiner.damage is not None:
            click.echo(f"stopped at position {examiner.damage.position}: {examiner.damage.what}", err=True)
            sys.exit(0 if examiner.damage.is_torn_tail else EXIT_DAMAGED)
    finally:
        examiner.close()


@wal.command()
@folder_argument
@json_option
def stats(folder: Path, as_json: bool) -> None:
    """Count jobs, events, segments and bytes."""
    from leasemill.store.file.inspect import examine

    facts = examine(folder)
    if as_json:
        print_json(msgspec.to_builtins(facts))
        return
    print_fields(
        [
            ("folder", folder),
            ("snapshot", facts.snapshot or "none"),
            ("on disk", f"{facts.bytes_on_disk / 1e6:,.1f} MB in {counted(len(facts.segments), 'segment')}"),
            ("queues", f"{facts.queues}, with {counted(facts.lanes, 'lane')} in use"),
            *((state.value, f"{count:,}") for state, count in facts.jobs.items()),
        ],
        width=12,
    )
    click.echo("events since the snapshot:" if facts.snapshot else "events:")
    print_fields(((f"  {name}", f"{count:,}") for name, count in facts.events.items()), width=22)


@wal.command()
@folder_argument
@click.option(
    "--keep-segments", is_flag=True, help="Move segments the snapshot covers to archive/ instead of deleting them."
)
@quiet_option
@json_option
def snapshot(folder: Path, keep_segments: bool, is_quiet: bool, as_json: bool) -> None:
    """Write a snapshot.

    The store then opens from the snapshot instead of reading the older log.
    """
    from leasemill.store.file.build import build

    with ShownProgress("covered", MEGABYTES, is_quiet=is_quiet or as_json) as progress:
        taken = build(folder, keep_segments=keep_segments, seal_first=True, on_progress=progress.reach)
    if taken is None:
        line = "nothing to do: a snapshot covers the whole log, or another process is writing one"
    else:
        size = (folder / taken.name).stat().st_size
        line = f"{taken.name}: {size / 1e6:,.1f} MB, covers the log up to position {taken.position}"
    emit(as_json, {"snapshot": None if taken is None else msgspec.to_builtins(taken)}, line)


@wal.command()
@click.argument("folder", type=as_folder_with_clock, default=lambda: choose_url(None))
@click.option("--set", "is_set", is_flag=True, help="Set the folder's clock to this machine's.")
@json_option
def clock(folder: Path, is_set: bool, as_json: bool) -> None:
    """Compare the folder's clock with this machine's, and set it.

    All processes of a folder share one clock, which decides what is due. It may be wrong because the machine's clock
    was, when the folder was first opened after a boot. Set it when the machine's clock is right. Running jobs keep
    their leases, and jobs for a time of day keep that time. A clock that was ahead is set back in some 3 seconds for
    100,000 jobs, in every process, and leases may end meanwhile: stop the workers of a large folder first.
    Without --set nothing is changed.
    """
    if is_set:
        _set_clock(folder, as_json)
    else:
        _compare_clock(folder, as_json)


def _set_clock(folder: Path, as_json: bool) -> None:
    from leasemill.store.file.store import FileStore

    with FileStore(folder) as store:
        before, machine = store.time(), WallClock().now()
        after = store.set_clock()
    apart_s = (before - machine) / SECOND
    line = f"the folder's clock was {instant(before)}, {_difference(apart_s)}; set to {instant(after)}"
    emit(as_json, {"before": instant(before), "after": instant(after), "ahead_s": apart_s, "latest_at": None}, line)


def _compare_clock(folder: Path, as_json: bool) -> None:
    from leasemill.store.file.clock import RealMachine
    from leasemill.store.file.inspect import read_clock

    found = read_clock(folder, RealMachine())
    before, apart_s = json_instant(found.now), None
    if found.now is not None:
        apart_s = (found.now - found.machine) / SECOND
        advice = "; if that is right: leasemill wal clock --set" if are_apart(apart_s) else ""
        line = f"the folder's clock is {before}, {_difference(apart_s)}{advice}"
    else:
        line = "the folder's clock is not set in this boot: the next process that uses the folder sets it"
        if found.latest_at is not None:
            difference = _difference((found.latest_at - found.machine) / SECOND)
            line += f"; the last event in its log was at {instant(found.latest_at)}, {difference}"
    latest_at = json_instant(found.latest_at)
    emit(as_json, {"before": before, "after": before, "ahead_s": apart_s, "latest_at": latest_at}, line)


def _difference(ahead_s: float) -> str:
    return f"{ahead_or_behind(ahead_s)} this machine's" if are_apart(ahead_s) else "it agrees with this machine's"


def _events(examiner: Examiner, first: int) -> Iterator[tuple[Frame, AnyEvent]]:
    for frame in examiner.frames():
        if frame.position >= first:
            for event in frame.events():
                yield frame, event


def _job_ids(event: AnyEvent) -> tuple[str, ...]:
    fields = _fields(event)
    job = fields.get("job")
    return (*fields.get("job_ids", ()), fields.get("job_id", ""), job["id"] if job else "")


def _fields(event: AnyEvent) -> dict[str, Any]:
    """Return an event's fields by name, nested values too."""
    return {name: _named(getattr(event, name)) for name in event.__struct_fields__}


def _named(value: Any) -> Any:
    if isinstance(value, msgspec.Struct):
        return {name: _named(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, tuple):
        return [_named(item) for item in value]
    if isinstance(value, bytes):
        return msgspec.Raw(value)
    return value


def _as_json(frame: Frame, event: AnyEvent) -> str:
    return msgspec.json.encode({"position": frame.position, "event": type(event).__name__, **_fields(event)}).decode()


def _as_text(frame: Frame, event: AnyEvent) -> str:
    fields = _fields(event)
    at = instant(fields.pop("at"))
    shown = " ".join(f"{name}={_shown(name, value)}" for name, value in fields.items() if value not in (None, (), []))
    return f"{frame.position:>12}  {at}  {type(event).__name__:<18} {shown}"


def _shown(name: str, value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool) and name.endswith(TIMES):
        return "never" if value == NEVER else instant(value)
    if isinstance(value, dict):
        return "{" + " ".join(f"{key}={_shown(key, item)}" for key, item in value.items() if item is not None) + "}"
    if isinstance(value, list):
        return "[" + " ".join(_shown(name, item) for item in value) + "]"
    if isinstance(value, msgspec.Raw):
        return bytes(value).decode()
    return str(value)
