"""Kafka options shared by several commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

KafkaProperty = Annotated[
    list[str] | None,
    typer.Option(
        "--kafka-property",
        metavar="KEY=VALUE",
        help="A Kafka client option, by Kafka's name (repeatable).",
    ),
]
KafkaProperties = Annotated[
    Path | None,
    typer.Option(
        "--kafka-properties",
        metavar="FILE",
        help="A properties file with such options (security.protocol=SASL_SSL …).",
    ),
]
