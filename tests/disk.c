/* A disk with faults, preloaded into a server under test: the folder $DISK_FAULTS says which.
 *
 * sync_ms: milliseconds that every sync takes longer. full: every write to a file below $DISK_FOLDER that needs room
 * fails with ENOSPC. bad_sync: every sync fails with EIO. dies_before: the server is killed before so many more calls of
 * write() to such a file are made, of less than 4096 bytes (what has more makes room), counted from the first that finds it. Each is a file with a number in it, looked at with
 * every call. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static long told(const char *what) {
    const char *folder = getenv("DISK_FAULTS");
    char path[PATH_MAX];
    long number = 0;
    if (folder == NULL) return 0;
    snprintf(path, sizeof path, "%s/%s", folder, what);
    FILE *file = fopen(path, "r");
    if (file == NULL) return 0;
    if (fscanf(file, "%ld", &number) != 1) number = 0;
    fclose(file);
    return number;
}

static int ours(int fd) {
    const char *folder = getenv("DISK_FOLDER");
    char link[64], path[PATH_MAX];
    if (folder == NULL) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    return length >= (ssize_t)strlen(folder) && strncmp(path, folder, strlen(folder)) == 0;
}

/* Whether a write that ends at ``end`` gets no room: what is overwritten has its own. */
static int full(int fd, off_t end) {
    struct stat is;
    int before = errno;
    int none = ours(fd) && told("full") && fstat(fd, &is) == 0 && S_ISREG(is.st_mode) && end > is.st_size;
    errno = none ? ENOSPC : before;
    return none;
}

static int slow(void) {
    long ms = told("sync_ms");
    struct timespec time = {ms / 1000, ms % 1000 * 1000000};
    if (ms > 0) nanosleep(&time, NULL);
    if (!told("bad_sync")) return 0;
    errno = EIO;
    return 1;
}

static size_t total(const struct iovec *parts, int count) {
    size_t size = 0;
    for (int at = 0; at < count; at++) size += parts[at].iov_len;
    return size;
}

#define REAL(type, name, ...) ((type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, name))

int fsync(int fd) { return slow() ? -1 : REAL(int, "fsync", int)(fd); }
int msync(void *at, size_t size, int flags) { return slow() ? -1 : REAL(int, "msync", void *, size_t, int)(at, size, flags); }
int fdatasync(int fd) { return slow() ? -1 : REAL(int, "fdatasync", int)(fd); }

#define PWRITE(name)                                                                                        \
    ssize_t name(int fd, const void *data, size_t size, off_t at) {                                         \
        return full(fd, at + (off_t)size) ? -1 : REAL(ssize_t, #name, int, const void *, size_t, off_t)(fd, data, size, at); \
    }
#define PWRITEV(name)                                                                                       \
    ssize_t name(int fd, const struct iovec *parts, int count, off_t at) {                                  \
        return full(fd, at + (off_t)total(parts, count))                                                    \
                   ? -1                                                                                     \
                   : REAL(ssize_t, #name, int, const struct iovec *, int, off_t)(fd, parts, count, at);     \
    }
#define PWRITEV2(name)                                                                                      \
    ssize_t name(int fd, const struct iovec *parts, int count, off_t at, int flags) {                       \
        return full(fd, at + (off_t)total(parts, count))                                                    \
                   ? -1                                                                                     \
                   : REAL(ssize_t, #name, int, const struct iovec *, int, off_t, int)(fd, parts, count, at, flags); \
    }
PWRITE(pwrite)
PWRITE(pwrite64)
PWRITEV(pwritev)
PWRITEV(pwritev64)
PWRITEV2(pwritev2)
PWRITEV2(pwritev64v2)

static void die(size_t size) {
    static long made;
    long last = told("dies_before");
    if (last > 0 && size < 4096 && ++made == last) kill(getpid(), SIGKILL);
}

ssize_t write(int fd, const void *data, size_t size) {
    ssize_t (*real)(int, const void *, size_t) = REAL(ssize_t, "write", int, const void *, size_t);
    if (ours(fd)) die(size);
    return ours(fd) && full(fd, lseek(fd, 0, SEEK_CUR) + (off_t)size) ? -1 : real(fd, data, size);
}

int posix_fallocate(int fd, off_t at, off_t size) {
    return full(fd, at + size) ? ENOSPC : REAL(int, "posix_fallocate", int, off_t, off_t)(fd, at, size);
}
int posix_fallocate64(int fd, off_t at, off_t size) { return posix_fallocate(fd, at, size); }
