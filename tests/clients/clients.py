"""Programs that people point at an OpenAI-compatible server, as they are released, against `forerun serve`.

Each talks to the server through a proxy that notes every request. No request may be answered with a 4xx or 5xx, each stream ends as
its protocol ends streams, and where a client has tools, a call goes there and back.

CLIENTS names the folder that run.sh installs into.
"""

import argparse
import json
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "server"))

from between import Between  # noqa: E402
from serving import ROOT, Checks, Server  # noqa: E402

CLIENTS = pathlib.Path(os.environ.get("CLIENTS", ROOT / "target/client-tests")).resolve()
GUIDES = ROOT / "docs/guides"
PYTHON = CLIENTS / "venv/bin/python"
MODEL = "tales-28m"
WORD = "forty-two"
# The end of a stream: OpenAI's chat and completions, OpenAI's responses, Anthropic's messages.
ENDS = (b"data: [DONE]\n\n", b"event: response.completed", b"event: response.incomplete", b"event: message_stop")


def run(words, work, seconds=300, **environment):
    """Runs a client in a home of its own: none of the user's settings, keys or memory, and nothing outside this machine."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    environment = {**kept, "HOME": str(work), "NO_PROXY": "*", "OPENAI_API_KEY": "none", **environment}
    return subprocess.run([str(word) for word in words], cwd=work, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds)


def recipe(page, language):
    """The first block of that language on a page of docs/guides: what the guide tells people to paste is what runs here."""
    text = (GUIDES / page).read_text()
    return text.split(f"```{language}\n", 1)[1].split("```", 1)[0]


def pasted(text, url):
    return text.replace("http://127.0.0.1:8080", url)


def script(name):
    return lambda url, work: run([PYTHON, HERE / f"with_{name}.py", url], work)


def llm(url, work):
    (work / "extra-openai-models.yaml").write_text(pasted(recipe("llm.md", "yaml"), url).replace("model_name: forerun", f"model_name: {MODEL}"))
    schema = json.dumps({"type": "object", "properties": {"seats": {"type": "integer", "maximum": 9}}, "required": ["seats"], "additionalProperties": False})
    asked = [["I want to book a table.", "-o", "max_tokens", "40"], ["A table.", "--no-stream", "-o", "max_tokens", "40"], ["A table.", "--schema", schema], ["-c", "And then?", "-T", "llm_time", "-o", "max_tokens", "40"]]
    for words in asked:
        done = run([CLIENTS / "venv/bin/llm", "-m", "forerun", *words], work, LLM_USER_PATH=str(work))
        if done.returncode or not done.stdout.strip():
            done.returncode = done.returncode or 1
            return done
    return done


def aider(url, work):
    (work / "hello.py").write_text("print('hello')\n")
    words = shlex.split(recipe("aider.md", "sh").splitlines()[-1])
    environment = {line.removeprefix("export ").split("=")[0]: pasted(line.split("=", 1)[1], url) for line in recipe("aider.md", "sh").splitlines() if line.startswith("export ")}
    # What asks the world outside, and what asks the person.
    quiet = ["--no-git", "--yes-always", "--no-check-update", "--no-show-model-warnings", "--analytics-disable", "--no-pretty", "--map-tokens", "0", "--edit-format", "ask"]
    return run([CLIENTS / "aider/bin" / words[0], *words[1:], *quiet, "--message", "Say hello.", "hello.py"], work, **environment)


def opencode(url, work):
    config = json.loads(pasted(recipe("opencode.md", "json"), url))
    [provider] = config["provider"].values()
    provider["models"]["forerun"]["limit"]["output"] = 256
    (work / "opencode.json").write_text(json.dumps(config))
    quiet = {"OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_AUTOUPDATE": "1"}
    return run([CLIENTS / "node_modules/.bin/opencode", "run", "Say the word."], work, seconds=600, **quiet)


def force_opencode(body):
    """A small model calls no tool by itself: its first call is forced, to a command that says a word."""
    tools = [tool for tool in body.get("tools") or [] if tool["function"]["name"] == "bash"]
    if not tools or WORD in str(body["messages"]):
        return False
    properties = {"command": {"const": f"echo {WORD}"}}
    tools[0]["function"]["parameters"] = {"type": "object", "properties": properties, "required": ["command"], "additionalProperties": False}
    body |= {"tool_choice": {"type": "function", "function": {"name": "bash"}}, "parallel_tool_calls": False}
    return True


def evaluation(task):
    def evaluate(url, work):
        (work / "choices.jsonl").write_text("".join(json.dumps(choice) + "\n" for choice in CHOICES))
        (work / f"{task}.yaml").write_text((HERE / f"{task}.yaml").read_text().replace("choices.jsonl", str(work / "choices.jsonl")))
        about = f"model={MODEL},base_url={url}/v1/completions,tokenizer={ROOT / 'models/tales-28m'},max_length=4096,num_concurrent=1,max_retries=1"
        words = [CLIENTS / "eval/bin/lm_eval", "run", "--model", "local-completions", "--model_args", about, "--tasks", task, "--include_path", work]
        return run(words, work, HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1")

    return evaluate


CHOICES = [
    {"text": "Once upon a", "choices": [" time", " xylophone"], "label": 0},
    {"text": "The king had three", "choices": [" sons", " bicycles"], "label": 0},
    {"text": "She went into the", "choices": [" gigabyte", " wood"], "label": 1},
]
STEPS = {
    "llm": (llm, None),
    "langchain": (script("langchain"), None),
    "openai-agents": (script("openai_agents"), None),
    "litellm": (script("litellm"), None),
    "aider": (aider, None),
    "opencode": (opencode, force_opencode),
    "eval-words": (evaluation("tales_words"), None),
    "eval-choices": (evaluation("tales_choices"), None),
}


def exchange(checks, name, server):
    client, force = STEPS[name]
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, Between(server.url, force) as between:
        done = client(between.url, pathlib.Path(folder))
    asked = [noted for noted in between.seen if noted["method"] == "POST"]
    bad = [f"{noted['path']} {noted.get('status')}: {noted.get('answer', b'')[:300]}" for noted in between.seen if noted.get("status", 0) != 200]
    checks.that(f"{name}: every request of {len(between.seen)} is answered with 200", asked and not bad, "\n".join(bad[:3]) or f"{time.monotonic() - began:.1f} s")
    cut = [noted["path"] for noted in asked if noted["body"].get("stream") and not any(end in noted["answer"][-4000:] for end in ENDS) and not noted.get("hung_up")]
    checks.that(f"{name}: every stream is complete", not cut, cut)
    said = done.stdout.strip()
    checks.that(f"{name}: it ends well and prints an answer", done.returncode == 0 and said, (done.stdout + done.stderr)[-1500:] if done.returncode else repr(said[-100:]))
    checks.note(f"{name}: ignored", sorted({noted["ignored"] for noted in asked if noted.get("ignored")}) or None)
    if force:
        forced = any(noted["forced"] for noted in asked)
        results = any(message["role"] == "tool" and WORD in str(message["content"]) for noted in asked for message in noted["body"]["messages"])
        checks.that(f"{name}: the model calls a tool, the client runs it, the model reads the result", forced and results)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="another model than the bundled one")
    parser.add_argument("steps", nargs="*", choices=[*STEPS, []], help="clients; all of them by default")
    options = parser.parse_args()
    checks = Checks(f"clients of {options.model or 'the bundled model'}")
    long = ["--rope-scale", 8] if not options.model else []
    with Server("--alias", "*", "--max-sequences", 2, "--ctx", 32768, *long, model=options.model, ready_within=300) as server:
        for name in options.steps or STEPS:
            exchange(checks, name, server)
        checks.that("the server is still up", server.process.poll() is None)
        if checks.failed:
            print(server.said()[-2000:])
    checks.finish()


if __name__ == "__main__":
    sys.exit(main())
