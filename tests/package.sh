#!/bin/bash
# package.sh BUILD_DIR: makes the Debian package of what is built there, and installs, configures,
# upgrades, removes and purges it below a folder of its own. What is left behind fails the test.
set -euo pipefail
cd "$1"
command -v dpkg-shlibdeps >/dev/null && command -v cpack >/dev/null || {
  echo "SKIPPED: no dpkg-dev or no cpack"
  exit 77
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root
fail() { echo "package: $*" >&2; exit 1; }

cpack -G DEB -B "$work/made" >"$work/cpack.log" 2>&1 || { cat "$work/cpack.log"; exit 1; }
deb=$(echo "$work"/made/tokid_*.deb)
dpkg-deb --info "$deb" >"$work/info"
grep -q 'Depends: .*libc6' "$work/info" || fail "it names no libraries that it needs"

mkdir -p "$root/var/lib/dpkg/info" "$root/var/lib/dpkg/updates"
: >"$root/var/lib/dpkg/status"
find "$root" | sort >"$work/before"
dpkg() {
  command dpkg --root="$root" --log="$work/dpkg.log" --force-not-root --force-depends --force-confold \
    --force-script-chrootless "$@" >"$work/out" 2>&1 || { cat "$work/out"; exit 1; }
}
dpkg --install "$deb"
"$root/usr/bin/tokid" --version | grep -q "^tokid "
"$root/usr/bin/toki-replay" --help | grep -q -- --spawn
"$root/usr/bin/tokid" --config "$root/etc/toki/tokid.toml" --check-config | grep -qx 'data-dir = "/var/lib/toki"'
[ -f "$root/lib/systemd/system/tokid.service" ] || fail "no unit"
grep -qx 'KillMode=mixed' "$root/lib/systemd/system/tokid.service" ||
  fail "the unit would stop a llama-server before its slots are saved"
ls "$root"/usr/share/man/man1/tokid.1* >/dev/null

echo 'queue-length = 7' >>"$root/etc/toki/tokid.toml"
mkdir -p "$root/var/lib/toki"
touch "$root/var/lib/toki/index.db"
dpkg --install "$deb"
grep -q 'queue-length = 7' "$root/etc/toki/tokid.toml" || fail "an upgrade changed the settings"
dpkg --remove tokid
[ ! -e "$root/usr/bin/tokid" ] || fail "the program is still there"
[ -f "$root/var/lib/toki/index.db" ] || fail "removing took the data"
dpkg --purge tokid
find "$root" | grep -v "^$root/var/lib/dpkg/" | sort >"$work/after"
grep -v "^$root/var/lib/dpkg/" "$work/before" | diff - "$work/after" || fail "this is left behind"
echo "package: $(basename "$deb") installs, upgrades and goes without a trace"
