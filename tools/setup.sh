#!/usr/bin/env bash
# Makes .venv: a Python from requires-python, every package of requirements.lock by hash, this project
# in editable form. Sees to a Java runtime that Spark can use. Run by `make setup`, safe to run again.
#
#   PYTHON=/path/to/python   the interpreter to use instead of the first one that fits
#   JAVA_HOME=/path/to/java  the Java to use instead of the one on PATH (Spark obeys it too)
#   VENV=DIR, LOCK=FILE      another virtual environment and lock file
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly venv=${VENV:-.venv}
readonly lock=${LOCK:-requirements.lock}
readonly java_min=17
readonly java_packages=(openjdk-17-jre-headless openjdk-21-jre-headless default-jre-headless)

readonly script=setup
source tools/apt.sh

# Python ---------------------------------------------------------------------------------------

# True if the interpreter runs (a version manager's shim may not) and has a version we support.
python_fits() {
    "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' >/dev/null 2>&1
}

python_has_venv() { "$1" -c 'import venv, ensurepip' >/dev/null 2>&1; }

# Prints every interpreter that fits, one a line.
pythons() {
    local name path
    for name in python3 python3.13 python3.12 python3.11; do
        type -ap "$name" | while IFS= read -r path; do
            if python_fits "$path"; then printf '%s\n' "$path"; fi
        done
    done
}

# Sets `python`, preferring one that can make a virtual environment as it is.
find_python() {
    local path
    if [ -n "${PYTHON:-}" ]; then
        python_fits "$PYTHON" || stop "PYTHON=$PYTHON does not run or is not Python 3.11, 3.12 or 3.13"
        python=$PYTHON
        return
    fi
    python=
    while IFS= read -r path; do
        if [ -z "$python" ]; then python=$path; fi
        if python_has_venv "$path"; then
            python=$path
            return
        fi
    done < <(pythons)
    [ -n "$python" ] || stop "no Python 3.11, 3.12 or 3.13 on PATH: install one, or run: make setup PYTHON=/path/to/python3.12"
}

need_venv_module() {
    local version package
    python_has_venv "$python" && return
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    package=python$version-venv
    say "$python has no venv module"
    if apt_usable && apt_install "$package" python3-venv && python_has_venv "$python"; then return; fi
    stop "run this, then make setup again: sudo apt-get update && sudo apt-get install -y $package"
}

# True if .venv works, has pip, and was made from the interpreter asked for (if one was).
venv_fits() {
    python_fits "$venv/bin/python" && "$venv/bin/python" -m pip --version >/dev/null 2>&1 || return 1
    [ -z "${PYTHON:-}" ] || [ "$(base_prefix "$PYTHON")" = "$(base_prefix "$venv/bin/python")" ]
}

base_prefix() { "$1" -c 'import os, sys; print(os.path.realpath(sys.base_prefix), sys.version)'; }

# Java -----------------------------------------------------------------------------------------

# Prints the major version of a java program, 0 if it does not run.
java_version() {
    local text
    text=$("$1" -version 2>&1) || { echo 0; return; }
    # The line reads: openjdk version "17.0.15" 2025-04-15 (or "1.8.0_402"); others may come before it.
    text=$(sed -n 's/^.* version "\(1\.\)\{0,1\}\([0-9][0-9]*\).*/\2/p' <<<"$text" | head -n 1)
    echo "${text:-0}"
}

# Prints the java program that Spark will start: JAVA_HOME's, else the one on PATH.
spark_java() {
    if [ -n "${JAVA_HOME:-}" ]; then echo "$JAVA_HOME/bin/java"; else type -P java || true; fi
}

java_fits() {
    local java
    java=$(spark_java)
    [ -n "$java" ] && [ "$(java_version "$java")" -ge "$java_min" ]
}

need_java() {
    local java found package
    java_fits && return
    if [ -n "${JAVA_HOME:-}" ]; then
        stop "JAVA_HOME=$JAVA_HOME has no Java $java_min or newer, and Spark would start it." \
            "run this, then make setup again: unset JAVA_HOME"
    fi
    java=$(spark_java)
    if [ -n "$java" ]; then found="$java is Java $(java_version "$java")"; else found="no java on PATH"; fi
    say "Spark needs Java $java_min or newer; $found"
    if apt_usable; then
        apt_install "${java_packages[@]}" || true
        java_fits && return
        # An older Java may still come first on PATH: name the newer one.
        for java in /usr/lib/jvm/*/bin/java; do
            [ "$(java_version "$java")" -ge "$java_min" ] || continue
            stop "run this, then make setup again: export JAVA_HOME=${java%/bin/java}"
        done
    fi
    if command -v apt-get >/dev/null; then
        package=$(offered "${java_packages[@]}") || package=default-jre-headless
        stop "run this, then make setup again: sudo apt-get update && sudo apt-get install -y $package"
    fi
    stop "install a Java runtime $java_min or newer (on macOS: brew install openjdk@17) and set JAVA_HOME, then make setup again"
}

# Packages -------------------------------------------------------------------------------------

pip_install() {
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-input "$@"
}

# Prints the locked lines of one package.
locked() { awk -v start="$1==" 'index($0, start) == 1 { p = 1 } p { print } p && !/\\$/ { exit }' "$lock"; }

# Builds run without isolation, so that nothing unlocked is fetched: pyspark is a source package and
# needs setuptools in place first.
install_packages() {
    say "installing the packages of $lock (pyspark alone is about 450 MB: this takes a while)"
    locked setuptools >"$venv/build-requirements.txt"
    pip_install --require-hashes -r "$venv/build-requirements.txt"
    pip_install --require-hashes --no-build-isolation --use-pep517 -r "$lock"
    pip_install --no-deps --no-build-isolation --editable .
}

need_java
if ! venv_fits; then
    find_python
    need_venv_module
    say "making $venv with $python ($("$python" -c 'import platform; print(platform.python_version())'))"
    "$python" -m venv --clear "$venv"
fi
install_packages
"$venv/bin/python" -m reput.compile_kernels  # says so, unless they are compiled already
say "done: $("$venv/bin/python" --version), Java $(java_version "$(spark_java)")"
