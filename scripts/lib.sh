# Shared by the scripts in this folder; sourced, never run.
# shellcheck shell=bash

repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck disable=SC2034  # used by the scripts that source this
third_party=$repo/third_party

# Where rustup puts cargo, for shells that were not told.
[ -d "${CARGO_HOME:-$HOME/.cargo}/bin" ] && PATH=$PATH:${CARGO_HOME:-$HOME/.cargo}/bin

say() { printf '%s\n' "$*"; }

# die REASON [WAY OUT]: one clear end, with what the reader can do about it.
die() {
    printf 'error: %s\n' "$1" >&2
    [ $# -lt 2 ] || printf '       %s\n' "$2" >&2
    exit 1
}

have() { command -v "$1" >/dev/null 2>&1; }

# apt_install PACKAGE...: true once they are installed. Only as root: nobody's password is asked for.
# The package lists are refreshed only when the first try finds them missing or too old.
apt_install() {
    have apt-get && [ "$(id -u)" = 0 ] || return 1
    local install=(env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300
        install -y -qq --no-install-recommends "$@")
    "${install[@]}" >/dev/null 2>&1 && return 0
    apt-get -o DPkg::Lock::Timeout=300 update -qq >/dev/null 2>&1 || return 1
    "${install[@]}" >/dev/null
}

# The pinned version from rust-toolchain.toml.
pinned_rust() { sed -n 's/^channel *= *"\(.*\)"/\1/p' "$repo/rust-toolchain.toml"; }

# Uses an installed toolchain of the pinned version under another name (such as `stable`) where the
# pinned name itself is not installed and cannot be fetched.
choose_toolchain() {
    local want
    want=$(pinned_rust)
    have cargo || die "cargo is not installed" "install Rust $want with rustup, then run this again"
    (cd "$repo" && rustc --version >/dev/null 2>&1) && return 0
    have rustup || return 0
    (cd "$repo" && rustup toolchain install --profile minimal --component rustfmt --component clippy "$want" >/dev/null 2>&1) && return 0
    local name
    for name in $(rustup toolchain list | sed 's/ .*//'); do
        if rustup run "$name" rustc --version 2>/dev/null | grep -q "^rustc $want "; then
            export RUSTUP_TOOLCHAIN=$name
            say "using toolchain $name: it is Rust $want"
            return 0
        fi
    done
    die "Rust $want is not installed and rustup could not fetch it" "rustup toolchain install $want"
}
