"""How bodies are shown: text, mostly text and bytes, in tables and as JSON."""

import pytest

from reput.cli.show import message_json, print_details, print_messages
from store.commitlog.record import decode_message
from tests.logs.build import Message, encode

LATIN = "The order of Mr Müller was sent.".encode("latin-1")
CUT = ("text " * 20 + "世").encode()[:-1]


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        pytest.param(LATIN, r"The order of Mr M\xfcller was sent.", id="latin"),
        pytest.param(CUT, "text " * 20 + r"\xe4\xb8", id="cut off"),
        pytest.param(b"a zero byte at the end\0", r"a zero byte at the end\x00", id="zero"),
        pytest.param(b"this is twenty by\xff\xfe!", r"this is twenty by\xff\xfe!", id="a tenth"),
        pytest.param(b"this is nineteen\xff\xfe!", None, id="more"),
        pytest.param(b"\x01\x02 controls \x03\xff", None, id="controls"),
        pytest.param(bytes(10), None, id="zeros"),
    ],
)
def test_a_body_that_is_mostly_text_is_shown_as_text_and_is_hex_in_json(
    capfd: pytest.CaptureFixture[str], body: bytes, shown: str | None
) -> None:
    message, _ = decode_message(encode(Message(body=body), 0))
    print_details(message)
    *_, title, text = capfd.readouterr().out.splitlines()
    assert text == (body.hex() if shown is None else shown)
    assert ("hex" in title, r"\xNN" in title) == (shown is None, shown is not None)
    print_messages([message])
    cell = "0x" + body.hex() if shown is None else shown
    assert cell[:59] in capfd.readouterr().out
    found = message_json(message)
    assert (found["body_encoding"], found["body"]) == ("hex", body.hex())


@pytest.mark.parametrize("body", [b"", b"plain", "Grüße 世界".encode(), b"\x1b[31m\x01\x02"])
def test_utf_8_without_zeros_is_text_whatever_its_content(
    capfd: pytest.CaptureFixture[str], body: bytes
) -> None:
    message, _ = decode_message(encode(Message(body=body), 0))
    print_details(message)
    assert f"body, {len(body)} bytes, utf-8\n" in capfd.readouterr().out
    found = message_json(message)
    assert (found["body_encoding"], found["body"]) == ("utf-8", body.decode())
