/* Issues samples to the accelerators of a configuration, and polls their answers.
 *
 *     cc poll.c -I../include -L. -lqdl -o poll && ./poll frontend.yaml BYTES SAMPLES
 *
 * A sample is BYTES bytes, all equal to its id. The node answers with the sum of the bytes. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "qdl.h"

enum { MAX_EVENTS = 256, LONGEST_WAIT_MS = 20000 };

static int64_t check(int64_t result) {
    if (result < 0) {
        fprintf(stderr, "error %" PRId64 ": %s\n", result, qdl_error());
        exit(1);
    }
    return result;
}

int main(int argc, char **argv) {
    if (argc != 4 || qdl_abi() != QDL_ABI) {
        fprintf(stderr, "usage: poll FILE BYTES SAMPLES, with a libqdl of version %d\n", QDL_ABI);
        return 2;
    }
    size_t bytes = strtoul(argv[2], NULL, 10), n = strtoul(argv[3], NULL, 10);
    unsigned char *memory = malloc(bytes * n);
    qdl_sample *samples = calloc(n, sizeof *samples);
    if (memory == NULL || samples == NULL) return 2;
    for (size_t i = 0; i < n; i++) {
        memset(memory + i * bytes, (int)(i & 255), bytes);
        samples[i] = (qdl_sample){.id = i, .data = memory + i * bytes, .len = (uint32_t)bytes};
    }

    uint64_t cluster;
    check(qdl_open(argv[1], NULL, &cluster));
    check(qdl_register(cluster, memory, bytes * n));
    check(qdl_connect(cluster, samples, 1));
    check(qdl_issue(cluster, samples, n));

    size_t done = 0, wrong = 0;
    while (done < n) {
        qdl_event events[MAX_EVENTS];
        uint64_t lease;
        int64_t got = check(qdl_poll(cluster, events, MAX_EVENTS, LONGEST_WAIT_MS, &lease));
        if (got == 0) break;
        for (int64_t i = 0; i < got; i++) {
            const qdl_event *event = &events[i];
            if (event->kind == QDL_PART) continue;
            uint64_t sum = 0;
            if (event->kind == QDL_FAILED) {
                fprintf(stderr, "sample %" PRIu64 ": %.*s\n", event->id, (int)event->len,
                        (const char *)event->data);
            } else {
                memcpy(&sum, event->data, event->len < sizeof sum ? event->len : sizeof sum);
            }
            wrong += sum != (event->id & 255) * bytes;
            done++;
        }
        check(qdl_release(lease));
    }
    check(qdl_finish(cluster));
    int64_t len = check(qdl_text(cluster, QDL_TEXT_RECORD, NULL, 0));
    check(qdl_close(cluster));
    free(samples);
    free(memory);
    printf("%zu of %zu answered, %zu wrong, a record of %" PRId64 " bytes\n", done, n, wrong, len);
    return done == n && wrong == 0 ? 0 : 1;
}
