# Every C function and type that _codec.pyx may use. The headers document them.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

cdef extern from *:
    """
    #define MB_TIERS_ELSEWHERE /* in kernels.c, */
    #define MB_TEXT_ELSEWHERE  /* and in text.c, which are compiled side by side with this one */
    """

cdef extern from "milblob/base.h" nogil:
    ctypedef enum mb_status:
        MB_OK, MB_FULL, MB_SPLIT, MB_TRUNCATED, MB_SENTINEL, MB_VERSION, MB_COUNT, MB_DTYPE, MB_BOUNDS, MB_OVERLAP
        MB_OVERFLOW, MB_PADDING, MB_VARINT, MB_TAG, MB_NUMBER, MB_LENGTH, MB_DEPTH, MB_RANGE, MB_UTF8
        MB_SYNTAX, MB_RANK, MB_TYPE, MB_EDGE, MB_TEXTLESS, MB_CHANGED
    ctypedef struct mb_error:
        mb_status status
        uint64_t offset, expected, got
        const char *detail
    uint64_t mb_load_u64(const uint8_t *src)

cdef extern from "milblob/build.h" nogil:
    const char *MB_COMPILER
    const unsigned long MB_STABLE_ABI

cdef extern from "milblob/dtype.h" nogil:
    uint32_t MB_MIL_STRING
    ctypedef struct mb_dtype:
        const char *name
        const char *text
        uint32_t mil_code, blob_code, nbits, field
    const mb_dtype mb_dtypes[]
    int MB_DTYPE_COUNT
    int MB_FIELD_STRINGS

cdef extern from "milblob/blob/blob.h" nogil:
    ctypedef struct mb_blob_record:
        uint64_t offset, data_offset, nbytes, count, padding_nbits
        uint32_t blob_code, mil_code
    mb_status mb_blob_header(const uint8_t *file, uint64_t file_nbytes, uint32_t *count, mb_error *error)
    mb_status mb_blob_walk(const uint8_t *file, uint64_t file_nbytes, uint32_t count, mb_blob_record *records,
                           uint32_t *done, mb_error *error)
    mb_status mb_blob_records_at(const uint8_t *file, uint64_t file_nbytes, const uint8_t *metadata,
                                 const uint64_t *offsets, uint64_t count, mb_blob_record *records, uint64_t *done,
                                 mb_error *error)

cdef extern from "milblob/blob/store.h" nogil:
    void mb_blob_header_store(uint8_t *dst, uint32_t count)
    void mb_blob_record_store(uint8_t *dst, uint32_t blob_code, uint64_t nbytes, uint64_t data_offset,
                              uint64_t padding_nbits)
    bint mb_blob_place(uint64_t end, uint64_t align, uint64_t *offset, uint64_t *data_offset)

cdef extern from "milblob/kernels/hash.h" nogil:
    uint64_t mb_hash(const uint8_t *src, uint64_t nbytes, uint64_t seed)

cdef extern from "milblob/wire/wire.h" nogil:
    ctypedef struct mb_cursor:
        const uint8_t *base
        const uint8_t *at
        const uint8_t *end
    ctypedef struct mb_wire:
        uint32_t number, type
        uint64_t value
        const uint8_t *tag
        const uint8_t *data
        uint64_t nbytes
    mb_cursor mb_cursor_of(const uint8_t *base, const uint8_t *data, uint64_t nbytes)
    mb_status mb_read_field(mb_cursor *cursor, mb_wire *wire, mb_error *error)

cdef extern from "milblob/tvm/params.h" nogil:
    ctypedef struct mb_param:
        uint64_t name_offset, name_nbytes, offset, shape_offset, data_offset, nbytes, reserved
        uint32_t ndim, device_id
        uint8_t code, bits
        uint16_t lanes
    mb_status mb_params_header(mb_cursor *cursor, uint64_t *count, uint64_t *reserved, mb_error *error)
    mb_status mb_params_names(mb_cursor *cursor, uint64_t count, mb_param *params, mb_error *error)
    mb_status mb_params_record(mb_cursor *cursor, uint64_t file_left, mb_param *param, mb_error *error)

cdef extern from "milblob/wire/tensor.h" nogil:
    ctypedef struct mb_tensor:
        uint32_t field
        uint64_t start, offset, nbytes, chunk_count, count
    mb_status mb_tensor_locate(const uint8_t *base, const uint8_t *data, uint64_t nbytes, mb_tensor *tensor,
                               mb_error *error)
    mb_status mb_tensor_gather(const uint8_t *base, const uint8_t *end, const mb_tensor *tensor, uint8_t *dst,
                               uint64_t *ranges, mb_error *error)

cdef extern from "milblob/kernels/varint.h" nogil:
    uint64_t mb_varint_count(const uint8_t *src, uint64_t nbytes)
    uint64_t mb_varint_boundary(const uint8_t *src, uint64_t at, uint64_t nbytes)
    unsigned int mb_varint_length(uint64_t value)
    unsigned int mb_varint_write(uint8_t *dst, uint64_t value)

cdef extern from "milblob/kernels/subbyte.h" nogil:
    uint64_t mb_packed_nbytes(uint64_t count, unsigned int nbits)

cdef extern from "milblob/kernels/float.h" nogil:
    int MB_CAST_F32_F16, MB_CAST_F32_BF16, MB_CAST_F16_F32, MB_CAST_BF16_F32, MB_CAST_F16_BF16, MB_CAST_BF16_F16
    int MB_CAST_COUNT
    ctypedef struct mb_cast_counts:
        uint64_t overflow, nan, underflow

cdef extern from "milblob/kernels/tally.h" nogil:
    ctypedef struct mb_tally:
        uint64_t count
        uint16_t *patterns
        uint64_t *counts
    void mb_tally_elements(mb_tally *tally, const uint8_t *src, uint64_t count, unsigned int nbits)
    void mb_tally_add(mb_tally *tally, const mb_tally *other)
    uint32_t mb_tally_gather(mb_tally *tally, unsigned int nbits)

cdef extern from "milblob/kernels/palette_fit.h" nogil:
    ctypedef struct mb_palette_grid:
        unsigned int digits
        int lowest
    ctypedef struct mb_palette_fit:
        uint32_t count
        double *values
        double *weights
    uint64_t mb_palette_fit_nbytes(uint64_t room)
    void mb_palette_fit_place(mb_palette_fit *fit, void *memory, uint32_t room)
    void mb_palette_sum(mb_palette_fit *fit, mb_palette_grid grid)
    uint32_t mb_palette_best(mb_palette_fit *fit, uint32_t k, double *entries, double *cost, double *bound)

cdef extern from "milblob/kernels/palette_values.h" nogil:
    int MB_PALETTE_DISTINCT, MB_PALETTE_BINS, MB_PATTERNS
    ctypedef struct mb_palette_patterns:
        pass
    ctypedef struct mb_palette_bins:
        uint32_t distinct
        uint32_t *starts
        uint64_t *tops
        bint is_divided
    ctypedef struct mb_palette_error:
        double squared, power, largest
    void mb_palette_weigh_16(mb_palette_patterns *patterns, const uint8_t *src, const float *weights, uint64_t count)
    uint32_t mb_palette_gather_16(mb_palette_patterns *patterns, mb_tally *tally, mb_palette_fit *fit, bint is_bf16)
    void mb_palette_patterns_clear(mb_palette_patterns *patterns)
    void mb_palette_bins_clear(mb_palette_bins *bins)
    uint64_t mb_palette_range_32(const uint8_t *src, uint64_t count, double *least, double *most)
    void mb_palette_distinct_32(mb_palette_bins *bins, const uint8_t *src, const float *weights, uint64_t count)
    uint64_t mb_palette_tops_32(mb_palette_bins *bins, const uint8_t *src, uint64_t count)
    void mb_palette_divide(mb_palette_bins *bins, uint32_t count)
    void mb_palette_fill_32(mb_palette_bins *bins, const uint8_t *src, const float *weights, uint64_t count)
    void mb_palette_bins_add(mb_palette_bins *bins, const mb_palette_bins *other)
    double mb_palette_gather_32(mb_palette_bins *bins, mb_palette_fit *fit)
    void mb_palette_table_16(const mb_palette_patterns *patterns, uint8_t *table, const double *entries, uint32_t used,
                             bint is_bf16, mb_palette_error *error)
    void mb_palette_index_16(uint8_t *dst, const uint8_t *src, uint64_t count, const uint8_t *table)

cdef extern from "milblob/kernels/distinct.h" nogil:
    ctypedef struct mb_distinct:
        uint32_t level
    void mb_distinct_merge(mb_distinct *distinct, const mb_distinct *other)
    uint64_t mb_distinct_count(const mb_distinct *distinct)

cdef extern from "milblob/kernels/moments.h" nogil:
    int MB_WIDE_F32, MB_WIDE_F64, MB_WIDE_I32, MB_WIDE_U32, MB_WIDE_I64, MB_WIDE_U64, MB_WIDE_COUNT
    ctypedef struct mb_moments:
        uint64_t count, nan, positive_infinite, negative_infinite, zeros, negative_zeros, subnormal, overflow
        double sum, sum_low, spread, spread_low, least, most, smallest
        int64_t least_whole, most_whole
        uint64_t smallest_whole
    void mb_moments_clear(mb_moments *m)
    void mb_moments_add(mb_moments *m, const mb_moments *other)
    uint64_t mb_wide_nbytes(int kind)
    uint32_t mb_narrow_moments(uint32_t mil_code, const uint16_t *patterns, const uint64_t *counts, uint32_t found,
                               mb_moments *m)
    void mb_narrow_bins(uint32_t mil_code, const uint16_t *patterns, const uint64_t *counts, uint32_t found,
                        const double *edges, uint32_t edge_count, uint64_t *bins)

cdef extern from "milblob/kernels/blake3.h" nogil:
    int MB_BLAKE3_NBYTES, MB_BLAKE3_STRETCH

cdef extern from "milblob/kernels/sums.h" nogil:
    ctypedef struct mb_sums:
        double squared[16]
        double power[16]
        uint32_t largest
    double mb_sum_lanes(const double *lanes)

cdef extern from "milblob/kernels/vectors.h" nogil:
    ctypedef struct mb_vectors:
        const float *entries
        uint32_t k, dims

cdef extern from "milblob/kernels/vectors_begin.h" nogil:
    ctypedef struct mb_columns:
        const float *numbers
        const float *weights
        uint64_t count
        uint32_t dims
        bint is_rows
    uint32_t mb_vectors_begin(const mb_columns *vectors, uint32_t k, uint32_t tries, const double *points,
                              double *distances, double *ends, uint64_t *chosen)
    uint32_t mb_vectors_merges(const float *entries, const double *counts, uint32_t k, uint32_t dims, uint32_t most,
                               double *costs, uint32_t *pairs)

cdef extern from "milblob/kernels/prune_neighbours.h" nogil:
    int MB_NEIGHBOURS_MOST
    ctypedef struct mb_neighbours:
        uint64_t outer, channels, inner
        uint32_t n, m

cdef extern from "milblob/kernels.h" nogil:
    ctypedef struct mb_varint_run_kernel:
        pass
    ctypedef struct mb_tier:
        const char *name
        const mb_varint_run_kernel *varint_run
    const mb_tier mb_tiers[]
    int mb_tier_usable()
    uint64_t mb_cast_src_nbytes(int kind)
    uint64_t mb_cast_dst_nbytes(int kind)
    double mb_nearest_entries(const mb_tier *tier, const float *src, const float *weights, uint64_t count,
                              const mb_vectors *palette, float *scratch, uint8_t *dst, double *sums,
                              double *totals)
    uint64_t mb_prune_split(const mb_tier *tier, const uint8_t *src, uint64_t count, bint is_f16, uint32_t cut,
                            uint8_t *mask, uint8_t *kept, mb_sums *sums)
    uint64_t mb_split_chosen(const mb_tier *tier, const uint8_t *src, uint64_t count, bint is_f16,
                             const uint8_t *chosen, uint8_t *mask, uint8_t *kept, mb_sums *sums)
    uint64_t mb_choose_neighbours(const mb_tier *tier, const uint8_t *src, bint is_f16, const mb_neighbours *shape,
                                  uint8_t *mask, uint64_t *ties, uint32_t *largest)
    void mb_palette_index_32(const mb_tier *tier, uint8_t *dst, const uint8_t *src, const float *weights,
                             uint64_t count, const double *entries, uint32_t used, double *totals,
                             mb_palette_error *error)
    void mb_cast(const mb_tier *tier, int kind, uint8_t *dst, const uint8_t *src, uint64_t count, bint clamp,
                 mb_cast_counts *counts)
    uint64_t mb_cast_find(int kind, const uint8_t *src, uint64_t count, bint is_nan)
    void mb_moments_of(const mb_tier *tier, int kind, const uint8_t *src, uint64_t count, mb_moments *m,
                       mb_distinct *distinct)
    void mb_hash_stretch(const mb_tier *tier, uint8_t *dst, const uint8_t *src, uint64_t nbytes, uint64_t index,
                         bint is_root)
    void mb_hash_join(const mb_tier *tier, uint8_t *cvs, uint64_t count, bint is_root)

cdef extern from "milblob/wire/pack.h" nogil:
    int MB_PACK_RAW, MB_PACK_BOOL, MB_PACK_I16, MB_PACK_U16, MB_PACK_I32, MB_PACK_I64
    uint64_t mb_pack_itemsize(int kind)
    uint64_t mb_pack_nbytes(const mb_tier *tier, int kind, const void *src, uint64_t count)
    mb_status mb_pack(const mb_tier *tier, int kind, uint8_t *dst, uint64_t nbytes, const void *src, uint64_t count,
                      int lo, int hi, mb_error *error)
    void mb_unpack(const mb_tier *tier, uint8_t *dst, const uint8_t *src, uint64_t count, unsigned int nbits)
    mb_status mb_varint_decode(const mb_tier *tier, void *dst, unsigned int itemsize, bint is_bool, const uint8_t *src,
                               uint64_t nbytes, uint64_t count, int64_t lo, int64_t hi, mb_error *error)

cdef extern from "milblob/kernels/compare.h" nogil:
    int MB_COMPARE_SUMS
    ctypedef struct mb_comparison:
        uint64_t count, finite, unequal, outside, mismatched
        double most
        double sums[7]
    ctypedef struct mb_tolerance:
        double atol, rtol
    size_t mb_number_nbytes(uint32_t mil_code)
    void mb_comparison_add(mb_comparison *total, const mb_comparison *part)

cdef extern from "milblob/kernels/difference.h" nogil:
    void mb_compare(const mb_tier *tier, uint32_t a_code, const uint8_t *a, uint32_t b_code, const uint8_t *b,
                    uint64_t count, mb_tolerance tolerance, mb_comparison *total)
    uint64_t mb_hash_elements(const uint8_t *src, uint64_t count, size_t nbytes)

cdef extern from "milblob/kernels/scale.h" nogil:
    int MB_FROM_U8, MB_FROM_I8, MB_FROM_F16, MB_FROM_F32, MB_TO_F32, MB_TO_F16, MB_TO_F16_STEPS

cdef extern from "milblob/kernels/decode.h" nogil:
    int MB_GRID_NDIM
    ctypedef struct mb_source:
        const uint8_t *data
        uint64_t count
        unsigned int nbits
        bint is_signed
        const uint8_t *mask
        uint64_t rank
    ctypedef struct mb_grid:
        const uint64_t *sizes
        const uint64_t *strides
        uint32_t ndim
    ctypedef struct mb_numbers:
        const uint8_t *data
        int kind
    ctypedef struct mb_palette:
        const uint8_t *data
        unsigned int entry_count
        size_t nbytes
        uint64_t vector, inner
    uint64_t mb_count_ones(const mb_tier *tier, const uint8_t *src, uint64_t begin, uint64_t count)
    mb_status mb_decode_sparse(const mb_tier *tier, uint8_t *dst, uint64_t begin, uint64_t count, mb_source *source,
                               mb_error *error)
    mb_status mb_decode_scale(const mb_tier *tier, uint8_t *dst, uint64_t begin, uint64_t count, mb_source *source,
                              mb_grid *grid, const mb_numbers *scale, const mb_numbers *offset, int kind, int to,
                              mb_error *error)
    mb_status mb_decode_palette(const mb_tier *tier, uint8_t *dst, uint64_t begin, uint64_t count, mb_source *source,
                                mb_grid *grid, const mb_palette *palette, mb_error *error)

cdef extern from "milblob/system/pages.h" nogil:
    void mb_advise_huge(void *start, uint64_t nbytes)

cdef extern from "milblob/system/exchange.h" nogil:
    int mb_exchange(const char *a, const char *b)

cdef extern from "milblob/system/writeback.h" nogil:
    int mb_start_writing(int fd, uint64_t offset, uint64_t nbytes)

cdef extern from "milblob/system/beneath.h" nogil:
    int mb_open_beneath(int fd, const char *name, int flags)

cdef extern from "milblob/system/above.h" nogil:
    int64_t mb_look_above(const char *path, const char *name)

cdef extern from "milblob/program/tables.h" nogil:
    uint32_t MB_NONE
    uint64_t MB_UNKNOWN
    ctypedef struct mb_span:
        uint64_t offset, nbytes
    ctypedef struct mb_function:
        mb_span name, opset, message
    ctypedef struct mb_block:
        mb_span name
        uint32_t function, parent, number, index
    ctypedef struct mb_op:
        mb_span name, type, message
        uint32_t block, index, output_count, mil_code, rank, dims
    ctypedef struct mb_entry:
        mb_span value, payload, key
        uint64_t blob_offset, count
        uint32_t op, block, function, mil_code, rank, dims, binding, binding_count, step_count, steps, owner, storage
    ctypedef struct mb_scan:
        const uint8_t *base
        uint32_t flags
        mb_function *functions
        mb_block *blocks
        mb_op *ops
        mb_entry *entries
        uint64_t *numbers
        uint64_t function_capacity, block_capacity, op_capacity, entry_capacity, number_capacity
        uint64_t function_count, block_count, op_count, entry_count, number_count
        uint32_t function, block, op
        mb_op current
        mb_span output
        bint in_op
        mb_entry owner
        uint64_t version
        mb_error *error

cdef extern from "milblob/program/program.h" nogil:
    mb_status mb_program_scan(mb_scan *scan, mb_span program)

cdef extern from "milblob/kernels/siphash.h" nogil:
    ctypedef struct mb_siphash_key:
        uint64_t words[2]

cdef extern from "milblob/program/names.h" nogil:
    uint32_t MB_NAMELESS, MB_MAX_NAMES
    ctypedef struct mb_names:
        uint8_t *bytes
        uint32_t *ends
        uint64_t capacity, end_capacity, nbytes, count
        const uint8_t *prefix
        uint64_t prefix_nbytes
    void mb_names_add_entries(mb_names *names, const mb_scan *scan)
    void mb_names_add_ops(mb_names *names, const mb_scan *scan)
    bint mb_op_is_constexpr(const mb_scan *scan, const mb_op *op)
    mb_span mb_name_of(const mb_names *names, uint64_t row)
    bint mb_names_utf8(const mb_names *names)
    bint mb_names_index(const mb_names *names, uint32_t *slots, uint64_t slot_count, const mb_siphash_key *key)
    uint32_t mb_names_find(const mb_names *names, const uint32_t *slots, uint64_t slot_count, const mb_siphash_key *key,
                           const uint8_t *name, uint64_t nbytes)

cdef extern from "milblob/program/kept.h" nogil:
    ctypedef struct mb_form:
        mb_span key, text, type
        uint64_t count
        uint32_t function, mil_code, rank, dims, binding, binding_count, step_count, steps, owner, storage
        uint32_t has_op, op_mil_code, op_rank, op_dims, output_count, head_nbytes, tail_nbytes, is_chain
    ctypedef struct mb_kept_row:
        uint64_t value, blob_offset
        uint32_t value_nbytes, payload, payload_nbytes, value_in_op, op_nbytes, block, index, form
    ctypedef struct mb_kept_op:
        uint64_t message
        uint32_t nbytes, block, index, form
    ctypedef struct mb_kept:
        mb_kept_row *rows
        mb_kept_op *ops
        mb_form *forms
        uint32_t *slots
        uint64_t slot_count, form_count
        const uint32_t *numbers
        uint8_t *texts
        uint64_t text_nbytes, text_capacity
    bint mb_keep_rows(mb_kept *kept, const mb_names *names, const mb_scan *scan, const mb_siphash_key *key)

cdef extern from "milblob/program/graph.h" nogil:
    uint32_t MB_GRAPH_OUTPUT, MB_GRAPH_INPUT, MB_GRAPH_PARAMETER, MB_GRAPH_RETURN
    ctypedef struct mb_graph_name:
        mb_span name, type
        uint32_t kind, owner
    ctypedef struct mb_graph_argument:
        mb_span key
        uint32_t bindings, binding_count, operation
    ctypedef struct mb_graph_binding:
        mb_span span
        uint32_t argument, is_value
    ctypedef struct mb_graph_operation:
        mb_span message, type
        uint32_t block, index, end, outputs, output_count, arguments, argument_count, blocks, block_count
    ctypedef struct mb_graph_block:
        mb_span name, message
        uint32_t function, operation, number, end, operations, operation_end, inputs, input_count, outputs, output_count
    ctypedef struct mb_graph_function:
        mb_span name, opset, message
        uint32_t inputs, input_count, blocks, block_end
    ctypedef struct mb_graph:
        mb_scan scan
        mb_graph_function *functions
        mb_graph_block *blocks
        mb_graph_operation *operations
        mb_graph_name *names
        mb_graph_argument *arguments
        mb_graph_binding *bindings
        uint64_t function_capacity, block_capacity, operation_capacity, name_capacity, argument_capacity, binding_capacity
        uint64_t function_count, block_count, operation_count, name_count, argument_count, binding_count
    mb_status mb_program_graph(mb_graph *graph, mb_span program)

cdef extern from "milblob/program/scopes.h" nogil:
    uint32_t MB_READ_RETURN
    ctypedef struct mb_scopes:
        const mb_graph *graph
        uint32_t *definers
        uint32_t *reads
        uint32_t *readers
        uint32_t *readers_from
        uint32_t *slots
        uint64_t slot_count
        uint32_t *firsts
        uint32_t *meanings
        uint32_t *blocks
        uint32_t *hidden
    void mb_scopes_resolve(mb_scopes *scopes, const mb_siphash_key *key)

cdef extern from "milblob/program/chains.h" nogil:
    uint32_t MB_TARGET_OP
    int MB_MARK_PART, MB_MARK_SHARED, MB_CHAIN_END
    int MB_CHAINS_DONE, MB_CHAINS_SMALL, MB_CHAINS_USES, MB_CHAINS_PARTS, MB_CHAINS_LONG, MB_CHAINS_CIRCLE
    int MB_MAX_CHAIN, MB_MAX_PARTS
    ctypedef struct mb_chain_op:
        uint32_t row, first, count, message, parts, flags
    ctypedef struct mb_definition:
        pass
    ctypedef struct mb_chains:
        const mb_scan *scan
        const mb_scan *small
        mb_chain_op *ops
        uint64_t op_count
        uint32_t *numbers
        uint32_t *targets
        uint8_t *marks
        uint32_t *small_rows
        uint8_t *small_marks
        uint64_t small_count
        mb_definition *definitions
        uint64_t definition_count, definition_capacity
        uint32_t *slots
        uint64_t slot_count, name_count
        uint32_t stopped
    ctypedef struct mb_chain_links:
        uint32_t *reads
        uint32_t *reads_from
        uint32_t *readers
        uint32_t *readers_from
        uint32_t *waiting
        uint32_t *ready
        uint32_t *seen
    void mb_chains_begin(mb_chains *chains)
    void mb_chains_define(mb_chains *chains, const mb_siphash_key *key)
    void mb_chains_add_small(mb_chains *chains, const mb_scan *small, const mb_siphash_key *key)
    void mb_chains_add_uses(mb_chains *chains, const mb_graph *graph, const mb_siphash_key *key)
    int mb_chains_resolve(mb_chains *chains, const mb_siphash_key *key)
    int mb_chains_check(mb_chains *chains, mb_chain_links *links)
    int mb_chains_ends(mb_chains *chains, const mb_siphash_key *key)
    bint mb_scan_utf8(const mb_scan *scan)

cdef extern from "milblob/program/sound.h" nogil:
    bint mb_sound_value(const uint8_t *base, mb_span at, mb_span *type)
    bint mb_sound_attribute(const uint8_t *base, mb_span entry, mb_span *key, mb_span *type, mb_span *value)

cdef extern from "milblob/wire/splice.h" nogil:
    int MB_SPLICE_DEPTH
    ctypedef struct mb_edit:
        uint64_t offset, nbytes, new_nbytes
    ctypedef struct mb_prefix:
        uint64_t offset, nbytes, length, new_length
    ctypedef struct mb_level:
        pass
    ctypedef struct mb_splice:
        uint64_t prefix_count, new_nbytes
    mb_status mb_splice_walk(const uint8_t *base, uint64_t offset, uint64_t nbytes, const mb_edit *edits, uint64_t count,
                             mb_level *levels, mb_prefix *prefixes, uint64_t capacity, mb_splice *splice, mb_error *error)

cdef extern from "milblob/text/print.h" nogil:
    ctypedef int (*mb_flush)(void *context, const uint8_t *bytes, uint64_t nbytes) noexcept nogil
    ctypedef struct mb_print:
        uint8_t *out
        uint64_t capacity, at
        mb_flush flush
        void *context
        bint stopped
    bint mb_print_flush(mb_print *print)

cdef extern from "milblob/text/write.h" nogil:
    ctypedef enum mb_write_weights:
        MB_WRITE_ALL, MB_WRITE_CUT, MB_WRITE_NONE
    ctypedef enum mb_write_step:
        MB_WRITE_HEADER, MB_WRITE_FUNCTION, MB_WRITE_STATEMENT
    ctypedef struct mb_write_key:
        mb_span key, value
    ctypedef struct mb_writer:
        const mb_graph *graph
        const uint8_t *base
        mb_error *error
        mb_print print
        bint is_plain, has_scalars
        mb_write_weights weights
        const mb_varint_run_kernel *runs
        mb_write_key *keys
        uint64_t key_capacity
        uint32_t operation
    mb_status mb_text_write(mb_writer *w, mb_write_step step, mb_span program, uint32_t row, uint64_t minor)

cdef extern from "milblob/text/parse.h" nogil:
    ctypedef struct mb_text_span:
        uint64_t start, nbytes
    mb_status mb_text_to_statements(const uint8_t *text, uint64_t nbytes, uint8_t *out, uint64_t capacity,
                                    uint64_t *out_nbytes, mb_text_span *statements, uint64_t statement_capacity,
                                    uint64_t *statement_count, mb_error *error)

cdef extern from "milblob/kernels/quantize.h" nogil:
    ctypedef struct mb_integers:
        int32_t least, most
        unsigned nbits
        bint is_linear
    uint64_t mb_count_not_finite(const uint8_t *src, bint is_f16, uint64_t count)
    void mb_quantize_ranges(const mb_tier *tier, const uint8_t *src, bint is_f16, uint64_t begin, uint64_t count,
                            mb_grid *grid, float *least, float *most)
    bint mb_quantize_scales(const mb_tier *tier, const float *least, const float *most, uint64_t count, bint is_f16,
                            const mb_integers *to, float *scale, float *zero)
    void mb_quantize(const mb_tier *tier, uint8_t *dst, bint is_packed, const uint8_t *src, bint is_f16, uint64_t begin,
                     uint64_t count, mb_grid *grid, const float *scale, const float *zero, const mb_integers *to,
                     mb_sums *sums)
    void mb_quantize_errors(const mb_tier *tier, const uint8_t *src, bint is_f16, uint64_t begin, uint64_t count,
                            mb_grid *grid, const float *scale, const float *zero, const mb_integers *to,
                            const float *weights, double *errors)
    uint64_t mb_quantize_units(uint64_t unit)
    bint mb_quantize_blocks(const mb_tier *tier, uint8_t *dst, bint is_packed, const uint8_t *src, bint is_f16,
                            uint64_t begin, uint64_t count, uint64_t unit, uint64_t unit_parameters, mb_grid *grid,
                            const mb_integers *to, float *spare, uint8_t *scale, uint8_t *zero, mb_sums *sums)
    float mb_float_of(uint32_t bits)

cdef extern from "milblob/kernels/prune_blocks.h" nogil:
    ctypedef struct mb_blocks:
        uint64_t outer, channels, inner, m
    void mb_block_sums(const mb_tier *tier, const uint8_t *src, bint is_f16, const mb_blocks *shape, uint8_t *sums)
    void mb_block_count(const uint8_t *sums, bint is_f16, const mb_blocks *shape, bint is_below, uint32_t top,
                        uint64_t *counts)
    uint64_t mb_block_mask(const mb_tier *tier, const uint8_t *src, bint is_f16, const mb_blocks *shape,
                           const uint8_t *sums, uint32_t cut, uint8_t *mask)

cdef extern from "milblob/kernels/prune.h" nogil:
    int MB_MAGNITUDES
    void mb_prune_count(const uint8_t *src, uint64_t count, bint is_f16, uint32_t *counts)
    void mb_prune_count_below(const uint8_t *src, uint64_t count, uint32_t top, uint64_t *counts)
