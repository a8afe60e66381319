/* kernels/utf8.h: what is UTF-8. */
#ifndef MILBLOB_UTF8_H
#define MILBLOB_UTF8_H

#include "milblob/base.h"

/* The length of the UTF-8 sequence of two to four bytes at src, or 0: no overlong forms, surrogates or anything past
 * U+10FFFF. Reads at most `left` bytes. */
static inline uint32_t mb_utf8_sequence(const uint8_t *src, uint64_t left) {
    uint32_t first = src[0];
    uint32_t nbytes = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
    if (first < 0xC2 || first > 0xF4 || left < nbytes) return 0;
    uint32_t low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
    uint32_t high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
    if (src[1] < low || src[1] > high) return 0;
    for (uint32_t i = 2; i < nbytes; i++)
        if ((src[i] & 0xC0) != 0x80) return 0;
    return nbytes;
}

/* Whether all bytes are UTF-8, as Python's strict decoder sees it.
 * over-reads: none      fails: never                                                                                  */
MB_KERNEL bool mb_utf8_all(const uint8_t *src, uint64_t nbytes) {
    for (uint64_t at = 0; at < nbytes;) {
        if (nbytes - at >= 8 && (mb_load_u64(src + at) & 0x8080808080808080u) == 0) {
            at += 8;
        } else if (src[at] < 0x80) {
            at++;
        } else {
            const uint32_t sequence = mb_utf8_sequence(src + at, nbytes - at);
            if (sequence == 0) return false;
            at += sequence;
        }
    }
    return true;
}

#endif
