// Uses Node's native memory from many sides: every part checks its own results.
'use strict';
const assert = require('node:assert');
const crypto = require('node:crypto');
const zlib = require('node:zlib');
const { promisify } = require('node:util');
const { Worker, isMainThread, parentPort, workerData } = require('node:worker_threads');

function json() {
  const tree = (depth) => depth === 0 ? { text: 'x'.repeat(50), list: [1, 2.5, null, true] }
    : Object.fromEntries(Array.from({ length: 8 }, (_, i) => [`key${i}`, tree(depth - 1)]));
  const text = JSON.stringify(tree(5));
  for (let i = 0; i < 5; ++i) assert.strictEqual(JSON.stringify(JSON.parse(text)), text);
  return text.length;
}

function maps() {
  const map = new Map();
  for (let i = 0; i < 300000; ++i) map.set(`key ${i * 7919 % 300007}`, { i, text: `value ${i}` });
  for (let i = 0; i < 300000; i += 2) map.delete(`key ${i * 7919 % 300007}`);
  assert.strictEqual(map.size, 150000);
  assert.strictEqual(map.get(`key ${3 * 7919 % 300007}`).text, 'value 3');
  return map.size;
}

function buffers() {
  let live = [];
  for (let i = 0; i < 20000; ++i) {
    const size = 1 + (i * 104729) % (i % 100 === 0 ? 1000000 : 5000);
    const buffer = i % 2 ? Buffer.alloc(size, i & 255) : Buffer.allocUnsafeSlow(size).fill(i & 255);
    live.push([buffer, i & 255]);
    if (live.length > 500) {
      const [old, byte] = live[i % 500];
      assert.strictEqual(old[0], byte);
      assert.strictEqual(old[old.length - 1], byte);
      live[i % 500] = live.pop();
    }
  }
  const zero = Buffer.alloc(3000000);
  assert.ok(zero.equals(Buffer.from(new Uint8Array(3000000))));
  return live.length;
}

async function threadPool() {
  const deflate = promisify(zlib.deflate);
  const inflate = promisify(zlib.inflate);
  const inputs = Array.from({ length: 24 }, (_, i) => Buffer.concat([crypto.randomBytes(100000), Buffer.alloc(400000, i)]));
  const packed = await Promise.all(inputs.map((input) => deflate(input)));
  const unpacked = await Promise.all(packed.map((input) => inflate(input)));
  unpacked.forEach((output, i) => assert.ok(output.equals(inputs[i])));
}

async function workers() {
  for (let round = 0; round < 3; ++round) {
    await Promise.all(Array.from({ length: 4 }, (_, i) => new Promise((resolve, reject) => {
      const data = crypto.randomBytes(1000000);
      const worker = new Worker(__filename, { workerData: { data, i } });
      worker.once('message', (message) => {
        try {
          assert.strictEqual(message.hash, crypto.createHash('sha256').update(data).digest('hex'));
        } catch (error) {
          reject(error);
        }
      });
      worker.once('error', reject);
      worker.once('exit', (code) => code === 0 ? resolve() : reject(new Error(`worker exit code ${code}`)));
    })));
  }
}

async function main() {
  json();
  maps();
  buffers();
  await threadPool();
  await workers();
  console.log('all checks passed');
}

if (isMainThread) {
  main().catch((error) => { console.error(error); process.exit(1); });
} else {
  buffers();
  parentPort.postMessage({ hash: crypto.createHash('sha256').update(workerData.data).digest('hex') });
}
