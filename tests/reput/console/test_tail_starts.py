"""The turns of tails that begin: those of one client do not hold up those of another."""

import asyncio

import pytest

from reput.console import search_job
from reput.console.search_job import SearchSlots
from reput.console.security import ConsoleSettings

SEARCH_SECONDS = 0.05


async def _begin(slots: SearchSlots, client: str, began: list[tuple[str, float]]) -> None:
    async with slots.tail_start(client) as seconds:
        began.append((client, seconds))
        await asyncio.sleep(SEARCH_SECONDS)


def test_many_tails_of_a_client_hold_up_another_client_by_one_search() -> None:
    async def begin_all() -> list[tuple[str, float]]:
        slots = SearchSlots(ConsoleSettings())
        began: list[tuple[str, float]] = []
        async with asyncio.TaskGroup() as tasks:
            for _ in range(40):
                tasks.create_task(_begin(slots, "many", began))
            await asyncio.sleep(SEARCH_SECONDS / 2)
            tasks.create_task(_begin(slots, "one", began))
        slots.close()
        return began

    began = asyncio.run(begin_all())
    assert len(began) == 41
    assert [client for client, _ in began].index("one") <= 2


def test_each_of_many_tails_of_a_client_has_less_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_job, "_NEWEST_SECONDS", 3.0)

    async def begin_all() -> list[tuple[str, float]]:
        slots = SearchSlots(ConsoleSettings())
        began: list[tuple[str, float]] = []
        async with asyncio.TaskGroup() as tasks:
            for _ in range(4):
                tasks.create_task(_begin(slots, "many", began))
        slots.close()
        return began

    assert [seconds for _, seconds in asyncio.run(begin_all())] == [3.0, 1.0, 1.5, 3.0]
