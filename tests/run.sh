#!/bin/bash
# run.sh [--preset P] [--label L] [--skip-e2e]: builds toki and runs its tests, from any directory.
#
#   --preset P    dev (default), release, asan or tsan; built in build/P
#   --label L     only the tests with this ctest label (unit, net, e2e, check, ...)
#   --skip-e2e    without the tests on a real llama-server, and without fetching one
#
# Installs what is missing (tests/support/packages.sh). A llama-server and the official openai
# clients are fetched into build/parts where they can be had; the tests that need them skip loudly
# where not. Ends with ctest's own closing lines, and with what was skipped and why.
set -euo pipefail
cd "$(dirname "$0")/.."

preset=dev
label=
e2e=yes
while [ $# != 0 ]; do
  case $1 in
    --preset) preset=$2; shift 2 ;;
    --label) label=$2; shift 2 ;;
    --skip-e2e) e2e=no; shift ;;
    --help) sed -n '2,/^set /s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "run.sh: unknown option $1 (see --help)" >&2; exit 2 ;;
  esac
done

step() { printf '\n== %s\n' "$*"; }
jobs=$(nproc)
parts=$PWD/build/parts

step "packages"
tests/support/packages.sh || echo "run.sh: going on with what is there"

if [ "$e2e" = yes ]; then
  step "a real llama-server"  # before the build: an example is linked with its libllama
  mkdir -p "$parts"
  tests/support/get-llama-server.sh "$parts/llama-server" ||
    echo "not to be had: the tests with it skip"
fi

step "build preset $preset"
cmake --preset "$preset"
cmake --build --preset "$preset" -j "$jobs"

# The clients that the world uses, and a browser. Major versions are fixed, so that a new one breaks nobody's run.
get_clients() {
  tests/support/packages.sh --clients || true
  if ! "$parts/python/bin/python3" -c 'import anthropic, openai' 2>/dev/null; then
    echo "openai and anthropic for Python into build/parts/python"
    rm -rf "$parts/python"
    python3 -m venv "$parts/python" &&
      timeout 300 "$parts/python/bin/python3" -m pip install --quiet --disable-pip-version-check \
        --retries 1 'openai<4' 'anthropic<3' ||
      echo "not to be had: the test with it skips"
  fi
  if [ ! -e "$parts/node/node_modules/openai/package.json" ]; then
    echo "openai for Node.js into build/parts/node"
    mkdir -p "$parts/node"
    timeout 300 npm install --prefix "$parts/node" --no-audit --no-fund --loglevel=error \
      --fetch-retries=1 'openai@6' ||
      echo "not to be had: the test with it skips"
  fi
}

if [ "$e2e" = yes ]; then
  step "the openai clients"
  get_clients
fi

step "tests"
options=(--preset "$preset" -j "$jobs")
[ -z "$label" ] || options+=(-L "$label")
[ "$e2e" = yes ] || options+=(-LE e2e)
result=0
ctest "${options[@]}" || result=$?

log=build/$preset/Testing/Temporary/LastTest.log
reasons=$(grep -a '^SKIPPED: ' "$log" | sort | uniq -c || true)
if [ -n "$reasons" ]; then
  printf '\nskipped:\n%s\n' "$reasons"
elif [ "$e2e" = yes ]; then
  printf '\nnothing was skipped\n'
else
  printf '\nskipped: everything with a real llama-server (--skip-e2e)\n'
fi
exit $result
