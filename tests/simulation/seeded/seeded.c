/* What the system would answer differently in each run follows from a seed here: random bytes, with which also the orders
 * of hash maps and of what tokio polls begin, and the time on the wall. Linked into the program `simulate` alone, where it
 * stands before the C library. Without DROVER_SIMULATION_SEED the system is asked as ever. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <time.h>

/* 2026-01-01T00:00:00Z. From there the clock goes on by a millisecond each time that a thread looks at it. */
#define WALL 1767225600

static long (*system_call)(long, ...);
static int (*system_clock)(clockid_t, struct timespec *);
static int seeded;
static uint64_t seed;
static uint64_t threads;
static __thread int begun;
static __thread uint64_t state;
static __thread long looks;

__attribute__((constructor)) static void begin(void) {
    if (system_call != NULL) {
        return;
    }
    system_clock = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    system_call = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
    const char *text = getenv("DROVER_SIMULATION_SEED");
    if (text != NULL) {
        seed = strtoull(text, NULL, 10);
        seeded = 1;
    }
}

/* splitmix64, one sequence a thread. */
static uint64_t next(void) {
    if (!begun) {
        begun = 1;
        state = seed ^ (__atomic_fetch_add(&threads, 1, __ATOMIC_RELAXED) << 48);
    }
    uint64_t z = (state += 0x9e3779b97f4a7c15ULL);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
}

static ssize_t fill(unsigned char *to, size_t length) {
    for (size_t at = 0; at < length; at += 8) {
        uint64_t random = next();
        memcpy(to + at, &random, length - at < 8 ? length - at : 8);
    }
    return (ssize_t)length;
}

ssize_t getrandom(void *to, size_t length, unsigned flags) {
    begin();
    return seeded ? fill(to, length) : system_call(SYS_getrandom, to, length, flags);
}

/* Some crates do not ask the C library. */
long syscall(long number, ...) {
    begin();
    va_list list;
    long of[6];
    va_start(list, number);
    for (int at = 0; at < 6; at++) {
        of[at] = va_arg(list, long);
    }
    va_end(list);
    if (number == SYS_getrandom && seeded) {
        return fill((unsigned char *)of[0], (size_t)of[1]);
    }
    return system_call(number, of[0], of[1], of[2], of[3], of[4], of[5]);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    begin();
    if (seeded && clock == CLOCK_REALTIME) {
        now->tv_sec = WALL + looks / 1000;
        now->tv_nsec = looks % 1000 * 1000000;
        looks++;
        return 0;
    }
    return system_clock(clock, now);
}
