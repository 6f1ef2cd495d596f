"""Every route, for every role, inside and outside of a key's queues. A route without a row fails."""

from __future__ import annotations

import pytest

from leasemill.kernel import commands as c
from leasemill.wire.problems import Denied
from leasemill.wire.routes import ROUTES, Role, Route
from tests.server.access.table import ROWS
from tests.server.access.world import DAY, World, key_of

EACH = pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)


def test_every_route_has_a_row_and_every_row_a_route() -> None:
    assert set(ROWS) == {route.command for route in ROUTES}


@EACH
@pytest.mark.parametrize("role", Role)
def test_a_role_may_use_what_the_table_lists_and_nothing_else(route: Route, role: Role) -> None:
    row, world = ROWS[route.command], World()
    command = row.of("own")
    before = world.image()
    if role in row.roles:
        world.perform(key_of(role), command)
        return
    with pytest.raises(Denied) as denied:
        world.perform(key_of(role), command)
    problem = denied.value.problem
    assert (problem.status, problem.reason) == (403, "forbidden")
    assert route.name in problem.detail
    assert world.image() == before


@EACH
def test_a_key_for_some_queues_may_use_everything_inside_of_them(route: Route) -> None:
    row, world = ROWS[route.command], World()
    if route.command is c.Prune:
        with pytest.raises(Denied):  # it is of the whole store
            world.perform(world.worker_key, row.of("own"))
    else:
        world.perform(world.worker_key, row.of("own"))


@EACH
def test_a_key_for_some_queues_reaches_nothing_outside_of_them(route: Route) -> None:
    row, world = ROWS[route.command], World()
    before, command = world.image(), row.of("zzz")
    if row.hides or row.is_neutral:
        assert "zzz" not in repr(world.perform(world.worker_key, command))
        return
    with pytest.raises(Denied) as denied:
        world.perform(world.worker_key, command)
    problem = denied.value.problem
    assert (problem.status, problem.reason) == (403, "forbidden")
    assert problem.field is not None
    assert problem.field in problem.detail
    assert world.image() == before


@EACH
def test_what_is_hidden_is_there_for_a_key_for_all_queues(route: Route) -> None:
    row, world = ROWS[route.command], World()
    if row.hides:
        world.clock.advance(us=DAY)
        assert "zzz" in repr(world.perform(key_of(), row.of("zzz")))


@EACH
def test_what_a_key_for_some_queues_is_shown_is_not_empty(route: Route) -> None:
    row, world = ROWS[route.command], World()
    if row.hides:
        world.clock.advance(us=DAY)
        assert "own" in repr(world.perform(world.worker_key, row.of("own")))


@EACH
def test_who_acts_is_recorded_by_the_name_of_the_key_whatever_the_client_wrote(route: Route) -> None:
    row, world = ROWS[route.command], World()
    command = row.of("own")
    if "by" not in command.__struct_fields__:
        return
    if route.command in {c.Resume, c.ResumeSchedule}:
        world.store.pause("own.a", by="ada", reason="because")
        world.store.run(c.PauseSchedule("own-schedule", "ada", "because"))
    world.perform(key_of(name="deploy"), command)
    assert "mallory" not in world.image()
    assert "deploy" in {action.by for action in world.store.actions(limit=1000)} or route.command is c.SealGroup
