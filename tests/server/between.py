"""A proxy between a client and a server: notes every request, and can force the first call of a tool."""

import http.client
import json
import threading
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

# What belongs to one connection is not passed on.
HOP = {"connection", "content-length", "host", "keep-alive", "transfer-encoding"}


def ignored(notes):
    """The list of ignored fields, which is the first note of a response."""
    first = (notes or "").split("; ")[0]
    return first.removeprefix("ignored: ") if first.startswith("ignored: ") else None


class Between:
    """As a context it listens at `url`. `force(body)` may change the body of a request and says whether it did."""

    def __init__(self, url, force=None):
        self.upstream = urllib.parse.urlsplit(url)
        self.force = force
        self.seen = []
        between = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def pass_on(self):
                between.pass_on(self)

            do_GET = do_HEAD = do_POST = pass_on

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def pass_on(self, handler):
        length = int(handler.headers.get("content-length") or 0)
        data = handler.rfile.read(length)
        body = json.loads(data) if data else None
        noted = {"method": handler.command, "path": handler.path, "headers": dict(handler.headers.items()), "body": body, "forced": False}
        self.seen.append(noted)
        if body is not None and self.force:
            changed = json.loads(data)
            noted["forced"] = bool(self.force(changed))
            data = json.dumps(changed).encode()
        headers = {name: value for name, value in handler.headers.items() if name.lower() not in HOP}
        upstream = http.client.HTTPConnection(self.upstream.hostname, self.upstream.port, timeout=900)
        try:
            upstream.request(handler.command, handler.path, data or None, {**headers, "Content-Length": str(len(data))})
            response = upstream.getresponse()
            noted["status"], noted["ignored"] = response.status, ignored(response.headers.get("x-forerun-notes"))
            noted["answer"] = b""
            handler.send_response(response.status)
            for name, value in response.getheaders():
                if name.lower() not in HOP:
                    handler.send_header(name, value)
            handler.send_header("connection", "close")
            handler.end_headers()
            while piece := response.read1(1 << 16):
                noted["answer"] += piece
                handler.wfile.write(piece)
                handler.wfile.flush()
        except (BrokenPipeError, ConnectionResetError):
            # The client hung up, which it may.
            noted["hung_up"] = True
        finally:
            handler.close_connection = True
            upstream.close()

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()
