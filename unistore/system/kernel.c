/* What reads the most samples, without Python: setuptools builds it as a plain shared library, ctypes calls it.
 *
 * Nothing is allocated, and nothing outside of the buffers that are given is read or written, whatever a store
 * holds. A function that cannot do its work says so, and the Python code that calls it does the work instead:
 * that code is the oracle of every test, and it words every error. */

#include <stdint.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

/* Changed with every signature: a library of an older build is not used. */
int32_t unistore_kernel_version(void) { return 4; }

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static uint64_t load(const uint8_t *bytes, int64_t count) {
  uint64_t word = 0;
  if (count >= 8)
    memcpy(&word, bytes, 8);
  else
    memcpy(&word, bytes, (size_t)count);
  return word;
}

/* Coordinates of the set bits of a mask (depth, height, columns), lowest bit first, in C order: of those with
 * the given ascending ranks, or of all where `ranks` is NULL. Returns how many of the `count` rows of
 * `out` (count, 3) were written: fewer where ranks descend, are negative, or count more bits than there are. */
int64_t unistore_find_points(const uint8_t *bits, int64_t depth, int64_t height, int64_t columns,
                             const int64_t *ranks, int64_t count, int32_t *out) {
  int64_t seen = 0; /* set bits before the word */
  int64_t done = 0;
  if (depth > INT32_MAX || height > INT32_MAX || columns > INT32_MAX / 8)
    return 0;
  for (int64_t z = 0; z < depth; z++)
    for (int64_t y = 0; y < height; y++, bits += columns)
      for (int64_t column = 0; column < columns; column += 8) {
        uint64_t word = load(bits + column, columns - column);
        if (!word)
          continue;
        int64_t end = seen + __builtin_popcountll(word);
        int64_t rank = seen; /* of the lowest bit that is left in the word */
        while (done < count) {
          int64_t next = ranks ? ranks[done] : done;
          if (next >= end)
            break;
          if (next < rank)
            return done;
          for (; rank < next; rank++)
            word &= word - 1;
          out[0] = (int32_t)z;
          out[1] = (int32_t)y;
          out[2] = (int32_t)(8 * column + __builtin_ctzll(word));
          out += 3;
          done++;
        }
        if (done == count)
          return done;
        seen = end;
      }
  return done;
}

/* SplitMix64 (Steele, Lea and Flood 2014). */
static uint64_t mix(uint64_t word) {
  word = (word ^ word >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
  word = (word ^ word >> 27) * UINT64_C(0x94D049BB133111EB);
  return word ^ word >> 31;
}

/* The high 64 bits of a product. */
static uint64_t high_product(uint64_t a, uint64_t b) { return (uint64_t)((unsigned __int128)a * b >> 64); }

/* A uniform subset of 0 … total - 1 into `out` (count,), ascending: the first different draws of SplitMix64 that
 * starts at `word`, or all that these leave where they are fewer. `bits` has room for `words` words of 64 bits,
 * whatever they hold. Returns 0, or 1 if the counts do not fit. */
int64_t unistore_draw_subset(uint64_t word, int64_t total, int64_t count, uint64_t *bits, int64_t words,
                             int64_t *out) {
  if (count < 0 || total < count || words < 0 || total / 64 + (total % 64 > 0) > words)
    return 1;
  int64_t used = total / 64 + (total % 64 > 0);
  int64_t missing = least(count, total - count);
  uint64_t flip = missing == count ? 0 : UINT64_MAX;
  memset(bits, 0, (size_t)used * sizeof *bits);
  while (missing) {
    word += UINT64_C(0x9E3779B97F4A7C15);
    uint64_t drawn = high_product(mix(word), (uint64_t)total);
    uint64_t bit = UINT64_C(1) << drawn % 64;
    missing -= !(bits[drawn / 64] & bit);
    bits[drawn / 64] |= bit;
  }
  for (int64_t i = 0; i < used; i++) {
    uint64_t kept = bits[i] ^ flip;
    if (i == used - 1 && total % 64)
      kept &= (UINT64_C(1) << total % 64) - 1;
    for (; kept; kept &= kept - 1)
      *out++ = 64 * i + __builtin_ctzll(kept);
  }
  return 0;
}

enum { BLOCK = 256 }; /* points converted at a time, in memory that the compiler knows to overlap nothing */

/* Coordinates (count, 3) of integers that may stand where the output overwrites them once they were read:
 * scaled, shifted, and relative to an origin; those of decimals are shifted and divided. Returns 0. */
int64_t unistore_dequantise(const uint8_t *stored, int64_t count, const double *scale, const double *offset,
                            const double *origin, int64_t decimal, int64_t is_double, uint8_t *out) {
  int32_t integers[3 * BLOCK];
  double values[3 * BLOCK];
  float singles[3 * BLOCK];
  for (int64_t first = 0; first < count; first += BLOCK) {
    int64_t points = count - first < BLOCK ? count - first : BLOCK;
    memcpy(integers, stored + 12 * first, (size_t)(12 * points));
    if (decimal)
      for (int64_t i = 0; i < points; i++)
        for (int axis = 0; axis < 3; axis++)
          values[3 * i + axis] = (integers[3 * i + axis] + offset[axis]) / scale[axis] - origin[axis];
    else
      for (int64_t i = 0; i < points; i++)
        for (int axis = 0; axis < 3; axis++)
          values[3 * i + axis] = integers[3 * i + axis] * scale[axis] + offset[axis] - origin[axis];
    for (int64_t i = 0; i < 3 * points; i++)
      singles[i] = (float)values[i];
    if (is_double)
      memcpy(out + 24 * first, values, (size_t)(24 * points));
    else
      memcpy(out + 12 * first, singles, (size_t)(12 * points));
  }
  return 0;
}

/* Chunks that blosc compressed, or that are stored as they are where `decompress` is NULL: each is read, checked,
 * decoded, and copied in part. */

typedef int (*decompress_function)(const void *frame, void *out, size_t room, int threads);
typedef uint32_t (*crc32c_function)(const uint8_t *bytes, size_t count);

enum { CRC_BYTES = 4, HEADER_BYTES = 16, FRAME_VERSION = 2, MOST_AXES = 32, FRAME = 3 };
static const uint32_t RESIDUE = 0x48674bc7; /* crc32c of any bytes followed by their own crc32c */

/* Whether a frame of `size` bytes with its checksum decodes to a chunk; blosc trusts its header. */
static int is_sound(const uint8_t *raw, int64_t size, int64_t chunk_bytes, crc32c_function crc32c) {
  uint32_t sizes[3]; /* of what is decoded, of a block, of the frame */
  if (crc32c(raw, (size_t)size) != RESIDUE || raw[0] != FRAME_VERSION)
    return 0;
  memcpy(sizes, raw + 4, sizeof sizes);
  return sizes[0] == chunk_bytes && sizes[2] + (int64_t)CRC_BYTES == size && sizes[1] && sizes[1] <= sizes[0];
}

/* Reads a chunk that is stored as it is into `target` or returns 0. */
static int read_plain(int64_t file, const int64_t *entry, uint8_t *target, int64_t chunk_bytes,
                      crc32c_function crc32c) {
  uint8_t stored[CRC_BYTES]; /* the checksum, little-endian */
  struct iovec parts[] = {{target, (size_t)chunk_bytes}, {stored, CRC_BYTES}};
  if (entry[0] < 0 || entry[1] != chunk_bytes + CRC_BYTES)
    return 0;
  if (preadv((int)file, parts, 2, (off_t)entry[0]) != entry[1])
    return 0;
  uint32_t checksum = stored[0] | stored[1] << 8 | stored[2] << 16 | (uint32_t)stored[3] << 24;
  return crc32c(target, (size_t)chunk_bytes) == checksum;
}

/* Decodes the chunk into `target` or returns 0. */
static int read_chunk(int64_t file, const int64_t *entry, uint8_t *raw, int64_t raw_bytes, uint8_t *target,
                      int64_t chunk_bytes, decompress_function decompress, crc32c_function crc32c) {
  int64_t size = entry[1];
  if (!decompress)
    return read_plain(file, entry, target, chunk_bytes, crc32c);
  if (entry[0] < 0 || size < HEADER_BYTES + CRC_BYTES || size > raw_bytes)
    return 0;
  if (pread((int)file, raw, (size_t)size, (off_t)entry[0]) != size)
    return 0;
  return is_sound(raw, size, chunk_bytes, crc32c) && decompress(raw, target, (size_t)chunk_bytes, 1) == chunk_bytes;
}

/* Ranges of rows of an array, of which each chunk is `step` whole rows of `row_bytes`. */

struct shard {
  int64_t first, end; /* numbers of its chunks */
  int64_t file;
  const int64_t *entries; /* offset and size of each chunk, one behind the other; both -1 where it is absent */
  int64_t entry_count;
};

struct range {
  int64_t start, stop, place; /* rows of the array, and where the first of them belongs in the output */
};

static int are_valid(const struct range *ranges, int64_t count, int64_t out_rows) {
  for (int64_t i = 0; i < count; i++) {
    const struct range *range = ranges + i;
    if (range->start < 0 || range->stop <= range->start || (i && range->start < ranges[i - 1].start))
      return 0;
    if (range->place < 0 || range->place > out_rows || range->stop - range->start > out_rows - range->place)
      return 0;
  }
  return 1;
}

/* Offset and size of a chunk, or NULL. Chunks are asked for in rising order, so `shard` only moves on. */
static const int64_t *find(const struct shard **shard, const struct shard *end, int64_t chunk) {
  while (*shard < end && (*shard)->end <= chunk)
    ++*shard;
  if (*shard == end || (*shard)->first < 0 || chunk < (*shard)->first)
    return NULL;
  int64_t number = chunk - (*shard)->first;
  return number < (*shard)->entry_count / 2 ? (*shard)->entries + 2 * number : NULL;
}

/* Reads ranges, ordered by their first row, into `out` (out_rows, row_bytes). Every chunk is decoded once: into
 * its place where a range has all of it, else into `chunk`. Returns 0, or 1 if anything was not as expected. */
int64_t unistore_read_ranges(const struct range *ranges, int64_t count, const struct shard *shards,
                             int64_t shard_count, int64_t step, int64_t row_bytes, uint8_t *out,
                             int64_t out_rows, uint8_t *raw, int64_t raw_bytes, uint8_t *chunk,
                             decompress_function decompress, crc32c_function crc32c) {
  const struct shard *shard = shards;
  int64_t first = 0; /* range of which rows are missing, and none of those before it */
  if (step < 1 || row_bytes < 1 || row_bytes > INT32_MAX / step || !are_valid(ranges, count, out_rows))
    return 1;
  for (int64_t number = -1; first < count;) {
    int64_t start = ranges[first].start / step;
    number = start > number ? start : number + 1;
    if (number > INT64_MAX / step - 1)
      return 1;
    int64_t low = number * step;
    int64_t high = low + step;
    uint8_t *decoded = chunk;
    int64_t last = first; /* ranges that begin before the end of the chunk */
    for (; last < count && ranges[last].start < high; last++)
      if (ranges[last].start <= low && ranges[last].stop >= high)
        decoded = out + (ranges[last].place + (low - ranges[last].start)) * row_bytes;
    const int64_t *entry = find(&shard, shards + shard_count, number);
    if (!entry)
      return 1;
    if (!read_chunk(shard->file, entry, raw, raw_bytes, decoded, step * row_bytes, decompress, crc32c))
      return 1;
    for (int64_t i = first; i < last; i++) {
      int64_t from = ranges[i].start > low ? ranges[i].start : low;
      int64_t rows = least(ranges[i].stop, high) - from;
      uint8_t *target = out + (ranges[i].place + (from - ranges[i].start)) * row_bytes;
      if (rows > 0 && target != decoded)
        memmove(target, decoded + (from - low) * row_bytes, (size_t)(rows * row_bytes));
    }
    while (first < last && ranges[first].stop <= high)
      first++;
  }
  return 0;
}

/* Boxes of chunks of any number of axes. */

/* Bytes of an array, and along each axis from one element to the next; 0 if 64 bits do not count them. */
static int64_t strides_of(const int64_t *shape, int64_t axes, int64_t itemsize, int64_t *strides) {
  int64_t bytes = itemsize;
  for (int64_t axis = axes - 1; axis >= 0; axis--) {
    strides[axis] = bytes;
    if (shape[axis] < 1 || __builtin_mul_overflow(bytes, shape[axis], &bytes))
      return 0;
  }
  return bytes;
}

static int is_inside(int64_t start, int64_t count, int64_t extent) {
  return start >= 0 && count >= 1 && start < extent && count <= extent - start;
}

/* Copies a box of `counts`, run by run: the last axes that both arrays hold without a gap are one run. */
static void copy_box(const uint8_t *source, const int64_t *from, uint8_t *target, const int64_t *to,
                     const int64_t *counts, int64_t axes, int64_t run) {
  while (axes > 0 && from[axes - 1] == run && to[axes - 1] == run)
    run *= counts[--axes];
  int64_t runs = axes ? counts[0] : 1;
  for (int64_t i = 0; i < runs; i++)
    if (axes > 1)
      copy_box(source + i * from[0], from + 1, target + i * to[0], to + 1, counts + 1, axes - 1, run);
    else if (run == 8) /* lines of masks: a call would cost more than the copy */
      memcpy(target + i * to[0], source + i * from[0], 8);
    else
      memmove(target + i * to[0], source + i * from[0], (size_t)run);
}

/* Reads boxes into `out`; `shapes` are those of a chunk and of the output. A box is a row of 64-bit numbers:
 * file, offset and size of a frame, then by axis: start in the chunk, start in the output, count. A chunk that
 * stands without a gap in the output is decoded there, another one into `chunk`. Boxes do not overlap in the
 * output, and those of one chunk should follow each other. Returns 0, or 1 if anything was not as expected. */
int64_t unistore_read_boxes(const int64_t *boxes, int64_t count, int64_t axes, const int64_t *shapes,
                            int64_t itemsize, uint8_t *out, uint8_t *raw, int64_t raw_bytes, uint8_t *chunk,
                            decompress_function decompress, crc32c_function crc32c) {
  const int64_t *chunk_shape = shapes;
  const int64_t *out_shape = shapes + axes;
  int64_t from[MOST_AXES], to[MOST_AXES], counts[MOST_AXES];
  if (axes < 1 || axes > MOST_AXES || itemsize < 1)
    return 1;
  int64_t chunk_bytes = strides_of(chunk_shape, axes, itemsize, from);
  if (!chunk_bytes || chunk_bytes > INT32_MAX || !strides_of(out_shape, axes, itemsize, to))
    return 1;
  const int64_t *held = NULL; /* box of the chunk that was decoded last */
  const uint8_t *decoded = NULL;
  for (int64_t number = 0; number < count; number++, boxes += FRAME + 3 * axes) {
    int64_t source = 0;
    int64_t target = 0;
    int is_whole = 1; /* whether the chunk stands without a gap in the output */
    for (int64_t axis = 0; axis < axes; axis++) {
      const int64_t *part = boxes + FRAME + 3 * axis;
      if (!is_inside(part[0], part[2], chunk_shape[axis]) || !is_inside(part[1], part[2], out_shape[axis]))
        return 1;
      counts[axis] = part[2];
      source += part[0] * from[axis];
      target += part[1] * to[axis];
      is_whole &= part[2] == chunk_shape[axis] && (part[2] == 1 || from[axis] == to[axis]);
    }
    if (!held || memcmp(held, boxes, FRAME * sizeof *boxes)) {
      uint8_t *room = is_whole ? out + target : chunk;
      if (!read_chunk(boxes[0], boxes + 1, raw, raw_bytes, room, chunk_bytes, decompress, crc32c))
        return 1;
      held = boxes;
      decoded = room;
    }
    if (decoded != out + target)
      copy_box(decoded + source, from, out + target, to, counts, axes, itemsize);
  }
  return 0;
}
