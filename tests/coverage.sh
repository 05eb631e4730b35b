#!/bin/bash
# coverage.sh [--no-build] [--no-tests] [--write]: line coverage of libtoki by the unit, model, net
# and fuzz corpus tests, and whether every public function is called by one of them.
#
#   --no-build   measures what is built in build/coverage
#   --no-tests   reports what an earlier run measured
#   --write      also writes docs/coverage.md: what is not run, function by function, and why
#
# Fails when a test fails, when less than 90 % of the lines of libtoki/ and include/toki/ are run,
# or when a function that the library exports, or that stands in a public header, is never called.
#
# Not a part of .ci/run: the library's objects are built once more (five minutes of one core; the rest comes
# from the compiler cache), its tests take as long again without optimisation, and what comes of it is a figure
# that moves slowly. Run it before a release and after larger changes. Tests on a real llama-server are left
# out: what only they reach is reached on one machine and not on the next.
set -euo pipefail
cd "$(dirname "$0")/.."

build=yes
tests=yes
report=()
while [ $# != 0 ]; do
  case $1 in
    --no-build) build=no ;;
    --no-tests) build=no tests=no ;;
    --write) report+=(--write docs/coverage.md) ;;
    --help) sed -n '2,/^set /s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "coverage.sh: unknown option $1 (see --help)" >&2; exit 2 ;;
  esac
  shift
done
command -v gcovr >/dev/null || { echo "coverage.sh: no gcovr; tests/support/packages.sh --dev" >&2; exit 1; }

out=build/coverage
jobs=$(nproc)
if [ "$build" = yes ]; then
  cmake --preset coverage >/dev/null
  cmake --build --preset coverage -j "$jobs"
fi

# What is inline in a public header and that nobody calls is in no object file: here it is, with a
# count of 0.
headers=$out/public_headers
mkdir -p "$headers"
if [ "$build" = yes ]; then
  (cd include && printf '#include <%s>\n' toki/*.hpp toki/http/*.hpp) >"$headers/all.cpp"
  echo 'template class toki::Result<int>;' >>"$headers/all.cpp"
  c++ -std=c++20 -O0 -g1 --coverage -fkeep-inline-functions \
    '-fprofile-filter-files=.*/include/toki/.*' -Iinclude -DBOOST_ASIO_SEPARATE_COMPILATION \
    -DBOOST_BEAST_SEPARATE_COMPILATION -DBOOST_ASIO_NO_DEPRECATED -c "$headers/all.cpp" -o "$headers/all.o"
fi

if [ "$tests" = yes ]; then
  find "$out" -name '*.gcda' -delete
  ctest --preset coverage -j "$jobs" -LE 'e2e|check|slow'
fi

gcovr --root . --filter include/toki/ --filter libtoki/ --json "$out/coverage.json" -j "$jobs" "$out"
python3 -B tests/support/coverage_report.py "$out/coverage.json" --least 90 "${report[@]}" \
  $(find "$out/libtoki" -name '*.a')
