# shellcheck shell=sh
# What scripts/try, scripts/test and scripts/bench share: saying things, installing Debian packages, the Python environment.
# Sourced, not run. `root` is the source tree, `build` the folder for everything that is made.

build=${SPANALLOC_BUILD:-$root/build}
case $build in /*) ;; *) build=$PWD/$build ;; esac
# shellcheck disable=SC2034 # for the scripts that source this
jobs=${SPANALLOC_JOBS:-$(nproc 2>/dev/null || echo 2)}

if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then
  # shellcheck disable=SC2034
  bold=$(printf '\033[1m') red=$(printf '\033[31m') green=$(printf '\033[32m') plain=$(printf '\033[0m')
else
  # shellcheck disable=SC2034
  bold='' red='' green='' plain=''
fi

say() { printf '%s==>%s %s\n' "$bold" "$plain" "$*"; }
die() {
  printf '%serror:%s %s\n' "$red" "$plain" "$*" >&2
  exit 1
}

# watched LOG COMMAND...: the command with its output appended to LOG; every ten seconds a line that shows how long it
# has run and what it said last. Its exit code is the command's.
watched() {
  watched_log=$1
  shift
  "$@" >>"$watched_log" 2>&1 &
  watched_pid=$!
  watched_for=0
  while kill -0 "$watched_pid" 2>/dev/null; do
    sleep 1
    watched_for=$((watched_for + 1))
    [ $((watched_for % 10)) -ne 0 ] ||
      printf '    %d:%02d  %s\n' $((watched_for / 60)) $((watched_for % 60)) "$(tail -n 1 "$watched_log" | cut -c 1-90)"
  done
  wait "$watched_pid"
}

# as_root COMMAND...: the command as root, through sudo when need be.
as_root() {
  if [ "$(id -u)" -eq 0 ]; then
    "$@"
  elif command -v sudo >/dev/null 2>&1; then
    sudo "$@"
  else
    return 1
  fi
}

is_installed() {
  [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

# missing_of ITEM...: the packages among the items that are not there. An item is a package, or COMMAND:PACKAGE
# where having the command, from wherever, is enough.
missing_of() {
  for item in "$@"; do
    case $item in
      *:*) command -v "${item%%:*}" >/dev/null 2>&1 || is_installed "${item#*:}" || printf ' %s' "${item#*:}" ;;
      *) is_installed "$item" || printf ' %s' "$item" ;;
    esac
  done
}

# apt_install PACKAGE...: no daemon is started (policy-rc.d says so to every package, for as long as this lasts), and
# nothing is removed: what conflicts with a package that is in use here, another database server, stays out instead.
apt_install() {
  command -v apt-get >/dev/null 2>&1 || return 1
  # shellcheck disable=SC2016 # expanded by the inner shell
  as_root env DEBIAN_FRONTEND=noninteractive sh -c '
    policy=/usr/sbin/policy-rc.d
    if [ ! -e "$policy" ]; then
      trap "rm -f $policy" EXIT
      trap "exit 130" INT TERM
      printf "#!/bin/sh\nexit 101\n" >"$policy" && chmod 755 "$policy"
    fi
    apt-get install -y -q --no-install-recommends --no-remove "$@"' sh "$@"
}

# What the benchmark suite runs besides its own workloads.
bench_packages() {
  sed 's/#.*//' "$root/bench/packages.txt"
}

apt_update_once() {
  [ -z "${apt_updated:-}" ] || return 0
  apt_updated=yes
  say "apt-get update"
  watched "$build/logs/apt.log" as_root apt-get update -q
}

# install_needed ITEM...: installs what is missing; ends the script when that fails.
install_needed() {
  missing=$(missing_of "$@")
  [ -n "$missing" ] || return 0
  mkdir -p "$build/logs"
  say "Installing:$missing"
  command -v apt-get >/dev/null 2>&1 || die "these packages are missing and there is no apt-get here:$missing"
  # shellcheck disable=SC2086 # one word a package
  if watched "$build/logs/apt.log" apt_install $missing; then return 0; fi
  apt_update_once || true
  # shellcheck disable=SC2086
  watched "$build/logs/apt.log" apt_install $missing || {
    tail -n 15 "$build/logs/apt.log" >&2
    die "could not install:$missing (as root, or with sudo: apt-get install$missing)"
  }
}

# install_wanted ITEM...: installs what can be had; what uses the rest says that it is skipped, and why.
install_wanted() {
  missing=$(missing_of "$@")
  [ -n "$missing" ] || return 0
  mkdir -p "$build/logs"
  say "Installing:$missing"
  # shellcheck disable=SC2086
  if watched "$build/logs/apt.log" apt_install $missing; then return 0; fi
  apt_update_once || true
  # shellcheck disable=SC2086
  if watched "$build/logs/apt.log" apt_install $missing; then return 0; fi
  for package in $missing; do
    watched "$build/logs/apt.log" apt_install "$package" || say "cannot be installed here: $package"
  done
}

# find_python: sets `python` to a Python of at least 3.9 that can make virtual environments.
find_python() {
  for python in /usr/bin/python3 python3; do
    command -v "$python" >/dev/null 2>&1 || continue
    "$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 9))' 2>/dev/null && return 0
  done
  install_needed python3 python3-venv
  python=/usr/bin/python3
}

# make_venv: $build/venv with tools/requirements.txt in it, made again when that file changes.
make_venv() {
  find_python
  wanted=$(cksum <"$root/tools/requirements.txt")
  [ "$(cat "$build/venv/.made-from" 2>/dev/null)" != "$wanted" ] || return 0
  mkdir -p "$build/logs"
  say "Setting up the command's Python environment in $build/venv"
  rm -rf "$build/venv"
  if "$python" -m venv "$build/venv" >"$build/logs/venv.log" 2>&1 &&
    "$build/venv/bin/python3" -m pip install -q -r "$root/tools/requirements.txt" >>"$build/logs/venv.log" 2>&1; then
    :
  else
    say "The package index could not be used (see $build/logs/venv.log): taking Debian's typer and rich"
    install_needed python3 python3-venv python3-typer python3-rich
    rm -rf "$build/venv"
    /usr/bin/python3 -m venv --system-site-packages "$build/venv" >>"$build/logs/venv.log" 2>&1 ||
      die "no Python environment; see $build/logs/venv.log"
  fi
  printf '%s\n' "$wanted" >"$build/venv/.made-from"
}

# make_bench_venv: the same, with bench/requirements.txt on top: what `spanalloc bench` needs.
make_bench_venv() {
  make_venv
  wanted=$(cksum <"$root/bench/requirements.txt")
  [ "$(cat "$build/venv/.bench-made-from" 2>/dev/null)" != "$wanted" ] || return 0
  say "Adding the suite's Python packages to $build/venv"
  if ! watched "$build/logs/venv.log" "$build/venv/bin/python3" -m pip install -r "$root/bench/requirements.txt"; then
    say "The package index could not be used (see $build/logs/venv.log): taking Debian's packages"
    install_needed python3-pandas python3-scipy python3-matplotlib python3-psutil python3-jinja2 python3-pymysql
    if ! grep -q '^include-system-site-packages = true' "$build/venv/pyvenv.cfg"; then
      sed -i 's/^include-system-site-packages = false/include-system-site-packages = true/' "$build/venv/pyvenv.cfg"
    fi
    "$build/venv/bin/python3" -c 'import pandas, scipy, matplotlib, psutil, jinja2, pymysql' 2>>"$build/logs/venv.log" ||
      die "the suite's Python packages are missing; see $build/logs/venv.log"
  fi
  printf '%s\n' "$wanted" >"$build/venv/.bench-made-from"
}

# configure PRESET FOLDER OPTION...: cmake's configure step into $build/FOLDER.
configure() {
  preset=$1 folder=$2
  shift 2
  (cd "$root" && cmake --preset "$preset" -B "$build/$folder" -DSPANALLOC_VENV="$build/venv" "$@")
}
