"""Attached files, fetched from a real server that is honest, lies, stalls or sends elsewhere."""

import asyncio
import base64
import gzip

import aiohttp
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from eyas.discord.attachments import Attached, TextFile, Unread, _decoded, _NotReadError, read_attachments
from eyas.discord.settings.schema import Files

HERE = ("cdn.discordapp.com", "127.0.0.1")
FILES = Files(hosts=HERE, max_bytes=1000, timeout_s=1.0, images=True, max_image_bytes=1000)
PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256))


class Server:
    """Answers by path; `asked` are the paths that came, `sent` the bytes that left."""

    def __init__(self):
        self.asked, self.sent = [], 0
        self.bodies = {}

    async def handle(self, request):
        path = request.path
        self.asked.append(path)
        if path == "/moved":
            raise web.HTTPFound("/secret.txt")
        if path == "/gone.txt":
            raise web.HTTPNotFound
        if path == "/slow.txt":
            await asyncio.sleep(30)
        if path == "/broken.txt":
            request.transport.abort()
        if path == "/packed.txt":
            return web.Response(body=gzip.compress(b"x" * 900), headers={"Content-Encoding": "gzip"})
        if path == "/endless.txt":
            answer = web.StreamResponse()
            await answer.prepare(request)
            for _ in range(10_000):
                await answer.write(b"x" * 10_000)
                self.sent += 10_000
            return answer
        return web.Response(body=self.bodies.get(path, b"secret"))


def read(attached, files=FILES, *, bodies=None, takes_images=True):
    """What comes of files of a message; `{}` in an address is the server's."""

    async def run():
        server = Server()
        server.bodies = bodies or {}
        runner = web.AppRunner(app := web.Application(), shutdown_timeout=0.01)
        app.router.add_get("/{path:.*}", server.handle)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        place = f"127.0.0.1:{runner.addresses[0][1]}"
        ones = [Attached(name=one[0], url=one[1].format(place), num_bytes=one[2], content_type=one[3])
                for one in attached]  # fmt: skip
        async with aiohttp.ClientSession() as session:
            try:
                return await read_attachments(session, ones, files, takes_images=takes_images), server
            finally:
                await runner.cleanup()

    return asyncio.run(run())


def read_one(name="a.txt", url="http://{}/a.txt", num_bytes=10, content_type=None, **more):
    return read([(name, url, num_bytes, content_type)], **more)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"plain\r\nlines\t\xc3\xa9", "plain\r\nlines\té"),
        (b"\xef\xbb\xbfmarked", "marked"),
        ("weit é 漢".encode("utf-16"), "weit é 漢"),
        (b"\xfe\xff" + "big".encode("utf-16-be"), "big"),
        ("wide 👍".encode("utf-32"), "wide 👍"),
        (b"\x1b[31mred\x1b[0m log", "\x1b[31mred\x1b[0m log"),
        (b"", ""),
    ],
)
def test_texts(body, text):
    found, _ = read_one(bodies={"/a.txt": body})
    assert found.texts == (TextFile(name="a.txt", text=text),) and not found.unread


@pytest.mark.parametrize("name", ["A.TXT", "main.py", "x.log"])
def test_a_text_is_known_by_its_ending(name):
    assert read_one(name, bodies={"/a.txt": b"text"})[0].texts


@pytest.mark.parametrize("content_type", ["text/x-odd; charset=utf-8", "application/json"])
def test_or_by_its_type(content_type):
    assert read_one("noending", content_type=content_type, bodies={"/a.txt": b"text"})[0].texts


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"name": "song.mp3"}, "is not read: it is no text file"),
        ({"num_bytes": 1001}, "is not read: it is larger than 1000 B"),
        ({"bodies": {"/a.txt": b"x" * 1001}}, "is not read: it is larger than 1000 B"),
        ({"url": "http://{}/endless.txt"}, "is not read: it is larger than 1000 B"),
        ({"url": "http://{}/moved"}, "could not be read: Discord answered with status 302"),
        ({"url": "http://{}/gone.txt"}, "could not be read: Discord answered with status 404"),
        ({"url": "http://{}/slow.txt"}, "could not be read within 1 s"),
        ({"url": "http://{}/broken.txt"}, "could not be read: ServerDisconnectedError"),
        ({"url": "http://{}/packed.txt"}, "could not be read: it came compressed"),
        ({"bodies": {"/a.txt": b"\xff\x80\x81 latin"}}, "is not read: it is no text in UTF-8 or UTF-16"),
        ({"bodies": {"/a.txt": b"a\0b"}}, "is not read: it is a binary file"),
    ],
)
def test_what_is_not_read_is_named_with_the_reason(change, reason):
    found, server = read_one(**change)
    assert not found.texts and not found.images
    assert [str(one) for one in found.unread] == [f"{change.get('name', 'a.txt')} {reason}"]
    assert "/secret.txt" not in server.asked
    assert server.sent < 20_000_000, "it was read to its end"


def test_what_cannot_be_read_is_not_asked_for():
    for change in ({"name": "song.mp3"}, {"num_bytes": 1001}):
        assert read_one(**change)[1].asked == []


@pytest.mark.parametrize(
    "url",
    [
        "http://localhost/a.txt",
        "https://evil.example/a.txt",
        "http://cdn.discordapp.com/a.txt",
        "https://cdn.discordapp.com:8443/a.txt",
        "https://cdn.discordapp.com@evil.example/a.txt",
        "https://user@cdn.discordapp.com/a.txt",
        "https://cdn.discordapp.com.evil.example/a.txt",
        "https://[::1]/a.txt",
        "https://cdn.discordapp.com:x/a.txt",
        "file:///etc/hostname",
        "ftp://127.0.0.1/a.txt",
        "",
    ],
)
def test_other_places_are_not_asked(url):
    found, server = read_one(url=url)
    assert str(found.unread[0]).startswith("a.txt is not read: ") and server.asked == []


def test_this_machine_is_no_host_unless_it_is_named():
    found, server = read_one(files=Files())
    assert found.unread[0].reason == "is not read: it is not on Discord's attachment hosts" and server.asked == []


def test_images_go_on_as_parts_with_the_type_of_their_bytes():
    found, _ = read_one("a.jpg", content_type="image/jpeg", bodies={"/a.txt": PNG})
    (image,) = found.images
    part = image.part
    assert part["type"] == "image_url"
    kind, _, data = part["image_url"]["url"].partition(";base64,")
    assert kind == "data:image/png" and base64.b64decode(data) == PNG


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"files": Files(hosts=HERE)}, "is not read: images are off here"),
        ({"takes_images": False}, "is not read: the model takes no images"),
        ({"bodies": {"/a.txt": b"<svg/>"}}, "is not read: it is no PNG, JPEG, GIF or WebP"),
    ],
)
def test_images_that_are_not_read(more, reason):
    found, _ = read_one("a.png", content_type="image/png", **more)
    assert [one.reason for one in found.unread] == [reason]


def test_files_keep_their_order_and_those_above_the_most_are_named():
    names = [f"{number}.txt" for number in range(5)]
    files = Files(hosts=HERE, max_files=3)
    found, _ = read([(name, f"http://{{}}/{name}", 5, None) for name in names], files)
    assert [one.name for one in found.texts] == names[:3]
    assert found.unread == tuple(
        Unread(name=name, reason="is not read: at most 3 files of a message are") for name in names[3:]
    )


@given(st.binary(max_size=200))
def test_any_bytes_are_a_text_or_refused(content):
    try:
        text = _decoded(content)
    except _NotReadError:
        return
    assert "\0" not in text


@given(st.text(st.characters(exclude_categories=("Cs", "Cc"))), st.sampled_from(["utf-8", "utf-8-sig", "utf-16"]))
def test_every_text_is_read_as_it_was_written(text, encoding):
    if not text.startswith("\ufeff"):
        assert _decoded(text.encode(encoding)) == text
