/* The pool of vramkit from C: device memory in stream order.
 *
 *     vramkit_pool* pool = vramkit_pool_instance(0);
 *     void* block = vramkit_malloc(pool, 4096, stream);
 *     if (block == NULL) fprintf(stderr, "%s\n", vramkit_last_error());
 *     ...                                  launches and copies on `stream`
 *     vramkit_free(pool, block);           at this point of the stream; waits for nothing
 *
 * Needs no CUDA header: a stream is the CUstream or cudaStream_t as a void*, NULL the legacy
 * default stream, a block the device pointer as a void*. The driver is the one that the
 * environment's VRAMKIT_DRIVER names: "cuda" (NVIDIA's; also where it is not set), "sim" or
 * "sim:PROFILE" (a simulated GPU). It is opened by the first pool.
 *
 * Every function may be called from any thread. None throws a C++ exception, except
 * vramkit_torch_malloc. NULL or a status other than VRAMKIT_OK means that nothing was done;
 * vramkit_last_status and vramkit_last_error then say why.
 */
#ifndef VRAMKIT_H
#define VRAMKIT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum vramkit_status {
    VRAMKIT_OK = 0,
    VRAMKIT_BAD_VALUE = 1,     /* a bad argument or environment variable */
    VRAMKIT_CLOSED = 2,        /* the pool is closed */
    VRAMKIT_FORKED = 3,        /* the pool belongs to the parent process */
    VRAMKIT_OUT_OF_MEMORY = 4, /* of the card, the pool's limit, or the host */
    VRAMKIT_DRIVER = 5,        /* a call of the driver failed */
    VRAMKIT_NO_DRIVER = 6      /* there is no driver, or it cannot be used */
} vramkit_status;

/* Status and text of the last call that failed on this thread. The text is valid until the next
 * call fails there. It is never NULL, and empty if no call has failed. */
vramkit_status vramkit_last_status(void);
const char* vramkit_last_error(void);

/* "0.1.0" */
const char* vramkit_version(void);

/* A pool. */

typedef struct vramkit_pool vramkit_pool;

typedef enum vramkit_size_classes {
    VRAMKIT_CLASSES_FINE = 0,        /* multiples of 256 bytes to 2 KiB, then at most 12.5 % more */
    VRAMKIT_CLASSES_POWER_OF_TWO = 1 /* thirteen powers of two up to 1 MiB */
} vramkit_size_classes;

typedef enum vramkit_large {
    VRAMKIT_LARGE_POOL = 0,  /* pooled like all others */
    VRAMKIT_LARGE_DIRECT = 1 /* cuMemAlloc and cuMemFree, which waits for the card */
} vramkit_large;

/* Fill with vramkit_pool_options_init, then change what you want. A changed field that has no
 * effect with the other fields is VRAMKIT_BAD_VALUE. `size` tells later versions which fields a
 * program was built with. */
typedef struct vramkit_pool_options {
    size_t size;                       /* of this struct */
    int device;                        /* ordinal; 0 */
    vramkit_size_classes size_classes; /* fine */
    uint64_t limit;                    /* bytes taken from the driver; 0: what the card has */
    uint64_t thread_cache_max_blocks;  /* free blocks of a class for each thread and stream; 64 */
    uint64_t global_cache_max_blocks;  /* shared free blocks of a class; 1024 */
    uint64_t batch_alloc_count;        /* blocks made or moved at once; 16 */
    uint64_t cache_bytes;              /* free bytes for each thread and stream; 32 MiB */
    uint64_t thread_cache_bytes;       /* ... for each thread; 256 MiB */
    uint64_t alignment;                /* of every block: a power of two, 256 to 65536; 256 */
    uint64_t decay_ms;                 /* idle memory goes back after; 0: never; 10000 */
    uint64_t defrag_interval_ms;       /* between looks at fragmentation; 5000 */
    double defrag_threshold;           /* part of the memory above which it is joined; 0.3 */
    vramkit_large large;               /* blocks above 1 MiB; pool */
    int enable_stats;                  /* count allocations, frees and their bytes; 1 */
    int enable_defrag;                 /* join idle memory in the background; 1 */
    int background;                    /* a thread of the pool does what vramkit_step does; 1 */
    int nvtx;                          /* tell compute-sanitizer what is in use; needs limit; 0 */
} vramkit_pool_options;

void vramkit_pool_options_init(vramkit_pool_options* options);

/* A pool of your own; NULL options: the defaults. NULL on failure. */
vramkit_pool* vramkit_pool_create(const vramkit_pool_options* options);
/* The process-wide pool of a device, made on first use and again after it was closed: the same that
 * Python has as vramkit.Pool.instance(device). Never destroy it. NULL on failure. */
vramkit_pool* vramkit_pool_instance(int device);
/* Gives all memory back; later calls fail with VRAMKIT_CLOSED. Fails while blocks are in use. Twice
 * is harmless. */
vramkit_status vramkit_pool_close(vramkit_pool* pool);
/* Closes the pool and frees the handle. If that fails (blocks in use), the pool is unchanged. NULL
 * is harmless. */
vramkit_status vramkit_pool_destroy(vramkit_pool* pool);

/* Memory. */

/* A block of `bytes` (1 or more) for use in stream order, aligned to 256 or more. If memory is
 * short it waits, first on the GPU, then on the host. NULL on failure. */
void* vramkit_malloc(vramkit_pool* pool, size_t bytes, void* stream);
/* The same, but never waits for work of the card, only for the pool's lock: NULL with
 * VRAMKIT_OUT_OF_MEMORY if no memory is available at once. */
void* vramkit_try_malloc(vramkit_pool* pool, size_t bytes, void* stream);
/* Frees a block at the current point of the stream it was allocated on: all its use must be ordered
 * before. NULL is harmless. */
vramkit_status vramkit_free(vramkit_pool* pool, void* block);
/* ... at the current point of another stream. */
vramkit_status vramkit_free_on(vramkit_pool* pool, void* block, void* stream);
/* The block is used on this stream too: when freed, it is held until the work that the stream has
 * at that point is done. Neither host nor stream waits for that. */
vramkit_status vramkit_also_used_on(vramkit_pool* pool, void* block, void* stream);
/* Makes `count` blocks ready that are large enough for `bytes`. */
vramkit_status vramkit_preallocate(vramkit_pool* pool, size_t bytes, size_t count);
/* Gives idle memory whose work is done back to the driver. Writes the bytes released to `released`,
 * unless that is NULL. */
vramkit_status vramkit_trim(vramkit_pool* pool, uint64_t* released);
/* Waits for the work of idle memory, gives all of it back, and resets the counters. */
vramkit_status vramkit_release_all(vramkit_pool* pool, uint64_t* released);

/* Joins all idle memory into one piece. Writes the bytes moved to `moved`, unless that is NULL. */
vramkit_status vramkit_defragment(vramkit_pool* pool, uint64_t* moved);
/* One round of what the background thread does, for pools without one. */
vramkit_status vramkit_step(vramkit_pool* pool);

/* Call before you destroy a stream that pools were given: they record an event behind their free
 * blocks while the stream lives. All pools of the driver that VRAMKIT_DRIVER names are told, also
 * Python's. Streams of vramkit's Python package and of PyTorch need no call. */
vramkit_status vramkit_stream_closing(void* stream);

/* Sizes in bytes. Fields up to `remapped_bytes` count since the last reset, the others are the
 * current state. */
typedef struct vramkit_stats {
    size_t size; /* of this struct; set by the caller */
    uint64_t total_allocated;
    uint64_t total_freed;
    uint64_t allocation_count;
    uint64_t free_count;
    uint64_t cache_hits; /* served by the thread's own cache */
    uint64_t cache_misses;
    uint64_t stream_cache_hits; /* of the misses: by the stream cache, which its threads share */
    uint64_t idle_hits;         /* ... by idle memory */
    uint64_t cross_stream_hits; /* ... by blocks of other streams whose work was done */
    uint64_t gpu_wait_hits;     /* ... by such blocks after a wait on the GPU */
    uint64_t remap_hits;        /* ... by idle memory joined by remapping */
    uint64_t growth_hits;       /* ... by new memory */
    uint64_t direct_hits;       /* ... by the driver itself */
    uint64_t device_growths;    /* times that memory was taken from the driver */
    uint64_t events_recorded;   /* behind freed blocks, to know when their work is done */
    uint64_t released_bytes;    /* given back to the driver */
    uint64_t remapped_bytes;    /* mapped at a second address to join idle memory */
    uint64_t current_usage;     /* asked for and not freed */
    uint64_t peak_usage;        /* exact to 64 KiB a thread */
    uint64_t reserved;          /* taken from the driver */
    uint64_t peak_reserved;
    uint64_t cached;              /* free, in thread caches */
    uint64_t waiting;             /* free, in stream caches or held */
    uint64_t idle;                /* free for any stream */
    uint64_t fragmentation_bytes; /* free, in pieces below the largest size asked for lately */
    double fragmentation_rate;    /* fragmentation_bytes / mapped bytes */
    uint64_t pieces;              /* handles of the driver */
    uint64_t segments;            /* stretches of contiguous mapped memory */
    uint64_t slabs;
    uint64_t large_blocks;
    uint64_t captures; /* captured streams whose graphs exist */
} vramkit_stats;

/* Set stats->size to sizeof(vramkit_stats) before. */
vramkit_status vramkit_pool_stats(vramkit_pool* pool, vramkit_stats* stats);
vramkit_status vramkit_reset_stats(vramkit_pool* pool);

/* PyTorch: the functions that torch.cuda.memory.CUDAPluggableAllocator loads by name. They use
 * vramkit_pool_instance(device), or the pool that vramkit_torch_use names. PyTorch destroys no
 * streams; for one that was made elsewhere (ExternalStream), call vramkit_stream_closing before it
 * is destroyed. */

/* NULL for 0 bytes. Throws on failure, since PyTorch would use a NULL as an address. A lack of
 * memory is the c10::OutOfMemoryError of the libc10.so in this process, which PyTorch turns into
 * torch.OutOfMemoryError. Anything else, or where that class is not found, is a std::runtime_error:
 * Python's RuntimeError. */
void* vramkit_torch_malloc(ptrdiff_t size, int device, void* stream);
/* Frees at the current point of the stream of the allocation; `size` and `stream` are ignored. */
void vramkit_torch_free(void* block, ptrdiff_t size, int device, void* stream);
/* malloc of a torch.cuda.MemPool. NULL on failure: PyTorch then frees what it caches there and asks
 * again. */
void* vramkit_torch_segment(ptrdiff_t size, int device, void* stream);
/* Tensor.record_stream: vramkit_also_used_on for the pool of the block. */
void vramkit_torch_record_stream(void* block, void* stream);
/* torch.cuda.empty_cache: vramkit_trim of the pools that PyTorch uses. */
void vramkit_torch_empty_cache(void);
/* From now on PyTorch's blocks of this device come from this pool; NULL: from the process-wide one.
 * Blocks that PyTorch already has go back to the pool they came from, so the pool's memory stays
 * valid even if the handle is destroyed. */
vramkit_status vramkit_torch_use(int device, vramkit_pool* pool);
/* 1 if the device has a pool that serves PyTorch; 0 as long as nothing was asked of it. */
int vramkit_torch_is_served(int device);
/* How many calls of vramkit_torch_malloc have failed for lack of memory. */
uint64_t vramkit_torch_failures(int device);

/* CuPy: malloc and free for cupy.cuda.memory.CFunctionAllocator, whose `param` is what
 * vramkit_cupy_create makes. */

typedef struct vramkit_cupy vramkit_cupy;

/* `current_stream` returns the calling thread's stream, as CuPy's own C function does. NULL pool:
 * the process-wide one of the device that CuPy names. The pool must outlive the result. */
vramkit_cupy* vramkit_cupy_create(vramkit_pool* pool, intptr_t (*current_stream)(void));
void vramkit_cupy_destroy(vramkit_cupy* made);
/* NULL on failure. */
void* vramkit_cupy_malloc(void* param, size_t size, int device);
/* Frees at the current point of the stream of the allocation. */
void vramkit_cupy_free(void* param, void* block, int device);

#ifdef __cplusplus
}
#endif

#endif
