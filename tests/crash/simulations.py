"""Runs of a scene with faults in it: each function is one run, and raises if a promise was broken."""

from __future__ import annotations

from pathlib import Path

from leasemill.errors import Unavailable
from tests.crash.scene import MOST_TRUTHS, Lost, Scene, little_in_memory, prepare_room
from tests.lab.faults import SimulatedCrash, Sync

STEPS = 160
SEGMENT_BYTES = 1536


@little_in_memory()
def operations_of_a_script(seed: int, folder: Path, *, counts_stores: bool = False) -> int:
    """How many operations of the disk the scripted run has: as many places to crash at. `counts_stores`: and stores to
    the control page."""
    scene = _scripted(seed, folder, counts_stores=counts_stores)
    return sum(scene.machine.operations.values())


def _scripted(
    seed: int, folder: Path, crash_at: int | None = None, *, steps_after: int = STEPS, counts_stores: bool = False
) -> Scene:
    """The script, to its end or to so many steps after the crash."""
    scene = Scene(seed, folder, segment_bytes=SEGMENT_BYTES, counts_stores=counts_stores)
    if crash_at is not None:
        scene.machine.crash_at(crash_at)
    for _ in range(STEPS):
        scene.step()
        if scene.crashes:
            if steps_after == 0:
                break
            steps_after -= 1
    return scene


@little_in_memory()
def crash_at(seed: int, folder: Path, count: int, *, steps_after: int = STEPS, counts_stores: bool = False) -> None:
    """One process dies at an operation, the other goes on, then the power goes."""
    scene = _scripted(seed, folder, count, steps_after=steps_after, counts_stores=counts_stores)
    if not scene.crashes:
        raise Lost(f"there is no operation {count}")
    scene.look(1)
    scene.lose_power()
    scene.steps(10)
    scene.look(0)
    scene.look(1)


@little_in_memory()
def lose_power_at(seed: int, folder: Path, count: int, luck: int) -> None:
    """The power goes at an operation."""
    scene = _scripted(seed, folder, count, steps_after=0)
    scene.source.seed(f"{seed} {count} {luck}")
    scene.lose_power()
    scene.steps(10)
    scene.look(0)
    scene.lose_power()


@little_in_memory()
def lose_unsynced(seed: int, folder: Path) -> None:
    """Two processes in turn; now and then one dies, now and then the power goes."""
    scene = Scene(seed, folder, segment_bytes=SEGMENT_BYTES)
    for _ in range(3):
        scene.machine.crash_at(scene.source.randint(1, 120))
        scene.steps(scene.source.randint(5, 40))
        scene.machine.crash_at(scene.source.randint(1, 200))
        scene.steps(scene.source.randint(0, 10))
        scene.lose_power()
    scene.steps(5)
    scene.look(0)
    scene.look(1)


@little_in_memory()
def fail_sync_at(seed: int, folder: Path, count: int, leaves: Sync) -> None:
    """A sync of one process fails; both go on; the power goes. Once at the failure, once later."""
    for steps_after in (0, 3, 20):
        scene = Scene(seed, folder, segment_bytes=SEGMENT_BYTES)
        scene.steps(5)
        scene.machine.fail_sync_at(count, scene.disk(0), leaves)
        refused = len(scene.refusals)
        for _ in range(400):
            scene.step()
            if len(scene.refusals) > refused or scene.machine._sync_fails_in <= 0:
                break
        else:
            raise Lost(f"no sync failed in {scene.machine.operations}")
        scene.steps(steps_after)
        if steps_after:
            scene.look_after_failure(1)
            scene.look_after_failure(0)
        scene.lose_power()
        scene.steps(10)
        scene.look(0)


@little_in_memory()
def fill_at(seed: int, folder: Path, count: int) -> bool:
    """From some step on there is no space; later there is again. Answers whether anything was refused. Without limits:
    each call that is refused doubles what may be true, and with them there are too many calls that change something."""
    scene = Scene(seed, folder, segment_bytes=SEGMENT_BYTES, has_limits=False)
    scene.machine.fill_at(count)
    for _ in range(60):
        if len(scene.truths) > MOST_TRUTHS // 4:
            break  # not even what expired can be recorded, so nobody can look: each call doubles what may be true
        _step_in_need(scene)
    refused = bool(scene.refusals)
    scene.machine.make_room()
    scene.refusals.clear()
    for _ in range(15):
        scene.step()
    if scene.refusals:
        raise Lost(f"there is room, and still: {scene.refusals[0]}")
    scene.look(1)
    scene.lose_power()
    scene.steps(5)
    scene.look(0)
    return refused


@little_in_memory()
def crash_when_full(seed: int, folder: Path, count: int) -> bool:
    """A folder with its reserves stands on a full disk, and a process dies at an operation while they are used. Answers
    whether one died."""
    scene = Scene(seed, folder, segment_bytes=SEGMENT_BYTES, has_limits=False)
    scene.steps(20)
    prepare_room(scene.store(0))
    scene.machine.fill()
    scene.machine.crash_at(count)
    for _ in range(40):
        if len(scene.truths) > MOST_TRUTHS // 4:
            break
        _step_in_need(scene)
    crashes = scene.crashes
    scene.machine.forget_faults()
    scene.machine.make_room()
    scene.look_after_failure(1)
    scene.steps(10)
    scene.lose_power()
    scene.steps(5)
    scene.look(0)
    return crashes > 0


def _step_in_need(scene: Scene) -> None:
    before = len(scene.refusals)
    try:
        scene.step()
        if len(scene.truths) > 1:
            scene.look(0)
    except Unavailable as error:
        scene.refusals.append(str(error))
    except SimulatedCrash:
        scene.bury(0)
    for refusal in scene.refusals[before:]:
        if "no space left" not in refusal.lower():
            raise Lost(f"refused without a word about space: {refusal}")
