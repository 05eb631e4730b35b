#!/bin/bash
# format.sh [--fix]: are all tracked C and C++ files formatted as .clang-format says? Exit 77 (skip)
# without clang-format-14, or outside a git work tree.
set -euo pipefail
cd "$(dirname "$0")/.."

if ! command -v clang-format-14 >/dev/null; then
  echo "SKIPPED: no clang-format-14 (tests/support/packages.sh --dev installs it)"
  exit 77
fi
if ! git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
  echo "SKIPPED: not a git work tree"
  exit 77
fi
mapfile -d '' -t files < <(git ls-files -z -- '*.c' '*.cpp' '*.hpp' '*.h')
if [ ${#files[@]} = 0 ]; then
  echo "format: no files"
elif [ "${1:-}" = --fix ]; then
  clang-format-14 -i "${files[@]}"
elif clang-format-14 --dry-run -Werror "${files[@]}"; then
  echo "format: ${#files[@]} files are as .clang-format says"
else
  echo "format: run tests/format.sh --fix"
  exit 1
fi
