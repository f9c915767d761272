"""The names of a broker and its cluster."""

from pathlib import Path

import pytest

from store.identity import BrokerIdentity, load_identity


@pytest.mark.parametrize(
    ("conf", "expected"),
    [
        (None, BrokerIdentity("DefaultCluster", "store")),
        ("", BrokerIdentity("DefaultCluster", "store")),
        ("brokerName = b-1 \nbrokerClusterName=C", BrokerIdentity("C", "b-1")),
        ("brokerName=\nbrokerClusterName=", BrokerIdentity("DefaultCluster", "store")),
    ],
)
def test_names_come_from_broker_conf_else_from_the_directory(
    tmp_path: Path, conf: str | None, expected: BrokerIdentity
) -> None:
    store = tmp_path / "store"
    store.mkdir()
    if conf is not None:
        (store / "broker.conf").write_text(conf)
    assert expected == load_identity(store)
    if conf is not None:
        assert expected == load_identity(store, store / "broker.conf")
