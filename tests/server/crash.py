"""Power cuts: the server is killed while it writes its disk cache. After each restart every answer is right, and what had been
written before is found again.
"""

import argparse
import asyncio
import pathlib
import random
import tempfile

import traffic
from asking import Client
from serving import Checks, Server

MIB = 1 << 20


def body(index):
    source = random.Random(index)
    return {"prompt": traffic.prose(source, 300 + index % 7 * 40), "max_tokens": 12, "temperature": 0, "ignore_eos": True}


def options_for(folder):
    return ("--max-sequences", 4, "--cache", 8, "--cache-dir", folder, "--cache-disk", 512)


async def ask_all(server, indices, alone=False):
    async with Client(server.url) as client:
        return [await client.ask(traffic.alone(body(i)) if alone else body(i), "/v1/completions") for i in indices]


async def write_until_killed(server, source, first, most):
    """Asks one new prompt after another and kills the server at a moment of its own choice; the last prompt asked."""
    async with Client(server.url) as client:
        async def ask():
            for index in range(first, first + most):
                await client.ask(body(index), "/v1/completions")
        asking = asyncio.create_task(ask())
        await asyncio.sleep(0.2 + source.random() * 1.3)
        server.kill()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=6)
    options = parser.parse_args()
    checks = Checks("crash: kill -9 while the disk cache is written")
    source = random.Random(11)
    known = list(range(6))
    with tempfile.TemporaryDirectory(prefix="forerun-cache-") as folder:
        with Server(*options_for(folder)) as server:
            expected = asyncio.run(ask_all(server, known, alone=True))
            asyncio.run(ask_all(server, known))
        written = sum(f.stat().st_size for f in pathlib.Path(folder).rglob("*") if f.is_file())
        checks.that("a graceful end leaves entries on disk", written > 0, f"{written / MIB:.1f} MiB")
        for number in range(options.rounds):
            with Server(*options_for(folder)) as server:
                again = asyncio.run(ask_all(server, known))
                right = all(a.said() == e.said() for a, e in zip(again, expected))
                checks.that(f"restart {number}: answers are right", right)
                cached = [a.cached for a in again]
                checks.that(f"restart {number}: what was written is found", all(cached), str(cached))
                asyncio.run(write_until_killed(server, source, 100 * (number + 1), 60))
        with Server(*options_for(folder)) as server:
            late = list(range(100, 100 * (options.rounds + 1), 100))
            cold, warm = asyncio.run(ask_all(server, late, alone=True)), asyncio.run(ask_all(server, late))
            checks.that("answers from what the killed servers wrote are right", all(a.said() == b.said() for a, b in zip(cold, warm)),
                        f"cached {[a.cached for a in warm]}")
    checks.finish()


if __name__ == "__main__":
    main()
