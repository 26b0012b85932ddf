// An HTTP server whose work is native memory: it keeps buffers, packs and encrypts them in the thread pool, takes uploads.
// `spanalloc bench soak` drives it. Buffers made by allocUnsafeSlow are mallocs; so is what zlib, OpenSSL and the sockets
// work in. Arguments: the path of the Unix socket; node needs --expose-gc.
//
// POST /KIND?count=N&seed=S with any body does N pieces of work of that kind, whose sizes follow from the seed.
'use strict';
const crypto = require('crypto');
const http = require('http');
const util = require('util');
const zlib = require('zlib');

const deflate = util.promisify(zlib.deflate);
const gzip = util.promisify(zlib.gzip);
const scrypt = util.promisify(crypto.scrypt);

const SMALL = 30000, LARGE = 500, SESSIONS = 4000, PACKED = 600, KEPT = 6000;
const SOURCE = Buffer.from('The quick brown fox jumps over the lazy dog. 0123456789 '.repeat(4000));
const small = new Array(SMALL), large = new Array(LARGE), packed = new Array(PACKED), kept = [];
const sessions = new Map();
let expired = 0;

// A generator of the request's own, so that work that overlaps does not change what another request draws.
function generator(seed) {
  let state = seed >>> 0;
  return below => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return Math.floor(state / 4294967296 * below);
  };
}

// Each doubling as likely as any other.
function size(below, low, high) {
  return Math.floor(low * Math.pow(high / low, below(1 << 20) / (1 << 20)));
}

function buffer(length) {
  const made = Buffer.allocUnsafeSlow(length);
  made.fill(length & 255);
  return made;
}

const kinds = {
  keep(below) { if (kept.length < KEPT) kept.push(buffer(size(below, 32, 8192))); },
  small(below) { small[below(SMALL)] = buffer(size(below, 32, 2048)); },
  grow(below) {
    const at = below(SMALL), old = small[at] || Buffer.alloc(0);
    small[at] = old.length > 8192 ? buffer(64) : Buffer.concat([old, buffer(size(below, 64, 1024))]);
  },
  large(below) { large[below(LARGE)] = buffer(size(below, 8192, 262144)); },
  session(below) {
    const value = {id: below(1e9), since: Date.now(), token: buffer(size(below, 100, 4000)), cart: []};
    for (let i = below(6); i > 0; --i) value.cart.push({item: below(1000), name: 'item ' + below(1e6)});
    sessions.set(value.id, value);
    if (sessions.size > SESSIONS) sessions.delete(sessions.keys().next().value);
  },
  async pack(below) {
    const piece = SOURCE.subarray(below(1000), 1000 + size(below, 2000, 200000));
    packed[below(PACKED)] = await (below(2) ? deflate : gzip)(piece, {level: 1, memLevel: 5 + below(4)});
  },
  async secret(below) {
    const key = crypto.createHash('sha256').update(String(below(1e9))).digest();
    const cipher = crypto.createCipheriv('aes-256-cbc', key, key.subarray(0, 16));
    packed[below(PACKED)] = Buffer.concat([cipher.update(buffer(size(below, 500, 60000))), cipher.final()]);
    if (below(8) === 0) await scrypt('password', key, 32, {N: 64, r: 8, p: 1});
  },
  drop(below) {
    small[below(SMALL)] = undefined;
    small[below(SMALL)] = undefined;
    if (below(12) === 0) large[below(LARGE)] = undefined;
    if (below(12) === 0) packed[below(PACKED)] = undefined;
    if (below(4) === 0 && sessions.size) sessions.delete(sessions.keys().next().value);
  },
  read(below) { crypto.createHash('sha1').update(small[below(SMALL)] || '').digest(); },
};

function expire() {
  const oldest = Date.now() - 30000;
  for (const [id, session] of sessions) {
    if (session.since > oldest) break;
    sessions.delete(id);
    ++expired;
  }
  // What V8's collector leaves for later would be counted as the allocator's.
  global.gc();
}

async function work(kind, count, seed) {
  const below = generator(seed);
  const waiting = [];
  for (let i = 0; i < count; ++i) waiting.push(kinds[kind](below));
  await Promise.all(waiting);
}

const server = http.createServer((request, response) => {
  const parts = [];
  request.on('data', part => parts.push(part));
  request.on('end', async () => {
    try {
      const url = new URL(request.url, 'http://soak');
      const kind = url.pathname.slice(1);
      if (kind === 'expire') expire();
      else if (kind in kinds) await work(kind, Number(url.searchParams.get('count')), Number(url.searchParams.get('seed')));
      const body = Buffer.concat(parts);
      response.end(JSON.stringify({kind, bytes: body.length, expired, sessions: sessions.size}));
    } catch (error) {
      response.statusCode = 500;
      response.end(String(error));
    }
  });
});
server.keepAliveTimeout = 0;
server.listen(process.argv[2]);
