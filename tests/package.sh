#!/bin/bash
# package.sh BUILD_DIR: makes the Debian packages of what is built there (daemon, library, its development
# files), and installs, configures, uses, upgrades, removes and purges them below a folder of its own.
# What is left behind fails the test.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cd "$1"
command -v dpkg-shlibdeps >/dev/null && command -v cpack >/dev/null || {
  echo "SKIPPED: no dpkg-dev or no cpack"
  exit 77
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root
fail() { echo "package: $*" >&2; exit 1; }

# What goes into some prefix stays in it.
mkdir "$work/dest"
for component in "" tokid libtoki libtoki-dev; do
  DESTDIR=$work/dest cmake --install . --prefix /prefix ${component:+--component "$component"} >"$work/install.log" 2>&1 ||
    { cat "$work/install.log"; exit 1; }
  [ "$(ls "$work/dest")" = prefix ] || fail "--component '$component' installs outside of the prefix: $(ls "$work/dest")"
done
[ -x "$work/dest/prefix/bin/tokid" ] || fail "no tokid is installed"

cpack -G DEB -B "$work/made" >"$work/cpack.log" 2>&1 || { cat "$work/cpack.log"; exit 1; }
debs=("$work"/made/*.deb)
[ "${#debs[@]}" = 3 ] || fail "not three packages: ${debs[*]##*/}"
deb() { echo "$work/made/$1"_*.deb; }
library=$(basename "$work"/made/libtoki[0-9]*.deb | cut -d_ -f1)
version=$(dpkg-deb --field "$(deb libtoki-dev)" Version)
has() {  # PACKAGE FIELD TEXT
  dpkg-deb --field "$(deb "$1")" "$2" | grep -qF -- "$3" || fail "$1's $2 does not name $3"
}
has tokid Depends libc6
has "$library" Depends libsqlite3-0
has libtoki-dev Depends "$library (= $version)"
has libtoki-dev Depends libsqlitecpp-dev
has libtoki-dev Recommends libboost1.81-dev
dpkg-deb --ctrl-tarfile "$(deb "$library")" | tar -xO ./triggers ./shlibs >"$work/control"
grep -q "^activate-noawait ldconfig" "$work/control" || fail "ldconfig does not run for $library"
grep -qF "$library (>= $version)" "$work/control" || fail "$library has no shlibs"
dpkg-deb --fsys-tarfile "$(deb "$library")" | tar -t | grep -vE "/$|/libtoki\.so\.[0-9.]+$|/copyright$" &&
  fail "$library holds more than the library"

mkdir -p "$root/var/lib/dpkg/info" "$root/var/lib/dpkg/updates"
: >"$root/var/lib/dpkg/status"
find "$root" | sort >"$work/before"
dpkg() {
  command dpkg --root="$root" --log="$work/dpkg.log" --force-not-root --force-depends --force-confold \
    --force-script-chrootless "$@" >"$work/out" 2>&1 || { cat "$work/out"; exit 1; }
}
dpkg --install "${debs[@]}"
"$root/usr/bin/tokid" --version | grep -q "^tokid "
"$root/usr/bin/toki-replay" --help | grep -q -- --spawn
"$root/usr/bin/tokid" --config "$root/etc/toki/tokid.toml" --check-config | grep -qx 'data-dir = "/var/lib/toki"'
[ -f "$root/lib/systemd/system/tokid.service" ] || fail "no unit"
grep -qx 'KillMode=mixed' "$root/lib/systemd/system/tokid.service" ||
  fail "the unit would stop a llama-server before its slots are saved"
ls "$root"/usr/share/man/man1/tokid.1* >/dev/null

# A program is built against what the packages hold, and runs with the packaged library.
libraries=$(dirname "$(find "$root/usr/lib" -name libtoki.so)")
PKG_CONFIG_PATH=$libraries/pkgconfig pkg-config --cflags --libs toki >"$work/flags"
# shellcheck disable=SC2046
"${CXX:-c++}" -std=c++20 "$here/package/main.cpp" -o "$work/main" $(cat "$work/flags")
LD_LIBRARY_PATH=$libraries "$work/main"

echo 'queue-length = 7' >>"$root/etc/toki/tokid.toml"
mkdir -p "$root/var/lib/toki"
touch "$root/var/lib/toki/index.db"
dpkg --install "${debs[@]}"
grep -q 'queue-length = 7' "$root/etc/toki/tokid.toml" || fail "an upgrade changed the settings"
dpkg --remove tokid
[ ! -e "$root/usr/bin/tokid" ] || fail "the program is still there"
[ -f "$root/var/lib/toki/index.db" ] || fail "removing took the data"
dpkg --remove libtoki-dev "$library"
[ ! -e "$root/usr/include/toki" ] || fail "the headers are still there"
[ -z "$(find "$root" -name 'libtoki*' ! -path '*/dpkg/*')" ] || fail "the library is still there"
dpkg --purge tokid libtoki-dev "$library"
find "$root" | grep -v "^$root/var/lib/dpkg/" | sort >"$work/after"
grep -v "^$root/var/lib/dpkg/" "$work/before" | diff - "$work/after" || fail "this is left behind"
echo "package: ${debs[*]##*/} install, upgrade and go without a trace"
