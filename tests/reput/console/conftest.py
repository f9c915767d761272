"""The console that tests of one store share."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from store.config import StoreConfig
from tests.support.consoles import Console, console, source
from tests.support.dispatching import dispatch_all
from tests.support.stores.written import make_store


@dataclass(frozen=True)
class Made:
    """A written store of 3,000 messages, dispatched into its own OUTPUT."""

    store_root: Path
    output: Path
    config: StoreConfig
    console: Console


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    directory = tmp_path_factory.mktemp("console")
    store_root, output = directory / "store", directory / "out"
    config = make_store(store_root, 3000)
    dispatch_all(store_root, output, config)
    with console(source(store_root, output)) as c:
        yield Made(store_root, output, config, c)
