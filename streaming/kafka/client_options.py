"""Options of Kafka's clients: Kafka's names in, kafka-python's out.

Names are Kafka's (``security.protocol``), optionally prefixed with ``kafka.`` as for Spark's Kafka
source. An option that kafka-python does not know, or that the user may not set, is refused by name.
``producer_options`` maps the result for the mirror's producer, which is librdkafka's.

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
# The limit for a first connection, in milliseconds.
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
# Changing these would break exactly-once delivery or one-line errors.
_FIXED = {
    "acks": "every message is acknowledged by all replicas",
    "allow_auto_create_topics": "topics are created only with --create-topics",
    "bootstrap_servers": "--kafka-bootstrap sets it",
    "enable_idempotence": "it is always on",
    "retries": "delivery.timeout.ms bounds them",
    "transactional_id": "it follows from --name",
}
_LOGIN = re.compile(r"\s*(?P<module>[\w.]+)\s+\w+(?P<options>.*?);?\s*", re.DOTALL)
_LOGIN_OPTION = re.compile(r"""\s+(\w+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|(\S+))""")
_SEPARATED = re.compile(r"\s*(?:[^\\\s=:]|\\\r\n|\\.)*\s*[=:]", re.DOTALL)  # a key, then = or :
_LINE_END = re.compile(r"\r\n|\r|\n")
_FILES = {"ssl_cafile", "ssl_certfile", "ssl_keyfile", "ssl_crlfile"}
_MODULE_END = "LoginModule"
_USER_MODULES = ("PlainLoginModule", "ScramLoginModule")
_HOST_PORT = re.compile(r"(?:\[[0-9A-Fa-f:.%]+\]|[^\s:,/\[\]]+):([0-9]{1,5})")
_PORT_MAX = 65535
_PROPERTIES_BYTES_MAX = 1024 * 1024


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """The addresses of a cluster, and its clients' settings by kafka-python's names."""

    bootstrap: tuple[str, ...]
    settings: Mapping[str, Any]

    def of(self, client: Any, **more: Any) -> dict[str, Any]:
        """Return the arguments for a class of client: the settings that it knows."""
        known = {k: v for k, v in self.settings.items() if k in client.DEFAULT_CONFIG}
        bootstrap = {"bootstrap_servers": list(self.bootstrap)}
        return {"bootstrap_timeout_ms": BOOTSTRAP_TIMEOUT_MS, **known, **bootstrap, **more}

    def get(self, name: str) -> Any:
        """Return the effective value of a setting: kafka-python's default if it was not given."""
        return self.settings.get(name, KafkaProducer.DEFAULT_CONFIG[name])

    def __str__(self) -> str:
        return ",".join(self.bootstrap)


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
    if plain == _HOSTNAME_CHECK:
        if text not in ("", "https"):
            raise ConfigError(
                f"Kafka option {name} = {shown(text)}: only 'https' or an empty value is supported"
            )
        return {"ssl_check_hostname": bool(text)}
    if plain in _PEM_ONLY:
        if text.upper() != "PEM":
            raise ConfigError(f"Kafka option {name} = {shown(text)}: only PEM files are supported")
        return {}
    setting = _OTHER_NAMES.get(plain, plain.replace(".", "_"))
    if setting in _FIXED:
        raise ConfigError(f"Kafka option {name} cannot be set: {_FIXED[setting]}")
    return {setting: _value(name, setting, text)}


def _value(name: str, setting: str, text: str) -> Any:
    """Parse a setting's value; kafka-python's default determines its type."""
    if setting in _TEXTS:
        return text
    default = KafkaProducer.DEFAULT_CONFIG.get(setting)
    if setting in _INTEGERS or type(default) in (int, float):
        if not re.fullmatch("[0-9]{1,18}", text):
            raise ConfigError(f"Kafka option {name} = {shown(text)} is not a number")
        return int(text)
    if isinstance(default, bool):
        if text.lower() not in ("true", "false"):
            raise ConfigError(f"Kafka option {name} = {shown(text)} is neither true nor false")
        return text.lower() == "true"
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
    return {
        "sasl_plain_username": values["username"],
        "sasl_plain_password": values["password"],
    }
