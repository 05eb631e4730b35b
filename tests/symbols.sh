#!/bin/bash
# symbols.sh BUILD_DIR [--fix]: the shared library offers what libtoki/abi/symbols.txt lists, nothing but
# toki's names, under the soname of its version. --fix writes the list anew from what is built.
#
# What only some compilers emit is not compared: inline functions and templates (weak symbols). Their
# layouts are pinned by tests/unit/layout_test.cpp.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
list=$root/libtoki/abi/symbols.txt
library=$1/libtoki/libtoki.so
command -v nm >/dev/null && command -v readelf >/dev/null || { echo "SKIPPED: no binutils"; exit 77; }
[ -e "$library" ] || { echo "SKIPPED: $library is not built"; exit 77; }

# The demangled names that are at fixed places: functions and data (T D B R), vtables and type information of
# exported classes (V). What capital W and u mark is inline.
offered=$(nm -D --defined-only --demangle --without-symbol-versions "$library" | sed -n 's/^[0-9a-f]* [TDBRV] //p' |
  LC_ALL=C sort -u)
foreign=$(nm -D --defined-only --demangle --without-symbol-versions "$library" | sed 's/^[0-9a-f]* . //' |
  grep -vE '^((vtable|typeinfo|typeinfo name) for )?toki::|^toki_[a-z0-9_]+$|^TOKI_[0-9.]+$' || true)
if [ -n "$foreign" ]; then
  printf '%s\n' "$foreign" "symbols: these names are not toki's, and are exported (libtoki/toki.map.in)" >&2
  exit 1
fi

number() { sed -n "s/#define TOKI_VERSION_$1 //p" "$root/include/toki/version.hpp"; }
abi=$(number MAJOR)
[ "$abi" != 0 ] || abi=0.$(number MINOR)
readelf -d "$library" | grep -qF "Library soname: [libtoki.so.$abi]" || {
  echo "symbols: the soname is not libtoki.so.$abi" >&2
  exit 1
}

if [ "${2:-}" = --fix ]; then
  printf '%s\n' "$offered" >"$list"
  exit 0
fi
diff "$list" - <<<"$offered" || {
  echo "symbols: the list is another one (< listed, > built). Where that is meant: tests/symbols.sh $1 --fix" >&2
  exit 1
}
echo "symbols: $(wc -l <"$list") names, libtoki.so.$abi"
