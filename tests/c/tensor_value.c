/* tensor_value.c: reads each file as a TensorValue; see replay.h for the command line. */
#include "tensor_value.h"

static void check(const uint8_t *data, uint64_t nbytes) { check_tensor_value(data, data, nbytes); }
