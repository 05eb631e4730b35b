#!/bin/bash
# c_api.sh: toki.h stands alone in C and in C++, however strict the compiler; every function that it
# declares is called in the tests in C or in an example; every number it defines is written out.
set -euo pipefail
cd "$(dirname "$0")/.."
header=include/toki/toki.h
faults=0
fault() {
  echo "c_api: $*"
  faults=$((faults + 1))
}

strict="-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Werror -fsyntax-only -Iinclude"
alone() {  # COMPILER OPTION...
  # shellcheck disable=SC2086
  printf '#include <toki/toki.h>\n#include <toki/toki.h>\n' | "$@" $strict - ||
    fault "$header does not stand alone: $*"
}
for standard in c11 c17; do
  alone "${CC:-cc}" -xc -std=$standard -Wstrict-prototypes -Wmissing-prototypes -Wundef
done
for standard in c++11 c++20; do
  alone "${CXX:-c++}" -xc++ -std=$standard -Wold-style-cast -Wzero-as-null-pointer-constant -Wundef
done

code=$(sed 's|//.*||' $header)
mapfile -t functions < <(grep -oE '\btoki_[a-z_]+\(' <<<"$code" | tr -d '(' | sort -u)
[ ${#functions[@]} -gt 50 ] || fault "only ${#functions[@]} functions found in $header"
for name in "${functions[@]}"; do
  grep -qE "\\b$name\\(" tests/c/*.c examples/*.c || fault "$name() is called by no test and no example"
done

# An enumerator without its number would be moved by one put before it.
if sed -n '/^enum {/,/^}/p; /^enum {.*}/p' <<<"$code" | grep -oE '\bTOKI_[A-Z0-9_]+\b *(=)?' | grep -v =; then
  fault "these have no number"
fi

[ $faults = 0 ] || exit 1
echo "c_api: the header stands alone, and its ${#functions[@]} functions are called"
