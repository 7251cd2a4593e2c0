"""Hostile clients: oversized and broken bodies, header abuse, slow and idle connections. Clear 4xx, bounded memory, others served."""

import asyncio
import json
import pathlib
import resource
import socket
import time

from asking import Client
from serving import Checks, Server, get

MIB = 1 << 20
CHAT = "/v1/chat/completions"
GOOD = {"messages": [{"role": "user", "content": "Tell me a story."}], "max_tokens": 12, "temperature": 0}


def raw(server, data, wait=20.0, chunks=()):
    """Sends bytes and returns the status of the answer; 0 when the connection just ends."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=wait) as connection:
        try:
            connection.sendall(data)
            for chunk in chunks:
                connection.sendall(chunk)
        except OSError:
            pass
        answer = b""
        try:
            while b"\r\n\r\n" not in answer:
                part = connection.recv(65536)
                if not part:
                    break
                answer += part
        except ConnectionResetError:
            pass
        except TimeoutError:
            return -1, answer
    first = answer.split(b"\r\n", 1)[0].split(b" ")
    return (int(first[1]) if len(first) > 1 and first[1].isdigit() else 0), answer


def post(server, body, path=CHAT, content_type="application/json", length=None):
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = (f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {content_type}\r\nContent-Length: {len(body) if length is None else length}\r\n"
            "Connection: close\r\n\r\n").encode()
    return raw(server, head + body)[0]


def bodies(server, checks):
    def chat(**fields):
        return {**GOOD, **fields}
    cases = {
        "empty body": b"",
        "no JSON": b"hello",
        "half JSON": b'{"messages": [',
        "bad UTF-8": b'{"messages": [{"role": "user", "content": "\xff\xfe\x80"}]}',
        "lone surrogate": b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
        "deep arrays": b'{"messages": ' + b"[" * 200_000 + b"]" * 200_000 + b"}",
        "deep objects": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
        "huge number": b'{"messages": [], "temperature": 1e999}',
        "a list": b"[]",
        "no messages": {},
        "messages of another type": chat(messages="hi"),
        "role unknown": chat(messages=[{"role": "king", "content": "hi"}]),
        "an image": chat(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://127.0.0.1/x"}}]}]),
        "field unknown": chat(colour="red"),
        "temperature negative": chat(temperature=-1),
        "top_p above one": chat(top_p=7),
        "n enormous": chat(n=10**9),
        "n zero": chat(n=0),
        "max_tokens zero": chat(max_tokens=0),
        "max_tokens negative": chat(max_tokens=-5),
        "seed of another type": chat(seed="x"),
        "top_logprobs enormous": chat(logprobs=True, top_logprobs=10**6),
        "logit_bias of no token": chat(logit_bias={"99999999": 1}),
        "logit_bias of no number": chat(logit_bias={"x": 1}),
        "ten thousand stops": chat(stop=["x"] * 10_000),
        "an empty stop": chat(stop=[""]),
        "prompt over the context": chat(messages=[{"role": "user", "content": "word " * 20_000}]),
        "hundred thousand messages": chat(messages=[{"role": "user", "content": "a"}] * 100_000),
        "a schema that is none": chat(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nothing"}}}),
        "a regex that is none": chat(structured_outputs={"regex": "(["}),
        "a grammar that is none": chat(structured_outputs={"grammar": "start: ]["}),
        "speculation of another kind": chat(speculation="much"),
        "speculation enormous": chat(speculation=10**12),
    }
    for name, body in cases.items():
        began = time.monotonic()
        status = post(server, body)
        took = time.monotonic() - began
        checks.that(f"{name}: refused", 400 <= status < 500 and took < 20, f"{status} in {took:.1f} s")
    began = time.monotonic()
    status = post(server, chat(structured_outputs={"regex": "((a{1,1000}){1,1000}){1,1000}"}, max_tokens=4))
    took = time.monotonic() - began
    checks.that("a regex of a billion: an answer or a refusal, soon", status in (200, 400) and took < 20, f"{status} in {took:.1f} s")
    checks.that("another content type is refused", post(server, GOOD, content_type="text/plain") in (400, 415))
    for path in ("/nothing", "/../../etc/passwd", "/page/../../Cargo.toml", "/v1/models/nothing"):
        status = raw(server, f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())[0]
        checks.that(f"GET {path}: not there", status == 404, str(status))
    status = raw(server, f"DELETE {CHAT} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())[0]
    checks.that("another method is refused", status == 405, str(status))


def sizes(server, checks):
    before = server.rss()
    status = post(server, b"{", length=10 * 1024**3)
    checks.that("ten announced gigabytes: refused before they are sent", status == 413, str(status))
    head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    chunk = b"100000\r\n" + b" " * MIB + b"\r\n"
    status, _ = raw(server, head, chunks=(chunk for _ in range(256)))
    checks.that("a body without end: refused", status in (413, 0), str(status))
    grown = server.rss() - before
    checks.that("memory stayed small", grown < 200 * MIB, f"+{grown / MIB:.0f} MiB")


def headers(server, checks):
    def ask(lines):
        return raw(server, b"GET /health/live HTTP/1.1\r\n" + lines + b"\r\n")[0]
    cases = {
        "five thousand headers": b"Host: localhost\r\n" + b"".join(b"X-%d: y\r\n" % i for i in range(5000)),
        "a header of a megabyte": b"Host: localhost\r\nX: " + b"y" * MIB + b"\r\n",
        "a header without a colon": b"Host: localhost\r\nnonsense\r\n",
        "a zero byte": b"Host: localhost\r\nX: a\x00b\r\n",
    }
    for name, lines in cases.items():
        status = ask(lines)
        checks.that(f"{name}: refused", status in (0, 400, 431), str(status))
    for name, data in {
        "no HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 200,
        "a path of a megabyte": b"GET /" + b"a" * MIB + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "negative length": f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n".encode(),
        "two lengths": f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{{}}".encode(),
        "length and chunks": f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n".encode(),
        "a chunk of nonsense": f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n".encode(),
    }.items():
        status, _ = raw(server, data)
        checks.that(f"{name}: refused", status == 0 or 400 <= status < 500, str(status))


def idle(server, checks, count):
    before, held = server.rss(), []
    for _ in range(count):
        try:
            held.append(socket.create_connection(("127.0.0.1", server.port), timeout=2))
        except OSError:
            break
    # Half of them say a little and stop.
    for connection in held[::2]:
        try:
            connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
        except OSError:
            pass
    time.sleep(1)
    grown = server.rss() - before
    checks.that(f"{len(held)} idle connections cost little memory", grown < 100 * MIB, f"+{grown / MIB:.0f} MiB")
    status = get(f"{server.url}/health/ready", timeout=5)[0]
    checks.that("health is answered at once while they are open", status == 200, str(status))
    for connection in held:
        connection.close()
    end = time.monotonic() + 40
    status = 0
    while status != 200 and time.monotonic() < end:
        status = get(f"{server.url}/health/ready", timeout=2)[0]
    checks.that("the server answers after them", status == 200)


def trickle(server, checks):
    """A request that arrives a byte at a time must not keep its connection for ever, nor others waiting."""
    body = json.dumps(GOOD).encode()
    slow = socket.create_connection(("127.0.0.1", server.port), timeout=90)
    slow.sendall(f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode())
    began = time.monotonic()
    served = True
    ended = None
    while time.monotonic() - began < 75 and ended is None:
        try:
            slow.sendall(b" ")
            slow.settimeout(0.01)
            if slow.recv(4096) is not None:
                ended = time.monotonic() - began
        except TimeoutError:
            pass
        except OSError:
            ended = time.monotonic() - began
        served = served and get(f"{server.url}/health/ready", timeout=5)[0] == 200
        time.sleep(0.9)
    slow.close()
    checks.that("a body that trickles is ended", ended is not None, f"after {ended:.0f} s" if ended else "never")
    checks.that("others are served meanwhile", served)


def lazy_reader(server, checks):
    """A client that asks for a long stream and reads nothing."""
    before = server.rss()
    body = json.dumps({"prompt": "Once", "max_tokens": 3000, "ignore_eos": True, "stream": True}).encode()
    held = []
    for _ in range(4):
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        connection.connect(("127.0.0.1", server.port))
        connection.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        held.append(connection)
    time.sleep(3)
    status = post(server, {**GOOD, "max_tokens": 4})
    checks.that("others are answered while four readers are lazy", status == 200, str(status))
    grown = server.rss() - before
    checks.that("lazy readers cost little memory", grown < 100 * MIB, f"+{grown / MIB:.0f} MiB")
    for connection in held:
        connection.close()


def loopback_only(server, checks):
    """Nothing of the process listens beyond loopback."""
    found = []
    for table in ("tcp", "tcp6"):
        for line in pathlib.Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            address, port = fields[1].split(":")
            if fields[3] == "0A" and int(port, 16) == server.port:
                found.append(address)
    checks.that("it listens on loopback only", found == ["0100007F"], str(found))


async def good(server):
    async with Client(server.url) as client:
        return (await client.ask(GOOD)).said()


def main():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 20_000), hard))
    checks = Checks("hostile: broken, oversized, slow and idle clients")
    with Server("--max-sequences", 8) as server:
        expected = asyncio.run(good(server))
        loopback_only(server, checks)
        bodies(server, checks)
        sizes(server, checks)
        headers(server, checks)
        lazy_reader(server, checks)
        idle(server, checks, 4000)
        trickle(server, checks)
        checks.that("it still says what it said at first", asyncio.run(good(server)) == expected)
    with Server("--max-sequences", 1, key="sesame") as server:
        for key in (None, "", "sesam", "sesamee", "ü", "x" * 8000):
            request = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            if key is not None:
                request += b"Authorization: Bearer " + key.encode() + b"\r\n"
            status = raw(server, request + b"\r\n")[0]
            checks.that(f"key {key!r:.20}: refused", status in (400, 401, 431), str(status))
        checks.that("the right key opens", get(f"{server.url}/v1/models", "sesame")[0] == 200)
    checks.finish()


if __name__ == "__main__":
    main()
