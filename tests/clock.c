/* A clock that is wrong, preloaded into a server under test. The time of day moves on once in $CLOCK_STEP_MS milliseconds, so that
 * what happens in between happens at one time; or it is ahead by the milliseconds that stand in the file $CLOCK_AHEAD, eight bytes
 * of this machine's order, which may change. Clocks that measure how long something takes go on as they do. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long long ahead(void) {
    static volatile long long *milliseconds = NULL;
    static int known = 0;
    if (!known) {
        const char *path = getenv("CLOCK_AHEAD");
        int fd = path != NULL ? open(path, O_RDONLY) : -1;
        if (fd >= 0) {
            void *mapped = mmap(NULL, sizeof(long long), PROT_READ, MAP_SHARED, fd, 0);
            if (mapped != MAP_FAILED) milliseconds = mapped;
            close(fd);
        }
        known = 1;
    }
    return milliseconds != NULL ? *milliseconds * 1000000LL : 0;
}

static long long stepped(long long nanoseconds) {
    static long long step = 0;
    if (step == 0) {
        const char *given = getenv("CLOCK_STEP_MS");
        step = given != NULL && atoll(given) > 0 ? atoll(given) * 1000000LL : 1;
    }
    return nanoseconds - nanoseconds % step;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *) = NULL;
    if (real == NULL) real = dlsym(RTLD_NEXT, "clock_gettime");
    int found = real(clock, now);
    if (found == 0 && clock == CLOCK_REALTIME) {
        long long at = stepped(now->tv_sec * 1000000000LL + now->tv_nsec + ahead());
        now->tv_sec = at / 1000000000LL;
        now->tv_nsec = at % 1000000000LL;
    }
    return found;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec found;
    (void) zone;
    if (clock_gettime(CLOCK_REALTIME, &found) != 0) return -1;
    now->tv_sec = found.tv_sec;
    now->tv_usec = found.tv_nsec / 1000;
    return 0;
}
