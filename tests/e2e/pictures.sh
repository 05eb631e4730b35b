#!/bin/sh
# pictures.sh DIR [PRESET]: writes four PNG files of the dashboard into DIR, with the tokid and the tiny
# model of build/PRESET (dev) and the llama-server of build/parts. tests/run.sh makes all of them.
set -eu
here=$(cd "$(dirname "$0")/../.." && pwd)
build=$here/build/${2:-dev}
export TOKI_TOKID="$build/tokid/tokid" TOKI_MODEL="$build/tests/e2e/tiny.gguf" TOKI_PARTS="$here/build/parts"
exec python3 -B "$here/tests/e2e/dashboard.py" --pictures "$1"
