/* Loads every module and visits all functions of each; `esker-bench pynamic` writes the table. */
#include <dlfcn.h>
#include <stdio.h>

static const struct {
    const char *library, *entry;
    long functions;
} modules[] = {
MODULES
};

enum { COUNT = sizeof modules / sizeof *modules };

int main(void)
{
    static void *loaded[COUNT];
    long visited = 0;

    for (int at = 0; at < COUNT; at++) {
        loaded[at] = dlopen(modules[at].library, RTLD_NOW | RTLD_LOCAL);
        if (!loaded[at]) {
            fprintf(stderr, "driver: %s\n", dlerror());
            return 1;
        }
    }
    for (int at = 0; at < COUNT; at++) {
        long (*entry)(void) = (long (*)(void))dlsym(loaded[at], modules[at].entry);
        long functions = entry ? entry() : -1;
        if (functions != modules[at].functions) {
            fprintf(stderr, "driver: %s has %ld functions, not %ld\n", modules[at].library, functions,
                    modules[at].functions);
            return 1;
        }
        visited += functions;
    }
    printf("%ld functions of %d modules\n", visited, COUNT);
    return 0;
}
