"""Runs schemathesis on the OpenAPI document of a server with a small context, so that every answer is short."""

import argparse
import pathlib
import subprocess
import sys
import tempfile

from serving import Checks, Server


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checks", required=True)
    parser.add_argument("--examples", type=int, default=25)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    checks = Checks("schema: generated requests against /openapi.json")
    program = pathlib.Path(sys.executable).parent / "schemathesis"
    with Server("--max-sequences", 4, "--ctx", 128) as server:
        # One worker: threads that generate deep data at the same time trip over each other in CPython 3.11.
        words = [program, "run", f"{server.url}/openapi.json", "--checks", options.checks, "--phases", "examples,coverage,fuzzing",
                 "--max-examples", str(options.examples), "--seed", str(options.seed), "--request-timeout", "60", "--workers", "1",
                 "--suppress-health-check", "all", "--warnings", "off"]
        # Schemathesis keeps what it found in the folder where it runs.
        with tempfile.TemporaryDirectory() as folder:
            code = subprocess.run(words, cwd=folder).returncode
        checks.that("no 5xx and no breach of the schema", code == 0)
        checks.that("the server is still up", server.process.poll() is None)
    checks.finish()


if __name__ == "__main__":
    main()
