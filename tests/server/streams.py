"""Many streams read by one light client, so that what is measured is the server.

A stream is asked for with `stream: true` and read to its end, but its events are looked at only then: on a machine of few
cores a client that parses each event as it comes takes as much of them as the server does.
"""

import http.client
import io
import json
import selectors
import socket
import time

# A socket wakes the client when so much lies there, or when it was closed: about every twentieth event.
WAKE_BYTES = 4096


class Kept:
    """A response that has arrived, for `http.client` to take apart."""

    def __init__(self, data):
        self.data = data

    def makefile(self, *_):
        return io.BytesIO(self.data)


def opened(address, path, body):
    body = json.dumps({**body, "stream": True, "stream_options": {"include_usage": True}}).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: {address[0]}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
    stream = socket.create_connection(address)
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, WAKE_BYTES)
    stream.sendall(head.encode() + body)
    stream.setblocking(False)
    return stream


def tokens_of(data):
    """Tokens of an answer, and the number of events it came in; an end to the test where there is none."""
    response = http.client.HTTPResponse(Kept(data))
    response.begin()
    text = response.read().decode()
    events = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
    if response.status != 200 or not events or events[-1] != "[DONE]":
        raise SystemExit(f"no answer ({response.status}): {text[-500:]}")
    return json.loads(events[-2])["usage"]["completion_tokens"], len(events)


def rate(port, path, bodies):
    """Tokens per second of one stream for each body, all at once, from the first request to the last end."""
    address, arrived = ("127.0.0.1", port), {}
    began = time.monotonic()
    with selectors.DefaultSelector() as selector:
        for body in bodies:
            stream = opened(address, path, body)
            arrived[stream] = []
            selector.register(stream, selectors.EVENT_READ)
        while selector.get_map():
            for key, _ in selector.select():
                data = key.fileobj.recv(1 << 16)
                arrived[key.fileobj].append(data)
                if not data:
                    selector.unregister(key.fileobj)
                    key.fileobj.close()
    took = time.monotonic() - began
    found = [tokens_of(b"".join(parts)) for parts in arrived.values()]
    if any(events < tokens / 16 for tokens, events in found):
        raise SystemExit(f"not streamed: tokens and events were {found}")
    return sum(tokens for tokens, _ in found) / took
