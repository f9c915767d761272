"""The dispatch of stores that real brokers wrote."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from store.errors import DamageError
from tests.conftest import Golden
from tests.support.dispatching import dispatch_all

WITH_UNKNOWN_MAGIC = "v-magic2-5.0.0"


def dispatch_golden(golden: Golden, output: Path, **how: Any) -> None:
    """Dispatch a store; magic V2 ends the log of a broker that does not know it."""
    is_cut = golden.name == WITH_UNKNOWN_MAGIC
    with pytest.raises(DamageError, match="V2 record") if is_cut else nullcontext():
        dispatch_all(golden.store_root, output, golden.config, **how)
