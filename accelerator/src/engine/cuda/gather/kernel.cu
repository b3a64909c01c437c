// Gathers a batch's inputs: from wherever its samples landed, into the buffers that the model's kernels read.
//
// The CPU writes a list of chunks. Each warp takes every so-manieth of them, copies its bytes and clears the rest of its room,
// which is how a ragged input is padded. Sources may lie in registered memory of the host, which is read over PCIe, or on the
// GPU. Threads share nothing and wait for nobody: the same text compiled for the CPU, one thread after the other, does
// the same, and so it is tested there.
//
// `kernel.ptx` beside it is made of this file by accelerator/gpu/ptx.py.

struct Chunk {
    unsigned long long from;
    unsigned long long to;
    unsigned int bytes;
    // Not less than `bytes`.
    unsigned int room;
};

struct alignas(16) Sixteen {
    unsigned long long low, high;
};

enum : unsigned int {
    WARP = 32,
    // Loads that each thread has on their way at once: those of the host's memory take more than a microsecond.
    AT_ONCE = 8,
};

template <typename Word>
__device__ static void fill(const Chunk &chunk, unsigned int lane) {
    const Word *from = reinterpret_cast<const Word *>(chunk.from);
    Word *to = reinterpret_cast<Word *>(chunk.to);
    const unsigned int bytes = chunk.bytes / sizeof(Word), room = chunk.room / sizeof(Word);
    for (unsigned int first = lane; first < room; first += WARP * AT_ONCE) {
        Word words[AT_ONCE];
#pragma unroll
        for (unsigned int i = 0; i < AT_ONCE; ++i) {
            const unsigned int at = first + i * WARP;
            words[i] = at < bytes ? from[at] : Word{};
        }
#pragma unroll
        for (unsigned int i = 0; i < AT_ONCE; ++i) {
            const unsigned int at = first + i * WARP;
            if (at < room)
                to[at] = words[i];
        }
    }
}

// Blocks have a multiple of 32 threads; any number of blocks does.
extern "C" __global__ void qdl_gather(const Chunk *chunks, unsigned int count) {
    const unsigned int thread = blockIdx.x * blockDim.x + threadIdx.x;
    const unsigned int warps = gridDim.x * blockDim.x / WARP;
    for (unsigned int i = thread / WARP; i < count; i += warps) {
        const Chunk chunk = chunks[i];
        // The widest words that everything is a multiple of.
        const unsigned int fits = static_cast<unsigned int>(chunk.from | chunk.to) | chunk.bytes | chunk.room;
        if (fits % 16 == 0)
            fill<Sixteen>(chunk, thread % WARP);
        else if (fits % 8 == 0)
            fill<unsigned long long>(chunk, thread % WARP);
        else if (fits % 4 == 0)
            fill<unsigned int>(chunk, thread % WARP);
        else
            fill<unsigned char>(chunk, thread % WARP);
    }
}
