"""Starts and watches a real `forerun serve`: the bundled model unless a test says otherwise.

FORERUN is the program (default: target/release/forerun of this repository).
"""

import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = os.environ.get("FORERUN", str(ROOT / "target/release/forerun"))
SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(\{.*\})?\s+(\S+)")


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def get(url, key=None, timeout=10):
    """Status and body of a GET; 0 when nothing answers."""
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {key}"} if key else {})
    try:
        with urllib.request.urlopen(request, timeout=timeout) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return 0, ""


class Server:
    """A server process; as a context it is stopped gracefully at the end."""

    def __init__(self, *options, key=None, model=None, ready_within=60):
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.key = key
        self.log = tempfile.NamedTemporaryFile("w+", prefix="forerun-serve-", suffix=".log", delete=False)
        words = [PROGRAM, "serve", *([model] if model else []), "--port", str(self.port), *map(str, options)]
        environment = {**os.environ, **({"FORERUN_API_KEY": key} if key else {})}
        self.process = subprocess.Popen(words, stdout=self.log, stderr=subprocess.STDOUT, env=environment)
        self.pid = self.process.pid
        self._wait_ready(ready_within)

    def _wait_ready(self, seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise SystemExit(f"the server ended with {self.process.returncode} while starting:\n{self.said()}")
            if get(f"{self.url}/health/ready", timeout=2)[0] == 200:
                return
            time.sleep(0.05)
        self.kill()
        raise SystemExit(f"the server was not ready within {seconds} s:\n{self.said()}")

    def said(self):
        return pathlib.Path(self.log.name).read_text(errors="replace")

    def rss(self):
        """Resident bytes."""
        pages = int(pathlib.Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def open_files(self):
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def metrics(self):
        return Metrics(get(f"{self.url}/metrics", self.key)[1])

    def stop(self, within=60):
        """Asks for a graceful end and returns the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(within)

    def kill(self):
        """Ends it as a power cut would."""
        self.process.kill()
        self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            try:
                self.stop()
            except subprocess.TimeoutExpired:
                self.kill()
                raise
        self.log.close()
        os.unlink(self.log.name)


class Metrics:
    """One reading of /metrics."""

    def __init__(self, text):
        self.samples = []
        for line in text.splitlines():
            found = SAMPLE.match(line)
            if found:
                labels = dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', found[2] or ""))
                self.samples.append((found[1].removeprefix("forerun:"), labels, float(found[3])))

    def named(self, name):
        return [(labels, value) for known, labels, value in self.samples if known == name]

    def sum(self, name, **labels):
        """The sum over series of a name with these labels; a name that is not there is an error, not a zero."""
        found = [value for has, value in self.named(name) if all(has.get(k) == v for k, v in labels.items())]
        if not found and not labels:
            raise KeyError(f"/metrics has no {name}")
        return sum(found)


class Checks:
    """Prints what is checked and remembers what failed."""

    def __init__(self, title):
        self.failed = 0
        print(f"== {title}", flush=True)

    def that(self, claim, holds, detail=""):
        if not holds:
            self.failed += 1
        print(f"  {'ok    ' if holds else 'FAILED'} {claim}{f' ({detail})' if detail else ''}", flush=True)
        return holds

    def note(self, what, detail):
        """A number that is told, not judged."""
        print(f"  note   {what}: {detail}", flush=True)

    def finish(self):
        if self.failed:
            print(f"{self.failed} checks failed", flush=True)
        sys.exit(1 if self.failed else 0)


def wait_idle(server, seconds=30):
    """Waits until no request runs or waits; the metrics then."""
    end = time.monotonic() + seconds
    while True:
        metrics = server.metrics()
        busy = metrics.sum("num_requests_running") + metrics.sum("num_requests_waiting")
        if busy == 0 or time.monotonic() > end:
            return metrics
        time.sleep(0.02)


def percentile(values, part):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def show(value):
    return json.dumps(value, ensure_ascii=False)
