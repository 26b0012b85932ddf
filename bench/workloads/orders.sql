-- A shop's orders in SQLite, in memory: inserts, indexes, joins, grouping, text and JSON, updates and deletes.
-- Ends with a failed constraint, and so with an error under -bail, when a result is not the right one.
.bail on
PRAGMA temp_store = MEMORY;
PRAGMA cache_size = -1000000;
CREATE TABLE item(id INTEGER PRIMARY KEY, name TEXT, price INTEGER, note TEXT);
CREATE TABLE sale(id INTEGER PRIMARY KEY, item INTEGER REFERENCES item(id), amount INTEGER, day TEXT);
CREATE TABLE result(name TEXT, value INTEGER, expected INTEGER, CHECK (value = expected));
BEGIN;
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 60000)
  INSERT INTO item SELECT i, 'item ' || i, (i * 7919) % 1000,
    substr(hex(i * 104729) || '------------------------------------------------', 1, i % 90 + 8) FROM n;
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 300000)
  INSERT INTO sale SELECT i, (i * 48271) % 60000 + 1, i % 17, date('2020-01-01', '+' || (i % 1500) || ' days') FROM n;
COMMIT;
CREATE INDEX sale_by_item ON sale(item);
CREATE INDEX item_by_name ON item(name);
INSERT INTO result SELECT 'sales', count(*), 300000 FROM sale;
INSERT INTO result SELECT 'amount', sum(amount), 2399993 FROM sale;
SELECT name, sum(amount * price) AS turnover FROM item JOIN sale ON sale.item = item.id
  GROUP BY item.id ORDER BY turnover DESC, name LIMIT 100;
SELECT substr(day, 1, 7) AS month, count(DISTINCT item), sum(amount), group_concat(DISTINCT amount)
  FROM sale GROUP BY month ORDER BY month;
SELECT item, group_concat(day, ' ') FROM sale GROUP BY item ORDER BY item;
SELECT count(*), max(length(printf('%s-%08d-%s', upper(name), price, replace(note, '-', '<>')))) FROM item;
SELECT json_group_array(json_object('id', id, 'name', name, 'tags', json_array(price, note, id % 7))) FROM item;
SELECT sum(json_extract(j, '$.tags[0]')) FROM (SELECT json_object('name', name, 'tags', json_array(price, note)) AS j FROM item);
SELECT count(*) FROM (SELECT a.name || b.note FROM item a JOIN item b ON b.name = 'item ' || (a.price * 3) ORDER BY 1);
UPDATE item SET note = note || upper(note) || name WHERE id % 3 = 0;
DELETE FROM sale WHERE amount = 5;
INSERT INTO result SELECT 'left', count(*), 282353 FROM sale;
WITH s AS (SELECT item, amount, row_number() OVER (PARTITION BY item ORDER BY day) AS n, lag(day) OVER (PARTITION BY item ORDER BY day) AS before FROM sale)
  SELECT count(*), sum(n), max(before) FROM s;
INSERT INTO result SELECT 'intact', count(*), 1 FROM pragma_integrity_check WHERE integrity_check = 'ok';
