// Reads unistore stores of format version 1, single or versioned, with nothing but node (22.15 or
// later for zstd). Written from docs/format.md.
//
//   node unistore.mjs STORE    prints JSON: sha256 of every array, and of the first and the last sample

import { createHash } from "node:crypto";
import { existsSync, readFileSync, readdirSync } from "node:fs";
import { join } from "node:path";
import * as zlib from "node:zlib";

const BYTES = { bool: 1, int8: 1, uint8: 1, int16: 2, uint16: 2, float16: 2, int32: 4, uint32: 4, float32: 4, int64: 8, uint64: 8, float64: 8 };
const ABSENT = 2n ** 64n - 1n; // offset and size of a chunk that has only the fill value

const product = (numbers) => numbers.reduce((a, b) => a * b, 1);
const check = (is, message) => { if (!is) throw new Error(message); };

// Checksum and compression ---------------------------------------------------------------------------------------

const CRC = new Uint32Array(256).map((_, byte) => {
  for (let bit = 0; bit < 8; bit++) byte = byte & 1 ? (byte >>> 1) ^ 0x82f63b78 : byte >>> 1;
  return byte;
});

function checked(bytes, what) { // data and its crc32c, little-endian
  let crc = 0xffffffff;
  const end = bytes.length - 4;
  check(end >= 0, `${what}: too short`);
  for (let i = 0; i < end; i++) crc = CRC[(crc ^ bytes[i]) & 255] ^ (crc >>> 8);
  check((crc ^ 0xffffffff) >>> 0 === bytes.readUInt32LE(end), `${what}: the checksum does not match`);
  return bytes.subarray(0, end);
}

function lz4(input, size) { // an LZ4 block
  const output = Buffer.alloc(size);
  let from = 0, to = 0;
  const length = (start) => {
    let total = start;
    if (start === 15) { let more; do { more = input[from++]; total += more; } while (more === 255); }
    return total;
  };
  while (from < input.length) {
    const token = input[from++];
    const literals = length(token >> 4);
    check(from + literals <= input.length && to + literals <= size, "LZ4: literals out of bounds");
    input.copy(output, to, from, from + literals);
    from += literals; to += literals;
    if (from >= input.length) break; // the last sequence has no match
    const distance = input.readUInt16LE(from);
    from += 2;
    const match = length(token & 15) + 4;
    check(distance > 0 && distance <= to && to + match <= size, "LZ4: match out of bounds");
    for (let i = 0; i < match; i++, to++) output[to] = output[to - distance];
  }
  check(to === size, "LZ4: wrong size");
  return output;
}

function zstd(input, size) {
  check(zlib.zstdDecompressSync, "zstd needs node 22.15 or later");
  return zlib.zstdDecompressSync(input, { maxOutputLength: size });
}

function unshuffle(block, typesize) { // byte j of element i is at j * elements + i
  const elements = Math.floor(block.length / typesize);
  const output = Buffer.from(block);
  for (let j = 0; j < typesize; j++)
    for (let i = 0; i < elements; i++) output[i * typesize + j] = block[j * elements + i];
  return output;
}

function unshuffleBits(block, typesize) { // bit k of byte j of element i is bit i of plane 8 j + k
  const elements = Math.floor(block.length / typesize);
  if (elements % 8) return block;
  const output = Buffer.from(block).fill(0, 0, elements * typesize);
  for (let j = 0; j < typesize; j++)
    for (let k = 0; k < 8; k++) {
      const plane = (8 * j + k) * (elements / 8);
      for (let i = 0; i < elements; i++) output[i * typesize + j] |= ((block[plane + (i >> 3)] >> (i & 7)) & 1) << k;
    }
  return output;
}

function blosc(input, expected) { // a frame of c-blosc 1
  const [, , flags, typesize] = input;
  const size = input.readUInt32LE(4), blockSize = input.readUInt32LE(8);
  check(size === expected && input.readUInt32LE(12) === input.length, "blosc: wrong size");
  if (flags & 2) return input.subarray(16, 16 + size); // stored as it is
  const decode = { 1: lz4, 4: zstd }[flags >> 5];
  check(decode, `blosc: unknown compressor ${flags >> 5}`);
  const blocks = [];
  for (let start = 0, number = 0; start < size; start += blockSize, number++) {
    const length = Math.min(blockSize, size - start);
    const isSplit = !(flags & 16) && length === blockSize && typesize <= 16 && blockSize / typesize >= 128;
    const parts = isSplit ? typesize : 1;
    let from = input.readUInt32LE(16 + 4 * number);
    const decoded = [];
    for (let part = 0; part < parts; part++) {
      const bytes = input.readInt32LE(from), data = input.subarray(from + 4, from + 4 + bytes);
      decoded.push(bytes === length / parts ? data : decode(data, length / parts));
      from += 4 + bytes;
    }
    const block = Buffer.concat(decoded);
    if (flags & 4) blocks.push(unshuffleBits(block, typesize));
    else blocks.push(flags & 1 && typesize > 1 ? unshuffle(block, typesize) : block);
  }
  return Buffer.concat(blocks);
}

// Arrays ---------------------------------------------------------------------------------------------------------

function fillOf(value, type) { // bytes of one value
  const bytes = Buffer.alloc(BYTES[type]);
  const number = typeof value === "string" ? Number(value) : value; // "NaN", "Infinity", "-Infinity"
  if (type === "float64") bytes.writeDoubleLE(number);
  else if (type === "float32") bytes.writeFloatLE(number);
  else if (type === "float16") {
    check(number === 0 || Number.isNaN(number), "float16: another fill value than 0 and NaN");
    bytes.writeUInt16LE(number === 0 ? 0 : 0x7e00);
  } else if (bytes.length === 8) bytes.writeBigInt64LE(BigInt.asIntN(64, BigInt(number)));
  else for (let i = 0, rest = Number(number); i < bytes.length; i++, rest = Math.floor(rest / 256)) bytes[i] = rest & 255;
  return bytes;
}

function* grid(counts) { // positions in C order
  const position = counts.map(() => 0);
  for (let n = product(counts); n > 0; n--) {
    yield [...position];
    for (let axis = counts.length - 1; axis >= 0 && ++position[axis] === counts[axis]; axis--) position[axis] = 0;
  }
}

function place(chunk, chunkShape, output, shape, origin, size) { // copies what of a chunk is inside the array
  const extent = shape.map((length, axis) => Math.min(chunkShape[axis], length - origin[axis]));
  if (extent.some((length) => length <= 0)) return;
  const at = (position, lengths) => position.reduce((sum, value, axis) => sum * lengths[axis] + value, 0);
  const run = extent.at(-1);
  for (const position of grid(extent.slice(0, -1))) {
    const from = at([...position, 0], chunkShape) * size;
    const to = at([...position, 0].map((value, axis) => value + origin[axis]), shape) * size;
    chunk.copy(output, to, from, from + run * size);
  }
}

export function readArray(store, path, document) {
  const { shape, data_type: type, chunk_grid, codecs: [sharding] } = document;
  const size = BYTES[type], shardShape = chunk_grid.configuration.chunk_shape;
  check(size && sharding.name === "sharding_indexed" && sharding.configuration.index_location === "end", `${path}: unknown form`);
  const { chunk_shape: chunkShape, codecs } = sharding.configuration;
  const bytes = product(chunkShape) * size;
  const per = shardShape.map((length, axis) => length / chunkShape[axis]);
  const output = Buffer.alloc(product(shape) * size);
  const fill = Buffer.alloc(bytes, fillOf(document.fill_value, type));
  for (const shard of grid(shape.map((length, axis) => Math.ceil(length / shardShape[axis])))) {
    const key = [path, "c", ...shard].join("/");
    const data = readFileSync(join(store, key)); // a missing shard is damage
    const index = checked(data.subarray(data.length - 16 * product(per) - 4), key);
    let number = 0;
    for (const inside of grid(per)) {
      const offset = index.readBigUInt64LE(16 * number), length = index.readBigUInt64LE(16 * number++ + 8);
      const origin = shard.map((value, axis) => (value * per[axis] + inside[axis]) * chunkShape[axis]);
      let chunk = fill;
      if (offset !== ABSENT) {
        chunk = checked(data.subarray(Number(offset), Number(offset + length)), key);
        const compressor = codecs.find(({ name }) => name === "blosc" || name === "zstd");
        if (compressor) chunk = compressor.name === "blosc" ? blosc(chunk, bytes) : zstd(chunk, bytes);
        check(chunk.length === bytes, `${key}: wrong size`);
      }
      place(chunk, chunkShape, output, shape, origin, size);
    }
  }
  return output;
}

// Stores ---------------------------------------------------------------------------------------------------------

const sha256 = (bytes) => createHash("sha256").update(bytes).digest("hex");
const json = (file) => JSON.parse(readFileSync(file, "utf8"));

export function readStore(store) {
  const root = json(join(store, "zarr.json")), about = root.attributes.unistore;
  check(about.format_version === 1 && about.seal, `${store} is no sealed store of format version 1`);
  const arrays = {};
  for (const [path, document] of Object.entries(root.consolidated_metadata.metadata))
    if (document.node_type === "array") arrays[path] = { document, values: readArray(store, path, document) };
  return { about, arrays };
}

// First and last row of what a sample has in an array: [lo, hi], or null where rows do not belong to samples
function rowsOf({ about, arrays }, path, sample) {
  const rule = (array) => about.fields[array].rule;
  const lines = (array) => { // the array that decides the number of rows, or "" for the samples, and what is added
    let [at, more] = [array, 0];
    while (at !== "" && rule(at).rows && !rule(at).repeated) { more += rule(at).rows[1]; at = rule(at).rows[0]; }
    const { table } = about.samples; // the array of the samples' table that decides their number has no `rows`
    return [about.tables[table]?.some((name) => `${table}/${name}` === at) ? "" : at, more];
  };
  const [end, added] = lines(path);
  if (end === "") return added === 0 ? [sample, sample + 1] : null;
  for (const offsets of Object.keys(about.fields)) {
    const target = rule(offsets).offsets_of;
    if (typeof target !== "string" || lines(target)[0] !== end) continue;
    const [owner, one] = lines(offsets);
    if (owner !== "" || one !== 1) continue;
    const { values } = arrays[offsets];
    return [Number(values.readBigInt64LE(8 * sample)), Number(values.readBigInt64LE(8 * sample + 8))];
  }
  return null;
}

export function readSample(opened, sample) {
  const found = {};
  for (const [path, { document, values }] of Object.entries(opened.arrays)) {
    const rows = rowsOf(opened, path, sample);
    if (!rows) continue;
    const bytes = product(document.shape.slice(1)) * BYTES[document.data_type];
    found[path] = { rows, sha256: sha256(values.subarray(rows[0] * bytes, rows[1] * bytes)) };
  }
  return found;
}

function summary(store) {
  const opened = readStore(store), { count } = opened.about.samples;
  const arrays = Object.entries(opened.arrays).map(([path, { values }]) => [path, sha256(values)]);
  const samples = count ? { 0: readSample(opened, 0), [count - 1]: readSample(opened, count - 1) } : {};
  return { arrays: Object.fromEntries(arrays), samples };
}

export function partsOf(store) { // folders of the sealed stores, and the numbers of sources that are left out of each
  if (existsSync(join(store, "zarr.json"))) return [{ folder: store, removed: [] }];
  const numbers = readdirSync(join(store, "versions")).map((name) => parseInt(name));
  const { format_version, parts } = json(join(store, "versions", `${Math.max(...numbers)}.json`));
  check(format_version === 1, `${store}: unknown format of versions`);
  return parts.digest.map((digest, number) => ({
    folder: join(store, "parts", `${digest}.zarr`), removed: parts.removed[number] ?? [],
  }));
}

if (process.argv[1] === new URL(import.meta.url).pathname)
  console.log(JSON.stringify(partsOf(process.argv[2]).map(({ folder, removed }) => ({ removed, ...summary(folder) }))));
