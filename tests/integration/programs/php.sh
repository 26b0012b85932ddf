#!/bin/sh
# PHP with extensions, which Debian's loads with RTLD_DEEPBIND: JSON, regular expressions, mbstring, DOM, PDO with
# SQLite, sorting, and the opcode cache. Results are compared with those on libc's malloc. USE_ZEND_ALLOC=0: every
# object goes through malloc.
set -eu
# shellcheck source=tests/integration/programs/lib.sh
. "$(dirname "$0")/lib.sh"
need php php-cli
for extension in mbstring:php-mbstring dom:php-xml pdo_sqlite:php-sqlite3; do
  php -r "exit(extension_loaded('${extension%%:*}') ? 0 : 1);" ||
    skip "PHP has no ${extension%%:*} (Debian: ${extension#*:})"
done
prove_first php

exercise() { "$@" php -d opcache.enable_cli=1 -d memory_limit=1G "$programs/exercise.php"; }
exercise env >by_libc.txt || fail "PHP on libc's malloc"
grep -q '^opcache on$' by_libc.txt || skip "PHP has no opcode cache"
exercise ours >by_ours.txt || fail "PHP"
exercise ours env USE_ZEND_ALLOC=0 >every_object.txt || fail "PHP, every object through malloc"
cmp by_libc.txt by_ours.txt || fail "the results differ"
cmp by_libc.txt every_object.txt || fail "the results differ when every object goes through malloc"
[ "$(tail -n 1 by_ours.txt)" = "done" ] || fail "PHP has not come to the end"
prove_ours php
