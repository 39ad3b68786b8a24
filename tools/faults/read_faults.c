/* Preloaded: reads of files below a folder fail with EIO, or return fewer bytes than they could.

   All processes share the plan, which is a mapped file: see `Plan` in read_errors.py. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PATHS = 1024 };

struct plan {
    _Atomic long first; /* number of the first read that is hit */
    _Atomic long last;  /* number of the last one */
    _Atomic long is_short;
    _Atomic long whole_file; /* later reads of the same file are hit, too */
    _Atomic long seen;
    _Atomic long fired;
    _Atomic long has_file;
    char folder[PATHS];
    char file[PATHS];
};

static struct plan *plan;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("UNISTORE_READ_FAULTS");
    int file = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (file < 0)
        return;
    void *mapped = mmap(NULL, sizeof *plan, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    plan = mapped == MAP_FAILED ? NULL : mapped;
    close(file);
}

/* Whether the next read of a descriptor is hit. */
static int is_hit(int descriptor) {
    char link[64], path[PATHS];
    if (!plan || !plan->folder[0])
        return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length <= 0)
        return 0;
    path[length] = 0;
    if (strncmp(path, plan->folder, strlen(plan->folder)))
        return 0;
    long number = plan->seen++;
    int hit = number >= plan->first && number <= plan->last;
    if (hit && plan->whole_file && !plan->has_file) {
        strcpy(plan->file, path);
        plan->has_file = 1;
    }
    return hit || (plan->has_file && !strcmp(path, plan->file));
}

/* Bytes to read of `count`; -1 if the read fails. */
static ssize_t allowed(int descriptor, size_t count) {
    if (count == 0 || !is_hit(descriptor))
        return count;
    if (plan->is_short && count < 2)
        return count;
    plan->fired++;
    if (plan->is_short)
        return 1 + plan->seen * 7919 % (count - 1);
    errno = EIO;
    return -1;
}

ssize_t read(int descriptor, void *buffer, size_t count) {
    static ssize_t (*original)(int, void *, size_t);
    if (!original)
        original = dlsym(RTLD_NEXT, "read");
    ssize_t length = allowed(descriptor, count);
    return length < 0 ? -1 : original(descriptor, buffer, length);
}

ssize_t pread64(int descriptor, void *buffer, size_t count, off64_t offset) {
    static ssize_t (*original)(int, void *, size_t, off64_t);
    if (!original)
        original = dlsym(RTLD_NEXT, "pread64");
    ssize_t length = allowed(descriptor, count);
    return length < 0 ? -1 : original(descriptor, buffer, length, offset);
}

ssize_t pread(int descriptor, void *buffer, size_t count, off_t offset) {
    return pread64(descriptor, buffer, count, offset);
}

/* Streams of the C library read without calling `read` above. */
size_t fread(void *buffer, size_t size, size_t count, FILE *stream) {
    static size_t (*original)(void *, size_t, size_t, FILE *);
    if (!original)
        original = dlsym(RTLD_NEXT, "fread");
    if (size != 0 && count != 0 && is_hit(fileno(stream)) && !plan->is_short) {
        plan->fired++;
        errno = EIO;
        return 0;
    }
    return original(buffer, size, count, stream);
}
