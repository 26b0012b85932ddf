// Node's native allocations: buffers of many sizes that replace each other, text decoded and encoded, compression and
// digests. Buffers above 4 KiB and those made by allocUnsafeSlow are mallocs; so is what zlib and OpenSSL work in.
// Argument: rounds (default 150).
'use strict';
const zlib = require('zlib');
const crypto = require('crypto');

const rounds = Number(process.argv[2] || 150);
let state = 12345;
function below(n) {
  state = (Math.imul(state, 1103515245) + 12345) & 0x7fffffff;
  return (state >>> 8) % n;
}
function check(good, what) {
  if (!good) throw new Error(what);
}

// Most are small, some are large: 2^k to 2^(k+1), each next k half as likely.
function size() {
  let k = 5;
  while (k < 19 && below(2) === 0) ++k;
  return (1 << k) + below(1 << k);
}

const slots = new Array(4000);
function replaceSlots(count) {
  for (let i = 0; i < count; ++i) {
    const at = below(slots.length);
    const old = slots[at];
    if (old) check(old[0] === (at & 255) && old[old.length - 1] === (at & 255), 'a buffer is damaged');
    const fresh = Buffer.allocUnsafeSlow(size());
    fresh[0] = fresh[fresh.length - 1] = at & 255;
    slots[at] = fresh;
  }
}

function messages(count) {
  const parts = [];
  for (let i = 0; i < count; ++i) {
    parts.push(Buffer.from(JSON.stringify({id: i, name: 'message ' + below(1e6), body: 'x'.repeat(below(300))})));
  }
  const all = Buffer.concat(parts);
  check(all.toString('latin1').length === all.length, 'text of the wrong length');
  return all;
}

let total = 0;
for (let round = 0; round < rounds; ++round) {
  replaceSlots(6000);
  const all = messages(1000);
  for (let start = 0; start < all.length; start += 20000) {
    const piece = all.subarray(start, start + 20000);
    const packed = zlib.deflateRawSync(piece, {level: 1});
    check(zlib.inflateRawSync(packed).equals(piece), 'not what was compressed');
    total += packed.length + crypto.createHash('sha1').update(piece).digest()[0];
  }
}
console.log(total);
