/* kernels/blake3.h: the hash function BLAKE3, 32 bytes, without key or context.
 *
 * Chosen because this cryptographic hash keeps up with memory: chunks of 1024 bytes are the leaves of a binary tree, so
 * eight or sixteen of them fit into the lanes of vectors, and several threads can hash stretches of one array. Other
 * programs (b3sum) compute the same hash, so users can check it without milblob.
 *
 * A compression mixes a block of 64 bytes into a chaining value of eight words: seven rounds of eight quarter-rounds G,
 * between which the block's words are permuted. A chunk is up to sixteen compressions in a row; a parent is one, over the
 * chaining values of its two children. In the tree each left subtree is complete and as large as possible: pairing
 * neighbours level by level, with an odd last one promoted unchanged, gives that tree. So the chaining values of equal
 * stretches of a power of two chunks can be computed separately (mb_blake3_stretch) and joined by the same rule
 * (mb_blake3_join). The last compression of all is marked ROOT.
 *
 * Spec: "BLAKE3: one function, fast everywhere", O'Connor, Aumasson, Neves, Wilcox-O'Hearn, version of 2021-11-18. */
#ifndef MILBLOB_BLAKE3_H
#define MILBLOB_BLAKE3_H

#include "milblob/kernels/float.h"

#define MB_BLAKE3_NBYTES 32u
#define MB_BLAKE3_BLOCK 64u
#define MB_BLAKE3_CHUNK 1024u
#define MB_BLAKE3_STRETCH 1048576u
#define MB_BLAKE3_PAGE 4096u
#define MB_BLAKE3_CHUNK_START 1u
#define MB_BLAKE3_CHUNK_END 2u
#define MB_BLAKE3_PARENT 4u
#define MB_BLAKE3_ROOT 8u

static const uint32_t mb_blake3_start[8] = {0x6a09e667u, 0xbb67ae85u, 0x3c6ef372u, 0xa54ff53au, 0x510e527fu, 0x9b05688cu, 0x1f83d9abu, 0x5be0cd19u};

/* One round: G over the columns, then over the diagonals; of a to p, the words of the block in this round's order. */
#define MB_BLAKE3_ROUND(G, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p) \
    G(0, 4, 8, 12, a, b) G(1, 5, 9, 13, c, d) G(2, 6, 10, 14, e, f) G(3, 7, 11, 15, g, h) \
    G(0, 5, 10, 15, i, j) G(1, 6, 11, 12, k, l) G(2, 7, 8, 13, m, n) G(3, 4, 9, 14, o, p)

#define MB_BLAKE3_ROUNDS(G) \
    MB_BLAKE3_ROUND(G, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15) \
    MB_BLAKE3_ROUND(G, 2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8) \
    MB_BLAKE3_ROUND(G, 3, 4, 10, 12, 13, 2, 7, 14, 6, 5, 9, 0, 11, 15, 8, 1) \
    MB_BLAKE3_ROUND(G, 10, 7, 12, 9, 14, 3, 13, 15, 4, 0, 11, 2, 5, 8, 1, 6) \
    MB_BLAKE3_ROUND(G, 12, 13, 9, 11, 15, 10, 14, 8, 7, 2, 5, 3, 0, 1, 6, 4) \
    MB_BLAKE3_ROUND(G, 9, 14, 11, 5, 8, 12, 15, 1, 13, 3, 0, 10, 2, 6, 4, 7) \
    MB_BLAKE3_ROUND(G, 11, 15, 5, 0, 1, 9, 8, 6, 14, 10, 2, 12, 3, 4, 7, 13)

#define MB_BLAKE3_TURN(word, nbits) ((word) >> (nbits) | (word) << (32 - (nbits)))
#define MB_BLAKE3_G(a, b, c, d, x, y) \
    v[a] += v[b] + m[x], v[d] = MB_BLAKE3_TURN(v[d] ^ v[a], 16), v[c] += v[d], v[b] = MB_BLAKE3_TURN(v[b] ^ v[c], 12); \
    v[a] += v[b] + m[y], v[d] = MB_BLAKE3_TURN(v[d] ^ v[a], 8), v[c] += v[d], v[b] = MB_BLAKE3_TURN(v[b] ^ v[c], 7);

/* Mix a block of 64 bytes into a chaining value. The first nbytes are data, the others are zero. */
MB_KERNEL void mb_blake3_compress(uint32_t cv[8], const uint8_t *block, uint32_t nbytes, uint64_t counter, uint32_t flags) {
    uint32_t m[16], v[16];
    for (unsigned i = 0; i < 16; i++) m[i] = mb_load_u32(block + 4 * i);
    for (unsigned i = 0; i < 8; i++) v[i] = cv[i];
    for (unsigned i = 0; i < 4; i++) v[8 + i] = mb_blake3_start[i];
    v[12] = (uint32_t)counter, v[13] = (uint32_t)(counter >> 32), v[14] = nbytes, v[15] = flags;
    MB_BLAKE3_ROUNDS(MB_BLAKE3_G)
    for (unsigned i = 0; i < 8; i++) cv[i] = v[i] ^ v[i + 8];
}

/* Chaining values of count consecutive inputs: whole chunks (block_count 16), numbered from `chunk`
 * on, or pairs of children (block_count 1, chunk 0). dst may be where src is.
 * in   src: 64 * block_count * count bytes, any alignment      out  dst: 32 * count bytes
 * over-reads: none      fails: never                                                                                   */
typedef void (*mb_blake3_kernel)(uint8_t *dst, const uint8_t *src, uint64_t count, uint32_t block_count, uint64_t chunk);

/* The flags of block `index` of block_count blocks. */
static inline uint32_t mb_blake3_flags(uint32_t index, uint32_t block_count) {
    if (block_count == 1) return MB_BLAKE3_PARENT;
    return (index == 0 ? MB_BLAKE3_CHUNK_START : 0u) | (index == block_count - 1 ? MB_BLAKE3_CHUNK_END : 0u);
}

MB_KERNEL void mb_blake3_plain(uint8_t *dst, const uint8_t *src, uint64_t count, uint32_t block_count, uint64_t chunk) {
    for (; count > 0; count--, dst += MB_BLAKE3_NBYTES, chunk += block_count > 1) {
        uint32_t cv[8];
        memcpy(cv, mb_blake3_start, sizeof cv);
        for (uint32_t i = 0; i < block_count; i++, src += MB_BLAKE3_BLOCK)
            mb_blake3_compress(cv, src, MB_BLAKE3_BLOCK, chunk, mb_blake3_flags(i, block_count));
        for (unsigned i = 0; i < 8; i++) mb_store_u32(dst + 4 * i, cv[i]);
    }
}

/* One chunk that may be short or empty; with ROOT if it is all there is. */
MB_KERNEL void mb_blake3_chunk(uint8_t *dst, const uint8_t *src, uint64_t nbytes, uint64_t chunk, bool is_root) {
    uint32_t cv[8], flags = MB_BLAKE3_CHUNK_START;
    uint8_t block[MB_BLAKE3_BLOCK] = {0};
    memcpy(cv, mb_blake3_start, sizeof cv);
    for (; nbytes > MB_BLAKE3_BLOCK; nbytes -= MB_BLAKE3_BLOCK, src += MB_BLAKE3_BLOCK, flags = 0)
        mb_blake3_compress(cv, src, MB_BLAKE3_BLOCK, chunk, flags);
    if (nbytes > 0) memcpy(block, src, (size_t)nbytes);
    mb_blake3_compress(cv, block, (uint32_t)nbytes, chunk, flags | MB_BLAKE3_CHUNK_END | (is_root ? MB_BLAKE3_ROOT : 0u));
    for (unsigned i = 0; i < 8; i++) mb_store_u32(dst + 4 * i, cv[i]);
}

/* Join count (1 or more) neighbouring chaining values into one, the hash itself if is_root. Overwrites cvs; the result is
 * its first 32 bytes. With one of them there is nothing to join, and is_root must have been heeded before. */
MB_KERNEL void mb_blake3_join(mb_blake3_kernel kernel, uint8_t *cvs, uint64_t count, bool is_root) {
    for (; count > 2; count = count / 2 + count % 2) {
        kernel(cvs, cvs, count / 2, 1, 0);
        if (count % 2 != 0) memmove(cvs + count / 2 * MB_BLAKE3_NBYTES, cvs + (count - 1) * MB_BLAKE3_NBYTES, MB_BLAKE3_NBYTES);
    }
    if (count < 2) return;
    uint32_t cv[8];
    memcpy(cv, mb_blake3_start, sizeof cv);
    mb_blake3_compress(cv, cvs, MB_BLAKE3_BLOCK, 0, MB_BLAKE3_PARENT | (is_root ? MB_BLAKE3_ROOT : 0u));
    for (unsigned i = 0; i < 8; i++) mb_store_u32(cvs + 4 * i, cv[i]);
}

/* The chaining value of stretch number `index` of an input: MB_BLAKE3_STRETCH bytes, fewer (or, of an empty input, none)
 * at its end; the hash itself if is_root, for an input that is one stretch.
 *
 * One byte of each page is read first: of a page of a file that is not mapped yet, the kernels would prefetch nothing, and
 * a page fault amid their vectors costs more than one here: together a fifth of the time.
 * in   src: nbytes, any alignment      out  dst: 32 bytes      over-reads: none      fails: never                       */
MB_KERNEL void mb_blake3_stretch(mb_blake3_kernel kernel, uint8_t *dst, const uint8_t *src, uint64_t nbytes, uint64_t index, bool is_root) {
    uint8_t cvs[MB_BLAKE3_STRETCH / MB_BLAKE3_CHUNK * MB_BLAKE3_NBYTES];
    const uint64_t first = index * (MB_BLAKE3_STRETCH / MB_BLAKE3_CHUNK), whole = nbytes / MB_BLAKE3_CHUNK;
    uint64_t count = whole;
    for (uint64_t at = 0; at < nbytes; at += MB_BLAKE3_PAGE) (void)*(const volatile uint8_t *)(src + at);
    if (nbytes <= MB_BLAKE3_CHUNK) {
        mb_blake3_chunk(dst, src, nbytes, first, is_root);
        return;
    }
    kernel(cvs, src, whole, MB_BLAKE3_CHUNK / MB_BLAKE3_BLOCK, first);
    if (nbytes % MB_BLAKE3_CHUNK != 0) {
        mb_blake3_chunk(cvs + whole * MB_BLAKE3_NBYTES, src + whole * MB_BLAKE3_CHUNK, nbytes % MB_BLAKE3_CHUNK, first + whole, false);
        count++;
    }
    mb_blake3_join(kernel, cvs, count, is_root);
    memcpy(dst, cvs, MB_BLAKE3_NBYTES);
}

#endif
