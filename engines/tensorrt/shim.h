/* What the accelerator calls of TensorRT, as plain C: opaque handles, names, addresses and one line of text for what went
 * wrong. shim.cpp puts it on top of TensorRT's C++ classes, whose layout is known to their own headers alone; everything
 * that decides stays in Rust.
 *
 * Every function that can fail gives 0, or one of the codes below and a line in `why`, which always ends in zero.
 * Handles are used by one thread at a time. `src/engine/tensorrt/shim.rs` says the same in Rust: change both together, and
 * QDL_TRT_ABI with them.
 */
#ifndef QDL_TENSORRT_SHIM_H
#define QDL_TENSORRT_SHIM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define QDL_TRT_ABI 1
#define QDL_TRT_MAX_RANK 8
#define QDL_TRT_MAX_NAME 256

enum qdl_trt_code {
    QDL_TRT_OK = 0,
    /* The library cannot be opened or lacks a function. */
    QDL_TRT_LIBRARY = 1,
    /* The library is of another version than the headers this was compiled with. */
    QDL_TRT_VERSION = 2,
    /* The plan or the ONNX model is none, or is for something else. */
    QDL_TRT_MODEL = 3,
    /* TensorRT refused; its own words are in `why`. */
    QDL_TRT_REFUSED = 4,
    /* This library has no builder: it runs plans and makes none. */
    QDL_TRT_NO_BUILDER = 5
};

/* Element types that are served. */
enum qdl_trt_type {
    QDL_TRT_OTHER = 0,
    QDL_TRT_U8 = 1,
    QDL_TRT_I8 = 2,
    QDL_TRT_I32 = 3,
    QDL_TRT_I64 = 4,
    QDL_TRT_F16 = 5,
    QDL_TRT_BF16 = 6,
    QDL_TRT_F32 = 7
};

enum qdl_trt_precision { QDL_TRT_FP32 = 0, QDL_TRT_FP16 = 1, QDL_TRT_INT8 = 2 };

struct qdl_trt_tensor {
    char name[QDL_TRT_MAX_NAME];
    int32_t is_output;
    /* enum qdl_trt_type */
    int32_t type;
    /* 1 where elements lie one behind the other, the last dimension fastest. */
    int32_t linear;
    int32_t rank;
    /* -1 where a dimension is the caller's. */
    int64_t dims[QDL_TRT_MAX_RANK];
};

struct qdl_trt_build {
    const char *onnx;
    /* Where the plan goes. */
    const char *plan;
    /* enum qdl_trt_precision */
    int32_t precision;
    /* How hard to look for fast kernels, 0 to 5; -1 for TensorRT's own choice, 3. Before 8.6 it has no say. */
    int32_t level;
    /* Largest batch of each profile, ascending; the first begins at 1, each next one behind the last. Kernels are chosen for
     * the largest. */
    const int32_t *batches;
    int32_t profiles;
    /* Scratch memory that kernels may want, bytes. */
    uint64_t workspace;
};

typedef struct qdl_trt_library qdl_trt_library;
typedef struct qdl_trt_engine qdl_trt_engine;
typedef struct qdl_trt_context qdl_trt_context;
/* severity: 0 internal error, 1 error, 2 warning, 3 information, 4 details */
typedef void (*qdl_trt_log)(int32_t severity, const char *text);

int32_t qdl_trt_abi(void);
/* Version of the headers this was compiled with: major * 10000 + minor * 100 + patch. */
int32_t qdl_trt_headers(void);

/* Opens libnvinfer, or its lean runtime. It stays open for good. */
int32_t qdl_trt_open(const char *path, qdl_trt_log log, qdl_trt_library **out, char *why, size_t room);
/* Version of the library, as above. */
int32_t qdl_trt_version(const qdl_trt_library *library);

/* Builds a plan from an ONNX model and writes it. Frees nothing: end the process after it. `parser` is the path of
 * libnvonnxparser. The thread's CUDA device counts. */
int32_t qdl_trt_build_plan(qdl_trt_library *library, const char *parser, const struct qdl_trt_build *how, char *why,
                           size_t room);

/* Loads a plan to the thread's CUDA device. */
int32_t qdl_trt_load(qdl_trt_library *library, const void *plan, size_t bytes, qdl_trt_engine **out, char *why, size_t room);
void qdl_trt_unload(qdl_trt_engine *engine);
int32_t qdl_trt_tensors(const qdl_trt_engine *engine);
int32_t qdl_trt_tensor_at(const qdl_trt_engine *engine, int32_t index, struct qdl_trt_tensor *out);
int32_t qdl_trt_profiles(const qdl_trt_engine *engine);
/* Smallest and largest batch of an input in a profile: its first dimension. */
int32_t qdl_trt_batches(const qdl_trt_engine *engine, int32_t tensor, int32_t profile, int64_t *least, int64_t *most);

/* A context for one profile; no other context of the engine may have it. `stream` is a cudaStream_t. */
int32_t qdl_trt_context_new(qdl_trt_engine *engine, int32_t profile, void *stream, qdl_trt_context **out, char *why,
                            size_t room);
void qdl_trt_context_free(qdl_trt_context *context);
/* Where a tensor lies on the GPU from now on. */
int32_t qdl_trt_bind(qdl_trt_context *context, int32_t tensor, void *address, char *why, size_t room);
/* How many samples the next runs have. */
int32_t qdl_trt_set_batch(qdl_trt_context *context, int64_t batch, char *why, size_t room);
/* Puts the kernels on the stream. */
int32_t qdl_trt_enqueue(qdl_trt_context *context, void *stream, char *why, size_t room);

#ifdef __cplusplus
}
#endif

#endif
