#!/bin/sh
# Installs the Debian packages that the tests with real programs use, or only those named. Needs apt, and root or
# sudo. What cannot be installed is named; the tests that need it are skipped then. Exit code: how many failed.
set -u
if [ $# -eq 0 ]; then
  set -- python3 libpython3.11-testsuite git g++ coreutils xz-utils redis-server redis-tools sqlite3 nodejs \
    php-cli php-mbstring php-xml php-sqlite3
  # Any Java compiler will do.
  command -v javac >/dev/null 2>&1 || set -- "$@" default-jdk-headless
fi

root=$(CDPATH='' cd -- "$(dirname -- "$0")/../../.." && pwd)
# shellcheck source=scripts/lib.sh
. "$root/scripts/lib.sh"

command -v apt-get >/dev/null 2>&1 || { echo "no apt-get here: cannot install $*"; exit 1; }
updated=no
failed=0
for package in "$@"; do
  # A program from elsewhere serves as well.
  case $package in
    nodejs) command -v node >/dev/null 2>&1 && continue ;;
    sqlite3 | git | g++ | redis-server) command -v "$package" >/dev/null 2>&1 && continue ;;
  esac
  is_installed "$package" && continue
  echo "installing $package"
  apt_install "$package" >/dev/null 2>&1 && continue
  [ $updated = yes ] || { as_root apt-get update -q >/dev/null 2>&1; updated=yes; }
  apt_install "$package" >/dev/null 2>&1 && continue
  echo "cannot install $package"
  failed=$((failed + 1))
done
exit $failed
