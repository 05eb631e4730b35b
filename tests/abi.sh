#!/bin/bash
# abi.sh BUILD_DIR: compares the shared library's ABI with the one of the last release, the last tag v*
# behind HEAD. Before 1.0 it reports; from 1.0 on a break fails, unless the soname is another one or
# libtoki/abi/suppressions.ini says why it is none. Both libraries are built for it below BUILD_DIR/abi, with
# full debug information; a release is built once.
#
# abi.sh --self-test: on a tiny library, that what is no break passes and that breaks are found.
#
# The rule is abidiff's exit status with --no-added-syms: 0 is right. Without that option a new function is a
# change as well, and its bit for "incompatible" stays clear even for a broken vtable.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
command -v abidiff >/dev/null || { echo "SKIPPED: no abidiff (Debian: abigail-tools)"; exit 77; }

compare() {  # OLD-INCLUDE OLD.so NEW-INCLUDE NEW.so: 0 nothing broke, 1 something did, 2 abidiff failed
  local status=0
  abidiff --no-added-syms --suppressions "$root/libtoki/abi/suppressions.ini" \
    --headers-dir1 "$1" --headers-dir2 "$3" "$2" "$4" || status=$?
  [ $((status & 3)) = 0 ] || return 2
  [ $status = 0 ] || return 1
}
soname() { readelf -d "$1" | sed -n 's/.*soname: \[\(.*\)\]/\1/p'; }
verdict() {  # OLD-SONAME NEW-SONAME RESULT-OF-COMPARE: the exit status
  case $3 in
    0) echo "abi: nothing broke" ;;
    1)
      if [ "$1" != "$2" ]; then
        echo "abi: reported only, $1 became $2"
      elif [[ $2 = *.so.0.* ]]; then
        echo "abi: reported only, before 1.0. Programs built with the last release break: raise the minor version"
      else
        echo "abi: programs built with the last release break" >&2
        return 1
      fi
      ;;
    *) echo "abi: abidiff failed" >&2; return 1 ;;
  esac
}

self_test() {
  local work failed=0
  work=$(mktemp -d)
  # shellcheck disable=SC2064
  trap "rm -rf '$work'" EXIT
  make() {  # NAME SED-COMMAND: the tiny library, changed
    mkdir -p "$work/$1/include"
    cat >"$work/$1/include/tiny.hpp" <<'TINY'
#pragma once
struct Options { int a = 0; int b = 0; };
struct Base { virtual ~Base(); virtual int first(); virtual int last(); };
class Thing { public: explicit Thing(const Options& options); int run(Base& base); struct Impl; Impl* impl; };
TINY
    cat >"$work/$1/tiny.cpp" <<'TINY'
#include "tiny.hpp"
Base::~Base() {}
int Base::first() { return 1; }
int Base::last() { return 2; }
struct Thing::Impl { int sum; };
Thing::Thing(const Options& o) : impl(new Impl{o.a + o.b}) {}
int Thing::run(Base& base) { return base.first() + base.last() + impl->sum; }
TINY
    sed -i "$2" "$work/$1/include/tiny.hpp" "$work/$1/tiny.cpp"
    "${CXX:-c++}" -g -Og -shared -fPIC -Wl,-soname,libtiny.so.1 -I "$work/$1/include" "$work/$1/tiny.cpp" \
      -o "$work/$1/tiny.so"
  }
  expect() {  # RESULT NAME
    local result=0
    compare "$work/old/include" "$work/old/tiny.so" "$work/$2/include" "$work/$2/tiny.so" >"$work/out" || result=$?
    [ $result = "$1" ] && return 0
    cat "$work/out"
    echo "self-test: $2 gives $result, not $1"
    failed=1
  }
  make old ''
  make same ''
  make function 's/int run(Base/int more() { return 1; } int run(Base/'
  make implementation 's/Impl { int sum; }/Impl { int sum; int more = 0; }/'
  make field 's/int b = 0;/& int c = 0;/'
  make virtual 's/virtual int first();/& virtual int middle() { return 0; }/'
  make gone 's/last/other/g'
  expect 0 same
  expect 0 function
  expect 0 implementation
  expect 1 field
  expect 1 virtual
  expect 1 gone
  touch "$work/old/nothing.so"
  mkdir -p "$work/broken/include" && touch "$work/broken/tiny.so"
  expect 2 broken 2>/dev/null
  judged() {  # STATUS ARGUMENTS-OF-VERDICT...
    local status=0
    verdict "${@:2}" >/dev/null 2>&1 || status=$?
    [ $status = "$1" ] || { echo "self-test: verdict ${*:2} is $status"; failed=1; }
  }
  judged 0 libtoki.so.1 libtoki.so.1 0
  judged 1 libtoki.so.1 libtoki.so.1 1
  judged 0 libtoki.so.1 libtoki.so.2 1
  judged 0 libtoki.so.0.1 libtoki.so.0.1 1
  judged 1 libtoki.so.0.1 libtoki.so.0.1 2
  [ $failed = 0 ] && echo "self-test: three changes pass, three breaks are found"
  return $failed
}

library() {  # SOURCE BUILD: builds the shared library with full debug information
  cmake -S "$1" -B "$2" -G Ninja -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG="-g -Og" -DTOKI_BUILD_HTTP=OFF \
    -DTOKI_BUILD_TOKID=OFF -DTOKI_BUILD_TESTS=OFF >"$2.log" 2>&1 &&
    cmake --build "$2" --target toki_shared >>"$2.log" 2>&1 || { tail -n 20 "$2.log"; return 1; }
}

if [ "$1" = --self-test ]; then
  self_test
  exit
fi
git -C "$root" rev-parse --git-dir >/dev/null 2>&1 || {
  echo "SKIPPED: not a git clone, so there is no release to compare with"
  exit 77
}
# HEAD may be a release itself; it is compared with the one before.
tag=$(git -C "$root" describe --tags --abbrev=0 --match 'v[0-9]*' HEAD^ 2>/dev/null || true)
if [ -z "$tag" ]; then
  if [ "$(git -C "$root" rev-parse --is-shallow-repository)" = true ]; then
    echo "SKIPPED: this clone is shallow and holds no release to compare with: git fetch --tags --unshallow"
  else
    echo "SKIPPED: there is no release yet, no tag v* before HEAD"
  fi
  exit 77
fi
work=$1/abi
old=$work/$(git -C "$root" rev-parse --short "$tag^{commit}")
mkdir -p "$work"
if [ ! -e "$old/built" ]; then
  rm -rf "$old"
  mkdir -p "$old/source"
  git -C "$root" archive "$tag" | tar -x -C "$old/source"
  library "$old/source" "$old/build"
  touch "$old/built"
fi
library "$root" "$work/new"
result=0
compare "$old/source/include" "$old/build/libtoki/libtoki.so" "$root/include" "$work/new/libtoki/libtoki.so" ||
  result=$?
echo "abi: compared with $tag"
verdict "$(soname "$old/build/libtoki/libtoki.so")" "$(soname "$work/new/libtoki/libtoki.so")" "$result"
