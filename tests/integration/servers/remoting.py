"""A few requests in RocketMQ's remoting protocol, so that a request to a server needs no JVM.

A frame is its length, the header's length (highest byte 0: JSON), the header, the body.
"""

import itertools
import json
import socket
import struct
from typing import Any

SUCCESS = 0
TOPIC_NOT_EXIST = 17
UPDATE_AND_CREATE_TOPIC = 17
UPDATE_BROKER_CONFIG = 25
GET_MAX_OFFSET = 30
GET_ROUTE_INFO_BY_TOPIC = 105
GET_PRODUCER_CONNECTION_LIST = 204
DELETE_EXPIRED_COMMIT_LOG = 329

_FRAME = struct.Struct(">II")
_opaque = itertools.count(1)


def request(
    address: str, code: int, fields: dict[str, Any], body: bytes = b""
) -> tuple[dict[str, Any], bytes]:
    """Send one request and return the header and body of the response; raises OSError."""
    header = {
        "code": code,
        "language": "PYTHON",
        "version": 0,
        "opaque": next(_opaque),
        "flag": 0,
        "extFields": {name: _text(value) for name, value in fields.items()},
    }
    data = json.dumps(header).encode()
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(_FRAME.pack(4 + len(data) + len(body), len(data)) + data + body)
        length, header_length = _FRAME.unpack(_read(connection, _FRAME.size))
        answer = _read(connection, length - 4)
    header_length &= 0xFFFFFF
    return json.loads(answer[:header_length]), answer[header_length:]


def is_routable(name_server: str, topic: str, broker_name: str) -> bool:
    """Return whether the name server has a route from a topic to a broker."""
    try:
        header, body = request(name_server, GET_ROUTE_INFO_BY_TOPIC, {"topic": topic})
    except OSError:
        return False
    return header["code"] == SUCCESS and broker_name.encode() in body


def make_topic(broker: str, topic: str, queues: int) -> None:
    """Create a topic on a broker, or change its number of queues."""
    fields = {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": queues,
        "writeQueueNums": queues,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0,
        "order": False,
    }
    header, _ = request(broker, UPDATE_AND_CREATE_TOPIC, fields)
    assert header["code"] == SUCCESS, header


def max_offset(broker: str, topic: str, queue_id: int) -> int:
    """Return the offset that a queue's next message will get."""
    fields = {"topic": topic, "queueId": queue_id}
    header, _ = request(broker, GET_MAX_OFFSET, fields)
    assert header["code"] == SUCCESS, header
    return int(header["extFields"]["offset"])


def has_producer(broker: str, group: str) -> bool:
    """Return whether a producer of a group is connected to a broker."""
    header, _ = request(broker, GET_PRODUCER_CONNECTION_LIST, {"producerGroup": group})
    return bool(header["code"] == SUCCESS)


def set_broker_option(broker: str, name: str, value: str) -> None:
    """Change a setting of a running broker, which also writes it to its broker.conf."""
    header, _ = request(broker, UPDATE_BROKER_CONFIG, {}, f"{name}={value}\n".encode())
    assert header["code"] == SUCCESS, header


def delete_expired_commit_log(broker: str) -> None:
    """Make a broker delete the expired files of its commit log now."""
    header, _ = request(broker, DELETE_EXPIRED_COMMIT_LOG, {})
    assert header["code"] == SUCCESS, header


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _read(connection: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        more = connection.recv(count - len(data))
        if not more:
            raise ConnectionError("the server closed the connection")
        data += more
    return bytes(data)
