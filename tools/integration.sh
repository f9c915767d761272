#!/usr/bin/env bash
# Sees to what the tests against real servers need beside .venv: Maven, which fetches the servers, a
# Java compiler, a container engine, a browser and Prometheus. Run by `make integration`, safe to run
# again.
#
#   --image   also what makes a base image where none can be pulled
#   --java    only Maven and a Java compiler
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly script=integration
source tools/apt.sh

readonly jdk_packages=(openjdk-17-jdk-headless openjdk-21-jdk-headless default-jdk-headless)

# True if the program runs: a JRE has a javac on no PATH, a broken link may be on it.
runs() { "$1" "$2" >/dev/null 2>&1; }

# Prints the compiler that is used: JAVA_HOME's, else the one on PATH.
javac_program() { if [ -n "${JAVA_HOME:-}" ]; then echo "$JAVA_HOME/bin/javac"; else echo javac; fi; }

# Installs the first of these packages that apt offers, unless the program runs already.
need() {
    local program=$1 option=$2
    shift 2
    runs "$program" "$option" && return
    say "$program does not run, and these tests need it"
    if apt_usable && apt_install "$@" && runs "$program" "$option"; then return; fi
    if [ "$program" != javac ] && [ "$program" != mvn ]; then
        stop "JAVA_HOME has no compiler; run this, then make integration again: unset JAVA_HOME"
    fi
    if command -v apt-get >/dev/null; then
        stop "run this, then make integration again: sudo apt-get update && sudo apt-get install -y $1"
    fi
    stop "install Maven and a JDK of 17 or newer (on macOS: brew install maven openjdk@17), then make integration again"
}

need "$(javac_program)" -version "${jdk_packages[@]}"
need mvn -version maven

# A container engine: one that runs, else the programs for one, which the tests start as root.
need_engine() {
    local split
    if docker version >/dev/null 2>&1 && compose_runs; then return; fi
    if [ "$(id -u)" != 0 ] || ! apt_usable; then
        say "NO CONTAINER ENGINE WITH COMPOSE ANSWERS, and installing one takes root and apt-get:"
        say "the tests of docker-compose.yml are left out. Start docker, and they run"
        return
    fi
    if ! runs dockerd --version || ! runs iptables --version || ! compose_runs; then
        say "no container engine with compose answers, and these tests need one"
        split=$(offered docker-cli) || split=  # newer systems have the client apart
        apt_install_all docker.io iptables docker-compose ${split:+"$split"}
    fi
}

# A browser for the tests of the console: one that is installed, else Debian's chromium.
need_browser() {
    local program
    for program in chromium chromium-browser google-chrome; do
        if command -v "$program" >/dev/null; then return; fi
    done
    if apt_usable && apt_install chromium; then return; fi
    say "NO CHROMIUM IS INSTALLED: the tests of the console in a browser are left out"
}

compose_runs() { docker compose version >/dev/null 2>&1 || runs docker-compose --version; }

# Prometheus, with promtool: their tests are left out without it.
need_prometheus() {
    if runs prometheus --version && runs promtool --version; then return; fi
    if apt_usable && apt_install prometheus && runs promtool --version; then return; fi
    say "NO PROMETHEUS: the tests of metrics and alert rules against it are left out"
}

if [ "${1:-}" = --java ]; then exit; fi
need_engine
if [ "${1:-}" != --image ]; then
    need_browser
    need_prometheus
fi
if [ "${1:-}" = --image ] && [ "$(id -u)" = 0 ] && apt_usable && ! runs mmdebstrap --version; then
    apt_install_all mmdebstrap
fi
