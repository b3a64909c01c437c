/* libqdl: a query dispatch library for MLPerf's Network division. docs/library.md is its page.
 *
 * A harness opens a *cluster* (qdl_open to qdl_abort) and gives it samples; an engine opens a *node*
 * (qdl_serve to qdl_respond) and answers them. Both are numbers, never 0; a closed one is an error.
 *
 * Errors: a function that fails returns a code below 0 (QDL_E_...), and qdl_error has the text.
 * Threads: every function may be called from every thread at any time, two at once too, unless its
 * comment says otherwise. The library calls no function of the program.
 * Forks: NIC threads do not survive a fork. In a fork of a process with a handle, every function
 * returns QDL_E_FORK.
 */
#ifndef QDL_H
#define QDL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define QDL_ABI 1

/* Codes of errors. */
enum {
    QDL_E_USAGE = -1,  /* an argument is wrong */
    QDL_E_CONFIG = -2, /* the configuration is wrong */
    QDL_E_SYSTEM = -3, /* a peer, a NIC, a port or the system does not allow it */
    QDL_E_STATE = -4,  /* too early, too late, or the handle is closed */
    QDL_E_FORK = -5,   /* this process is a fork */
    QDL_E_PANIC = -6   /* a fault of libqdl: close the handle */
};

/* The version of this interface. Structs and functions of a version stay as they are; compare the
 * result with QDL_ABI before the first other call. */
uint32_t qdl_abi(void);

/* Text of the calling thread's last error, valid until its next one. */
const char *qdl_error(void);

/* ---- Frontend ------------------------------------------------------------------------------- */

/* Flag of a sample: its bytes begin with a block of qdl_options_write. */
enum { QDL_HAS_OPTIONS = 1 };

/* A sample to issue. */
typedef struct qdl_sample {
    uint64_t id;      /* the program's, not 2^64 - 1; no two cancellable samples in flight share it */
    const void *data; /* in registered memory; do not write it until the sample has ended */
    uint32_t len;     /* bytes, with the options */
    uint32_t flags;   /* QDL_HAS_OPTIONS, or 0 */
} qdl_sample;

/* Kinds of events, and of answers (qdl_answer). A sample has any number of parts, then one QDL_DONE
 * or QDL_FAILED. */
enum {
    QDL_PART = 1,   /* bytes of an unfinished answer */
    QDL_DONE = 2,   /* the whole answer: bytes of earlier parts, and those that no part brought */
    QDL_FAILED = 3, /* no answer: refused, cancelled or aborted; the bytes are the reason, as text */
    QDL_REFUSED = 4 /* of answers alone: the engine cannot run the sample */
};

/* Flags of events. */
enum {
    QDL_FIRST = 1, /* the sample's first token is in it; set once for each sample that is answered */
    QDL_AGAIN = 2  /* a part after the loss of an accelerator: earlier bytes come again */
};

/* What came of a sample. */
typedef struct qdl_event {
    uint64_t id;
    const void *data;    /* valid until the lease is released */
    uint64_t at_ns;      /* when a NIC thread read it, on CLOCK_MONOTONIC */
    uint32_t len;        /* bytes of `data` */
    uint32_t offset;     /* of a part: bytes of the answer before it */
    uint32_t connection; /* index of the connection that answered or refused; else UINT32_MAX */
    uint16_t kind;
    uint16_t flags;
} qdl_event;

/* Options of a request for tokens; `set` says which fields hold. */
enum {
    QDL_TOKEN_LIMIT = 1,
    QDL_MIN_TOKENS = 2,
    QDL_TEMPERATURE = 4,
    QDL_TOP_P = 8,
    QDL_TOP_K = 16,
    QDL_SEED = 32,
    QDL_IGNORE_EOS = 64,
    QDL_STOP_IDS = 128
};

#define QDL_MAX_STOP_IDS 32
#define QDL_MAX_OPTIONS 256 /* most bytes of a block of options */

typedef struct qdl_options {
    uint32_t set;
    uint32_t token_limit;
    uint32_t min_tokens;
    uint32_t top_k;
    float temperature;
    float top_p;
    uint64_t seed;
    uint32_t stop_count;
    int32_t stop_ids[QDL_MAX_STOP_IDS];
    uint32_t reserved;
} qdl_options;

/* Reads a configuration: a frontend's YAML (or JSON) in `file`, or as the text `yaml`; the other is
 * NULL. Keys of the program `frontend` alone, such as `dataset`, are ignored. */
int qdl_open(const char *file, const char *yaml, uint64_t *cluster);

/* Registers memory that samples are sent from, without a copy. Call it before qdl_connect. The
 * memory stays mapped until qdl_close returns. */
int qdl_register(uint64_t cluster, void *memory, size_t len);

/* Connects to every accelerator; waits for one that loads its model. Warms the connections up with
 * these samples, one of each size; `n` = 0: no warm-up. Their ids are ignored. */
int qdl_connect(uint64_t cluster, const qdl_sample *warm_up, size_t n);

/* Issues samples, all or (after an error) none, and returns at once. What finds no free slot waits in
 * the library. */
int qdl_issue(uint64_t cluster, const qdl_sample *samples, size_t n);

/* Waits up to `timeout_ms` (at most an hour) for events; returns their number, 0 to `max`. Each event
 * goes to one call. `lease` keeps the bytes of these events; it is 0 where there are none. Returns
 * at once after qdl_finish. */
int64_t qdl_poll(uint64_t cluster, qdl_event *events, size_t max, uint32_t timeout_ms,
                 uint64_t *lease);

/* Frees the bytes of a poll's events, also after qdl_close. Answers of models whose largest is above
 * 16 KiB stay in their slots until then, so a program that releases nothing stops its connections. */
int qdl_release(uint64_t lease);

/* Asks for the end of samples; each still ends with QDL_DONE or QDL_FAILED. */
int qdl_cancel(uint64_t cluster, const uint64_t *ids, size_t n);

/* Ends the run: all samples, those issued later too, fail with this reason. */
int qdl_abort(uint64_t cluster, const char *why);

/* Writes a request's options; returns the length of the block, at most QDL_MAX_OPTIONS and a multiple
 * of 8. The prompt follows the block in memory. */
int64_t qdl_options_write(const qdl_options *options, void *to, size_t room);

/* ---- Accelerator ---------------------------------------------------------------------------- */

/* A sample that arrived, in the slot where it landed. */
typedef struct qdl_arrival {
    uint64_t ticket;
    const void *data; /* valid until the ticket has ended */
    void *out;        /* the output slot, as long; the answer may be written here */
    uint32_t len;     /* bytes of `data`, without options */
    uint32_t room;    /* most bytes of the answer; the request's token limit counts */
    uint32_t flags;   /* QDL_HAS_OPTIONS: qdl_options_read has them */
    uint32_t token_limit; /* most tokens of the answer; 0: the engine's own limit */
} qdl_arrival;

/* Status of an answer: the frontend is gone or has cancelled the sample. */
enum { QDL_GONE = 1 };

/* An answer. A ticket ends with QDL_DONE, QDL_REFUSED or a status other than 0. */
typedef struct qdl_answer {
    uint64_t ticket;
    const void *data; /* bytes behind those of earlier parts; NULL: they are in `out` already.
                         Of QDL_REFUSED: the reason, as text */
    uint32_t len;     /* bytes of `data` */
    uint16_t kind;    /* QDL_PART, QDL_DONE or QDL_REFUSED */
    uint16_t flags;   /* 0 */
    int32_t status;   /* written by the call: 0, QDL_GONE, or QDL_E_USAGE: no such ticket, or the
                         answer does not fit the model, and the sample is refused */
    uint32_t reserved;
} qdl_answer;

/* Opens a node and serves frontends, one after another: an accelerator's YAML as for qdl_open, with
 * `inputs` and `output` of the model. `engine` is a name for the record. `options` has the bits of
 * the options that the engine acts on; requests with others are refused. */
int qdl_serve(const char *file, const char *yaml, const char *engine, uint32_t options,
              uint64_t *node);

/* Waits up to `timeout_ms` for samples; returns their number, 0 to `max`. Each goes to one call.
 * Returns at once after qdl_finish. */
int64_t qdl_arrivals(uint64_t node, qdl_arrival *arrivals, size_t max, uint32_t timeout_ms);

/* Sends answers, parts and refusals, and writes each status; returns how many are not 0. Parts of a
 * ticket go in the order of the calls, so two threads must not answer one ticket at once. */
int64_t qdl_respond(uint64_t node, qdl_answer *answers, size_t n);

/* Reads the options of a sample whose ticket has not ended. */
int qdl_options_read(uint64_t node, uint64_t ticket, qdl_options *options);

/* ---- Both ----------------------------------------------------------------------------------- */

/* A descriptor for poll(2), the handle's own: readable while events or arrivals wait. It may be
 * readable once without any. Read nothing from it. */
int qdl_fd(uint64_t handle);

/* Texts of a handle. */
enum {
    QDL_TEXT_NAME = 1,     /* the SUT's name, or the node's; the cluster asks its accelerators */
    QDL_TEXT_ADDRESS = 2,  /* of a node: HOST:PORT of its control port */
    QDL_TEXT_COUNTERS = 3, /* counts so far, as JSON */
    QDL_TEXT_RECORD = 4,   /* of a cluster after qdl_finish: the record of the run, as JSON */
    QDL_TEXT_NOTES = 5     /* lines for a log since the last call: losses, waits, the abort */
};

/* Writes a text with a 0 behind it if `room` suffices. Returns its length without the 0 either way. */
int64_t qdl_text(uint64_t handle, int which, char *to, size_t room);

/* Ends a run in order: a cluster waits for samples in flight, up to the deadline `drain`, and says
 * good-bye; a node stops serving. Events that wait can still be polled. */
int qdl_finish(uint64_t handle);

/* Finishes, and frees the handle. */
int qdl_close(uint64_t handle);

#ifdef __cplusplus
}
#endif

#endif
