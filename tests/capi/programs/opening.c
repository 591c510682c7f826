/* C99: opens the driver that the environment names, twice, and says what the card has, in the words
 * of a request that fails. */
#include <stdio.h>
#include <string.h>

#include "vramkit.h"

static void attempt(void) {
    vramkit_pool* pool = vramkit_pool_create(NULL);
    if (pool == NULL) {
        printf("%d %s\n", (int)vramkit_last_status(), vramkit_last_error());
        return;
    }
    printf("0 ");
    vramkit_malloc(pool, (size_t)1 << 40, NULL);
    printf("%s\n", strstr(vramkit_last_error(), "The card has"));
    vramkit_pool_destroy(pool);
}

int main(void) {
    attempt();
    attempt();
    return 0;
}
