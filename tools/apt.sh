# What the scripts of this folder share: messages, and packages of the system. Sourced, not run; the
# script that sources it sets `script` first.

say() { printf '%s: %s\n' "$script" "$*"; }
stop() {
    printf "$script: %s\n" "$@" >&2
    exit 1
}

as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi; }

# True where apt-get is there and may be used without a password.
apt_usable() {
    command -v apt-get >/dev/null || return 1
    as_root true 2>/dev/null
}

# Prints the first of the named packages that apt offers.
offered() {
    local package
    for package in "$@"; do
        if apt-get install --simulate -qq "$package" >/dev/null 2>&1; then
            printf '%s\n' "$package"
            return
        fi
    done
    return 1
}

# Installs the first of the named packages that apt offers.
apt_install() {
    local package
    as_root apt-get update -qq || say "apt-get update failed, going on with the lists as they are"
    package=$(offered "$@") || { say "apt offers none of: $*"; return 1; }
    say "installing $package with apt-get"
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
        -o DPkg::Lock::Timeout=120 "$package" >/dev/null
}

# Installs all of the named packages.
apt_install_all() {
    as_root apt-get update -qq || say "apt-get update failed, going on with the lists as they are"
    say "installing $* with apt-get"
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
        -o DPkg::Lock::Timeout=120 "$@" >/dev/null
}
