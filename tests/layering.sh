#!/bin/bash
# layering.sh [ROOT]: fails when a file includes something that its layer may not know, or when a
# public header does not open with its contract. The layers are those of docs/design.md:
#
#   tokid -> toki::http -> toki::toki (the core)          examples, benchmarks -> include/ only
#
# layering.sh --self-test plants one violation of every rule in a temporary tree and checks that
# each is found.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
tree=
trap '[ -z "$tree" ] || rm -rf "$tree"' EXIT

# among FOLDER...: the C and C++ files that the next rules are about.
among() {
  local folder
  files=()
  for folder in "$@"; do
    if [ -e "$root/$folder" ]; then
      mapfile -t -O "${#files[@]}" files < <(
        find "$root/$folder" -type f -regex '.*\.[ch]\(pp\)?' | sort)
    fi
  done
}

# but_not REGEX: those files less the ones whose path below the root matches.
but_not() {
  local file kept=()
  for file in "${files[@]}"; do
    [[ ${file#"$root"/} =~ $1 ]] || kept+=("$file")
  done
  files=("${kept[@]}")
}

# forbid RULE REGEX [ALLOWED-REGEX]: every line that matches, and is not allowed, is a fault.
forbid() {
  local rule=$1 regex=$2 allowed=${3:-} line
  [ ${#files[@]} != 0 ] || return 0
  while IFS= read -r line; do
    if [ -z "$allowed" ] || ! grep -qE -- "$allowed" <<<"${line#*:*:}"; then
      echo "${line#"$root"/}   <- $rule"
      faults=$((faults + 1))
    fi
  done < <(grep -HnE -- "$regex" "${files[@]}")
}

include='^[[:space:]]*#[[:space:]]*include[[:space:]]*'
standard="$include<([a-z_]+|(std[a-z]+|limits)\\.h)>"

check() {
  local header word
  root=$1
  faults=0

  among include/toki
  but_not '^include/toki/http/'
  forbid "the core's public headers know the standard library and each other only" "$include" \
    "$standard|$include<toki/[a-z_]+\\.h(pp)?>"
  among include/toki/http
  forbid "the public HTTP headers may add Boost, nothing else" "$include" \
    "$standard|$include<(toki|boost)/[a-z0-9_/]+\\.h(pp)?>"

  among libtoki/core
  forbid "the core knows no network, JSON, format, log or database library" \
    "$include[<\"](boost/|simdjson|fmt/|spdlog/|SQLiteCpp/|sqlite3|CLI/)"
  forbid "the core does not know toki::http" "$include[<\"](toki/http/|http/|.*libtoki/http)"
  forbid "the core has no thread of its own" "$include<(thread|stop_token|future)>|std::j?thread"
  forbid "the core's clock is injected" \
    '::now\(|\b(clock_gettime|gettimeofday|time) ?\((NULL|nullptr|0|CLOCK)'
  forbid "the core has no random source of its own" \
    "$include<random>|\\b(s?rand|arc4random|getrandom) ?\\("
  forbid_io() {  # [ALLOWED-REGEX]
    forbid "the core does no input or output" \
      "$include<(fstream|iostream|cstdio|stdio\\.h|filesystem|unistd\\.h|sys/.*)>" "${1:-}"
  }
  but_not '^libtoki/core/big_pages\.cpp$'
  forbid_io
  among libtoki/core/big_pages.cpp  # asks for pages of 2 MiB: memory is no I/O
  forbid_io "$include<sys/mman\\.h>"
  among libtoki/core
  but_not '/(engine_state|block_tree|blocking_driver)\.[ch]pp$'
  forbid "only the engine and the block tree lock" "$include<(mutex|shared_mutex|condition_variable)>"

  among tokid examples benchmarks
  forbid "programs use the public headers only" "$include\"[^\"]*(\\.\\./|libtoki/)"
  forbid "programs use the public headers only" "$include[<\"](core|http|report|store)/"

  among include libtoki tokid examples  # a benchmark may measure against it
  but_not '^libtoki/http/'
  forbid "simdjson belongs to libtoki/http" "$include[<\"]simdjson"
  among include libtoki examples benchmarks
  forbid "spdlog belongs to tokid" "$include[<\"]spdlog/"
  but_not '^benchmarks/replay/'
  forbid "CLI11 belongs to tokid and toki-replay" "$include[<\"]CLI/"
  among include libtoki tokid examples benchmarks
  forbid "Catch2 belongs to tests" "$include[<\"]catch2/"
  but_not '^libtoki/store/'
  forbid "SQLite belongs to libtoki/store" "$include[<\"](SQLiteCpp/|sqlite3)"
  among include libtoki tokid examples
  but_not '^libtoki/core/hnsw_graph\.cpp$'
  forbid "hnswlib belongs to core/hnsw_graph.cpp" "$include[<\"]hnswlib/"

  among include/toki
  for header in "${files[@]}"; do
    for word in Threads Ownership Errors Cost; do
      # The contract is the comment that the file opens with.
      if ! sed '/^\/\//!q' "$header" | grep -E "^//.*\\b$word\\b.*:" >/dev/null; then
        echo "${header#"$root"/}:1: the opening comment has no line '$word:'"
        faults=$((faults + 1))
      fi
    done
  done
}

self_test() {
  local failed=0 planted=0 contract='// A. Threads: B. Ownership: C. Errors: D. Cost: E.'
  tree=$(mktemp -d)
  clean_tree() {
    rm -rf "${tree:?}"/*
    mkdir -p "$tree"/{include/toki/http,libtoki/{core,http,store},tokid,examples,benchmarks}
    cd "$tree"
    printf '%s\n' "$contract" '#include <vector>' '#include <toki/token.hpp>' >include/toki/a.hpp
    printf '%s\n' "$contract" '#include <boost/asio.hpp>' '#include <toki/a.hpp>' \
      >include/toki/http/b.hpp
    printf '%s\n' '#include <mutex>' '#include <toki/a.hpp>' '#include "core/x.hpp"' \
      >libtoki/core/engine_state.hpp
    printf '%s\n' '#include <sys/mman.h>' >libtoki/core/big_pages.cpp
    printf '%s\n' '#include <simdjson.h>' >libtoki/http/j.cpp
    printf '%s\n' '#include <spdlog/spdlog.h>' '#include "options.hpp"' >tokid/main.cpp
  }
  run() { check "$tree" >"$tree/out"; }
  plant() {  # FILE LINE: must be found
    clean_tree
    printf '%s\n' "$2" >>"$tree/$1"
    run
    planted=$((planted + 1))
    if [ "$faults" != 1 ]; then
      echo "self-test: '$2' in $1 gives $faults faults, not 1:"
      cat "$tree/out"
      failed=1
    fi
  }
  clean_tree
  run
  if [ "$faults" != 0 ]; then
    echo "self-test: a clean tree has faults:"
    cat "$tree/out"
    failed=1
  fi
  plant include/toki/a.hpp '#include <boost/asio.hpp>'
  plant include/toki/a.hpp '#include <toki/http/b.hpp>'
  plant include/toki/a.hpp '#include "token.hpp"'
  plant include/toki/a.hpp '#  include <xxhash.h>'
  plant include/toki/http/b.hpp '#include <fmt/format.h>'
  plant libtoki/core/x.cpp '#include <boost/json.hpp>'
  plant libtoki/core/x.cpp '#include <fmt/core.h>'
  plant libtoki/core/x.cpp '#include <toki/http/b.hpp>'
  plant libtoki/core/x.cpp '#include "http/j.hpp"'
  plant libtoki/core/x.cpp '#include <thread>'
  plant libtoki/core/x.cpp '#include <mutex>'
  plant libtoki/core/engine_state.hpp 'auto t = std::chrono::steady_clock::now();'
  plant libtoki/core/x.cpp '#include <random>'
  plant libtoki/core/x.cpp '#include <fstream>'
  plant libtoki/core/x.cpp '#include <iostream>'
  plant libtoki/core/x.cpp '#include <sys/mman.h>'
  plant libtoki/core/big_pages.cpp '#include <sys/socket.h>'
  plant libtoki/core/big_pages.cpp '#include <fstream>'
  plant tokid/main.cpp '#include "../libtoki/core/x.hpp"'
  plant examples/e.cpp '#include "core/x.hpp"'
  plant benchmarks/b.cpp '#include "libtoki/core/x.hpp"'
  plant tokid/main.cpp '#include <simdjson.h>'
  plant libtoki/http/j.cpp '#include <spdlog/spdlog.h>'
  plant examples/e.cpp '#include <CLI/CLI.hpp>'
  plant benchmarks/b.cpp '#include <CLI/CLI.hpp>'
  plant libtoki/http/j.cpp '#include <SQLiteCpp/SQLiteCpp.h>'
  plant libtoki/core/x.cpp '#include <catch2/catch.hpp>'
  plant libtoki/core/x.cpp '#include <hnswlib/hnswlib.h>'
  plant libtoki/http/j.cpp '#include <catch2/catch.hpp>'
  clean_tree
  printf '%s\n' '// Threads: Ownership: Errors:' '#include <vector>' '// Cost: late' \
    >include/toki/c.hpp
  run
  planted=$((planted + 1))
  [ "$faults" = 1 ] || { echo "self-test: a header without Cost: gives $faults faults"; failed=1; }
  [ $failed != 0 ] || echo "layering self-test: $planted planted violations, each found"
  return $failed
}

if [ "${1:-}" = --self-test ]; then
  self_test
  exit $?
fi
check "$(cd "${1:-$here/..}" && pwd)"
if [ "$faults" != 0 ]; then
  echo "layering: $faults faults"
  exit 1
fi
echo "layering: every include is allowed, every public header has its contract"
