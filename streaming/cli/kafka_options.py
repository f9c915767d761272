"""Options about Kafka that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

KafkaProperty = Annotated[
    list[str] | None,
    typer.Option(
        "--kafka-property",
        metavar="KEY=VALUE",
        help="An option of Kafka's client, by Kafka's name; may be given again.",
        show_default=False,
    ),
]
KafkaProperties = Annotated[
    Path | None,
    typer.Option(
        "--kafka-properties",
        metavar="FILE",
        help="A file of such options (security.protocol=SASL_SSL …).",
        show_default=False,
    ),
]
