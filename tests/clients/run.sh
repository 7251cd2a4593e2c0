#!/usr/bin/env bash
# Released clients against `forerun serve` with the bundled model, from first request to last.
#
#   tests/clients/run.sh                    the steps marked * (about 20 seconds once they are installed)
#   tests/clients/run.sh opencode           some steps
#   tests/clients/run.sh all                every step
#
#   * llm             Simon Willison's llm: stream, whole, schema, a conversation that goes on with a tool
#   * langchain       langchain-openai: answer, stream, tool there and back, structured output
#   * openai-agents   the Agents SDK, by the chat and the responses API
#   * litellm         chat as OpenAI and as Anthropic, tools, text completions
#     aider           aider --message (700 MB)
#     opencode        opencode run, with a call of a tool (350 MB, prompts of 12,000 tokens)
#     eval-words      lm-eval with the server's completions (800 MB)
#     eval-choices    lm-eval with log-likelihoods: needs `echo` with log-probabilities
#
# Claude Code and Codex: tests/server/run.sh agents. Needs cargo, Python 3.11 and, for opencode, Node. FORERUN names a program that is
# built already. Everything installed goes to target/client-tests, from PyPI and npm, with the versions that are pinned here.
set -euo pipefail
cd "$(dirname "$0")"

root=$(cd ../.. && pwd)
CLIENTS=${CLIENTS:-${CARGO_TARGET_DIR:-$root/target}/client-tests}
usual="llm langchain openai-agents litellm"
steps=${*:-$usual}
[ "$steps" = all ] && steps="$usual aider opencode eval-words eval-choices"

if [ -z "${FORERUN:-}" ]; then
  cargo build --release --locked -p forerun-cli
  FORERUN=${CARGO_TARGET_DIR:-$root/target}/release/forerun
fi
export FORERUN CLIENTS PYTHONDONTWRITEBYTECODE=1
mkdir -p "$CLIENTS"

packages() {
  local folder=$1 list=$2
  cmp -s "$list" "$CLIENTS/$folder/$list" && return
  python3 -m venv "$CLIENTS/$folder"
  "$CLIENTS/$folder/bin/pip" install --quiet -r "$list"
  cp "$list" "$CLIENTS/$folder/$list"
}

for step in $steps; do
  case $step in
    llm | langchain | openai-agents | litellm) packages venv requirements.txt ;;
    aider) packages aider aider-requirements.txt ;;
    eval-*) packages eval eval-requirements.txt ;;
    opencode)
      if ! cmp -s package-lock.json "$CLIENTS/package-lock.json"; then
        cp package.json "$CLIENTS"
        cp package-lock.json "$CLIENTS/package-lock.json.new"
        mv "$CLIENTS/package-lock.json.new" "$CLIENTS/package-lock.json"
        (cd "$CLIENTS" && npm ci --silent --no-audit --no-fund) || { rm "$CLIENTS/package-lock.json"; exit 1; }
      fi
      ;;
    *) echo "no step is called $step" >&2; exit 2 ;;
  esac
done
# The steps are words.
# shellcheck disable=SC2086
python3 clients.py $steps
