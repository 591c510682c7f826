/* C99: what each function says of bad input. Prints one line a case; the test compares them. */
#include <stdio.h>
#include <string.h>

#include "vramkit.h"

static void say(const char* what, vramkit_status status) {
    printf("%s: %d %s\n", what, (int)status, status == VRAMKIT_OK ? "" : vramkit_last_error());
}

static void say_last(const char* what, const void* result) {
    say(what, result == NULL ? vramkit_last_status() : VRAMKIT_OK);
}

int main(void) {
    vramkit_pool_options options;
    vramkit_stats stats;
    vramkit_pool* pool;
    char* block;

    printf("version %s, last error '%s'\n", vramkit_version(), vramkit_last_error());

    vramkit_pool_options_init(&options);
    options.limit = 1;
    say_last("limit", vramkit_pool_create(&options));
    vramkit_pool_options_init(&options);
    options.batch_alloc_count = 0;
    say_last("batch", vramkit_pool_create(&options));
    vramkit_pool_options_init(&options);
    options.enable_stats = 5;
    say_last("flag", vramkit_pool_create(&options));
    vramkit_pool_options_init(&options);
    options.enable_defrag = 0;
    options.defrag_threshold = .5;
    say_last("no defrag", vramkit_pool_create(&options));
    vramkit_pool_options_init(&options);
    options.nvtx = 1;
    options.defrag_interval_ms = 1;
    say_last("nothing moves", vramkit_pool_create(&options));
    vramkit_pool_options_init(&options);
    options.cache_bytes = 0;
    options.thread_cache_max_blocks = 3;
    say_last("no cache", vramkit_pool_create(&options));
    vramkit_pool_options_init(&options);
    options.thread_cache_max_blocks = 0;
    options.thread_cache_bytes = (uint64_t)64 << 20;
    say_last("no blocks", vramkit_pool_create(&options));
    vramkit_pool_options_init(&options);
    options.cache_bytes = (uint64_t)1 << 40;
    say_last("cache of a stream", vramkit_pool_create(&options));
    vramkit_pool_options_init(&options);
    options.size_classes = VRAMKIT_CLASSES_POWER_OF_TWO;
    options.alignment = 512;
    say_last("aligned", vramkit_pool_create(&options));
    vramkit_pool_options_init(&options);
    options.nvtx = 1;
    say_last("nvtx", vramkit_pool_create(&options));
    vramkit_pool_options_init(&options);
    options.size = sizeof options + 8;
    say_last("size", vramkit_pool_create(&options));
    vramkit_pool_options_init(&options);
    options.device = 99;
    say_last("device", vramkit_pool_create(&options));
    /* A program built when the struct ended after `device`. */
    memset(&options, 0xff, sizeof options);
    options.size = offsetof(vramkit_pool_options, size_classes);
    options.device = 0;
    pool = vramkit_pool_create(&options);
    say_last("older options", pool);
    say("destroy", vramkit_pool_destroy(pool));

    vramkit_pool_options_init(&options);
    options.limit = 4 << 20;
    pool = vramkit_pool_create(&options);
    say_last("create", pool);
    say_last("0 bytes", vramkit_malloc(pool, 0, NULL));
    say_last("no pool", vramkit_malloc(NULL, 1, NULL));
    say_last("no stream", vramkit_malloc(pool, 1, (void*)0x123450));
    say_last("too much", vramkit_malloc(pool, 8 << 20, NULL));
    say_last("try too much", vramkit_try_malloc(pool, 8 << 20, NULL));
    block = vramkit_malloc(pool, 1000, NULL);
    say_last("malloc", block);
    say("inside", vramkit_free(pool, block + 1));
    say("foreign", vramkit_free(pool, &options));
    say("in use", vramkit_pool_close(pool));
    say("destroy in use", vramkit_pool_destroy(pool));
    stats.size = sizeof stats;
    say("stats", vramkit_pool_stats(pool, &stats));
    printf("usage %d\n", (int)stats.current_usage);
    stats.size = 0;
    say("stats of no size", vramkit_pool_stats(pool, &stats));
    say("free", vramkit_free(pool, block));
    say("free twice", vramkit_free(pool, block));
    say("also used, freed", vramkit_also_used_on(pool, block, NULL));
    say("free NULL", vramkit_free(pool, NULL));
    say("default stream", vramkit_stream_closing(NULL));
    say("close", vramkit_pool_close(pool));
    say("close twice", vramkit_pool_close(pool));
    say_last("malloc closed", vramkit_malloc(pool, 1000, NULL));
    say("free closed", vramkit_free(pool, block));
    say("trim closed", vramkit_trim(pool, NULL));
    say("preallocate closed", vramkit_preallocate(pool, 1000, 1));
    say("defragment closed", vramkit_defragment(pool, NULL));
    say("step closed", vramkit_step(pool));
    say("destroy closed", vramkit_pool_destroy(pool));
    say("destroy NULL", vramkit_pool_destroy(NULL));
    say("destroy instance", vramkit_pool_destroy(vramkit_pool_instance(0)));
    return 0;
}
