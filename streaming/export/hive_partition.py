"""Directory names of Hive partitions: ``name=value``, with the value escaped as Spark escapes it.

A character that a path or a glob treats specially is ``%XX``. ``__HIVE_DEFAULT_PARTITION__`` stands
for no value; a value that is this very text has its first character escaped, so that Spark and
DuckDB, which look for the unescaped text, read it back as it is.
"""

from __future__ import annotations

NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
_SPECIAL = "\"#%'*/:=?\\{}[]^\x7f"  # as Spark's ExternalCatalogUtils, and the closing brace
_ESCAPES = {ord(c): f"%{ord(c):02X}" for c in (*map(chr, range(32)), *_SPECIAL)}


def partition_directory(name: str, value: str) -> str:
    """Return the directory of a partition. An empty value, like none in Hive, is read as NULL."""
    if value == NO_VALUE:
        return f"{name}=%{ord(value[0]):02X}{value[1:]}"
    return f"{name}={value.translate(_ESCAPES) or NO_VALUE}"
