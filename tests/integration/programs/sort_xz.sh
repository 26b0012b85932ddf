#!/bin/sh
# sort and xz with threads on 100 MB. The sorted file must be in order and hold the same lines; what went through xz
# and back must have the checksum it had.
set -eu
# shellcheck source=tests/integration/programs/lib.sh
. "$(dirname "$0")/lib.sh"
need sort coreutils
need xz xz-utils
need "$python" python3
prove_first sort xz
"$python" -c '
import random, sys
rng = random.Random(7)
words = [bytes(rng.choices(b"abcdefghijklmnopqrstuvwxyz", k=rng.randrange(3, 9))) for _ in range(5000)]
chunk = b"".join(b"%08x %s %s\n" % (rng.getrandbits(32), rng.choice(words), rng.choice(words)) for _ in range(100_000))
for i in range(46):
    sys.stdout.buffer.write(chunk.replace(b"a", b"%x" % i))
' >data.txt
export LC_ALL=C
ours sort --parallel=4 -S 40M data.txt >sorted.txt || fail "sort"
prove_ours sort
sort -c sorted.txt || fail "the output of sort is not sorted"
sum_of_lines() {
  "$python" -c '
import sys, zlib
print(sum(zlib.crc32(line) for line in open(sys.argv[1], "rb")))' "$1"
}
[ "$(wc -c <sorted.txt)" = "$(wc -c <data.txt)" ] || fail "sort lost something"
[ "$(sum_of_lines data.txt)" = "$(sum_of_lines sorted.txt)" ] || fail "sort changed lines"
rm sorted.txt
wanted=$(sha256sum <data.txt)
ours xz -T2 -0 --block-size=8MiB -k data.txt || fail "xz"
[ "$(ours xz -T2 -dc data.txt.xz | sha256sum)" = "$wanted" ] || fail "the round trip through xz differs"
prove_ours xz
