"""Soak: thousands of mixed requests, a third of them cancelled. Memory is flat after warm-up, nothing leaks, cancels free quickly.

Leaks are looked for in the server's own counters: requests, blocks and slots are at zero when it is idle.
"""

import argparse
import asyncio
import random
import statistics
import time

import traffic
from asking import Client
from serving import Checks, Server, percentile, wait_idle

MIB = 1 << 20
HELD = ("num_requests_running", "num_requests_waiting", "kv_blocks_used", "slots_used")


async def mixed(server, options, readings):
    source = random.Random(options.seed)
    left = options.requests
    failed = []

    async def worker(client, own):
        nonlocal left
        while left > 0:
            left -= 1
            if left % 50 == 0:
                readings.append(server.rss())
            path, body = traffic.request(own)
            cancel = own.randrange(0, 12) if own.random() < 1 / 3 else None
            answer = await client.ask(body, path, cancel)
            if answer.error or answer.status != 200:
                failed.append((answer.status, answer.error[:200]))

    async with Client(server.url) as client:
        await asyncio.gather(*(worker(client, random.Random(source.random())) for _ in range(options.clients)))
    return failed


async def running(server, request):
    """Waits until the request is being worked on; false if it ended first."""
    while server.metrics().sum("slots_used") == 0:
        if request.done():
            return False
        await asyncio.sleep(0.002)
    return True


async def cancel_to_free(server, rounds):
    """Seconds from hanging up during a long prefill to nothing held."""
    source, took = random.Random(5), []
    async with Client(server.url) as client:
        for _ in range(rounds):
            prompt = traffic.prose(source, 3000)
            request = asyncio.create_task(client.ask({"prompt": prompt, "max_tokens": 50, "cache_prompt": False}, "/v1/completions"))
            if not await running(server, request):
                continue
            await asyncio.sleep(0.1 * source.random())
            began = time.monotonic()
            request.cancel()
            await asyncio.gather(request, return_exceptions=True)
            while True:
                metrics = server.metrics()
                if all(metrics.sum(name) == 0 for name in HELD):
                    break
                if time.monotonic() - began > 30:
                    raise SystemExit("a cancelled request was still held after 30 s")
                await asyncio.sleep(0.002)
            took.append(time.monotonic() - began)
    return took


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--cancels", type=int, default=100, help="rounds of the cancel test")
    parser.add_argument("--seed", type=int, default=3)
    options = parser.parse_args()
    checks = Checks(f"soak: {options.requests} mixed requests, a third cancelled")
    with Server("--max-sequences", 16, "--queue", 512, "--cache", 64) as server:
        files = server.open_files()
        readings, began = [], time.monotonic()
        failed = asyncio.run(mixed(server, options, readings))
        print(f"  {options.requests} requests in {time.monotonic() - began:.0f} s")
        checks.that("no request failed", not failed, str(failed[:3]) if failed else "")
        metrics = wait_idle(server)
        for name in HELD:
            checks.that(f"{name} is zero when idle", metrics.sum(name) == 0, str(metrics.sum(name)))
        held, limit = metrics.sum("prefix_cache_bytes", tier="memory"), metrics.sum("prefix_cache_limit_bytes", tier="memory")
        checks.that("the cache is full and within its limit", 0.5 * limit < held <= limit == 64 * MIB, f"{held / MIB:.1f} of {limit / MIB:.0f} MiB")
        part = len(readings) // 4
        early, late = statistics.median(readings[part:2 * part]), statistics.median(readings[-part:])
        checks.that("resident memory is flat after warm-up", late - early < 16 * MIB, f"{early / MIB:.0f} -> {late / MIB:.0f} MiB")
        checks.that("no connection or file is left open", server.open_files() <= files + 4, f"{files} -> {server.open_files()}")
        took = asyncio.run(cancel_to_free(server, options.cancels))
        checks.that("most cancels met a prefill", len(took) > options.cancels // 2, f"{len(took)} of {options.cancels}")
        checks.that("cancel to free during a long prefill, p99 under 250 ms", percentile(took, 0.99) < 0.25,
                    f"p50 {1e3 * percentile(took, 0.5):.0f} ms, p99 {1e3 * percentile(took, 0.99):.0f} ms")
    checks.finish()


if __name__ == "__main__":
    main()
