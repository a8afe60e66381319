/* kernels.c: the kernels of every CPU tier, a unit of the extension beside the one that Cython writes. */
#define MB_TIERS_HERE
#include "milblob/kernels.h"
