#!/bin/sh
# get-llama-server.sh DIR: brings a real llama-server into DIR and prints its path.
#
# One that is already there wins: $LLAMA_SERVER, then llama-server on PATH. Otherwise the Debian
# package llama.cpp (suite forky) is unpacked with all its libraries into DIR/root, and
# DIR/llama-server starts it through its own loader: no root, no chroot, nothing installed, and the
# folder may be moved. DIR/run PROGRAM... does the same for a program that was linked with the libllama
# there (headers are in DIR/root/usr/include). Takes some seconds and 80 MB. Does nothing when it is there already. Needs
# only apt and dpkg, and a Debian mirror, taken from this machine's own apt configuration. Exit 0
# with the path on stdout, or 1 with the reason on stderr.
set -eu

suite=forky
packages="llama.cpp llama.cpp-tools libllama-dev"

say() { echo "get-llama-server: $*" >&2; }

works() { "$1" --version >/dev/null 2>&1; }

if [ $# -ne 1 ]; then
  echo "usage: get-llama-server.sh DIR" >&2
  exit 2
fi

if [ -n "${LLAMA_SERVER:-}" ]; then
  works "$LLAMA_SERVER" || { say "LLAMA_SERVER=$LLAMA_SERVER does not run"; exit 1; }
  echo "$LLAMA_SERVER"
  exit 0
fi
if path=$(command -v llama-server) && works "$path"; then
  echo "$path"
  exit 0
fi

mkdir -p "$1"
dir=$(cd "$1" && pwd)
if [ -x "$dir/llama-server" ] && [ -x "$dir/run" ] && works "$dir/llama-server"; then
  echo "$dir/llama-server"
  exit 0
fi

if ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null; then
  say "no llama-server on PATH, and no Debian machine: install llama.cpp and set LLAMA_SERVER"
  exit 1
fi

# The mirrors that this machine's apt uses for Debian itself, best first.
mirrors() {
  {
    apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' || true
    # Before the first `apt-get update` apt knows no origins yet.
    cat /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources |
      grep -v '^ *#' | grep -oE '[a-z+]+:[^] ]*/debian/?( |$)' || true
  } 2>/dev/null | sed 's/ *$//; s#/*$#/#' | grep -v security | awk '!seen[$0]++'
}

# Downloads the packages and all they need, as for a machine where nothing is installed.
unpack_from() {
  mirror=$1
  rm -rf "$dir/apt" "$dir/root.part"
  mkdir -p "$dir/apt/lists/partial" "$dir/apt/cache/archives/partial" "$dir/apt/etc"
  mkdir -p "$dir/root.part"
  : >"$dir/apt/status"
  keyring=
  for candidate in gpg pgp; do
    candidate=/usr/share/keyrings/debian-archive-keyring.$candidate
    [ -e "$candidate" ] && keyring=" [signed-by=$candidate]" && break
  done
  echo "deb$keyring $mirror $suite main" >"$dir/apt/etc/sources.list"
  # Some mirrors hold a snapshot whose Release file is past its date: the signature still counts.
  set -- -q -o Dir::State="$dir/apt" -o Dir::State::status="$dir/apt/status" \
    -o Dir::Cache="$dir/apt/cache" \
    -o Dir::Etc::sourcelist="$dir/apt/etc/sources.list" -o Dir::Etc::sourceparts=/dev/null \
    -o Dir::Etc::preferences=/dev/null -o Dir::Etc::preferencesparts=/dev/null \
    -o Acquire::Check-Valid-Until=false -o Acquire::Languages=none \
    -o APT::Install-Recommends=false \
    -o APT::Update::Post-Invoke-Success::= -o APT::Sandbox::User= -o Debug::NoLocking=true
  say "unpacking $packages from $suite into $dir/root"
  # shellcheck disable=SC2086
  apt-get "$@" update >"$dir/log" 2>&1 &&
    apt-get "$@" install --yes --download-only $packages >>"$dir/log" 2>&1 || return 1
  for package in "$dir"/apt/cache/archives/*.deb; do
    dpkg-deb --fsys-tarfile "$package" |
      tar -x -C "$dir/root.part" --no-same-owner --keep-directory-symlink --exclude=./dev \
        --exclude=./usr/share/doc --exclude=./usr/share/man --exclude=./usr/share/locale \
      >>"$dir/log" 2>&1 || return 1
  done
  rm -rf "$dir/root" "$dir/apt"
  mv "$dir/root.part" "$dir/root"
}

# Starts a program, or the server, through the loader and libraries that came with it. ggml looks for its
# CPU back ends beside the running program, which is the loader, and takes the best one for this machine:
# so they are linked there.
write_wrappers() {
  loader=$(find "$dir/root/usr/lib" -name 'ld-linux*.so.*' -type f | head -n 1)
  [ -n "$loader" ] || return 1
  libraries=$(dirname "$loader")
  for backend in "$libraries"/ggml/backends0/*.so "$libraries"/ggml/libggml-cpu*.so; do
    if [ -e "$backend" ]; then
      ln -sf "${backend#"$libraries"/}" "$libraries/$(basename "$backend")"
    fi
  done
  cat >"$dir/run.part" <<WRAPPER
#!/bin/sh
here=\$(dirname "\$(readlink -f "\$0")")
lib=\$here${libraries#"$dir"}
exec "\$lib/$(basename "$loader")" --library-path "\$lib:\$lib/llama:\$lib/ggml" "\$@"
WRAPPER
  cat >"$dir/llama-server.part" <<'WRAPPER'
#!/bin/sh
here=$(dirname "$(readlink -f "$0")")
exec "$here/run" "$here/root/usr/bin/llama-server" "$@"
WRAPPER
  for wrapper in run llama-server; do
    chmod +x "$dir/$wrapper.part"
    mv "$dir/$wrapper.part" "$dir/$wrapper"
  done
}

found=$(mirrors)
if [ -z "$found" ]; then
  say "apt names no Debian mirror on this machine"
  exit 1
fi
for attempt in first second; do
  for mirror in $found; do
    if unpack_from "$mirror" && write_wrappers && works "$dir/llama-server"; then
      rm -f "$dir/log"
      echo "$dir/llama-server"
      exit 0
    fi
    say "$attempt try failed:"
    tail -n 5 "$dir/log" >&2
  done
done
say "no llama-server could be had (log: $dir/log)"
exit 1
