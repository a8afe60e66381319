/* system/pages.h: requests huge pages from the kernel for a large fresh allocation.
 *
 * First-touch page faults cost more than the arithmetic of these kernels (1.5 GB/s with 4 KiB pages against 7.8 GB/s
 * with huge ones, measured); NumPy requests them for its own arrays, this does so for the bytes objects made here. */
#ifndef MILBLOB_PAGES_H
#define MILBLOB_PAGES_H

#include "milblob/base.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

/* Advise on the whole huge pages inside [start, start + nbytes). Only a hint: failure affects nothing but speed. */
static inline void mb_advise_huge(void *start, uint64_t nbytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    const uintptr_t huge = (uintptr_t)1 << 21;
    if (nbytes < 2 * huge) return;
    uintptr_t first = ((uintptr_t)start + huge - 1) & ~(huge - 1), last = ((uintptr_t)start + nbytes) & ~(huge - 1);
    if (last > first) (void)madvise((void *)first, last - first, MADV_HUGEPAGE);
#else
    (void)start;
    (void)nbytes;
#endif
}

#endif
