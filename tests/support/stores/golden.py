"""The dispatch of stores that real brokers wrote."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from store.errors import DamageError
from tests.conftest import ARCHIVES, Golden, archive_name
from tests.support.dispatching import dispatch_all

WITH_UNKNOWN_MAGIC = "v-magic2-5.0.0"
# For each rule the store of the newest broker, plus three stores with many rules.
_NEWEST = {name.rpartition("-")[0]: name for name in map(archive_name, ARCHIVES) if "-" in name}
SLICE = {"g5", "g7", "g10", *_NEWEST.values()}

# One way of dispatching runs on every store; further ways run on this selection.
golden_slice = pytest.mark.parametrize(
    "golden",
    [
        pytest.param(path, marks=() if archive_name(path) in SLICE else pytest.mark.exhaustive)
        for path in ARCHIVES
    ],
    indirect=True,
    ids=archive_name,
)


def dispatch_golden(golden: Golden, output: Path, **how: Any) -> None:
    """Dispatch a store; a V2 magic ends the log of a broker that does not know it."""
    is_cut = golden.name == WITH_UNKNOWN_MAGIC
    with pytest.raises(DamageError, match="V2 record") if is_cut else nullcontext():
        dispatch_all(golden.store_root, output, golden.config, **how)
