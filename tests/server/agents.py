"""Coding agents against forerun: `claude -p` (Messages API) and `codex exec` (Responses API), as they are installed.

Each runs twice: once as it is, with everything it sends by default, and once with a call of a tool. A small model calls no tool by
itself and no client can be told to force one, so a proxy between them forces the first call, to a command that says a word. The
model writes the call, the client runs it, and the model reads the result. No request may be answered with a 4xx or 5xx.

AGENTS names the folder with both packages' node_modules.
"""

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import shapes_of_agents
from between import Between
from serving import Checks, Server

AGENTS = pathlib.Path(os.environ.get("AGENTS", "node_modules")).resolve()
CLAUDE = AGENTS / "@anthropic-ai/claude-code/cli-wrapper.cjs"
CODEX = AGENTS / "@openai/codex/bin/codex.js"
WORD = "forty-two"
SECONDS = 900


def schema(argument):
    """The one call that is allowed: a command that changes nothing."""
    return {"type": "object", "properties": {argument: {"const": f"echo {WORD}"}}, "required": [argument], "additionalProperties": False}


def force_claude(body):
    tools = [tool for tool in body.get("tools") or [] if tool.get("name") == "Bash"]
    if not tools or WORD in str(body["messages"]):
        return False
    tools[0]["input_schema"] = schema("command")
    body["tool_choice"] = {"type": "tool", "name": "Bash", "disable_parallel_tool_use": True}
    return True


def force_codex(body):
    tools = [tool for tool in body.get("tools") or [] if tool.get("name") == "exec_command"]
    if not tools or WORD in str(body["input"]):
        return False
    tools[0]["parameters"] = schema("cmd")
    body |= {"tool_choice": {"type": "function", "name": "exec_command"}, "parallel_tool_calls": False}
    return True


def claude(url, work, words):
    environment = {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_AUTH_TOKEN": "none", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1", "DISABLE_TELEMETRY": "1",
                   # A small model may repeat itself until the context is full; then its client goes on and finds no room.
                   "CLAUDE_CODE_MAX_OUTPUT_TOKENS": "512"}
    return run(["node", CLAUDE, "-p", *words], work, environment)


def codex(url, work, words):
    home = work / ".codex"
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text(f"""
model_provider = "forerun"
check_for_update_on_startup = false

[analytics]
enabled = false

[model_providers.forerun]
name = "forerun"
base_url = "{url}/v1"
wire_api = "responses"
""")
    return run(["node", CODEX, "exec", "--skip-git-repo-check", *words], work, {"CODEX_HOME": str(home)})


def run(words, work, environment):
    """Runs a client in a home of its own: none of the user's settings, keys or memory."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(work), **environment}
    began = time.monotonic()
    done = subprocess.run([str(word) for word in words], cwd=work, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS)
    return done, time.monotonic() - began


def exchange(checks, name, client, server, words, force=None, record=None):
    """One run of a client. With `force`, a call of a tool goes there and back."""
    with tempfile.TemporaryDirectory() as folder, Between(server.url, force) as between:
        done, seconds = client(between.url, pathlib.Path(folder), words)
    seen = between.seen
    asked = [noted for noted in seen if noted["method"] == "POST"]
    bad = [f"{noted['method']} {noted['path']} {noted.get('status')}: {noted.get('answer', b'')[:500]}" for noted in seen if noted.get("status", 0) not in (200, 304)]
    checks.that(f"{name}: every request of {len(seen)} is answered with 200", asked and not bad, "\n".join(bad[:3]) or f"{seconds:.0f} s")
    # A model that does not stop is cut off by the client's own limit, which the client calls an error.
    well = done.returncode == 0 or "output token maximum" in done.stdout + done.stderr
    checks.that(f"{name}: the client ends well", well, "" if done.returncode == 0 else f"{done.returncode}: {(done.stdout + done.stderr)[-1500:]}")
    checks.that(f"{name}: it prints an answer", done.stdout.strip() != "", repr(done.stdout.strip()[:80]))
    checks.note(f"{name}: ignored", asked[0].get("ignored") if asked else None)
    if force:
        forced = [noted for noted in asked if noted["forced"]]
        results = [noted for noted in asked if WORD in str(shapes_of_agents.results(noted["body"]))]
        checks.that(f"{name}: the model calls a tool, the client runs it, the model reads the result", forced and results)
    if record:
        shapes_of_agents.record(record, name, asked)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="another model than the bundled one")
    parser.add_argument("--small", action="store_true", help="leave out the one exchange of 31,000 tokens")
    parser.add_argument("--record", type=pathlib.Path, help="write the shapes of the requests to this folder")
    parser.add_argument("options", nargs="*", help="options of `forerun serve`, after --")
    options = parser.parse_args()
    few = ["--tools", "Bash,Read", "--system-prompt", "You are a helpful agent."]
    checks = Checks(f"agents: claude and codex with {options.model or 'the bundled model'}")
    settings = options.options or ["--ctx", 49152]
    with Server("--alias", "*", "--max-sequences", 2, *settings, model=options.model, ready_within=300) as server:
        if not options.small:
            exchange(checks, "claude", claude, server, ["Say hello."], record=options.record)
        # What tools it has depends on what it knows of a model's name.
        exchange(checks, "codex", codex, server, ["--model", "tales-28m", "Say hello."], record=options.record)
        exchange(checks, "codex-tool", codex, server, ["--model", "gpt-5.5", "Say the word."], force=force_codex, record=options.record)
        exchange(checks, "claude-tool", claude, server, ["Say the word.", *few], force=force_claude, record=options.record)
        checks.that("the server is still up", server.process.poll() is None)
        if checks.failed:
            print(server.said()[-3000:])
    checks.finish()


if __name__ == "__main__":
    sys.exit(main())
