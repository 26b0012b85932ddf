<?php
// What PHP does all day, with its extensions; prints digests of the results, the same in every run.

function random_words(int $count): array {
    mt_srand(4711);
    $letters = ['a', 'e', 'i', 'o', 'u', 'n', 'r', 's', 't', 'ä', 'ß', 'é', 'ж', '漢', '😀'];
    $words = [];
    for ($i = 0; $i < $count; ++$i) {
        $word = '';
        for ($length = mt_rand(1, 12); $length > 0; --$length) {
            $word .= $letters[mt_rand(0, count($letters) - 1)];
        }
        $words[] = $word;
    }
    return $words;
}

function show(string $what, mixed $value): void {
    echo $what, ' ', md5(serialize($value)), "\n";
}

echo 'opcache ', (opcache_get_status(false)['opcache_enabled'] ?? false) ? 'on' : 'off', "\n";

$words = random_words(40000);
$text = implode(' ', $words);

$records = [];
foreach ($words as $i => $word) {
    $records[] = ['id' => $i, 'word' => $word, 'tags' => [$i % 7, $i % 11], 'half' => $i / 2];
}
$json = json_encode($records, JSON_UNESCAPED_UNICODE);
show('json', [strlen($json), json_decode($json, true) === $records]);

show('regex', [
    preg_match_all('/\b(\p{L}+?)([aeiou]+)(?=\s)/u', $text, $matches),
    array_count_values($matches[2]),
    preg_replace_callback('/([nrst]{2,})(\p{L})/u', fn($m) => strrev($m[1]) . mb_strtoupper($m[2]), $text),
    preg_split('/[aeiou]+/u', $text),
]);

show('mbstring', [
    mb_strlen($text), mb_strtoupper($text), mb_convert_case($text, MB_CASE_TITLE), mb_substr($text, 1000, 5000),
    mb_convert_encoding(mb_convert_encoding($text, 'UTF-16LE', 'UTF-8'), 'UTF-8', 'UTF-16LE') === $text,
    mb_str_split(mb_substr($text, 0, 10000), 3), mb_substr_count($text, 'ä'), mb_detect_encoding($text),
]);

$document = new DOMDocument('1.0', 'UTF-8');
$root = $document->appendChild($document->createElement('words'));
foreach (array_slice($words, 0, 8000) as $i => $word) {
    $element = $root->appendChild($document->createElement('word', $word));
    $element->setAttribute('number', (string)$i);
    $element->setAttribute('length', (string)mb_strlen($word));
}
$xml = $document->saveXML();
$again = new DOMDocument();
$again->loadXML($xml);
$path = new DOMXPath($again);
foreach (iterator_to_array($path->query('//word[@number mod 3 = 0]')) as $element) {
    $element->parentNode->removeChild($element);
}
show('dom', [strlen($xml), $path->evaluate('count(//word[@length > 5])'), $again->saveXML()]);
libxml_use_internal_errors(true);
show('bad xml', [(new DOMDocument())->loadXML('<a><b></a>'), count(libxml_get_errors())]);
$html = new DOMDocument();
$html->loadHTML('<p>' . implode('<p>', array_slice($words, 0, 2000)));
show('html', $html->getElementsByTagName('p')->length);
$simple = simplexml_load_string($xml);
show('simplexml', [count($simple->word), (string)$simple->word[77]]);

$base = new PDO('sqlite::memory:');
$base->setAttribute(PDO::ATTR_ERRMODE, PDO::ERRMODE_EXCEPTION);
$base->exec('CREATE TABLE word(id INTEGER PRIMARY KEY, text TEXT, tag INTEGER)');
$base->beginTransaction();
$insert = $base->prepare('INSERT INTO word VALUES(?, ?, ?)');
foreach ($records as $record) {
    $insert->execute([$record['id'], $record['word'], $record['tags'][1]]);
}
$base->commit();
$base->sqliteCreateFunction('flip', fn($s) => implode('', array_reverse(mb_str_split($s))), 1);
show('pdo', [
    $base->query('SELECT tag, count(*), max(text) FROM word GROUP BY tag')->fetchAll(PDO::FETCH_ASSOC),
    $base->query('SELECT flip(text) FROM word WHERE id % 10 = 3 ORDER BY 1')->fetchAll(PDO::FETCH_COLUMN),
]);
try {
    $base->query('SELECT nothing FROM nowhere');
} catch (PDOException $error) {
    show('bad sql', $error->getMessage());
}

$sorted = $words;
sort($sorted);
usort($records, fn($a, $b) => [$a['tags'][0], $a['word'], $a['id']] <=> [$b['tags'][0], $b['word'], $b['id']]);
show('arrays', [
    $sorted, array_column($records, 'id'), array_unique($words), array_chunk(array_flip($words), 100, true),
    array_map(fn($word) => str_repeat($word, 3), $words), unserialize(serialize($records)) === $records,
]);
for ($i = 0; $i < 20; ++$i) {
    $large = range($i, 200000 + $i);
    $large[] = implode(',', $large);
}
show('large', [count($large), strlen($large[200001])]);
show('packed', gzuncompress(gzcompress($text, 6)) === $text);

function tree(int $depth): ?array {
    return $depth === 0 ? null : ['left' => tree($depth - 1), 'right' => tree($depth - 1), 'depth' => $depth];
}
show('tree', tree(14));

class Node {
    public ?Node $other = null;
    public array $payload;
    public function __construct(int $i) {
        $this->payload = [$i, "node $i"];
    }
}
for ($i = 0; $i < 60000; ++$i) {  // rings, for the collector of cycles
    $one = new Node($i);
    $one->other = new Node(-$i);
    $one->other->other = $one;
}
gc_collect_cycles();
show('rings', $one->other->payload);
echo "done\n";
