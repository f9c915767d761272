"""One message for each kind of record that a broker writes."""

from tests.logs.build import COMMIT, PREPARED, ROLLBACK, Message, encode_properties

IPV6 = bytes(range(1, 17))
TAGS = [("TAGS", "A")]
KEYS_AND_TAGS = [("KEYS", "k1"), *TAGS]
RECORD_KINDS: dict[str, Message] = {
    "all": Message("T", properties=[("UNIQ_KEY", "U"), ("KEYS", "k1 k2"), *TAGS]),
    "tags": Message("T", properties=TAGS),
    "keys": Message("T", properties=[("KEYS", "k1 k2")]),
    "no last separator": Message("T", properties=encode_properties(TAGS, trailing=False)),
    "no properties": Message("T"),
    "no body": Message("T", body=b"", properties=TAGS),
    "no body, no properties": Message("T", body=b""),
    "V2": Message("t" * 130, properties=TAGS),
    "V2, short topic": Message("T", is_v2=True, properties=TAGS),
    "born on IPv6": Message("T", born_host=IPV6, properties=TAGS),
    "stored on IPv6": Message("T", store_host=IPV6, properties=TAGS),
    "V2 and IPv6, no body": Message(
        "T", is_v2=True, born_host=IPV6, store_host=IPV6, body=b"", properties=TAGS
    ),
    "prepared": Message("T", sys_flag=PREPARED, properties=KEYS_AND_TAGS),
    "committed": Message("T", sys_flag=COMMIT, properties=KEYS_AND_TAGS),
    "rolled back": Message("T", sys_flag=ROLLBACK, properties=KEYS_AND_TAGS),
    "scheduled": Message("SCHEDULE_TOPIC_XXXX", queue_id=2, properties=[("DELAY", "3"), *TAGS]),
}
