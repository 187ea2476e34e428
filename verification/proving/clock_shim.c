/* Shifts the wall clock of single processes, for `manage.py prove`: loaded before libc (LD_PRELOAD).

   PROVE_CLOCKS names a folder. Each file in it is named after a word of a process's command line and holds
   eight bytes: the microseconds by which that process's wall clock is off. The file is mapped, so a clock
   can be set while its process runs. Monotonic clocks stay true. */

#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *off_us;

static int has_word(const char *line, ssize_t length, const char *word)
{
    for (ssize_t at = 0; at < length; at += (ssize_t)strlen(line + at) + 1) {
        const char *name = strrchr(line + at, '/');
        if (!strcmp(line + at, word) || (name && !strcmp(name + 1, word))) return 1;
    }
    return 0;
}

/* words: those of the command line, each with a 0 at its end. Also called by a process that was forked without an
   exec, and has the words of another. */
void find_clock_of(const char *words, size_t length)
{
    const char *folder = getenv("PROVE_CLOCKS");
    static char line[65536];
    DIR *names = folder && length < sizeof line ? opendir(folder) : NULL;
    if (!names) return;
    memcpy(line, words, length);
    line[length] = 0;
    for (size_t at = 0; at < length; at++)
        if (line[at] == ',') line[at] = 0; /* --queues callbacks,workflows has both words */
    for (struct dirent *entry; !off_us && (entry = readdir(names));) {
        char path[4096];
        if (entry->d_name[0] == '.' || !has_word(line, (ssize_t)length, entry->d_name)) continue;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        int file = open(path, O_RDONLY);
        if (file < 0) continue;
        void *mapped = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
        close(file);
        if (mapped != MAP_FAILED) off_us = mapped;
    }
    closedir(names);
}

__attribute__((constructor)) static void find_clock(void)
{
    static char line[65535];
    int file = getenv("PROVE_CLOCKS") ? open("/proc/self/cmdline", O_RDONLY) : -1;
    if (file < 0) return;
    ssize_t length = read(file, line, sizeof line);
    close(file);
    if (length > 0) find_clock_of(line, (size_t)length);
}

int clock_gettime(clockid_t id, struct timespec *at)
{
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int status = real(id, at);
    if (status == 0 && off_us && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) {
        int64_t ns = at->tv_nsec + *off_us % 1000000 * 1000;
        at->tv_sec += *off_us / 1000000 + (ns >= 1000000000) - (ns < 0);
        at->tv_nsec = (ns + 1000000000) % 1000000000;
    }
    return status;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone)
{
    struct timespec now;
    (void)zone;
    int status = clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return status;
}

time_t time(time_t *at)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}
