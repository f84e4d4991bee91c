// What the C drivers share: options, clock, buffers, the pattern that checks a result, the JSON line.
//
// Every driver of this folder, in whatever language, takes the same flags and prints the same line, one per size:
//   --peer NAME --link NAME --op NAME --sizes 8,64K,16M --seconds 0.4 --touch
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>

enum {
  SIZES_MAX = 64,
  PROBES = 3,               // untimed operations that tell how many warm-ups fit; the first one connects
  WARM_UPS_MAX = 200,       // enough for lazy connections and buffers; more only costs time
  ITERATIONS_MIN = 7,       // a median of fewer says nothing
  ITERATIONS_MAX = 100000,  // bounds the sample arrays; at 1 µs an operation that is 0.1 s
  PATTERN_PERIOD = 8191,    // prime, so a block that lands at the wrong place is noticed; sums stay exact in f32
};

typedef struct {
  const char *peer, *link, *op;
  const char *congestion;  // limits only: TCP_CONGESTION of the sockets, NULL = the machine's default
  int connections;         // limits only: 1 = both ways on one connection, 2 = one connection per direction
  size_t chunk_bytes;      // limits only: most bytes per send or recv call
  double seconds;
  bool touch;
  size_t sizes[SIZES_MAX];
  int sizes_len;
} Options;

static inline size_t parse_size(const char *text) {
  char *end;
  double value = strtod(text, &end);
  if (*end == 'K') value *= 1 << 10;
  if (*end == 'M') value *= 1 << 20;
  if (*end == 'G') value *= 1 << 30;
  return (size_t)value;
}

static inline void parse_sizes(Options *options, const char *list) {
  char *copy = strdup(list), *rest = NULL;
  options->sizes_len = 0;
  for (char *part = strtok_r(copy, ",", &rest); part; part = strtok_r(NULL, ",", &rest)) {
    if (options->sizes_len == SIZES_MAX) break;
    options->sizes[options->sizes_len++] = parse_size(part);
  }
  free(copy);
}

static inline Options parse_options(int argc, char **argv, Options options) {
  if (options.seconds == 0) options.seconds = 0.4;
  for (int i = 1; i < argc; i++) {
    const char *flag = argv[i], *value = i + 1 < argc ? argv[i + 1] : "";
    if (!strcmp(flag, "--touch")) {
      options.touch = true;
      continue;
    }
    if (!strcmp(flag, "--peer")) options.peer = value;
    else if (!strcmp(flag, "--link")) options.link = value;
    else if (!strcmp(flag, "--op")) options.op = value;
    else if (!strcmp(flag, "--sizes")) parse_sizes(&options, value);
    else if (!strcmp(flag, "--seconds")) options.seconds = atof(value);
    else if (!strcmp(flag, "--congestion")) options.congestion = value;
    else if (!strcmp(flag, "--connections")) options.connections = atoi(value);
    else if (!strcmp(flag, "--chunk")) options.chunk_bytes = parse_size(value);
    else {
      fprintf(stderr, "unknown flag %s\n", flag);
      exit(2);
    }
    i++;
  }
  return options;
}

static inline size_t largest_size(const Options *options) {
  size_t largest = 0;
  for (int i = 0; i < options->sizes_len; i++)
    if (options->sizes[i] > largest) largest = options->sizes[i];
  return largest;
}

// CLOCK_MONOTONIC is one clock for all processes of a host, so times of two ranks may be subtracted.
static inline double now_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1e6 + t.tv_nsec * 1e-3;
}

static inline double cpu_us(void) {
  struct rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1e6 + usage.ru_utime.tv_usec + usage.ru_stime.tv_usec;
}

// Aligned to 2 MiB, in transparent huge pages where the machine grants them, and touched: what the best user of a
// peer would hand it.
static inline void *allocate(size_t bytes, int map_flags) {
  const size_t huge = 2 << 20;
  size_t rounded = (bytes + huge - 1) / huge * huge;
  char *base = mmap(NULL, rounded + huge, PROT_READ | PROT_WRITE, map_flags | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) {
    perror("mmap");
    exit(1);
  }
  char *aligned = (char *)(((uintptr_t)base + huge - 1) / huge * huge);
  madvise(aligned, rounded, MADV_HUGEPAGE);
  memset(aligned, 0, rounded);
  return aligned;
}

static inline float pattern(int rank, size_t index) { return (float)(rank + 1) + (float)(index % PATTERN_PERIOD); }

static inline float pattern_sum(int ranks, size_t index) {
  return (float)(ranks * (ranks + 1) / 2) + (float)ranks * (float)(index % PATTERN_PERIOD);
}

static inline void fill(float *buffer, size_t count, float value) {
  for (size_t i = 0; i < count; i++) buffer[i] = value;
}

static inline int clamp_count(double wanted, int min, int max) {
  return wanted < min ? min : wanted > max ? max : (int)wanted;
}

static int compare_doubles(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

// Sorts `samples_us`. The median is what a lull lets through; a peer that loses scheduler ticks has a mean far above
// it, and a quarter of that mean keeps such a run to four times its planned length.
static inline double typical_us(double *samples_us, int count) {
  double sum = 0;
  for (int i = 0; i < count; i++) sum += samples_us[i];
  qsort(samples_us, count, sizeof *samples_us, compare_doubles);
  double median = samples_us[count / 2], bound = sum / count / 4;
  return median > bound ? median : bound;
}

static inline int warm_ups(const Options *options, double op_us) {
  return clamp_count(options->seconds * 0.25e6 / (op_us > 0.01 ? op_us : 0.01), PROBES, WARM_UPS_MAX);
}
static inline int iterations(const Options *options, double op_us) {
  return clamp_count(options->seconds * 1e6 / (op_us > 0.01 ? op_us : 0.01), ITERATIONS_MIN, ITERATIONS_MAX);
}

// Sorts `samples_us`. `cpu_us_per_op` is the sum over all ranks; negative = unknown. `wrong` counts elements.
static inline void report(const Options *options, int ranks, size_t bytes, double *samples_us, int count,
                          double cpu_us_per_op, long wrong) {
  qsort(samples_us, count, sizeof *samples_us, compare_doubles);
  int p99 = (int)(count * 0.99);
  printf("{\"peer\":\"%s\",\"link\":\"%s\",\"op\":\"%s\",\"ranks\":%d,\"bytes\":%zu,\"median_us\":%.3f,\"p99_us\":%.3f,"
         "\"iters\":%d,\"cpu_us_per_op\":%.3f,\"wrong\":%ld,\"touch\":%s}\n",
         options->peer, options->link, options->op, ranks, bytes, samples_us[count / 2],
         samples_us[p99 < count ? p99 : count - 1], count, cpu_us_per_op, wrong, options->touch ? "true" : "false");
  fflush(stdout);
}
