#!/usr/bin/env bash
# The bits of an emulated arm64 beside those of this machine:
#     scripts/arm64.sh [PART ...]      parts of tests/host_bits.py; none: all, for hours
# It needs Debian's apt-get and dpkg, and no rights: what it fetches lies in .arm64, and
# `make clean` forgets it. ARM64_SECONDS bounds the emulated run; what is not reached in
# time is not compared. Where there is no apt-get it says so and ends well.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
here="$PWD/.arm64"
python="${PYTHON_HERE:-.venv/bin/python}"
skipped() { echo "arm64: skipped, $1"; exit 0; }

command -v apt-get > /dev/null && command -v dpkg > /dev/null || skipped "no apt-get here"
[ "$(uname -m)" = x86_64 ] || skipped "this is no x86-64"

libraries="libc6 libssl3 libffi8 zlib1g libbz2-1.0 liblzma5 libexpat1 libsqlite3-0
    libuuid1 libstdc++6 libgcc-s1 libncursesw6 libtinfo6 libreadline8 libdb5.3 libnsl2
    libtirpc3 libcrypt1 libgssapi-krb5-2 libkrb5-3 libk5crypto3 libkrb5support0
    libcom-err2 libkeyutils1 libpython3.11-stdlib libpython3.11-minimal"

# Lists and packages of its own, so that the machine's stay as they are.
apt_for() {
    local state="$here/apt-$1"
    mkdir -p "$state/lists/partial" "$state/cache/archives/partial"
    touch "$state/status"
    apt-get -qq -o APT::Architecture="$1" -o APT::Architectures::="$1" \
        -o Dir::State="$state" -o Dir::State::status="$state/status" \
        -o Dir::Cache="$state/cache" -o APT::Sandbox::User=root \
        -o Acquire::http::Timeout=20 -o Acquire::Retries=1 "${@:2}"
}

fetched() {
    mkdir -p "$here/debs" "$here/root" "$here/site"
    apt_for amd64 update && apt_for arm64 update || return
    (cd "$here/debs" && apt_for amd64 download qemu-user-static &&
        apt_for arm64 download python3.11 python3.11-minimal $libraries) || return
    for package in "$here"/debs/*.deb; do dpkg -x "$package" "$here/root" || return; done
    local wheels=() tag
    for tag in 2_28 2_27 2_17; do wheels+=(--platform "manylinux_${tag}_aarch64"); done
    # The same versions as here.
    local names="jax jaxlib flax optax chex llvmlite matplotlib ml_dtypes numpy rich typer perfetto scipy"
    "$python" -m pip freeze | grep -iE "^(${names// /|})==" > "$here/versions.txt"
    "$python" -m pip install --quiet --timeout 20 --retries 1 --target "$here/site" --only-binary=:all: \
        --python-version 3.11 --implementation cp "${wheels[@]}" \
        --platform manylinux2014_aarch64 -r "$here/versions.txt" || return
    touch "$here/fetched"
}
[ -e "$here/fetched" ] || fetched || skipped "its packages are not to be had"

# The emulated Python. A child process that it starts needs the emulator too, so Python is
# told that this script is its executable.
cat > "$here/python" << END
#!/bin/sh
exec "$here/root/usr/bin/qemu-aarch64-static" -0 "$here/python" -L "$here/root" \\
    "$here/root/usr/bin/python3.11" "\$@"
END
chmod +x "$here/python"

export JAX_PLATFORMS=cpu PYTHONDONTWRITEBYTECODE=1 JAX_ENABLE_COMPILATION_CACHE=false
env PYTHONPATH=src "$python" -m tests.host_bits "$@" > "$here/here.txt"
status=0
NEURONJAX_CACHE_DIR="$here/cache" PYTHONPATH="$here/site:src" nice \
    timeout "${ARM64_SECONDS:-86400}" "$here/python" -m tests.host_bits "$@" \
    > "$here/there.txt" || status=$?
[ "$status" -eq 0 ] || [ "$status" -eq 124 ] || { echo "arm64: failed"; exit "$status"; }

# Results come in the same order; the last one may be cut off by the time.
lines=$(wc -l < "$here/there.txt")
[ "$lines" -gt 0 ] || skipped "nothing was reached in ${ARM64_SECONDS} s"
head -n "$lines" "$here/here.txt" > "$here/compared.txt"
different=$(diff "$here/compared.txt" "$here/there.txt" | grep -c '^>' || true)
diff "$here/compared.txt" "$here/there.txt" | sed -n 's/^> /arm64 differs: /p' || true
echo "arm64: $((lines - different)) equal, $different different," \
    "$(($(wc -l < "$here/here.txt") - lines)) not reached"
[ "$different" -eq 0 ]
