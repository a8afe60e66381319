/* text.c: what parses and writes MIL text, a unit of the extension beside the one that Cython writes. */
#define MB_TEXT_HERE
#include "milblob/text/parse.h"
#include "milblob/text/write.h"
