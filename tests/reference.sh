#!/bin/bash
# reference.sh [DIR]: makes the API reference (HTML, below DIR; nothing is kept without one) from the
# comments of the public headers. A public name without a comment is an error. Exit 77 (skip) without
# Doxygen.
#
# Before that it plants names without a comment in a copy of one header and checks that each is found.
set -euo pipefail
cd "$(dirname "$0")/.."

if ! command -v doxygen >/dev/null; then
  echo "SKIPPED: no doxygen (tests/support/packages.sh --dev installs it)"
  exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
TOKI_VERSION=$(awk '/#define TOKI_VERSION_/ {printf "%s%s", dot, $3; dot = "."}' include/toki/version.hpp)
export TOKI_VERSION

make_of() {  # INPUT...: the reference of these, in TOKI_REFERENCE; what is wrong goes to $work/errors
  { cat docs/Doxyfile; echo "INPUT = docs/reference.dox $*"; } >"$work/Doxyfile"
  doxygen "$work/Doxyfile" >"$work/output" 2>"$work/errors"
}

export TOKI_REFERENCE=$work/planted
planted=0
plant() {  # BEFORE LINE: the line goes before the first that begins so; it must be found
  mkdir -p "$work/planted"
  awk -v before="$1" -v line="$2" 'index($0, before) == 1 && !done { print line; done = 1 } { print }' \
    include/toki/slot_pool.hpp >"$work/planted/slot_pool.hpp"
  if make_of "$work/planted" || ! grep -q "planted.*is not documented" "$work/errors"; then
    echo "reference self-test: '$2' is not found"
    exit 1
  fi
  planted=$((planted + 1))
}
plant '/// One slot of one backend' 'void planted();'
plant '/// One slot of one backend' 'struct planted { int a = 0; };'
plant '/// One slot of one backend' 'using planted = int;'
plant '/// One slot of one backend' 'enum class planted { a };'
plant '  std::uint32_t backend' '  int planted = 0;'
plant ' private:' '  void planted() const;'

export TOKI_REFERENCE=${1:-$work/reference}
mkdir -p "$TOKI_REFERENCE"
if ! make_of include/toki; then
  sed "s|^$PWD/||" "$work/errors"
  echo "reference: every public name needs a comment: its contract, not its name again"
  exit 1
fi
echo "reference: every public name has a comment ($planted planted ones without were found)"
