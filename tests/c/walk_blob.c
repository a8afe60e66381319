/* walk_blob.c: reads each file as a blob v2 storage file; see replay.h for the command line. */
#include "milblob/blob/blob.h"
#include "replay.h"

static void check_record(const mb_blob_record *record, uint64_t nbytes) {
    const mb_dtype *dtype = mb_dtype_of_blob_code(record->blob_code);
    require(dtype != NULL && dtype->mil_code == record->mil_code, "a dtype of the table");
    require(record->data_offset <= nbytes && record->nbytes <= nbytes - record->data_offset, "data inside the file");
    require(record->count <= nbytes * 8 && record->padding_nbits < 8, "a count that the bytes hold");
    require(record->count * dtype->nbits + record->padding_nbits == record->nbytes * 8, "whole elements");
}

static void check(const uint8_t *data, uint64_t nbytes) {
    uint32_t count = 0, done = 0;
    uint64_t good = 0;
    mb_error error = {MB_OK, 0, 0, 0, NULL};
    if (mb_blob_header(data, nbytes, &count, &error)) {
        require(error.detail != NULL && error.offset <= nbytes, "an error with its place");
        count = 3; /* go on as if it had been good: the records are checked on their own */
    }
    require(count == 3 || count <= nbytes / 64, "no more records than fit");
    mb_blob_record *records = (mb_blob_record *)exactly(count * sizeof *records);
    mb_status status = mb_blob_walk(data, nbytes, count, records, &done, &error);
    require(status != MB_OK ? done < count && error.detail != NULL : done == count, "as many rows as were good");
    for (uint32_t i = 0; i < done; i++) {
        check_record(&records[i], nbytes);
        require(i == 0 || records[i].offset >= records[i - 1].data_offset + records[i - 1].nbytes, "records in a row");
    }
    free(records);
    for (uint64_t offset = 0; offset <= nbytes + 64; offset += 8) {
        mb_blob_record record;
        if (mb_blob_records_at(data, nbytes, NULL, &offset, 1, &record, &good, &error) == MB_OK) check_record(&record, nbytes);
    }
    for (int shift = 0; shift < 64; shift++) { /* offsets that wrap */
        uint64_t offset = UINT64_MAX << shift;
        mb_blob_record record;
        require(mb_blob_records_at(data, nbytes, NULL, &offset, 1, &record, &good, &error) != MB_OK, "nothing far outside");
    }
}
