"""Two servers behind `sglang-router` with cache-aware routing: same answers, a conversation stays where its cache is, a server that
drains loses no request, a server that is gone is left out.
"""

import asyncio
import pathlib
import random
import subprocess
import sys
import tempfile
import time

import traffic
from asking import Client
from serving import Checks, Server, free_port, get

OPTIONS = ["--policy", "cache_aware", "--health-check-endpoint", "/health/ready", "--health-check-interval-secs", "1",
           "--health-failure-threshold", "1", "--health-success-threshold", "1", "--retry-max-retries", "5", "--log-level", "warn",
           # Routing goes by prefix until one server has this many more requests than the other.
           "--balance-abs-threshold", "8"]


class Router:
    def __init__(self, urls):
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = tempfile.TemporaryFile("w+")
        program = pathlib.Path(sys.executable).parent / "sglang-router"
        words = [program, "launch", "--host", "127.0.0.1", "--port", str(self.port), "--prometheus-host", "127.0.0.1",
                 "--prometheus-port", str(free_port()), "--worker-urls", *urls, *OPTIONS]
        self.process = subprocess.Popen(words, stdout=self.log, stderr=subprocess.STDOUT)
        end = time.monotonic() + 60
        while get(f"{self.url}/readiness", timeout=2)[0] != 200:
            if self.process.poll() is not None or time.monotonic() > end:
                self.log.seek(0)
                raise SystemExit(f"the router did not start:\n{self.log.read()}")
            time.sleep(0.1)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()


def conversation(seed, turn):
    """A growing conversation of its own; the router forwards only what OpenAI's API knows."""
    source = random.Random(seed)
    messages = [{"role": "system", "content": traffic.prose(source, 150)}]
    for _ in range(turn):
        messages += [{"role": "user", "content": traffic.prose(source, 15)}, {"role": "assistant", "content": traffic.prose(source, 20)}]
    messages.append({"role": "user", "content": traffic.prose(source, 15)})
    # The router asks for the model `unknown` where a request names none.
    return {"model": "tales-28m", "messages": messages, "max_tokens": 24, "temperature": 0.8, "seed": seed}


def answered(server):
    return server.metrics().sum("request_success_total")


async def routing(router, servers, checks):
    bodies = [conversation(seed, turn) for turn in range(4) for seed in range(8)]
    async with Client(servers[0].url) as direct:
        expected = [(await direct.ask(traffic.alone(body))).said() for body in bodies]
    before = [answered(server) for server in servers]
    async with Client(router.url) as client:
        answers = []
        for turn in range(4):
            answers += await asyncio.gather(*(client.ask(body) for body in bodies[8 * turn:8 * turn + 8]))
    wrong = [(e, a.said(), a.error) for e, a in zip(expected, answers) if a.said() != e]
    checks.that(f"{len(bodies)} answers through the router are those given directly", not wrong, str(wrong[:1]) if wrong else "")
    shares = [answered(server) - count for server, count in zip(servers, before)]
    checks.that("both servers took part", all(share > 0 for share in shares), str(shares))
    later = answers[8:]
    cached, prompt = sum(a.cached for a in later), sum(a.usage.get("prompt_tokens", 0) for a in later)
    checks.that("later turns go where the conversation's cache is", cached > 0.6 * prompt, f"{cached} of {prompt} prompt tokens cached")


async def drain(router, servers, checks):
    """One server is told to stop while requests stream; none may fail."""
    async with Client(router.url) as client:
        stop = asyncio.Event()
        answers = []

        async def worker(own):
            while not stop.is_set():
                body = {**conversation(own.randrange(1000), 1), "max_tokens": 60}
                answers.append(await client.ask(body))

        workers = [asyncio.create_task(worker(random.Random(seed))) for seed in range(8)]
        await asyncio.sleep(2)
        before = len(answers)
        code = await asyncio.to_thread(servers[1].stop)
        await asyncio.sleep(3)
        stop.set()
        await asyncio.gather(*workers)
    failed = [(answer.status, answer.error[:200]) for answer in answers if answer.status != 200 or answer.error or not answer.finish]
    checks.that("the server that was told to stop ended well", code == 0, str(code))
    checks.that(f"none of {len(answers)} requests failed during and after the drain", not failed and len(answers) > before, str(failed[:3]) if failed else "")


async def gone(router, servers, checks):
    servers_left = servers[0]
    before = answered(servers_left)
    async with Client(router.url) as client:
        answers = [await client.ask(conversation(seed, 0)) for seed in range(6)]
    checks.that("the server that is left answers all", all(a.status == 200 for a in answers) and answered(servers_left) - before == 6)


def main():
    checks = Checks("router: two servers behind sglang-router, cache-aware")
    with Server("--max-sequences", 8) as first, Server("--max-sequences", 8) as second:
        with Router([first.url, second.url]) as router:
            checks.that("the router is ready when its servers are", get(f"{router.url}/readiness")[0] == 200)
            asyncio.run(routing(router, [first, second], checks))
            asyncio.run(drain(router, [first, second], checks))
            asyncio.run(gone(router, [first, second], checks))
    checks.finish()


if __name__ == "__main__":
    main()
