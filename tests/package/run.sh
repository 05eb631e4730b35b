#!/bin/bash
# run.sh WHICH BUILD_DIR: toki as others use it. `install` puts what is built in BUILD_DIR below
# BUILD_DIR/package; the others are projects outside of the tree that use it: find_static, find_shared,
# pkg_config, headers, guide; and source_tree, which builds the library from the source tree.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
which=$1
work=$2/package
prefix=$work/prefix
cxx=${CXX:-c++}
fail() { echo "package: $*" >&2; exit 1; }
quietly() { "$@" >"$work/$which.log" 2>&1 || { cat "$work/$which.log"; fail "failed: $*"; }; }
HTTP=${HTTP:-OFF}
components=toki
[ "$HTTP" != ON ] || components='toki;http'
version=$(sed -n 's/#define TOKI_VERSION_[A-Z]* \([0-9]*\)/\1/p' "$here/../../include/toki/version.hpp" |
  paste -sd .)
abi=$(cut -d. -f1 <<<"$version")
[ "$abi" != 0 ] || abi=$(cut -d. -f1,2 <<<"$version")

configure() {  # NAME MORE...: the project find_package
  quietly cmake -S "$here/find_package" -B "$work/$1" -G Ninja -DCMAKE_BUILD_TYPE=None \
    -DCMAKE_CXX_COMPILER="$cxx" -DCMAKE_PREFIX_PATH="$prefix" -DWANTED_COMPONENTS="$components" "${@:2}"
}
refused() {  # MESSAGE CONFIGURE-ARGUMENTS...: the project finds no toki, and is told why
  cmake --fresh -S "$here/find_package" -B "$work/refused" -G Ninja -DCMAKE_CXX_COMPILER="$cxx" \
    -DCMAKE_PREFIX_PATH="$prefix" "${@:2}" >"$work/refused.log" 2>&1 && fail "found although: $1"
  tr -s '\n ' ' ' <"$work/refused.log" | grep -qF -- "$1" || { cat "$work/refused.log"; fail "does not say: $1"; }
}

case $which in
  install)
    rm -rf "$work"
    mkdir -p "$work"
    for component in libtoki libtoki-dev; do
      quietly cmake --install "$2" --prefix "$prefix" --component "$component"
    done
    # What the tree can be moved to is where it works from.
    mv "$prefix" "$work/moved" && prefix=$work/moved && mv "$prefix" "$work/prefix"
    ! grep -rlF --include='*.cmake' --include='*.pc' -- "$2" "$work/prefix" || fail "paths of the build are installed"
    ;;

  find_static)
    configure static -DWANTED_STANDARD=20
    quietly cmake --build "$work/static"
    "$work/static/consumer"
    [ "$HTTP" != ON ] || "$work/static/http"
    ! readelf -d "$work/static/consumer" | grep -q libtoki || fail "the static program needs libtoki.so"
    quietly cmake --install "$work/static" --prefix "$work/static/out"
    quietly cmake -S "$here/find_package_c" -B "$work/static_c" -G Ninja -DCMAKE_PREFIX_PATH="$prefix" \
      -DEXAMPLE="$(realpath "$here/../../examples/c_prefix.c")"
    quietly cmake --build "$work/static_c"
    "$work/static_c/consumer" | grep -qx '1000 tokens, 900 of them reused: hit'
    refused "it has no component 'grpc'; there are: toki, http" -DWANTED_COMPONENTS='toki;grpc'
    refused 'The following configuration files were considered but not accepted' -DWANTED_VERSION=99.0
    [ "$HTTP" = ON ] || refused 'it was built with TOKI_BUILD_HTTP=OFF' -DWANTED_COMPONENTS=http
    ;;

  find_shared)
    configure shared -DWANTED_STANDARD=23 -DBUILD_SHARED_LIBS=ON -DWANTED_VERSION="${version%.*}"
    quietly cmake --build "$work/shared"
    "$work/shared/consumer"
    [ "$HTTP" != ON ] || "$work/shared/http"
    readelf -d "$work/shared/consumer" | grep -qF "Shared library: [libtoki.so.$abi]" ||
      fail "not linked with libtoki.so.$abi"
    quietly cmake --install "$work/shared" --prefix "$work/shared/out"
    ;;

  pkg_config)
    PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name toki.pc)")
    export PKG_CONFIG_PATH
    [ "$(pkg-config --modversion toki)" = "$version" ] || fail "toki.pc has another version"
    # shellcheck disable=SC2046
    compile() { "$cxx" -Wall -Wextra -Wpedantic -Wconversion -Werror "$@"; }
    # The headers come by -I here, so that their warnings would be seen.
    compile -std=c++20 "$here/main.cpp" -o "$work/pc_shared" $(pkg-config --cflags --libs toki)
    LD_LIBRARY_PATH=$(pkg-config --variable=libdir toki) "$work/pc_shared"
    compile -std=c++23 -static "$here/main.cpp" -o "$work/pc_static" $(pkg-config --static --cflags --libs toki)
    "$work/pc_static"
    # In C, by the command line of docs/c-api.md: no C++ library is named.
    "${CC:-cc}" -std=c11 -Wall -Wextra -Wpedantic -Werror "$here/../../examples/c_prefix.c" -o "$work/pc_c" \
      $(pkg-config --cflags --libs toki)
    LD_LIBRARY_PATH=$(pkg-config --variable=libdir toki) "$work/pc_c" | grep -qx '1000 tokens, 900 of them reused: hit'
    if [ "$HTTP" = ON ]; then
      compile -std=c++20 "$here/http.cpp" -o "$work/pc_http" $(pkg-config --cflags --libs toki-http)
      LD_LIBRARY_PATH=$(pkg-config --variable=libdir toki) "$work/pc_http"
    fi
    ;;

  headers)  # each header of the core alone, by a program without exceptions and types at run time
    for header in "$prefix"/include/toki/*.hpp; do
      echo "#include <toki/${header##*/}>" |
        "$cxx" -x c++ -std=c++20 -fno-exceptions -fno-rtti -Wall -Wextra -Wpedantic -Wconversion -Werror \
          -fsyntax-only -I "$prefix/include" - ||
        fail "${header##*/} does not compile alone without exceptions and RTTI"
    done
    ;;

  guide)  # the project that docs/guide-link.md shows, and nothing else: less than 40 lines of code
    project=$work/guide
    rm -rf "$project"
    mkdir -p "$project"
    shown() { awk -v after="$1" 'index($0, after) { seen = 1 } seen && /^```$/ { exit } shows { print } seen && /^```[a-z]/ { shows = 1 }' \
      "$here/../../docs/guide-link.md"; }
    shown '`CMakeLists.txt`:' >"$project/CMakeLists.txt"
    shown '`reuse.cpp`,' >"$project/reuse.cpp"
    lines=$(grep -cvE '^ *(//.*)?$' "$project/reuse.cpp")
    [ "$lines" -gt 20 ] && [ "$lines" -lt 40 ] || fail "the guide's program has $lines lines"
    quietly cmake -S "$project" -B "$project/build" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_CXX_COMPILER="$cxx"
    quietly cmake --build "$project/build"
    "$project/build/reuse" | tail -n 1 | grep -qx '20 of 2020 tokens computed' || fail "the guide's program reuses nothing"
    ;;

  source_tree)
    # The source is outside of the project, as a package manager or FetchContent leaves it.
    # The second time with the shared library, of the same objects.
    while read -r way standard shared; do
      quietly cmake -S "$here/source_tree" -B "$work/source_tree" -G Ninja -DCMAKE_BUILD_TYPE=None \
        -DCMAKE_CXX_FLAGS=-O0 -DCMAKE_CXX_COMPILER="$cxx" -DCMAKE_CXX_COMPILER_LAUNCHER="${LAUNCHER:-}" \
        -DTOKI_SOURCE="$here/../.." -DWAY="$way" \
        -DWANTED_STANDARD="$standard" -DBUILD_SHARED_LIBS="$shared"
      quietly cmake --build "$work/source_tree" --target consumer plugin </dev/null
      "$work/source_tree/consumer"
      ! grep -q libtoki_http "$work/source_tree/build.ninja" || fail "toki::http is built unasked"
      echo "package: $way"
    done <<<"add_subdirectory 20 OFF
FetchContent 23 ON"
    ;;

  *) fail "no such test: $which" ;;
esac
