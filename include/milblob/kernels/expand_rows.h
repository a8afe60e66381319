/* kernels/expand_rows.h: the table with which a byte shuffle expands elements by a mask.
 *
 * For every byte of a mask and each of its eight bits: if the bit is set, twice the index of the element that goes there,
 * which is the number of set bits below; if it is clear, 0x80, for which a shuffle gives zero. */
#ifndef MILBLOB_EXPAND_ROWS_H
#define MILBLOB_EXPAND_ROWS_H

#include "milblob/base.h"

#define MB_BELOW(m, k) (uint8_t)(((m) >> (k) & 1) ? 2 * MB_ONES((m) & ((1 << (k)) - 1)) : 0x80)
#define MB_ONES(m) (((m) & 1) + ((m) >> 1 & 1) + ((m) >> 2 & 1) + ((m) >> 3 & 1) + ((m) >> 4 & 1) + ((m) >> 5 & 1) + ((m) >> 6 & 1))
#define MB_EXPAND_ROW(m) {MB_BELOW(m, 0), MB_BELOW(m, 1), MB_BELOW(m, 2), MB_BELOW(m, 3), MB_BELOW(m, 4), MB_BELOW(m, 5), MB_BELOW(m, 6), MB_BELOW(m, 7)}
#define MB_EXPAND_ROWS_4(m) MB_EXPAND_ROW(m), MB_EXPAND_ROW((m) + 1), MB_EXPAND_ROW((m) + 2), MB_EXPAND_ROW((m) + 3)
#define MB_EXPAND_ROWS_16(m) MB_EXPAND_ROWS_4(m), MB_EXPAND_ROWS_4((m) + 4), MB_EXPAND_ROWS_4((m) + 8), MB_EXPAND_ROWS_4((m) + 12)
#define MB_EXPAND_ROWS_64(m) MB_EXPAND_ROWS_16(m), MB_EXPAND_ROWS_16((m) + 16), MB_EXPAND_ROWS_16((m) + 32), MB_EXPAND_ROWS_16((m) + 48)
static const uint8_t mb_expand_rows[256][8] = {MB_EXPAND_ROWS_64(0), MB_EXPAND_ROWS_64(64), MB_EXPAND_ROWS_64(128), MB_EXPAND_ROWS_64(192)};

#endif
