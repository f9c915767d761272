"""Options of Kafka's clients, by Kafka's names, and as arguments of kafka-python's.

Names are Kafka's (``security.protocol``), optionally prefixed with ``kafka.`` as for Spark's Kafka
source. kafka-python's names are accepted too. An option that kafka-python does not know, or that
the user may not set, is refused by name. ``producer_options`` has them for the mirror's producer,
which is librdkafka's: what Java's client names otherwise has librdkafka's name here.

==================================  ============================================================
option                              becomes
==================================  ============================================================
sasl.jaas.config                    sasl.username and sasl.password, of the Plain or Scram login
                                    module
ssl.truststore.location (PEM)       ssl.ca.location
ssl.keystore.location (PEM)         ssl.certificate.location
ssl.endpoint.identification-        whether it is ``https``, else it must be empty
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
from store.java import parse_boolean

PREFIX = "kafka."
# The limit for a first connection, in milliseconds.
BOOTSTRAP_TIMEOUT_MS = 10_000

_PEM_ONLY = ("ssl.truststore.type", "ssl.keystore.type")
HOSTNAME_CHECK = "ssl.endpoint.identification.algorithm"
_JAAS = "sasl.jaas.config"
# kafka-python's names, where they are not Kafka's with underscores.
_PYTHON_NAMES = {
    "sasl.username": "sasl_plain_username",
    "sasl.password": "sasl_plain_password",
    "ssl.ca.location": "ssl_cafile",
    "ssl.certificate.location": "ssl_certfile",
    "ssl.cipher.suites": "ssl_ciphers",
    "ssl.crl.location": "ssl_crlfile",
    "ssl.key.location": "ssl_keyfile",
    "ssl.key.password": "ssl_password",
    HOSTNAME_CHECK: "ssl_check_hostname",
}
_OTHER_NAMES = {
    "ssl.truststore.location": "ssl.ca.location",
    "ssl.keystore.location": "ssl.certificate.location",
    **{python.replace("_", "."): name for name, python in _PYTHON_NAMES.items()},
}
_INTEGERS = {"receive.buffer.bytes", "send.buffer.bytes"}
_FILES = {"ssl.ca.location", "ssl.certificate.location", "ssl.crl.location", "ssl.key.location"}
_TEXTS = _FILES | {
    "client.id", "compression.type", "proxy.url", "sasl.kerberos.domain.name",
    "sasl.kerberos.name", "sasl.mechanism", "sasl.password", "sasl.username",
    "ssl.cipher.suites", "ssl.key.password",
}  # fmt: skip
# Changing these would break exactly-once delivery or one-line errors.
_FIXED = {
    "acks": "every message is acknowledged by all replicas",
    "allow.auto.create.topics": "topics are created only with --create-topics",
    "bootstrap.servers": "--kafka-bootstrap sets it",
    "enable.idempotence": "it is always on",
    "retries": "delivery.timeout.ms bounds them",
    "transactional.id": "it follows from --name",
}
_LOGIN = re.compile(r"\s*(?P<module>[\w.]+)\s+\w+(?P<options>.*?);?\s*", re.DOTALL)
_LOGIN_OPTION = re.compile(r"""\s+(\w+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|(\S+))""")
_SEPARATED = re.compile(r"\s*(?:[^\\\s=:]|\\\r\n|\\.)*\s*[=:]", re.DOTALL)  # a key, then = or :
_LINE_END = re.compile(r"\r\n|\r|\n")
_MODULE_END = "LoginModule"
_USER_MODULES = ("PlainLoginModule", "ScramLoginModule")
_HOST_PORT = re.compile(r"(?:\[[0-9A-Fa-f:.%]+\]|[^\s:,/\[\]]+):([0-9]{1,5})")
_PORT_MAX = 65535
_PROPERTIES_BYTES_MAX = 1024 * 1024


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """The addresses of a cluster, and its clients' settings by Kafka's names."""

    bootstrap: tuple[str, ...]
    settings: Mapping[str, Any]

    def of(self, client: Any, **more: Any) -> dict[str, Any]:
        """Return the arguments for a client of kafka-python: the settings that it knows."""
        named = {python_name(name): value for name, value in self.settings.items()}
        known = {k: v for k, v in named.items() if k in client.DEFAULT_CONFIG}
        bootstrap = {"bootstrap_servers": list(self.bootstrap)}
        return {"bootstrap_timeout_ms": BOOTSTRAP_TIMEOUT_MS, **known, **bootstrap, **more}

    def get(self, name: str) -> Any:
        """Return the effective value of a setting: kafka-python's default if it was not given."""
        return self.settings.get(name, KafkaProducer.DEFAULT_CONFIG[python_name(name)])

    def __str__(self) -> str:
        return ",".join(self.bootstrap)


def python_name(name: str) -> str:
    """Return kafka-python's name of a setting."""
    return _PYTHON_NAMES.get(name, name.replace(".", "_"))


def client_options(
    bootstrap: str, properties: Mapping[str, str], defaults: Mapping[str, Any] | None = None
) -> ClientOptions:
    """Parse addresses (``H:P,…``) and properties. Raises ConfigError, which names the culprit."""
    addresses = tuple(part.strip() for part in bootstrap.split(",") if part.strip())
    for address in addresses:
        match = _HOST_PORT.fullmatch(address)
        if match is None or not 0 < int(match[1]) <= _PORT_MAX:
            raise ConfigError(f"Kafka's address {shown(address)} is not HOST:PORT")
    if not addresses:
        raise ConfigError("no Kafka address was given: HOST:PORT, or several separated by commas")
    settings = dict(defaults or {})
    for name, value in properties.items():
        settings |= _setting(name, value)
    for name in _FILES & settings.keys():
        _check_file(name, settings[name])
    return ClientOptions(addresses, settings)


def _check_file(name: str, value: str) -> None:
    """Raise StoreIOError for a file that OpenSSL must not open; a missing one it reports itself."""
    try:
        read_small_file(value)
    except FileNotFoundError:
        return
    except OSError as e:
        raise StoreIOError(f"read {name}", value, e) from e


def read_properties(path: Path | None, pairs: Iterable[str]) -> dict[str, str]:
    """Return the properties of a file and of ``KEY=VALUE`` pairs, which take precedence.

    Raises ConfigError for a pair or file that does not parse, StoreIOError.
    """
    properties: dict[str, str] = {}
    if path is not None:
        try:
            text = read_small_file(path, _PROPERTIES_BYTES_MAX).decode("utf-8")
            properties.update(_parsed(path, text))
        except OSError as e:
            raise StoreIOError("read", path, e) from e
        except UnicodeDecodeError as e:
            raise ConfigError(f"{path} is not a properties file: it is not UTF-8") from e
        except javaproperties.InvalidUEscapeError:  # whose text may be part of a password
            reason = "a \\u escape is invalid"
            raise ConfigError(f"{path} is not a properties file: {reason}") from None
    for place, pair in enumerate(pairs, 1):
        name, separator, value = pair.partition("=")
        if not separator or not name.strip():
            raise ConfigError(f"--kafka-property number {place} is not KEY=VALUE")
        properties[name.strip()] = value.strip()
    return properties


def _parsed(path: Path, text: str) -> dict[str, str]:
    """Return the properties of a file's text.

    A line without ``=`` or ``:`` may be a secret that lost its name or was broken in two. Unless it
    is an option and its value, separated by a blank, the error names its number only.
    """
    properties, begin = {}, 1
    for element in javaproperties.parse(text):
        if isinstance(element, javaproperties.KeyValue):
            if not _SEPARATED.match(element.source):
                try:
                    _setting(element.key, element.value)
                except ConfigError:
                    raise ConfigError(f"{path}: line {begin} is not KEY=VALUE") from None
            properties[element.key] = element.value
        begin += len(_LINE_END.findall(element.source))
    return properties


def _setting(name: str, text: str) -> dict[str, Any]:
    """Return the settings of one property."""
    plain = name.removeprefix(PREFIX)
    if plain == _JAAS:
        return _login(name, text)
    if plain == HOSTNAME_CHECK:
        if text not in ("", "https"):
            raise ConfigError(
                f"Kafka option {name} = {shown(text)}: only 'https' or an empty value is supported"
            )
        return {HOSTNAME_CHECK: bool(text)}
    if plain in _PEM_ONLY:
        if text.upper() != "PEM":
            raise ConfigError(f"Kafka option {name} = {shown(text)}: only PEM files are supported")
        return {}
    dotted = plain.replace("_", ".")
    setting = _OTHER_NAMES.get(dotted, dotted)
    if setting in _FIXED:
        raise ConfigError(f"Kafka option {name} cannot be set: {_FIXED[setting]}")
    return {setting: _value(name, setting, text)}


def _value(name: str, setting: str, text: str) -> Any:
    """Parse a setting's value; kafka-python's default determines its type."""
    if setting in _TEXTS:
        return text
    default = KafkaProducer.DEFAULT_CONFIG.get(python_name(setting))
    if setting in _INTEGERS or type(default) in (int, float):
        if not re.fullmatch("[0-9]{1,18}", text):
            raise ConfigError(f"Kafka option {name} = {shown(text)} is not a number")
        return int(text)
    if isinstance(default, bool):
        value = parse_boolean(text)
        if value is None:
            raise ConfigError(f"Kafka option {name} = {shown(text)} is neither true nor false")
        return value
    if isinstance(default, str):
        return text
    raise ConfigError(f"Kafka option {name} is not supported")


def _login(name: str, text: str) -> dict[str, Any]:
    """Return user name and password from a JAAS line; no message contains the password."""
    match = _LOGIN.fullmatch(text)
    if match is None:
        raise ConfigError(f"Kafka option {name} is not a line of a JAAS configuration")
    module = match["module"].rpartition(".")[2]
    if not module.endswith(_MODULE_END):  # a secret, perhaps
        raise ConfigError(f"Kafka option {name} does not begin with a login module")
    if module not in _USER_MODULES:
        raise ConfigError(f"Kafka option {name}: login module {module} is not supported")
    values = {}
    for option in _LOGIN_OPTION.finditer(match["options"]):
        quoted = option[2] if option[2] is not None else option[3]
        values[option[1]] = re.sub(r"\\(.)", r"\1", quoted) if quoted is not None else option[4]
    if not {"username", "password"} <= set(values):
        raise ConfigError(f"Kafka option {name} needs username and password")
    return {"sasl.username": values["username"], "sasl.password": values["password"]}
