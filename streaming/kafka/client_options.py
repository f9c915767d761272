"""Options of Kafka's clients: Kafka's names in, kafka-python's out.

Names are Kafka's (``security.protocol``), with ``kafka.`` before them if one likes, as Spark's
Kafka source has them. What kafka-python does not know, or what is not for a user to set, is refused
by name, so that no setting is dropped without a word.

==================================  ============================================================
names of other clients              kafka-python's
==================================  ============================================================
sasl.jaas.config                    user name and password of the Plain or Scram login module
sasl.username, sasl.password        sasl_plain_username, sasl_plain_password
ssl.truststore.location (PEM),      ssl_cafile
ssl.ca.location
ssl.keystore.location (PEM),        ssl_certfile
ssl.certificate.location
ssl.key.location                    ssl_keyfile
ssl.key.password                    ssl_password
ssl.endpoint.identification-        ssl_check_hostname: ``https`` or nothing
.algorithm
==================================  ============================================================
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import javaproperties
from kafka import KafkaProducer

from store.errors import ConfigError, StoreIOError, shown
from store.io.file_system import read_small_file

PREFIX = "kafka."
# How long a first contact may take, in milliseconds.
BOOTSTRAP_TIMEOUT_MS = 10_000

_OTHER_NAMES = {
    "sasl.username": "sasl_plain_username",
    "sasl.password": "sasl_plain_password",
    "ssl.truststore.location": "ssl_cafile",
    "ssl.ca.location": "ssl_cafile",
    "ssl.keystore.location": "ssl_certfile",
    "ssl.certificate.location": "ssl_certfile",
    "ssl.key.location": "ssl_keyfile",
    "ssl.key.password": "ssl_password",
    "compression.type": "compression_type",
}
_PEM_ONLY = ("ssl.truststore.type", "ssl.keystore.type")
_HOSTNAME_CHECK = "ssl.endpoint.identification.algorithm"
_JAAS = "sasl.jaas.config"
_INTEGERS = {"receive_buffer_bytes", "send_buffer_bytes"}
_TEXTS = {
    "client_id", "compression_type", "proxy_url", "sasl_mechanism", "sasl_plain_username",
    "sasl_plain_password", "sasl_kerberos_name", "sasl_kerberos_domain_name", "ssl_cafile",
    "ssl_certfile", "ssl_keyfile", "ssl_crlfile", "ssl_password", "ssl_ciphers",
}  # fmt: skip
# Whatever a user says of these, exactly once or a one-line error would not hold any more.
_OURS = {
    "acks": "every message is acknowledged by all replicas",
    "allow_auto_create_topics": "topics are made with --create-topics only",
    "bootstrap_servers": "--kafka-bootstrap says it",
    "enable_idempotence": "it is always on",
    "retries": "delivery.timeout.ms bounds them",
    "transactional_id": "it follows from --name",
}
_LOGIN = re.compile(r"\s*(?P<module>[\w.]+)\s+\w+(?P<options>.*?);?\s*", re.DOTALL)
_LOGIN_OPTION = re.compile(r"""\s+(\w+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|(\S+))""")
_FILES = {"ssl_cafile", "ssl_certfile", "ssl_keyfile", "ssl_crlfile"}
_USER_MODULES = ("PlainLoginModule", "ScramLoginModule")
_HOST_PORT = re.compile(r"(?:\[[0-9A-Fa-f:.%]+\]|[^\s:,/\[\]]+):([0-9]{1,5})")
_PORT_MAX = 65535
_PROPERTIES_BYTES_MAX = 1024 * 1024


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """Where a cluster is, and how its clients are set up (in kafka-python's names)."""

    bootstrap: tuple[str, ...]
    settings: Mapping[str, Any]

    def of(self, client: Any, **more: Any) -> dict[str, Any]:
        """Return the arguments for one kind of client: those settings that it knows."""
        known = {k: v for k, v in self.settings.items() if k in client.DEFAULT_CONFIG}
        bootstrap = {"bootstrap_servers": list(self.bootstrap)}
        return {"bootstrap_timeout_ms": BOOTSTRAP_TIMEOUT_MS, **known, **bootstrap, **more}

    def get(self, name: str) -> Any:
        """Return a setting as it holds, kafka-python's default where none was given."""
        return self.settings.get(name, KafkaProducer.DEFAULT_CONFIG[name])

    def __str__(self) -> str:
        return ",".join(self.bootstrap)


def client_options(
    bootstrap: str, properties: Mapping[str, str], defaults: Mapping[str, Any] | None = None
) -> ClientOptions:
    """Check addresses (``H:P,…``) and properties. Raises ConfigError naming what is wrong."""
    addresses = tuple(part.strip() for part in bootstrap.split(",") if part.strip())
    for address in addresses:
        match = _HOST_PORT.fullmatch(address)
        if match is None or not 0 < int(match[1]) <= _PORT_MAX:
            raise ConfigError(f"Kafka's address {shown(address)} is not HOST:PORT")
    if not addresses:
        raise ConfigError("no address of Kafka was given: HOST:PORT, several between commas")
    settings = dict(defaults or {})
    for name, value in properties.items():
        settings |= _setting(name, value)
    for name in _FILES & settings.keys():
        _check_file(name, settings[name])
    return ClientOptions(addresses, settings)


def _check_file(name: str, value: str) -> None:
    """Raise StoreIOError for a file that OpenSSL must not open; one that is missing it names."""
    try:
        read_small_file(value)
    except FileNotFoundError:
        return
    except OSError as e:
        raise StoreIOError(f"read {name}", value, e) from e


def read_properties(path: Path | None, pairs: Iterable[str]) -> dict[str, str]:
    """Return the properties of a file, and ``KEY=VALUE`` pairs, which win over it.

    Raises ConfigError for a pair or file that does not parse, StoreIOError.
    """
    properties: dict[str, str] = {}
    if path is not None:
        try:
            text = read_small_file(path, _PROPERTIES_BYTES_MAX).decode("utf-8")
            properties.update(javaproperties.loads(text))
        except OSError as e:
            raise StoreIOError("read", path, e) from e
        except ValueError as e:
            raise ConfigError(f"{path} is no properties file: {e}") from e
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator or not name.strip():
            raise ConfigError(f"--kafka-property {shown(pair)} is not KEY=VALUE")
        properties[name.strip()] = value.strip()
    return properties


def _setting(name: str, text: str) -> dict[str, Any]:
    """Return what one property sets."""
    plain = name.removeprefix(PREFIX)
    if plain == _JAAS:
        return _login(name, text)
    if plain == _HOSTNAME_CHECK:
        if text not in ("", "https"):
            raise ConfigError(f"Kafka option {name} = {shown(text)}: 'https' or nothing is known")
        return {"ssl_check_hostname": bool(text)}
    if plain in _PEM_ONLY:
        if text.upper() != "PEM":
            raise ConfigError(f"Kafka option {name} = {shown(text)}: only PEM files are read here")
        return {}
    ours = _OTHER_NAMES.get(plain, plain.replace(".", "_"))
    if ours in _OURS:
        raise ConfigError(f"Kafka option {name} cannot be set: {_OURS[ours]}")
    return {ours: _value(name, ours, text)}


def _value(name: str, ours: str, text: str) -> Any:
    """Return a setting's value, as kafka-python's own default tells its kind."""
    if ours in _TEXTS:
        return text
    default = KafkaProducer.DEFAULT_CONFIG.get(ours)
    if ours in _INTEGERS or type(default) in (int, float):
        if not re.fullmatch("[0-9]{1,18}", text):
            raise ConfigError(f"Kafka option {name} = {shown(text)} is not a number")
        return int(text)
    if isinstance(default, bool):
        if text.lower() not in ("true", "false"):
            raise ConfigError(f"Kafka option {name} = {shown(text)} is neither true nor false")
        return text.lower() == "true"
    if isinstance(default, str):
        return text
    raise ConfigError(f"Kafka option {name} is not known here")


def _login(name: str, text: str) -> dict[str, Any]:
    """Return user name and password of a JAAS line; the password is in no message."""
    match = _LOGIN.fullmatch(text)
    if match is None:
        raise ConfigError(f"Kafka option {name} is no line of a JAAS configuration")
    module = match["module"].rpartition(".")[2]
    if module not in _USER_MODULES:
        raise ConfigError(f"Kafka option {name}: of {module} nothing is known here")
    values = {}
    for option in _LOGIN_OPTION.finditer(match["options"]):
        quoted = option[2] if option[2] is not None else option[3]
        values[option[1]] = re.sub(r"\\(.)", r"\1", quoted) if quoted is not None else option[4]
    if not {"username", "password"} <= set(values):
        raise ConfigError(f"Kafka option {name} needs username and password")
    return {
        "sasl_plain_username": values["username"],
        "sasl_plain_password": values["password"],
    }
