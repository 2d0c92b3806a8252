/* A libnvidia-ml.so.1 for tests: each call reads the script that FAKE_NVML names, and answers what it says.
 *
 * "count N", "0.memory USED TOTAL", "0.uuid TEXT", ...: what card 0 has; what is not named it lacks.
 * "FUNCTION CODE", "0.FUNCTION CODE", "0.error CODE": the call, for card 0, every call for card 0 fails.
 * "hang FUNCTION": the call does not return while that line is there. "xid 0 79": the next event. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OK, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7, TIMEOUT = 10 };
typedef struct { char unused; } card_t;
typedef struct { card_t *device; unsigned long long type, data; unsigned gi, ci; } event_t;
typedef struct { unsigned pid; unsigned long long bytes; unsigned gi, ci; } process_t;
static card_t cards[16];
static int dead; /* a set of events that failed once */
static int told = -1; /* how many lines "xid" were answered, or there before the first set of events */

/* Copies the rest of the n-th line that begins with the words; 0 where there is none. */
static int find(int n, char *rest, const char *format, ...) {
    char key[128], line[256];
    va_list words;
    va_start(words, format);
    vsnprintf(key, sizeof key, format, words);
    va_end(words);
    size_t length = strlen(key);
    FILE *script = fopen(getenv("FAKE_NVML"), "r");
    int found = 0;
    while (script && !found && fgets(line, sizeof line, script))
        if (!strncmp(line, key, length) && strchr(" \n", line[length]) && n-- == 0) {
            line[strcspn(line, "\n")] = 0;
            strcpy(rest, line[length] ? line + length + 1 : "");
            found = 1;
        }
    if (script) fclose(script);
    return found;
}

static int fails(const char *function, int card) {
    char rest[256], hangs[256];
    while (find(0, rest, "hang %s", function)) {
        snprintf(hangs, sizeof hangs, "%s.hangs", getenv("FAKE_NVML"));
        fclose(fopen(hangs, "w"));
        usleep(20000);
    }
    if (card >= 0 && find(0, rest, "%d.error", card)) return atoi(rest);
    if (card >= 0 && find(0, rest, "%d.%s", card, function)) return atoi(rest);
    return find(0, rest, "%s", function) ? atoi(rest) : OK;
}

#define NAMED(card, name)                                      \
    char rest[256];                                            \
    int index = card - cards, code = fails(__func__, index);   \
    if (code) return code;                                     \
    if (!find(0, rest, "%d." name, index)) return NOT_SUPPORTED;

#define NUMBER(function, type, name)                                              \
    int function(card_t *card, type *value) { NAMED(card, name) *value = strtoull(rest, 0, 0); return OK; }

NUMBER(nvmlDeviceGetPowerUsage, unsigned, "power")
NUMBER(nvmlDeviceGetTotalEnergyConsumption, unsigned long long, "energy")
NUMBER(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long, "clocks")

int nvmlDeviceGetClockInfo(card_t *card, int kind, unsigned *megahertz) { /* kind 1: the multiprocessors' */
    NAMED(card, "sm_clock")
    *megahertz = kind == 1 ? atoi(rest) : 0;
    return OK;
}

int nvmlInitWithFlags(unsigned flags) { return fails(__func__, -1); }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) { return "scripted"; }

int nvmlDeviceGetCount_v2(unsigned *count) {
    char rest[256];
    int code = fails(__func__, -1);
    if (!code) *count = find(0, rest, "count") ? atoi(rest) : 0;
    return code;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, card_t **card) {
    *card = cards + index;
    return fails(__func__, index);
}

int nvmlDeviceGetUUID(card_t *card, char *text, unsigned size) {
    NAMED(card, "uuid")
    snprintf(text, size, "%s", rest);
    return OK;
}

int nvmlDeviceGetName(card_t *card, char *text, unsigned size) {
    NAMED(card, "name")
    snprintf(text, size, "%s", rest);
    return OK;
}

int nvmlDeviceGetMemoryInfo(card_t *card, unsigned long long *sizes) { /* total, free, used */
    NAMED(card, "memory")
    sscanf(rest, "%llu %llu", sizes + 2, sizes);
    sizes[1] = sizes[0] - sizes[2];
    return OK;
}

int nvmlDeviceGetUtilizationRates(card_t *card, unsigned *rates) { /* gpu, memory */
    NAMED(card, "utilization")
    rates[0] = rates[1] = atoi(rest);
    return OK;
}

int nvmlDeviceGetTemperature(card_t *card, int sensor, unsigned *degrees) {
    NAMED(card, "temperature")
    *degrees = atoi(rest);
    return OK;
}

int nvmlDeviceGetTotalEccErrors(card_t *card, int is_uncorrected, int is_aggregate, unsigned long long *count) {
    unsigned long long counts[2];
    NAMED(card, "ecc")
    sscanf(rest, "%llu %llu", counts, counts + 1);
    *count = counts[is_uncorrected];
    return OK;
}

int nvmlDeviceGetRemappedRows(card_t *card, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed) {
    NAMED(card, "remap")
    *corrected = *uncorrected = *failed = 0;
    *pending = atoi(rest);
    return OK;
}

int nvmlDeviceGetComputeRunningProcesses_v3(card_t *card, unsigned *count, process_t *found) { /* PID BYTES ... */
    NAMED(card, "processes")
    unsigned room = *count, n = 0;
    char *word = strtok(rest, " ");
    for (; word; word = strtok(0, " "), n++)
        if (n < room) found[n] = (process_t){strtoul(word, 0, 0), strtoull(strtok(0, " "), 0, 0), 0, 0};
        else strtok(0, " ");
    *count = n;
    return n > room ? INSUFFICIENT_SIZE : OK;
}

int nvmlEventSetCreate(int **set) {
    char rest[256];
    *set = &told;
    dead = 0;
    if (told < 0)
        while (find(++told, rest, "xid")) ;
    return fails(__func__, -1);
}

int nvmlEventSetFree(int *set) { return OK; }
int nvmlDeviceRegisterEvents(card_t *card, unsigned long long types, int *set) { NAMED(card, "events") return OK; }

int nvmlEventSetWait_v2(int *set, event_t *event, unsigned wait_ms) {
    char rest[256];
    int card, code = fails(__func__, -1);
    if (code || dead) return dead = code ? code : dead;
    for (unsigned waited = 0; !find(told, rest, "xid"); waited += 10) {
        if (waited >= wait_ms) return TIMEOUT;
        usleep(10000);
    }
    told++;
    *event = (event_t){0, 8, 0, 0, 0};
    sscanf(rest, "%d %llu", &card, &event->data);
    event->device = cards + card;
    return OK;
}
