#!/bin/sh
# SQLite: large inserts, joins, updates and deletes in memory and on disk, integrity checks, and results that are
# compared with those on libc's malloc.
set -eu
# shellcheck source=tests/integration/programs/lib.sh
. "$(dirname "$0")/lib.sh"
need sqlite3 sqlite3
prove_first sqlite3
# Whatever the user has configured, SQLite does the same.
export HOME="$work" XDG_CONFIG_HOME="$work"
cat >script.sql <<'SQL'
PRAGMA journal_mode = MEMORY;
PRAGMA synchronous = OFF;
PRAGMA temp_store = MEMORY;
CREATE TABLE item(id INTEGER PRIMARY KEY, name TEXT, price INTEGER, note TEXT);
CREATE TABLE sale(id INTEGER PRIMARY KEY, item INTEGER REFERENCES item(id), amount INTEGER, day TEXT);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 30000)
  INSERT INTO item SELECT i, 'item ' || i, (i * 7919) % 1000, substr(hex(i * 104729) || '------------------------------', 1, i % 90 + 8) FROM n;
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 150000)
  INSERT INTO sale SELECT i, (i * 48271) % 30000 + 1, i % 17, date('2020-01-01', '+' || (i % 1500) || ' days') FROM n;
CREATE INDEX sale_by_item ON sale(item);
CREATE INDEX item_by_name ON item(name);
SELECT count(*), sum(amount), min(day), max(day) FROM sale;
SELECT name, sum(amount * price) AS turnover FROM item JOIN sale ON sale.item = item.id
  GROUP BY item.id ORDER BY turnover DESC, name LIMIT 20;
SELECT substr(day, 1, 7) AS month, count(DISTINCT item), sum(amount), group_concat(DISTINCT amount) FROM sale GROUP BY month ORDER BY month;
UPDATE item SET note = note || upper(note) || name WHERE id % 3 = 0;
DELETE FROM sale WHERE amount = 5;
SELECT a.name, count(*) FROM item a JOIN item b ON b.name = 'item ' || (a.price * 3) WHERE a.id < 5000 GROUP BY a.name ORDER BY 1 LIMIT 10;
SELECT count(*), sum(length(note)) FROM item;
SELECT json_group_array(json_object('id', id, 'name', name)) FROM (SELECT * FROM item ORDER BY id LIMIT 500);
VACUUM;
PRAGMA integrity_check;
SQL
sqlite3 by_libc.db <script.sql >by_libc.txt
ours sqlite3 by_ours.db <script.sql >by_ours.txt || fail "sqlite3"
cmp by_libc.txt by_ours.txt || fail "the results differ"
[ "$(tail -n 1 by_ours.txt)" = ok ] || fail "integrity_check: $(tail -n 1 by_ours.txt)"
[ "$(sqlite3 by_ours.db 'PRAGMA integrity_check')" = ok ] || fail "integrity_check on libc's malloc"
ours sqlite3 :memory: <script.sql >in_memory.txt || fail "sqlite3 in memory"
[ "$(tail -n 1 in_memory.txt)" = ok ] || fail "integrity_check in memory"
prove_ours sqlite3
