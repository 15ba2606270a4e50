/* cores.c: how many threads compute unless told otherwise.
 *
 * One for each physical core: two on one core share its arithmetic units and its way to memory.  Where cores are of two kinds (Intel's and
 * Apple's), only the fast ones: stages end with their slowest task, and a slow core takes several times as long for one. */
#include "backend/cpu/pool.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#if defined(__APPLE__)
#include <sys/sysctl.h>
#endif

#if defined(__linux__)

/* Keeps those of `usable` that a list such as "0-7,16" names; all, if it names none of them. */
static void keep_listed(const char *list, bool *usable, uint32_t n) {
    bool listed[CPU_SETSIZE] = {false}, any = false;
    unsigned from, to;
    for (int used = 0; sscanf(list, "%u%n", &from, &used) == 1;) {
        list += used;
        to = from;
        if (sscanf(list, "-%u%n", &to, &used) == 1) list += used;
        for (unsigned cpu = from; cpu <= to && cpu < n; cpu++) listed[cpu] = true, any = any || usable[cpu];
        if (*list++ != ',') break;
    }
    for (uint32_t cpu = 0; any && cpu < n; cpu++) usable[cpu] = usable[cpu] && listed[cpu];
}

/* Reads a line of a file; false if there is none. */
static bool read_line(const char *root, const char *path, char *line, int n) {
    char whole[256];
    snprintf(whole, sizeof whole, "%s%s", root, path);
    FILE *f = fopen(whole, "re");
    const bool ok = f && fgets(line, n, f);
    if (f) fclose(f);
    return ok;
}

uint32_t cores_count(const char *root, const bool *usable, uint32_t n) {
    bool mine[CPU_SETSIZE] = {false};
    char line[512], path[128];
    uint32_t cores = 0;
    if (n > CPU_SETSIZE) n = CPU_SETSIZE;
    memcpy(mine, usable, n * sizeof *mine);
    if (read_line(root, "sys/devices/cpu_core/cpus", line, sizeof line)) keep_listed(line, mine, n); /* Intel's fast ones */
    for (uint32_t cpu = 0; cpu < n; cpu++) {
        unsigned first = cpu;
        if (!mine[cpu]) continue;
        snprintf(path, sizeof path, "sys/devices/system/cpu/cpu%u/topology/thread_siblings_list", cpu);
        if (read_line(root, path, line, sizeof line) && sscanf(line, "%u", &first) != 1) first = cpu;
        /* the first sibling counts for its core; a later one only if the first is not ours to use */
        cores += first == cpu || first >= n || !mine[first];
    }
    return cores ? cores : 1;
}

#endif

uint32_t cores_default(void) {
#if defined(__linux__)
    cpu_set_t set;
    bool usable[CPU_SETSIZE] = {false};
    if (!sched_getaffinity(0, sizeof set, &set)) {
        for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) usable[cpu] = CPU_ISSET(cpu, &set);
        return cores_count("/", usable, CPU_SETSIZE);
    } /* the machine has more CPUs than fit */
#elif defined(__APPLE__)
    int cores = 0;
    size_t size = sizeof cores;
    if (!sysctlbyname("hw.perflevel0.physicalcpu", &cores, &size, NULL, 0) && cores > 0) return (uint32_t)cores; /* the fast ones */
#endif
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (uint32_t)online : 1;
}
