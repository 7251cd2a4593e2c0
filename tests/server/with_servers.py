"""Runs a command with two servers up: FORERUN_URL open, FORERUN_KEY_URL with the key FORERUN_KEY. SERVE_OPTIONS are theirs."""

import os
import subprocess
import sys

from serving import Server

KEY = "a-key-for-tests"

if __name__ == "__main__":
    options = os.environ.get("SERVE_OPTIONS", "").split()
    with Server("--max-sequences", 8, *options) as plain, Server("--max-sequences", 2, *options, key=KEY) as locked:
        names = {"FORERUN_URL": f"{plain.url}/", "FORERUN_KEY_URL": f"{locked.url}/", "FORERUN_KEY": KEY}
        code = subprocess.run(sys.argv[1:], env={**os.environ, **names}).returncode
        alive = [server.process.poll() is None for server in (plain, locked)]
        if not all(alive):
            print(f"a server ended during the run:\n{plain.said()}\n{locked.said()}")
            code = code or 1
        stopped = [plain.stop(), locked.stop()]
        if stopped != [0, 0]:
            print(f"the servers ended with {stopped}:\n{plain.said()}\n{locked.said()}")
            code = code or 1
    sys.exit(code)
