/* registers.c: kernels of AVX2 and AVX-512 leave the upper halves of vector registers zero. Otherwise every SSE instruction
 * that comes afterwards, whoever's it is, takes several times as long. To be compiled as the extension is, with -O3. */
#include "milblob/kernels/x86/palette_avx512.h"
#include "milblob/kernels/x86/subbyte.h"
#include "promises.h"

#if defined(MB_HAS_AVX2) && defined(__GNUC__)

#define UPPER_HALF(k) __asm__ volatile("vextracti128 $1, %%ymm" #k ", %0" : "=m"(halves[k]))

static void require_clear(void) {
    uint64_t halves[8][2], any = 0;
    UPPER_HALF(0); UPPER_HALF(1); UPPER_HALF(2); UPPER_HALF(3);
    UPPER_HALF(4); UPPER_HALF(5); UPPER_HALF(6); UPPER_HALF(7);
    for (int k = 0; k < 8; k++) any |= halves[k][0] | halves[k][1];
    require(any == 0, "the upper halves of vector registers are zero");
}

int main(void) {
    enum { COUNT = 1001 };
    uint8_t *src = exactly(4 * COUNT), *dst = exactly(4 * COUNT), *entries = exactly(4 * 256);
    if (!__builtin_cpu_supports("avx2")) return 0;
    for (unsigned i = 0; i < 4 * COUNT; i++) src[i] = (uint8_t)(i * 37 + 11);
    for (unsigned i = 0; i < 4 * 256; i++) entries[i] = (uint8_t)(i * 101 + 7);
    mb_unpack_bits_avx2(dst, src, COUNT, 4), require_clear();
    mb_unpack_signed_avx2(dst, src, COUNT, 3), require_clear();
    mb_lookup_8_avx2(dst, src, COUNT, entries, 16), require_clear();
    mb_lookup_8_avx2(dst, src, COUNT, entries, 256), require_clear();
    mb_lookup_16_avx2(dst, src, COUNT, entries, 256), require_clear();
    mb_lookup_32_avx2(dst, src, COUNT, entries, 256), require_clear();
    if (__builtin_cpu_supports("avx512bw")) mb_lookup_16_avx512(dst, src, COUNT, entries, 256), require_clear();
    if (__builtin_cpu_supports("avx512bw")) mb_lookup_32_avx512(dst, src, COUNT, entries, 256), require_clear();
    free(src), free(dst), free(entries);
    return 0;
}

#else
int main(void) { return 0; }
#endif
