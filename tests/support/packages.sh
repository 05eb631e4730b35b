#!/bin/sh
# packages.sh [--dev] [--clients]: installs what the build and the tests need, from Debian's
# packages (Debian 12).
#
#   (nothing)   compiler, CMake, libraries: enough to build and to run the C++ tests
#   --dev       and what .ci/run needs: clang 14 with its format and tidy tools, abidiff, Doxygen; gcovr
#               for tests/coverage.sh
#   --clients   and Node.js with npm, for the tests with the official openai client, and Chromium,
#               for the tests of the dashboard; one that is there already, wherever from, is never
#               touched
#
# Says what it installs, uses sudo when it is not root, and does nothing when everything is there.
set -eu

wanted="build-essential cmake ninja-build ccache pkg-config git ca-certificates curl
  python3 python3-venv libboost1.81-dev libfmt-dev libsimdjson-dev libsqlitecpp-dev libsqlite3-dev
  libspdlog-dev libcli11-dev libtomlplusplus-dev libssl-dev openssl libxxhash-dev libhnswlib-dev catch2 libbenchmark-dev"
clients=
browser=
for option in "$@"; do
  case $option in
    --dev) wanted="$wanted clang-14 clang-format-14 clang-tidy-14 libclang-rt-14-dev llvm-14 abigail-tools doxygen gcovr" ;;
    --clients) clients="nodejs npm" browser="chromium" ;;
    *) echo "usage: packages.sh [--dev] [--clients]" >&2; exit 2 ;;
  esac
done
if [ -n "$clients" ] && ! { command -v node && command -v npm; } >/dev/null; then
  wanted="$wanted $clients"
fi
if [ -n "$browser" ] && ! { command -v chromium || command -v google-chrome; } >/dev/null; then
  wanted="$wanted $browser"
fi

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  echo "packages: not a Debian machine; install the equivalents of:" $wanted >&2
  exit 1
fi

missing=
for package in $wanted; do
  status=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
  [ "$status" = installed ] || missing="$missing $package"
done
if [ -z "$missing" ]; then
  echo "packages: everything is there"
  exit 0
fi

sudo=
if [ "$(id -u)" != 0 ]; then
  command -v sudo >/dev/null || { echo "packages: needs root to install:$missing" >&2; exit 1; }
  sudo="sudo"
fi
echo "packages: installing:$missing"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
install() {
  # shellcheck disable=SC2086
  $sudo env DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends $missing \
    </dev/null >>"$log" 2>&1
}
# A list that is up to date saves the update; the second try is for mirrors that answer badly now
# and then.
if ! install; then
  $sudo apt-get update >>"$log" 2>&1 || true
  if ! install && ! install; then
    tail -n 20 "$log" >&2
    echo "packages: could not install:$missing" >&2
    exit 1
  fi
fi
echo "packages: done"
